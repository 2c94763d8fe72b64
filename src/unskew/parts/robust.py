"""Functions that server rules share if they trust no single client.

A client's row is sound if its values are finite and its norm is within float32; other rows count in no rule.
Nothing here waits for a device.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from unskew.errors import require
from unskew.parts.servers import squared_norms
from unskew.types import Params, Tensors, Updates


def check_fraction(fraction: float) -> None:
    """Refuse a share of bad clients that no rule withstands."""
    require(0 <= fraction < 0.5, f"fraction is {fraction} but should be at least 0 and below 0.5.")


def bad_clients(fraction: float, clients: Tensor) -> Tensor:
    """Return how many of these clients may be bad: the fraction of them, rounded down."""
    return (clients * fraction + 1e-9).floor().long()


def sound_rows(rows: Params) -> Tensor:
    """Say which clients' rows are finite, bool [m]."""
    return squared_norms(rows).isfinite()


def without_unsound(rows: Params, sound: Tensor) -> Params:
    """Return the rows with zeros in place of those that are not sound. Zero times NaN would be NaN."""
    return {name: torch.where(_along(sound, value), value, 0.0) for name, value in rows.items()}


def mean_of_rows(rows: Params, chosen: Tensor) -> Params:
    """Return the plain mean of the chosen clients' rows, 0 if none is chosen. `chosen` is bool [m]."""
    count = chosen.sum().clamp(min=1)
    return {name: value.sum(dim=0) / count for name, value in without_unsound(rows, chosen).items()}


def median(value: Tensor, sound: Tensor) -> Tensor:
    """Return the median of the sound rows by coordinate: for an even number the mean of the two in the
    middle, and 0 if no row is sound."""
    ascending, n = _ascending(value, sound), sound.sum()
    low, high = (ascending.index_select(0, at.clamp(min=0)[None])[0] for at in ((n - 1) // 2, n // 2))
    return torch.where(n > 0, low / 2 + high / 2, 0.0)


def trimmed_mean(value: Tensor, sound: Tensor, fraction: float) -> Tensor:
    """Return the mean of the sound rows by coordinate, without the fraction of largest and the fraction of
    smallest values."""
    ascending, n = _ascending(value, sound), sound.sum()
    cut, place = bad_clients(fraction, n), torch.arange(len(value), device=value.device)
    kept = (place >= cut) & (place < n - cut)
    return torch.where(_along(kept, value), ascending, 0.0).sum(dim=0) / (n - 2 * cut).clamp(min=1)


def _ascending(value: Tensor, sound: Tensor) -> Tensor:
    """Sort the values by coordinate in ascending order. Those of rows that are not sound come last, as
    NaN."""
    return torch.where(_along(sound, value), value, math.nan).sort(dim=0).values


def _along(mask: Tensor, value: Tensor) -> Tensor:
    return mask.view(-1, *[1] * (value.ndim - 1))


def squared_distances(rows: Params, sound: Tensor) -> Tensor:
    """Return the squared distances between the clients' rows over all tensors, float64 [m, m]. They are
    infinite from and to a row that is not sound, and 0 from each row to itself."""
    flat = [value.reshape(len(value), -1) for value in without_unsound(rows, sound).values()]
    products = torch.stack([(value @ value.T).double() for value in flat]).sum(0)
    norms = products.diagonal()
    distances = (norms[:, None] + norms - 2 * products).clamp(min=0).nan_to_num(nan=math.inf)
    distances = torch.where(sound[:, None] & sound, distances, math.inf)
    return torch.where(torch.eye(len(sound), dtype=torch.bool, device=sound.device), 0.0, distances)


def ranks(values: Tensor) -> Tensor:
    """Return the place of each value along the last axis in ascending order. Equal values keep their
    order."""
    return values.argsort(dim=-1, stable=True).argsort(dim=-1, stable=True)


def median_buffers(before: Tensors, updates: Updates) -> Tensors:
    """Return the median of the clients' buffers by coordinate. Every client counts alike, so that no client
    alone can move them far, however well its parameters look. For counters it is the lower of the two in the
    middle."""
    return {
        name: _median_buffer(before[name], value)
        if value.is_floating_point()
        else value.sort(dim=0).values[(len(value) - 1) // 2]  # torch.median is not deterministic on CUDA
        for name, value in updates.buffers.items()
    }


def _median_buffer(before: Tensor, value: Tensor) -> Tensor:
    """Return the median of one buffer over the clients whose values are finite, or the value before if there
    is none."""
    sound = value.reshape(len(value), -1).isfinite().all(dim=1)
    return torch.where(sound.any(), median(value, sound), before)


def with_rows(updates: Updates, rows: Params) -> Updates:
    """Return the same updates with these rows of parameters."""
    return replace(updates, delta=rows)
