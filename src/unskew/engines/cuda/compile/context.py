"""The state that the decompositions of one step share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Context:
    """One step's choice of decompositions, and what they have computed for tensors that they meet again.

    `compiled` says that the operations are traced for a compiler; otherwise they run immediately. `without`
    names the decompositions that are left out.
    """

    def __init__(self, *, compiled: bool = True, without: frozenset[str] = frozenset()) -> None:
        self.compiled, self.without = compiled, without
        self._known: dict[tuple[int, str], tuple[Tensor, Any]] = {}

    def remember(self, tensor: Tensor, key: str, value: Any) -> None:
        """Keep a value for later operations on the same memory, such as those of the backward pass. The
        tensor is kept too, so that its memory is not reused."""
        self._known[tensor.untyped_storage()._cdata, key] = tensor, value

    def recall(self, tensor: Tensor, key: str) -> Any:
        """Return what was remembered about this memory, or None."""
        return self._known.get((tensor.untyped_storage()._cdata, key), (None, None))[1]

    def once(self, x: Tensor, key: str, make: Callable[[], Tensor]) -> Tensor:
        """Return what `make` computes from a tensor, but call it only once: the backward pass and a teacher's
        pass get the same result."""
        key += f" {x.storage_offset()} {x._version} {x.shape} {x.stride()}"
        found: Tensor | None = self.recall(x, key)
        if found is None:
            found = make()
            if self.compiled or torch.is_grad_enabled():  # otherwise it is not needed again, and takes memory
                self.remember(x, key, found)
        return found

    def contiguous(self, x: Tensor) -> Tensor:
        """Return a contiguous tensor, which can be viewed in another shape. For a compiler it is always a
        copy: the compiler may choose other strides than those in the trace, and removes unnecessary
        copies."""
        return x.clone(memory_format=torch.contiguous_format) if self.compiled else x.contiguous()

    def rows(self, x: Tensor) -> Tensor:
        """Return images as a matrix with a row for each pixel."""
        return self.contiguous(x.permute(0, 2, 3, 1)).view(-1, x.shape[1])

    def join_windows(self, windows: Tensor) -> Tensor:
        """Return the images that consist of windows, [N, H, height, W, width, C]."""
        return self.contiguous(windows).flatten(3, 4).flatten(1, 2).permute(0, 3, 1, 2)


def materialise(x: Tensor) -> Tensor:
    """Return the same values through `as_strided`, which makes a compiler write them to memory once, in this
    dtype, instead of computing them again wherever they are read."""
    x = x.contiguous()
    return x.as_strided(x.shape, x.stride())


def upcast(x: Tensor) -> Tensor:
    """Return half precision as float32, in which sums are taken, and other dtypes as they are."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def images(rows: Tensor, like: Any) -> Tensor:
    """Return the rows of a matrix as images, channels last, of the batch and size of a shape."""
    return rows.view(like[0], like[2], like[3], -1).permute(0, 3, 1, 2)


def output_size(x: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> list[int]:
    """Return height and width of a convolution's output."""
    return [(x.shape[2 + n] + 2 * padding[n] - weight.shape[2 + n]) // stride[n] + 1 for n in range(2)]
