"""Models and sets of parameters inside the flat dictionaries that clients and servers keep."""

from __future__ import annotations

from unskew.types import Params, Tensors, Weights


def under(prefix: str, params: Params) -> Tensors:
    """Tensors by name, each name begun with the prefix."""
    return {f"{prefix}/{name}": value for name, value in params.items()}


def select(prefix: str, tensors: Tensors) -> Tensors:
    """The tensors whose names begin with the prefix."""
    return {name: value for name, value in tensors.items() if name.startswith(f"{prefix}/")}


def taken(prefix: str, tensors: Tensors) -> Params:
    """The tensors whose names begin with the prefix, without it."""
    return {name.removeprefix(f"{prefix}/"): value for name, value in select(prefix, tensors).items()}


def packed(prefix: str, weights: Weights) -> Tensors:
    """A whole model, parameters and buffers."""
    return under(f"{prefix}/params", weights.params) | under(f"{prefix}/buffers", weights.buffers)


def unpacked(prefix: str, tensors: Tensors) -> Weights:
    return Weights(taken(f"{prefix}/params", tensors), taken(f"{prefix}/buffers", tensors))
