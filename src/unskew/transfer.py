"""Copies between the host and a device, without waiting for either."""

from __future__ import annotations

import torch
from torch import Tensor


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the host to a device, without waiting for what the device has to do first."""
    if device.type != "cuda":
        return values
    # In one piece: PyTorch would copy another layout to memory that is not pinned, and wait.
    return values.contiguous().pin_memory().to(device, non_blocking=True)


def download(value: Tensor) -> Tensor:
    """Copy a tensor to the host, which has to wait for a later event before it reads the copy."""
    there = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
    return there.copy_(value, non_blocking=True)
