"""Depthwise convolutions on a GPU as operators of our own, because a compiler's programs take twice the
instructions.

Images are [N, H, W, C] and padded with zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor

# A program takes pixels in groups of `QUAD` side by side, and `BLOCK_CHANNELS` channels of each. The numbers
# of such groups (BLOCK), of warps, and of programs that share the pixels were the fastest on an H200 for
# MobileNetV2's layers with six clients side by side.
QUAD, BLOCK_CHANNELS = 4, 32
BLOCK, WARPS = 16, 4
WEIGHT_BLOCK, WEIGHT_WARPS, WEIGHT_PROGRAMS = 8, 1, 512


# Schemas are written out: PyTorch 2.6 does not read `list[int]` in a signature.
@torch.library.custom_op(
    "unskew::depthwise",
    mutates_args=(),
    device_types="cuda",
    schema="(Tensor images, Tensor weights, SymInt[] kernel, SymInt[] stride, SymInt[] size, bool flipped)"
    " -> Tensor",
)
def depthwise(
    images: Tensor, weights: Tensor, kernel: list[int], stride: list[int], size: list[int], flipped: bool
) -> Tensor:
    """Return the convolution of padded images, in this size. The weights are [height * width, C] in float32;
    `flipped` reverses their order."""
    from unskew.engines.cuda.compile import triton_kernels

    (N, HP, WP, C), (H, W) = images.shape, size
    out = images.new_empty(N, H, W, C)
    quads = N * H * ceil_div(W, QUAD)
    full = C % BLOCK_CHANNELS == 0 and W % QUAD == 0 and quads % BLOCK == 0
    with torch.cuda.device(images.device):
        triton_kernels.depthwise[(ceil_div(quads, BLOCK) * ceil_div(C, BLOCK_CHANNELS),)](
            images, weights, out, quads,
            H, W, HP, WP, *kernel, *stride, C, flipped, full, BLOCK, BLOCK_CHANNELS, num_warps=WARPS,
        )  # fmt: skip
    return out


@depthwise.register_fake
def _(
    images: Tensor, weights: Tensor, kernel: list[int], stride: list[int], size: list[int], flipped: bool
) -> Tensor:
    return images.new_empty(images.shape[0], *size, images.shape[3])


def depthwise_weight_gradient(
    images: Tensor, grad: Tensor, start: list[int], stride: list[int], size: list[int]
) -> Tensor:
    """Return the gradient of 3×3 weights, [9, C], from that of the output, which is padded by
    `gradient_padding` and begins at `start`."""
    # An argument of the operator, because PyTorch's cache of compiled steps outlives this constant.
    parts = max(1, WEIGHT_PROGRAMS // ceil_div(images.shape[3], BLOCK_CHANNELS))
    sums: Tensor = weight_gradient_in_parts(images, grad, parts, start, stride, size)
    return sums.sum(dim=0)


@torch.library.custom_op(
    "unskew::depthwise_weight_gradient",
    mutates_args=(),
    device_types="cuda",
    schema="(Tensor images, Tensor grad, SymInt parts, SymInt[] start, SymInt[] stride, SymInt[] size)"
    " -> Tensor",
)
def weight_gradient_in_parts(
    images: Tensor, grad: Tensor, parts: int, start: list[int], stride: list[int], size: list[int]
) -> Tensor:
    """Return the gradient of 3×3 weights from each of the parts into which the pixels are divided,
    [parts, 9, C]."""
    from unskew.engines.cuda.compile import triton_kernels

    (N, HP, WP, C), (H, W) = images.shape, size
    quads = N * H * ceil_div(W, QUAD)
    steps = ceil_div(quads, parts * WEIGHT_BLOCK)
    full = C % BLOCK_CHANNELS == 0 and W % QUAD == 0 and parts * steps * WEIGHT_BLOCK == quads
    out = images.new_empty((parts, 9, C), dtype=torch.float32)
    with torch.cuda.device(images.device):
        triton_kernels.depthwise_weight_gradient[(parts * ceil_div(C, BLOCK_CHANNELS),)](
            images, grad, out, quads, steps,
            H, W, HP, WP, grad.shape[1], grad.shape[2], *start, *stride, C,
            full, WEIGHT_BLOCK, BLOCK_CHANNELS, num_warps=WEIGHT_WARPS,
        )  # fmt: skip
    return out


@weight_gradient_in_parts.register_fake
def _(
    images: Tensor, grad: Tensor, parts: int, start: list[int], stride: list[int], size: list[int]
) -> Tensor:
    return images.new_empty((parts, 9, images.shape[3]), dtype=torch.float32)


def gradient_padding(kernel: list[int], stride: list[int], padding: list[int]) -> list[int]:
    """Return how many zeros an output's gradient needs above and on the left for the gradient of the input's
    first pixels."""
    return [(kernel[n] - 1 - padding[n]) // stride[n] for n in range(2)]


def ceil_div(number: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-number // divisor)
