"""Label-skew methods on Flower, at three depths.

In an app that there is already: `loss` goes into the training loop of a ClientApp, `class_counts` into its
evaluation, `classwise` into any strategy of the ServerApp; the first two need PyTorch alone. Any method in an
app of one's own: `train` is what its nodes do, `strategy` is its server. A whole app:
`client_app` and `server_app`, which `unskew flower init` writes down.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from unskew.errors import UserError
from unskew.flower.evaluation import class_counts, classwise
from unskew.flower.objective import ClientLoss, loss

if TYPE_CHECKING:
    from unskew.flower.app import client_app, server_app
    from unskew.flower.client import train
    from unskew.flower.unskew_strategy import strategy

LATER = {
    "client_app": "app",
    "server_app": "app",
    "strategy": "unskew_strategy",
    "train": "client",
}
"""What needs Flower, and all of unskew, when it is asked for."""

__all__ = [
    "ClientLoss",
    "class_counts",
    "classwise",
    "client_app",
    "loss",
    "server_app",
    "strategy",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module 'unskew.flower' has no attribute '{name}'")
    need_flower()
    return getattr(importlib.import_module(f"unskew.flower.{LATER[name]}"), name)


def need_flower() -> None:
    """Say how to install Flower where it is not here."""
    if importlib.util.find_spec("flwr") is None:
        raise UserError("Flower is not here: install it with pip install 'unskew[flower]'.")
