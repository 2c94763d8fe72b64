"""Named tensors in memory that two processes see."""

from __future__ import annotations

import math
import mmap
import os
import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from unskew.types import Tensors

Groups = dict[str, Tensors]

LINE = 64  # bytes of a cache line; PyTorch's own tensors on a CPU begin at one


Item = tuple[str, str, torch.dtype, tuple[int, ...], tuple[int, ...], int]
"""Group, name, type, shape, strides, and where it begins in bytes. A plain tuple, which is fast to send."""


@dataclass(frozen=True)
class Layout:
    """What lies on a shelf, and where."""

    size: int
    groups: tuple[str, ...]
    items: tuple[Item, ...]


class Shelf:
    """Memory for tensors that one process puts down and another takes up.

    It is a file without a name, made before the fork and mapped on both sides, which grows when more is put
    down. Unlike /dev/shm it is not limited by what a container sets aside: 64 MB, as a rule.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("unskew")
        os.ftruncate(self._file, mmap.PAGESIZE)
        self._size = 0
        """Of what is mapped."""
        self._typed: dict[torch.dtype, Tensor] = {}
        weakref.finalize(self, os.close, self._file)

    def put(self, groups: Groups) -> Layout:
        """In place of what lay there."""
        items: list[Item] = []
        sources: dict[int, Tensor] = {}
        places: dict[tuple[object, ...], int] = {}
        end = 0
        for group, tensors in groups.items():
            for name, value in tensors.items():
                shape, stride, address = tuple(value.shape), packed_stride(value), value.data_ptr()
                key = (address, value.dtype, shape, tuple(value.stride()))
                at = places.get(key)
                if at is None:  # the same tensor under two names lies there once
                    # As far from a cache line as it was: the order of a kernel's sums may depend on that.
                    at = places[key] = math.ceil(end / LINE) * LINE + address % LINE
                    end = at + value.numel() * value.element_size()
                    sources[len(items)] = value.detach()
                items.append((group, name, value.dtype, shape, stride, at))
        layout = Layout(end, tuple(groups), tuple(items))
        if end > self._size:
            os.ftruncate(self._file, math.ceil(max(end, 2 * self._size) / mmap.PAGESIZE) * mmap.PAGESIZE)
        for n, value in sources.items():
            self._tensor(layout, items[n]).copy_(value)
        return layout

    def take(self, layout: Layout, *, keep: bool = False) -> Groups:
        """What was put there: as it lies, good until the next is put down, or with `keep` for good."""
        groups: Groups = {group: {} for group in layout.groups}
        taken: dict[tuple[object, ...], Tensor] = {}
        for item in layout.items:
            (group, name), place = item[:2], item[2:]
            if place not in taken:
                value = self._tensor(layout, item)
                taken[place] = value.clone() if keep else value
            groups[group][name] = taken[place]
        return groups

    def _tensor(self, layout: Layout, item: Item) -> Tensor:
        _, _, dtype, shape, stride, at = item
        if not self._typed or layout.size > self._size:
            self._size = os.fstat(self._file).st_size
            memory = torch.frombuffer(mmap.mmap(self._file, self._size), dtype=torch.uint8)
            self._typed = {torch.uint8: memory}
        if dtype not in self._typed:
            self._typed[dtype] = self._typed[torch.uint8].view(dtype)
        return self._typed[dtype].as_strided(shape, stride, at // dtype.itemsize)


def packed_stride(value: Tensor) -> tuple[int, ...]:
    """Of a copy that has the order of the original and no gaps."""
    if value.is_contiguous():
        return tuple(value.stride())
    return tuple(torch.empty_like(value, device="meta").stride())
