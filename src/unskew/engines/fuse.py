"""A step made over by a compiler: its forward and backward passes, loss and optimiser as one program.

The step is traced once, at the level of PyTorch's operators, gradients already taken, so a method needs to
know nothing of it. TorchInductor makes the program; convolutions it would leave to cuDNN are put in other
words where that is faster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from unskew.errors import UserError

aten = torch.ops.aten

FEW = 8
"""Input channels below which cuDNN has no kernel for tensor cores: those of images."""


def fuse(step: Callable[..., None], *example: Any) -> Callable[..., None]:
    """The same step, for arguments of the same shapes: what it does is change tensors among them. It runs
    once, on the example."""
    # Imported here: they take a second.
    import torch._inductor as inductor
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils import _pytree as pytree

    leaves, shape = pytree.tree_flatten(example)

    def flat(*values: Tensor) -> tuple[()]:
        step(*pytree.tree_unflatten(values, shape))
        return ()

    rewriting = Rewriting()
    table: dict[Any, Callable[..., Any]] = {
        aten.convolution.default: rewriting.convolution,
        aten.convolution_backward.default: rewriting.convolution_backward,
    }
    with _quiet():
        try:
            traced = make_fx(flat, decomposition_table=table)(*leaves)
            program = inductor.compile(traced, leaves, options=OPTIONS)
        except UserError:
            raise
        except Exception as error:  # a compiler's errors are of any kind
            reason = str(error).strip().splitlines()[0].rstrip(".")
            raise UserError(
                f"this method's step cannot be compiled ({reason}): leave fast=true out."
            ) from error

    def run(*arguments: Any) -> None:
        program(*pytree.tree_leaves(arguments))

    return run


OPTIONS: dict[str, Any] = {"combo_kernels": True}
"""One kernel for small things that do not depend on each other: 154 us instead of 176 for a step of FedLMD's
network (H200, bf16, batch 50)."""


class Rewriting:
    """Convolutions as matrix products, where these are faster."""

    def __init__(self) -> None:
        self._seen: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}

    def convolution(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        transposed: bool,
        output_padding: list[int],
        groups: int,
    ) -> Tensor:
        kind = _kind(x, weight, stride, padding, dilation, transposed, groups)
        if kind == "pointwise":
            y = _back(_rows(x) @ weight.flatten(1).t(), x.shape)
        elif kind == "stem":
            size = [x.shape[0], 0, *_size(x, weight, stride, padding)]
            y = _back(self.columns(x, weight, stride, padding) @ _matrix(weight), size)
        else:
            return NotImplemented  # type: ignore[no-any-return]  # cuDNN's is as good
        return y if bias is None else y + bias[:, None, None]

    def convolution_backward(
        self,
        grad: Tensor,
        x: Tensor,
        weight: Tensor,
        bias_sizes: list[int] | None,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        transposed: bool,
        output_padding: list[int],
        groups: int,
        output_mask: list[bool],
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        kind = _kind(x, weight, stride, padding, dilation, transposed, groups)
        to_x: Tensor | None = None
        to_weight: Tensor | None = None
        rows = _rows(grad)
        if kind == "pointwise":
            if output_mask[0]:
                to_x = _back(rows @ weight.flatten(1), x.shape)
            if output_mask[1]:
                to_weight = (rows.t() @ _rows(x)).view_as(weight)
        elif kind == "stem" and not output_mask[0]:
            if output_mask[1]:
                # By samples first: as one product it would be a few blocks with a very long sum each.
                columns = self.columns(x, weight, stride, padding)
                each = columns.view(len(x), -1, columns.shape[1]).transpose(1, 2) @ rows.view(
                    len(x), -1, len(weight)
                )
                whole = each.sum(dim=0)
                O, C, height, width = weight.shape
                to_weight = whole[: C * height * width].view(height, width, C, O).permute(3, 2, 0, 1)
        else:
            return NotImplemented  # type: ignore[no-any-return]
        return to_x, to_weight, rows.sum(dim=0) if output_mask[2] else None

    def columns(self, x: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> Tensor:
        """What each output pixel sees of the input, a row each, filled up to a multiple of eight numbers. The
        backward pass, and a teacher, get the same."""
        key = (x.data_ptr(), x.shape, x.stride(), weight.shape[2:], tuple(stride), tuple(padding))
        if key not in self._seen:
            wide = pad(x, (padding[1], padding[1], padding[0], padding[0]))
            seen = wide.unfold(2, weight.shape[2], stride[0]).unfold(3, weight.shape[3], stride[1])
            rows = seen.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(0, 2)
            self._seen[key] = x, pad(rows, (0, -rows.shape[1] % 8))  # with x, so that its place is not reused
        return self._seen[key][1]


def _kind(
    x: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    groups: int,
) -> str:
    if weight.ndim != 4 or x.dtype == torch.float32 or transposed or groups > 1 or set(dilation) != {1}:
        return "other"
    if weight.shape[2:] == (1, 1) and set(stride) == {1} and set(padding) == {0} and x.stride(1) == 1:
        return "pointwise"
    return "stem" if weight.shape[1] < FEW else "other"


def _rows(x: Tensor) -> Tensor:
    """Images as the rows of a matrix, one for each pixel."""
    return x.permute(0, 2, 3, 1).flatten(0, 2)


def _back(rows: Tensor, like: Any) -> Tensor:
    """Images of a batch and size like another's, channels last."""
    return rows.view(like[0], like[2], like[3], -1).permute(0, 3, 1, 2)


def _size(x: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> list[int]:
    return [(x.shape[2 + n] + 2 * padding[n] - weight.shape[2 + n]) // stride[n] + 1 for n in range(2)]


def _matrix(weight: Tensor) -> Tensor:
    """The weights for `_columns`."""
    flat = weight.permute(2, 3, 1, 0).flatten(0, 2)
    return pad(flat, (0, 0, 0, -len(flat) % 8))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the compiler's advice, which is for those who use it directly."""
    logger = logging.getLogger("torch._inductor")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
