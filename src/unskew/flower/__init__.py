"""Label-skew methods on Flower, at three depths.

In an existing app: use `loss` in the training loop of a ClientApp, `class_counts` in its evaluation, and
`classwise` in any strategy of the ServerApp. The first two need only PyTorch. Any method in an app of your
own: its nodes call `train`, its server uses `strategy`. A whole app: `client_app` and `server_app`, as
`unskew flower init` writes it.
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
"""The modules of the names that need Flower and all of unskew. They are imported on first use."""

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
    """Raise a UserError that says how to install Flower if it is missing."""
    if importlib.util.find_spec("flwr") is None:
        raise UserError("Flower is not here: install it with pip install 'unskew[flower]'.")
