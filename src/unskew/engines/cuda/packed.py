"""Named tensors side by side in one block of memory, so that all of them move in one copy."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from unskew.types import Tensors, Weights

ALIGNMENT = 256  # bytes: that of CUDA's own allocations, which its fastest kernels need


class PackedTensors:
    """Groups of named tensors at fixed addresses."""

    def __init__(self, groups: dict[str, Tensors], device: torch.device) -> None:
        self._items: list[tuple[str, str, torch.dtype, list[int], list[int], int]] = []
        self.ends: dict[str, int] = {}
        """The byte of the block at which each group ends."""
        end = 0
        for group, tensors in groups.items():
            for name, value in tensors.items():
                stride = list(torch.empty_like(value, device="meta").stride())  # without gaps
                at = end // value.element_size()
                self._items.append((group, name, value.dtype, list(value.shape), stride, at))
                end += math.ceil(value.numel() * value.element_size() / ALIGNMENT) * ALIGNMENT
            self.ends[group] = end
        self._dtypes = {item[2] for item in self._items}
        self.block = torch.zeros(end, dtype=torch.uint8, device=device)
        # Each has a storage of its own, as far as PyTorch knows. To a compiler, tensors that share a storage
        # seem to overlap and to change together (BatchNorm changes its statistics in a forward pass).
        self.groups = {
            group: {name: from_dlpack(value.__dlpack__()) for name, value in tensors.items()}
            for group, tensors in self.views(self.block).items()
        }

    def __getitem__(self, group: str) -> Tensors:
        return self.groups[group]

    def load(self, group: str, values: Tensors) -> None:
        """Copy values into a group."""
        mine = self.groups[group]
        if mine:
            torch._foreach_copy_(list(mine.values()), [values[name] for name in mine])

    def views(self, block: Tensor) -> dict[str, Tensors]:
        """Return views of the groups that lie completely in a block with this layout, such as a copy of
        `block`."""
        found: dict[str, Tensors] = {group: {} for group, end in self.ends.items() if end <= len(block)}
        read = {kind: block.view(kind) for kind in self._dtypes}
        for group, name, kind, size, stride, at in self._items:
            if group in found:
                found[group][name] = read[kind].as_strided(size, stride, at)
        return found


def packed_model(like: Weights, device: torch.device) -> PackedTensors:
    """Make one block of memory for a model of these shapes."""
    return PackedTensors({"params": like.params, "buffers": like.buffers}, device)


def load_model(packed: PackedTensors, weights: Weights) -> None:
    """Copy a model into the memory that was made for a model of its shapes."""
    packed.load("params", weights.params)
    packed.load("buffers", weights.buffers)
