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
    """Return named tensors as a record, in their order."""
    try:
        return ArrayRecord({name: Array(value.detach().cpu().numpy()) for name, value in tensors.items()})
    except TypeError as error:
        raise UserError(
            f"a tensor cannot be sent ({error}): use a type that NumPy has, such as float32."
        ) from None


def from_record(record: Mapping[str, Array]) -> Tensors:
    """Return the tensors of a record, copied: how a kernel computes may depend on where its input lies."""
    return {name: torch.from_numpy(np.asarray(array.numpy())).clone() for name, array in record.items()}


def with_prefix(prefix: str, tensors: Tensors) -> Tensors:
    """Put a prefix before the names of all tensors."""
    return {f"{prefix}{name}": value for name, value in tensors.items()}


def without_prefix(prefix: str, tensors: Tensors) -> Tensors:
    """Return the tensors whose names have a prefix, under their names without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def pack(weights: Weights) -> Tensors:
    """Return a model as named tensors."""
    return with_prefix(PARAMS, weights.params) | with_prefix(BUFFERS, weights.buffers)


def unpack(tensors: Tensors) -> Weights:
    """Return the model whose tensors `pack` has returned."""
    return Weights(without_prefix(PARAMS, tensors), without_prefix(BUFFERS, tensors))


def in_order_of(tensors: Tensors, like: Tensors) -> Tensors:
    """Return tensors in the order of others that have the same names, since sums over all tensors depend on
    the order. Tensors with other names are returned as they are."""
    return {name: tensors[name] for name in like} if tensors.keys() == like.keys() else tensors
