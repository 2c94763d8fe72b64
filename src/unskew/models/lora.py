"""LoRA adapters (Hu et al., ICLR 2022): a product of two small matrices that is trained in addition to a
layer, which stays as it is.

    y = W x + b + (alpha / r) B A x,    A: r rows, drawn as nn.Linear draws;  B: 0

For a convolution A is one with the layer's kernel, stride and padding and r maps, and B one of 1×1. In a
layer with standardised weights, W + (alpha / r) B A is standardised. The layer itself is changed, so that its
weights keep their names; `lora_a`, `lora_b` and `lora_scale` are added to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unskew.errors import UserError
from unskew.models.standardised import StandardisedConv2d, StandardisedLinear, standardise
from unskew.types import Tensors


class LoraLinear(nn.Linear):
    """A linear layer with an adapter."""

    lora_a: Tensor
    lora_b: Tensor
    lora_scale: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.lora_scale * F.linear(F.linear(x, self.lora_a), self.lora_b)


class LoraConv2d(nn.Conv2d):
    """A convolution with an adapter."""

    lora_a: Tensor
    lora_b: Tensor
    lora_scale: Tensor

    def forward(self, x: Tensor) -> Tensor:
        narrow = self._conv_forward(x, self.lora_a, None)
        return super().forward(x) + self.lora_scale * F.conv2d(narrow, self.lora_b)


class LoraStandardisedLinear(StandardisedLinear):
    """A linear layer with standardised weights and an adapter."""

    lora_a: Tensor
    lora_b: Tensor
    lora_scale: Tensor

    def standardised(self) -> Tensor:
        return standardise(_with_product(self), self.scale)


class LoraStandardisedConv2d(StandardisedConv2d):
    """A convolution with standardised weights and an adapter."""

    lora_a: Tensor
    lora_b: Tensor
    lora_scale: Tensor

    def standardised(self) -> Tensor:
        return standardise(_with_product(self), self.scale)


def _with_product(layer: LoraStandardisedLinear | LoraStandardisedConv2d) -> Tensor:
    product = layer.lora_b.flatten(1) @ layer.lora_a.flatten(1)
    return layer.weight + layer.lora_scale * product.view_as(layer.weight)


PARTS = ("lora_a", "lora_b", "lora_scale")
KINDS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: LoraLinear,
    nn.Conv2d: LoraConv2d,
    StandardisedLinear: LoraStandardisedLinear,
    StandardisedConv2d: LoraStandardisedConv2d,
}


def can_adapt(layer: nn.Module) -> bool:
    """Say whether a layer can have an adapter: a linear layer or convolution, plain or with standardised
    weights. A layer of a class derived from these cannot, since its weights may be used elsewhere, nor can a
    depthwise convolution."""
    return type(layer) in KINDS and getattr(layer, "groups", 1) == 1


def add_adapter(layer: nn.Module, rank: int, alpha: float) -> None:
    """Give a layer an adapter, which changes no output until it is trained."""
    weight = layer.get_parameter("weight")
    outputs, inputs, *kernel = weight.shape
    a = torch.empty(rank, inputs, *kernel, dtype=weight.dtype)
    nn.init.kaiming_uniform_(a, a=math.sqrt(5))
    b = torch.zeros(outputs, rank, *(1 for _ in kernel), dtype=weight.dtype)
    layer.lora_a, layer.lora_b = nn.Parameter(a), nn.Parameter(b)
    # A parameter that is not trained: it is kept with the weights, and not sent.
    scale = torch.tensor(alpha / rank, dtype=weight.dtype)
    layer.lora_scale = nn.Parameter(scale, requires_grad=False)
    layer.__class__ = KINDS[type(layer)]


def is_adapter(name: str) -> bool:
    """Say whether a tensor of this name is part of an adapter."""
    return name.rpartition(".")[2] in PARTS


def merge_adapters(tensors: Tensors, own: Mapping[str, Tensor]) -> Tensors:
    """Return the tensors with adapters added to the weights of their layers if the model has no such adapter,
    or has it with another rank. Adapters that the model has keep their effect, whatever scale the model's own
    have."""
    merged = dict(tensors)
    for name in tensors:
        layer = name.removesuffix(".lora_a")
        parts = [f"{layer}.{part}" for part in PARTS]
        if not name.endswith(".lora_a") or f"{layer}.weight" not in tensors:
            continue
        try:
            a, b, scale = (merged.pop(part) for part in parts)
            if name in own and own[name].shape == a.shape:
                own_scale = own[f"{layer}.lora_scale"].detach()
                merged |= dict(zip(parts, (a, b * (scale / own_scale).to(b.dtype), own_scale), strict=True))
                continue
            weight = tensors[f"{layer}.weight"]
            product = b.flatten(1).double() @ a.flatten(1).double() * scale.double()
            merged[f"{layer}.weight"] = weight + product.view(weight.shape).to(weight.dtype)
        except (KeyError, RuntimeError):
            raise UserError(
                f"the adapter of '{layer}' in these weights does not fit its layer: make them again."
            ) from None
    return merged
