"""Depthwise convolutions as sums of shifted images that are padded with zeros.

Padded images are [N, H, W, C]. On a GPU the sums are operators of `depthwise_ops`, elsewhere operators of
PyTorch.
"""

from __future__ import annotations

from functools import reduce
from operator import add, mul

import torch
from torch import Tensor
from torch.nn.functional import pad

from unskew.engines.cuda.compile.context import Context, materialise, output_size, upcast
from unskew.engines.cuda.compile.depthwise_ops import (
    ceil_div,
    depthwise,
    depthwise_weight_gradient,
    gradient_padding,
)


def convolution(context: Context, x: Tensor, weight: Tensor, stride: list[int], padding: list[int]) -> Tensor:
    """Return the convolution's output, without its bias."""
    return _convolve(
        context,
        _padded(context, x, padding),
        weight,
        stride,
        output_size(x, weight, stride, padding),
        # A teacher's pass takes no statistics, so a compiler can fuse the sum with what follows.
        materialised=torch.is_grad_enabled() or not context.compiled,
    )


def gradients(
    context: Context,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of input and weights, each if `output_mask` asks for it. Both read the output's
    gradient with the same padding, so that it is written once."""
    to_input: Tensor | None = None
    to_weight: Tensor | None = None
    before = gradient_padding(list(weight.shape[2:]), stride, padding)
    size = [
        before[n] + ceil_div(x.shape[2 + n], stride[n]) + ceil_div(padding[n], stride[n]) for n in range(2)
    ]
    padded_grad = _pad(grad.permute(0, 2, 3, 1), before, size)
    if output_mask[0]:
        to_input = _input_gradient(context, padded_grad, weight, stride, padding, list(x.shape[2:]))
    if output_mask[1]:
        to_weight = _weight_gradient(
            context, padded_grad, _padded(context, x, padding), weight, stride, before, list(grad.shape[2:])
        )
    return to_input, to_weight


def _convolve(
    context: Context,
    padded: Tensor,
    weight: Tensor,
    stride: list[int],
    size: list[int],
    *,
    flipped: bool = False,
    materialised: bool = True,
) -> Tensor:
    """Return a depthwise convolution of padded images in this size, or one with flipped kernels."""
    weights = _by_tap(context, weight)
    if materialised and _has_kernel(context, padded, "triton_forward"):
        y: Tensor = depthwise(padded, weights, list(weight.shape[2:]), stride, size, flipped)
    else:
        taps = _taps(padded, weight, stride, size)
        total: Tensor = reduce(add, map(mul, taps[::-1] if flipped else taps, weights.unbind()))
        y = total.to(padded.dtype)
        if materialised:  # batch normalisation would otherwise write it in float32
            y = materialise(y)
    return y.permute(0, 3, 1, 2)


def _input_gradient(
    context: Context,
    padded_grad: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    size: list[int],
) -> Tensor:
    """Return the gradient of the input, of this size, from the padded gradient of the output."""
    if set(stride) == {1}:
        return _convolve(context, padded_grad, weight, stride, size, flipped=True)
    weights, kernel = _by_tap(context, weight), list(weight.shape[2:])
    before = gradient_padding(kernel, stride, padding)
    strides = [ceil_div(size[n], stride[n]) for n in range(2)]

    def at(*offset: int) -> Tensor:
        """Return the gradient of the pixels at this offset in every stride, by the weights that read them."""
        total = padded_grad.new_zeros(
            (padded_grad.shape[0], *strides, padded_grad.shape[3]), dtype=weights.dtype
        )
        for tap, each in enumerate(weights.unbind()):
            place = [offset[n] + padding[n] - divmod(tap, kernel[1])[n] for n in range(2)]
            if not any(place[n] % stride[n] for n in range(2)):
                start = [before[n] + place[n] // stride[n] for n in range(2)]
                total = total + _window(padded_grad, start, [1, 1], strides) * each
        return total.to(padded_grad.dtype)

    rows = [torch.stack([at(row, column) for column in range(stride[1])], dim=3) for row in range(stride[0])]
    return context.join_windows(torch.stack(rows, dim=2))[:, :, : size[0], : size[1]]


def _weight_gradient(
    context: Context,
    padded_grad: Tensor,
    padded: Tensor,
    weight: Tensor,
    stride: list[int],
    before: list[int],
    size: list[int],
) -> Tensor:
    """Return the gradient of the weights, from padded images and the padded gradient of an output of this
    size, which starts at `before`."""
    if _has_kernel(context, padded, "triton_weight_gradient") and weight.shape[2:] == (3, 3):
        sums = depthwise_weight_gradient(padded, padded_grad, before, stride, size)
    else:
        pixels = _window(padded_grad, before, [1, 1], size)
        taps = _taps(padded, weight, stride, size)
        sums = torch.stack([(pixels * tap).sum(dim=(0, 1, 2)) for tap in taps])
    return sums.t().reshape(weight.shape).to(weight.dtype)


def _padded(context: Context, x: Tensor, padding: list[int]) -> Tensor:
    """Return padded images, written only once."""

    def make() -> Tensor:
        size = [x.shape[2 + n] + 2 * padding[n] for n in range(2)]
        return _pad(x.permute(0, 2, 3, 1), padding, size)

    return context.once(x, f"padded {padding}", make)


def _pad(images: Tensor, before: list[int], size: list[int]) -> Tensor:
    """Return images padded with zeros to a size, with `before` zeros above and on the left."""
    after = [size[n] - before[n] - images.shape[1 + n] for n in range(2)]
    return materialise(pad(images, (0, 0, before[1], after[1], before[0], after[0])))


def _by_tap(context: Context, weight: Tensor) -> Tensor:
    """Return the weights as [height * width, C]."""
    return context.once(weight, "by tap", lambda: materialise(upcast(weight).view(len(weight), -1).t()))


def _taps(padded: Tensor, weight: Tensor, stride: list[int], size: list[int]) -> list[Tensor]:
    """Return the pixels that each weight of a kernel is multiplied by, in the size of the output."""
    places = ([i, j] for i in range(weight.shape[2]) for j in range(weight.shape[3]))
    return [_window(padded, place, stride, size) for place in places]


def _window(images: Tensor, start: list[int], stride: list[int], size: list[int]) -> Tensor:
    """Return `size` pixels of images, beginning at `start`."""
    rows, columns = (slice(start[n], start[n] + stride[n] * (size[n] - 1) + 1, stride[n]) for n in range(2))
    return images[:, rows, columns]


def _has_kernel(context: Context, x: Tensor, name: str) -> bool:
    """Say whether a Triton kernel can read a tensor and is not left out."""
    return on_gpu(x) and not {"triton", name} & context.without


def on_gpu(x: Tensor) -> bool:
    """Say whether a tensor is on a GPU, in a dtype that the Triton kernels know."""
    return x.is_cuda and x.dtype != torch.float64
