"""Functions that several server rules share."""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.types import Params, ServerState, Updates, Weights


def weighted_sum(rows: Params, weight: Tensor) -> Params:
    """Return the sum over the clients (axis 0) of their rows, each times the client's weight."""
    return {name: torch.tensordot(weight.to(value), value, dims=1) for name, value in rows.items()}


def equal_mean(updates: Updates) -> Params:
    """Return the mean update, in which every client counts alike."""
    return {name: value.mean(dim=0) for name, value in updates.delta.items()}


def combine_equally(state: ServerState, updates: Updates) -> Params:
    """Combine updates as a server does in which every client counts alike."""
    return equal_mean(updates)


def participation(updates: Updates) -> float:
    """Return the cohort's clients as a share of all clients that have data."""
    return len(updates.weight) / updates.holders


def squared_norms(rows: Params) -> Tensor:
    """Return each client's squared norm over all its tensors, float64 [m]."""
    return torch.stack(
        [value.reshape(len(value), -1).square().sum(1).double() for value in rows.values()]
    ).sum(0)


def scaled_rows(rows: Params, scale: Tensor) -> Params:
    """Multiply each client's rows by the client's own factor."""
    return {name: scale.to(value).view(-1, *[1] * (value.ndim - 1)) * value for name, value in rows.items()}


def blend(first: Weights, second: Weights, share: float) -> Weights:
    """Return a model on the line from the first (share 0) to the second (share 1). Counters are the
    second's."""

    def between(one: Tensor, other: Tensor) -> Tensor:
        return one.lerp(other, share) if other.is_floating_point() else other

    return Weights(
        {name: between(first.params[name], value) for name, value in second.params.items()},
        {name: between(first.buffers[name], value) for name, value in second.buffers.items()},
    )
