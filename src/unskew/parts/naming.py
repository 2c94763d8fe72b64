"""Models and sets of parameters inside the flat dictionaries that clients and servers keep."""

from __future__ import annotations

import torch

from unskew.types import Params, Tensors, Weights


def under(prefix: str, params: Params) -> Tensors:
    """Put the prefix before the name of every tensor."""
    return {f"{prefix}/{name}": value for name, value in params.items()}


def zeros(prefix: str, weights: Weights) -> Tensors:
    """Return zeros of the shapes of a model's parameters, under the prefix."""
    return under(prefix, {name: torch.zeros_like(value) for name, value in weights.params.items()})


def select(prefix: str, tensors: Tensors) -> Tensors:
    """Return the tensors whose names begin with the prefix."""
    return {name: value for name, value in tensors.items() if name.startswith(f"{prefix}/")}


def taken(prefix: str, tensors: Tensors) -> Params:
    """Return the tensors whose names begin with the prefix, with the prefix taken off."""
    return {name.removeprefix(f"{prefix}/"): value for name, value in select(prefix, tensors).items()}


def packed(prefix: str, weights: Weights) -> Tensors:
    """Put a model's parameters and buffers under the prefix, in one dictionary."""
    return under(f"{prefix}/params", weights.params) | under(f"{prefix}/buffers", weights.buffers)


def unpacked(prefix: str, tensors: Tensors) -> Weights:
    """Return the model that `packed` put under the prefix."""
    return Weights(taken(f"{prefix}/params", tensors), taken(f"{prefix}/buffers", tensors))
