"""The last linear layer, for methods that exchange it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils.parametrize import is_parametrized

from unskew.errors import UserError
from unskew.models import last_linear
from unskew.types import Out, Params, View

NO_HEAD = "this method needs a model that ends in a linear layer: choose another model."
FROZEN_HEAD = "this method trains the model's last layer, but this one is frozen: let it be trained."
COMPUTED_HEAD = (
    "this method exchanges the weights of the model's last layer, but this one computes them from others: "
    "choose a plain linear layer."
)
UNFIT = (
    "this method needs a model whose logits are a linear layer of its features: let the model return logits "
    "alone, or its last layer's input as features."
)


def _close(answer: Tensor, logits: Tensor) -> bool:
    """Say whether both are the same up to the rounding of the lowest precision in which a model computes."""
    largest = float(logits.nan_to_num().abs().amax()) if logits.numel() else 0.0
    return torch.allclose(answer, logits, rtol=1e-3, atol=1e-3 + largest / 50, equal_nan=True)


def check_features(view: View) -> None:
    """Refuse a model whose last layer does not compute this view's logits from its features."""
    try:
        answer = view.classify(view.out.features)
    except RuntimeError:  # features of another width
        raise UserError(UNFIT) from None
    if not _close(answer, view.out.logits):
        raise UserError(UNFIT)


@dataclass(frozen=True)
class Head:
    """The layer that computes the logits from the features, by the names of its weights."""

    weight: str
    bias: str | None
    features: int
    """The number of its inputs."""
    parametrized: bool = False
    """Whether its weights are computed from others, as torch.nn.utils.parametrize does."""

    @property
    def names(self) -> list[str]:
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def check_plain(self) -> None:
        """Refuse a layer whose weights cannot be exchanged."""
        if self.parametrized:
            raise UserError(COMPUTED_HEAD)

    def __call__(self, params: Params, features: Tensor) -> Tensor:
        self.check_plain()
        if not set(self.names) <= params.keys():
            raise UserError(FROZEN_HEAD)
        return linear(features, params[self.weight], params[self.bias] if self.bias else None)

    def check(self, params: Params, out: Out) -> None:
        """Refuse a model whose logits are not computed from its features by this layer."""
        if out.features.shape[1] != self.features or not _close(self(params, out.features), out.logits):
            raise UserError(UNFIT)


def find_head(module: nn.Module, classes: int) -> Head:
    """Find the layer that computes the logits, or refuse a model that does not end in a linear layer."""
    name = last_linear(module, classes)
    layer = None if name is None else module.get_submodule(name)
    if not isinstance(layer, nn.Linear):
        raise UserError(NO_HEAD)
    prefix = f"{name}." if name else ""
    bias = None if layer.bias is None else f"{prefix}bias"
    return Head(f"{prefix}weight", bias, layer.in_features, is_parametrized(layer))


def resize_head(module: nn.Module, classes: int, outputs: int) -> nn.Module:
    """Return the module with a fresh last layer of `outputs` logits in place of its own of `classes`. It is
    changed in place unless it is that layer itself."""
    head = find_head(module, classes)
    fresh = nn.Linear(head.features, outputs, bias=head.bias is not None)
    name = head.weight.removesuffix("weight").removesuffix(".")
    if not name:  # the module is that layer
        return fresh
    module.set_submodule(name, fresh)
    return module
