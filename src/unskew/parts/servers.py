"""What several server rules share."""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.types import Params, Updates, Weights


def weighted_sum(rows: Params, weight: Tensor) -> Params:
    """Over the clients, which are axis 0."""
    return {name: torch.tensordot(weight.to(value), value, dims=1) for name, value in rows.items()}


def equal_mean(updates: Updates) -> Params:
    """The mean update, every client alike."""
    return {name: value.mean(dim=0) for name, value in updates.delta.items()}


def squared_norms(rows: Params) -> Tensor:
    """Each client's squared norm over all its tensors, float64 [m]."""
    return torch.stack([value.flatten(1).square().sum(1).double() for value in rows.values()]).sum(0)


def blend(first: Weights, second: Weights, share: float) -> Weights:
    """From the first model (share 0) to the second (share 1). Counters are the second's."""

    def between(one: Tensor, other: Tensor) -> Tensor:
        return one.lerp(other, share) if other.is_floating_point() else other

    return Weights(
        {name: between(first.params[name], value) for name, value in second.params.items()},
        {name: between(first.buffers[name], value) for name, value in second.buffers.items()},
    )
