"""The losses of methods that change nothing but a client's training, by the method's name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from unskew import losses
from unskew.errors import UserError, require, unknown
from unskew.losses.arguments import ClassCounts, check_tensor, counts_tensor

COUNTS, NET, NO_TEACHER = "counts", "net", "no teacher"

LOSSES: dict[str, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    "class-balanced": (losses.ClassBalancedLoss, (COUNTS,)),
    "feddkd": (losses.FedDKDLoss, (NET,)),
    "fedekd": (losses.FedKDLoss, (NET, COUNTS)),
    "fedkd": (losses.FedKDLoss, (NET,)),
    "fedlc": (losses.FedLCLoss, (COUNTS,)),
    "fedlmd": (losses.FedLMDLoss, (COUNTS, NET)),
    "fedlmd-tf": (losses.FedLMDLoss, (COUNTS, NO_TEACHER)),
    "fedntd": (losses.FedNTDLoss, (NET,)),
    "fedntd-tf": (losses.FedNTDLoss, (NO_TEACHER,)),
    "fedprox": (losses.FedProxLoss, (NET,)),
    "fedrs": (losses.FedRSLoss, (COUNTS,)),
    "fedvls": (losses.FedVLSLoss, (COUNTS, NET)),
    "focal": (losses.FocalLoss, ()),
    "logit-adjustment": (losses.CalibratedLoss, (COUNTS,)),
}
"""The loss modules by the names of their methods, with the positional arguments of each."""


class ClientLoss(nn.Module):
    """The loss of one client in one round, called as `loss(logits, labels, inputs)` for every method."""

    def __init__(self, module: nn.Module, classes: int) -> None:
        super().__init__()
        self.module, self.classes = module, classes
        self._takes_inputs = len(inspect.signature(module.forward).parameters) > 2

    def forward(self, logits: Tensor, labels: Tensor, *inputs: Any) -> Tensor:
        check_tensor("logits", logits)
        if logits.ndim == 2 and logits.shape[1] != self.classes:
            raise UserError(
                f"counts has {self.classes} numbers, where the model tells {logits.shape[1]} classes apart: "
                f"pass one count per class, such as losses.counts_of(loader, classes={logits.shape[1]})."
            )
        value: Tensor = self.module(logits, labels, *(inputs if self._takes_inputs else ()))
        return value


def loss(name: str, counts: ClassCounts, net: nn.Module, **options: Any) -> ClientLoss:
    """Return the loss of a method for one client and one round. Call it as `loss(logits, labels, inputs)`.

    `counts` says how many samples of each class the client has, one number per class
    (`losses.counts_of(loader, classes=10)`). `net` is the model as received: make the loss after its weights
    have been loaded and before it is trained. If the method has a teacher, the loss keeps a frozen copy of
    `net`. Options are those of the module in `unskew.losses`, with the method's defaults.
    """
    if name not in LOSSES:
        raise unknown("loss", name, LOSSES)
    require(isinstance(net, nn.Module), f"net is a {type(net).__name__}: pass the model, a torch.nn.Module.")
    held = counts_tensor(counts)
    if held.ndim != 1 or not len(held):
        raise UserError(f"the shape of counts is {tuple(held.shape)}: pass one count per class.")
    module, parts = LOSSES[name]
    keywords = inspect.signature(module).parameters.values()
    known = [keyword.name for keyword in keywords if keyword.kind is keyword.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise unknown(f"option of {name}", option, known)
    given = {COUNTS: held, NET: net, NO_TEACHER: None}
    return ClientLoss(module(*(given[part] for part in parts), **options), len(held))
