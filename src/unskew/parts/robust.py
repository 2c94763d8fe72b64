"""What server rules that trust no single client share. A client's row that holds NaN or infinite values, or
whose norm is beyond float32, counts in none of them, and nothing here waits for a device."""

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
    """So many of these clients may be bad: the fraction of them, rounded down."""
    return (clients * fraction + 1e-9).floor().long()


def sound_rows(rows: Params) -> Tensor:
    """Which clients' rows are finite, bool [m]."""
    return squared_norms(rows).isfinite()


def without_unsound(rows: Params, sound: Tensor) -> Params:
    """The rows with zeros in place of those that are not sound: zero times NaN would be NaN."""
    return {name: torch.where(_along(sound, value), value, 0.0) for name, value in rows.items()}


def mean_of_rows(rows: Params, chosen: Tensor) -> Params:
    """The mean of the chosen clients' rows, each alike; 0 where none is chosen. chosen: bool [m]."""
    count = chosen.sum().clamp(min=1)
    return {name: value.sum(dim=0) / count for name, value in without_unsound(rows, chosen).items()}


def median(value: Tensor, sound: Tensor) -> Tensor:
    """The median over axis 0 by coordinate: of an even number the mean of the two in the middle; 0 where no
    row is sound."""
    ascending, n = _ascending(value, sound), sound.sum()
    low, high = (ascending.index_select(0, at.clamp(min=0)[None])[0] for at in ((n - 1) // 2, n // 2))
    return torch.where(n > 0, low / 2 + high / 2, 0.0)


def trimmed_mean(value: Tensor, sound: Tensor, fraction: float) -> Tensor:
    """The mean over axis 0 by coordinate, without the fraction of largest and that of smallest values."""
    ascending, n = _ascending(value, sound), sound.sum()
    cut, place = bad_clients(fraction, n), torch.arange(len(value), device=value.device)
    kept = (place >= cut) & (place < n - cut)
    return torch.where(_along(kept, value), ascending, 0.0).sum(dim=0) / (n - 2 * cut).clamp(min=1)


def _ascending(value: Tensor, sound: Tensor) -> Tensor:
    """Values in ascending order by coordinate; those of rows that are not sound come last, as NaN."""
    return torch.where(_along(sound, value), value, math.nan).sort(dim=0).values


def _along(mask: Tensor, value: Tensor) -> Tensor:
    return mask.view(-1, *[1] * (value.ndim - 1))


def squared_distances(rows: Params, sound: Tensor) -> Tensor:
    """Between the clients' rows over all tensors, float64 [m, m]: infinite from and to a row that is not
    sound, and 0 from each to itself."""
    flat = [value.reshape(len(value), -1) for value in without_unsound(rows, sound).values()]
    products = torch.stack([(value @ value.T).double() for value in flat]).sum(0)
    norms = products.diagonal()
    distances = (norms[:, None] + norms - 2 * products).clamp(min=0).nan_to_num(nan=math.inf)
    distances = torch.where(sound[:, None] & sound, distances, math.inf)
    return torch.where(torch.eye(len(sound), dtype=torch.bool, device=sound.device), 0.0, distances)


def ranks(values: Tensor) -> Tensor:
    """The place of each value along the last axis in ascending order; of equal ones the first comes first."""
    return values.argsort(dim=-1, stable=True).argsort(dim=-1, stable=True)


def median_buffers(before: Tensors, updates: Updates) -> Tensors:
    """The median of the clients' buffers by coordinate, every client alike: no client alone can move them
    far, however well its parameters look. Of counters it is the smaller one in the middle."""
    return {
        name: _median_buffer(before[name], value)
        if value.is_floating_point()
        else value.sort(dim=0).values[(len(value) - 1) // 2]  # torch.median is not deterministic on CUDA
        for name, value in updates.buffers.items()
    }


def _median_buffer(before: Tensor, value: Tensor) -> Tensor:
    sound = value.reshape(len(value), -1).isfinite().all(dim=1)
    return torch.where(sound.any(), median(value, sound), before)


def with_rows(updates: Updates, rows: Params) -> Updates:
    """The same updates with other parameters' rows."""
    return replace(updates, delta=rows)
