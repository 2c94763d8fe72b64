"""Convolutions that a compiler would leave to cuDNN, as operations that it compiles."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from unskew.engines.cuda.compile import depthwise, im2col
from unskew.engines.cuda.compile.context import Context, images

ConvolutionKind = Literal["pointwise", "stem", "depthwise"]
"""How a convolution is decomposed: as one of 1×1 without stride, as one of few input channels, such as a
network's first layer, or as one with a kernel for each channel."""


class Convolution:
    """Two-dimensional convolutions, each decomposed by its kind."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def forward(
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
        """Return the convolution's output."""
        kind = self._kind(x, weight, stride, padding, dilation, transposed, groups)
        if kind is None:
            return NotImplemented  # type: ignore[no-any-return]
        if kind == "pointwise":
            y = images(self._context.rows(x) @ weight.flatten(1).t(), x.shape)
        elif kind == "stem":
            y = im2col.convolution(self._context, x, weight, stride, padding)
        else:
            y = depthwise.convolution(self._context, x, weight, stride, padding)
        return y if bias is None else y + bias[:, None, None]

    def backward(
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
        """Return the gradients of input, weight and bias, each if `output_mask` asks for it."""
        kind = self._kind(x, weight, stride, padding, dilation, transposed, groups)
        if kind is None or (kind == "stem" and output_mask[0]):
            return NotImplemented  # type: ignore[no-any-return]
        to_input: Tensor | None = None
        to_weight: Tensor | None = None
        rows = self._context.rows(grad)
        if kind == "pointwise":
            if output_mask[0]:
                to_input = images(rows @ weight.flatten(1), x.shape)
            if output_mask[1]:
                to_weight = (rows.t() @ self._context.rows(x)).view_as(weight)
        elif kind == "stem":
            if output_mask[1]:
                to_weight = im2col.weight_gradient(self._context, rows, x, weight, stride, padding)
        else:
            to_input, to_weight = depthwise.gradients(
                self._context, grad, x, weight, stride, padding, output_mask
            )
        if to_weight is not None and not self._context.compiled:
            # PyTorch gives a gradient the strides of its weight, which its fused optimisers need.
            to_weight = torch.empty_like(weight).copy_(to_weight)
        return to_input, to_weight, rows.sum(dim=0) if output_mask[2] else None

    def _kind(
        self,
        x: Tensor,
        weight: Tensor,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        transposed: bool,
        groups: int,
    ) -> ConvolutionKind | None:
        """Return how a convolution is decomposed, or None if it is not or if its kind is left out."""
        kind = _kind(x, weight, stride, padding, dilation, transposed, groups)
        return None if kind in self._context.without else kind


def _kind(
    x: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    groups: int,
) -> ConvolutionKind | None:
    if weight.ndim != 4 or transposed or set(dilation) != {1}:
        return None
    channels_last = x.stride(1) == 1
    if 1 < groups == x.shape[1] == len(weight) and channels_last:
        return "depthwise" if all(padding[n] < weight.shape[2 + n] for n in range(2)) else None
    if groups > 1 or x.dtype == torch.float32:
        return None
    if weight.shape[2:] == (1, 1) and set(stride) == {1} and set(padding) == {0} and channels_last:
        return "pointwise"
    return "stem" if weight.shape[1] < im2col.FEW_CHANNELS else None
