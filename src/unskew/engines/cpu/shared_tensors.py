"""Named tensors in memory that two processes share."""

from __future__ import annotations

import math
import mmap
import os
import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from unskew.types import Tensors

TensorGroups = dict[str, Tensors]
"""Named tensors in named groups, such as "params" and "buffers"."""

CACHE_LINE = 64
"""The bytes of a cache line. PyTorch's own tensors on a CPU begin at one."""

TensorItem = tuple[str, str, torch.dtype, tuple[int, ...], tuple[int, ...], int]
"""A tensor's group, name, type, shape, strides and first byte, as a plain tuple, which is fast to send."""


@dataclass(frozen=True)
class Layout:
    """The description of the tensors in a `SharedTensors`, which is all that has to be sent."""

    size: int
    groups: tuple[str, ...]
    items: tuple[TensorItem, ...]


class SharedTensors:
    """A region of memory into which one process writes tensors and from which another reads them.

    The region is a file without a name, made before the fork and mapped by both processes, which grows when
    more is written. Unlike /dev/shm it is not limited by the share of a container, which is often 64 MB.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("unskew")
        os.ftruncate(self._file, mmap.PAGESIZE)
        self._mapped = 0
        """How many bytes of the file this process has mapped."""
        self._memory: dict[torch.dtype, Tensor] = {}
        """The mapped bytes as one flat tensor, viewed as each type that was needed."""
        weakref.finalize(self, os.close, self._file)

    def write(self, groups: TensorGroups) -> Layout:
        """Replace what the region holds by these tensors, and return where each of them lies."""
        items: list[TensorItem] = []
        sources: dict[int, Tensor] = {}
        offsets: dict[tuple[object, ...], int] = {}
        end = 0
        for group, tensors in groups.items():
            for name, value in tensors.items():
                shape, stride, address = tuple(value.shape), packed_stride(value), value.data_ptr()
                key = (address, value.dtype, shape, tuple(value.stride()))
                offset = offsets.get(key)
                if offset is None:  # a tensor under two names is written once
                    # At the same place in a cache line: the order of a kernel's sums may depend on it.
                    offset = offsets[key] = math.ceil(end / CACHE_LINE) * CACHE_LINE + address % CACHE_LINE
                    end = offset + value.numel() * value.element_size()
                    sources[len(items)] = value.detach()
                items.append((group, name, value.dtype, shape, stride, offset))
        layout = Layout(end, tuple(groups), tuple(items))
        if end > self._mapped:
            os.ftruncate(self._file, math.ceil(max(end, 2 * self._mapped) / mmap.PAGESIZE) * mmap.PAGESIZE)
        for n, value in sources.items():
            self._tensor(layout, items[n]).copy_(value)
        return layout

    def read(self, layout: Layout, *, copy: bool = False) -> TensorGroups:
        """Return the tensors that were written: views of the region, which the next write overwrites, or
        copies of their own."""
        groups: TensorGroups = {group: {} for group in layout.groups}
        known: dict[tuple[object, ...], Tensor] = {}
        for item in layout.items:
            (group, name), place = item[:2], item[2:]
            if place not in known:
                value = self._tensor(layout, item)
                known[place] = value.clone() if copy else value
            groups[group][name] = known[place]
        return groups

    def _tensor(self, layout: Layout, item: TensorItem) -> Tensor:
        _, _, dtype, shape, stride, offset = item
        if not self._memory or layout.size > self._mapped:
            self._mapped = os.fstat(self._file).st_size
            memory = torch.frombuffer(mmap.mmap(self._file, self._mapped), dtype=torch.uint8)
            self._memory = {torch.uint8: memory}
        if dtype not in self._memory:
            self._memory[dtype] = self._memory[torch.uint8].view(dtype)
        return self._memory[dtype].as_strided(shape, stride, offset // dtype.itemsize)


def packed_stride(value: Tensor) -> tuple[int, ...]:
    """Return the strides of a copy that has the dimensions in the order of the original and no gaps."""
    if value.is_contiguous():
        return tuple(value.stride())
    return tuple(torch.empty_like(value, device="meta").stride())
