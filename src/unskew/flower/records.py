"""Tensors by name in Flower's records, and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import Array, ArrayRecord

from unskew.errors import UserError
from unskew.types import Tensors, Weights

PARAMS, BUFFERS, FROZEN = "params/", "buffers/", "frozen/"


def to_record(tensors: Tensors) -> ArrayRecord:
    """Named tensors as a record, in their order."""
    try:
        return ArrayRecord({name: Array(value.detach().cpu().numpy()) for name, value in tensors.items()})
    except TypeError as error:
        raise UserError(
            f"a tensor cannot be sent ({error}): use a type that NumPy has, such as float32."
        ) from None


def from_record(record: Mapping[str, Array]) -> Tensors:
    """The tensors of a record, in memory of their own: kernels may go by the address of what they read."""
    return {name: torch.from_numpy(np.asarray(array.numpy())).clone() for name, array in record.items()}


def under(prefix: str, tensors: Tensors) -> Tensors:
    """Tensors under names with a prefix."""
    return {f"{prefix}{name}": value for name, value in tensors.items()}


def within(prefix: str, tensors: Tensors) -> Tensors:
    """The tensors whose names have a prefix, under their names without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def packed(weights: Weights) -> Tensors:
    """A model as named tensors."""
    return under(PARAMS, weights.params) | under(BUFFERS, weights.buffers)


def unpacked(tensors: Tensors) -> Weights:
    """The model that `packed` made tensors of."""
    return Weights(within(PARAMS, tensors), within(BUFFERS, tensors))


def in_order(tensors: Tensors, like: Tensors) -> Tensors:
    """Put tensors into the order of others, where they have the same names: sums over all of them depend on
    it."""
    return {name: tensors[name] for name in like} if tensors.keys() == like.keys() else tensors
