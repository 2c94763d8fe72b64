"""How tensors lie in memory. Kept tensors lie alike in every tier, so that kernels sum them in the same
order."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from unskew.types import Tensors

ALIGNMENT = 64
"""Bytes of a cache line. The order of a kernel's sums may depend on where in a cache line a tensor begins."""


def own_tensors(tensors: Tensors, device: torch.device) -> Tensors:
    """Return the tensors on the device, detached, dense and aligned. A tensor that is a small part of a
    larger storage is copied, so that keeping it does not keep the whole storage."""
    tensors = {name: value.detach().to(device) for name, value in tensors.items()}
    bytes_used: dict[int, int] = {}
    for value in tensors.values():
        storage = value.untyped_storage().data_ptr()
        bytes_used[storage] = bytes_used.get(storage, 0) + value.numel() * value.element_size()
    return {
        name: aligned(value)
        if 2 * bytes_used[value.untyped_storage().data_ptr()] >= value.untyped_storage().nbytes()
        else _copy(value)
        for name, value in tensors.items()
    }


def aligned(value: Tensor) -> Tensor:
    """Return the tensor without gaps and at the beginning of a cache line: itself if it is so, else a
    copy."""
    dense = value.is_contiguous() or torch.empty_like(value, device="meta").stride() == value.stride()
    return value if dense and value.data_ptr() % ALIGNMENT == 0 else _copy(value)


def size_in_bytes(tensors: Tensors) -> int:
    """Return how many bytes the values of the tensors take."""
    return sum(value.numel() * value.element_size() for value in tensors.values())


def device_of(by_client: Mapping[int, Tensors]) -> torch.device:
    """Return the device of the clients' tensors, the CPU if there are none."""
    found = (value.device for tensors in by_client.values() for value in tensors.values())
    return next(found, torch.device("cpu"))


def _copy(value: Tensor) -> Tensor:
    return torch.empty_like(value).copy_(value)
