"""Convolutions with a kernel for each channel alone, on a GPU: programs of our own, where a compiler's take
twice the instructions. Images are [N, H, W, C] and lie in a frame of zeros."""

from __future__ import annotations

import torch
from torch import Tensor

# Four pixels beside each other at a time. How many of those and how many channels a program sees at once, its
# warps, and how many programs share the pixels: what took an H200 least for MobileNetV2's layers, six clients
# side by side.
TOGETHER, CHANNELS = 4, 32
WEIGH_PIXELS, WEIGH_WARPS = 16, 4
SLOPES_PIXELS, SLOPES_WARPS, SLOPES_PROGRAMS = 8, 1, 512


@torch.library.custom_op("unskew::weigh", mutates_args=(), device_types="cuda")
def weigh(
    images: Tensor, weights: Tensor, kernel: list[int], stride: list[int], size: list[int], turned: bool
) -> Tensor:
    """The convolution, in images of this size. Weights [height * width, C] in float32; `turned` takes them
    last to first."""
    from unskew.engines.cuda.compile import triton_kernels

    (N, HF, WF, C), (H, W) = images.shape, size
    out = images.new_empty(N, H, W, C)
    fours = N * H * times(W, TOGETHER)
    full = C % CHANNELS == 0 and W % TOGETHER == 0 and fours % WEIGH_PIXELS == 0
    with torch.cuda.device(images.device):
        triton_kernels.weigh[(times(fours, WEIGH_PIXELS) * times(C, CHANNELS),)](
            images, weights, out, fours,
            H, W, HF, WF, *kernel, *stride, C, turned, full, WEIGH_PIXELS, CHANNELS, num_warps=WEIGH_WARPS,
        )  # fmt: skip
    return out


@weigh.register_fake
def _(
    images: Tensor, weights: Tensor, kernel: list[int], stride: list[int], size: list[int], turned: bool
) -> Tensor:
    return images.new_empty(images.shape[0], *size, images.shape[3])


@torch.library.custom_op("unskew::weigh_back", mutates_args=(), device_types="cuda")
def weigh_back(
    slopes: Tensor, weights: Tensor, kernel: list[int], stride: list[int], padding: list[int], size: list[int]
) -> Tensor:
    """How the loss changes with such a convolution's images, of this size, from the slopes of its output,
    which lie in a frame from `begin` on."""
    from unskew.engines.cuda.compile import triton_kernels

    (N, HF, WF, C), (H, W) = slopes.shape, size
    out = slopes.new_empty(N, H, W, C)
    places = N * times(H, stride[0]) * times(W, stride[1])
    full = C % CHANNELS == 0 and places % WEIGH_PIXELS == 0
    with torch.cuda.device(slopes.device):
        triton_kernels.weigh_back[(times(places, WEIGH_PIXELS) * times(C, CHANNELS),)](
            slopes, weights, out, places,
            H, W, HF, WF, *begin(kernel, stride, padding), *kernel, *stride, *padding, C,
            full, WEIGH_PIXELS, CHANNELS, num_warps=WEIGH_WARPS,
        )  # fmt: skip
    return out


@weigh_back.register_fake
def _(
    slopes: Tensor, weights: Tensor, kernel: list[int], stride: list[int], padding: list[int], size: list[int]
) -> Tensor:
    return slopes.new_empty(slopes.shape[0], *size, slopes.shape[3])


def tap_slopes(
    images: Tensor, slopes: Tensor, place: list[int], stride: list[int], size: list[int]
) -> Tensor:
    """How the loss changes with each of 3×3 weights, [9, C], from the same slopes."""
    # Said, not known: PyTorch's cache of compiled steps outlives this line.
    parts = max(1, SLOPES_PROGRAMS // times(images.shape[3], CHANNELS))
    sums: Tensor = _in_parts(images, slopes, parts, place, stride, size)
    return sums.sum(dim=0)


@torch.library.custom_op("unskew::tap_slopes", mutates_args=(), device_types="cuda")
def _in_parts(
    images: Tensor, slopes: Tensor, parts: int, place: list[int], stride: list[int], size: list[int]
) -> Tensor:
    """For each of so many parts of the pixels."""
    from unskew.engines.cuda.compile import triton_kernels

    (N, HF, WF, C), (H, W) = images.shape, size
    fours = N * H * times(W, TOGETHER)
    steps = times(fours, parts * SLOPES_PIXELS)
    full = C % CHANNELS == 0 and W % TOGETHER == 0 and parts * steps * SLOPES_PIXELS == fours
    out = images.new_empty((parts, 9, C), dtype=torch.float32)
    with torch.cuda.device(images.device):
        triton_kernels.tap_slopes[(parts * times(C, CHANNELS),)](
            images, slopes, out, fours, steps,
            H, W, HF, WF, slopes.shape[1], slopes.shape[2], *place, *stride, C,
            full, SLOPES_PIXELS, CHANNELS, num_warps=SLOPES_WARPS,
        )  # fmt: skip
    return out


@_in_parts.register_fake
def _(
    images: Tensor, slopes: Tensor, parts: int, place: list[int], stride: list[int], size: list[int]
) -> Tensor:
    return images.new_empty((parts, 9, images.shape[3]), dtype=torch.float32)


def begin(kernel: list[int], stride: list[int], padding: list[int]) -> list[int]:
    """Where the slopes of a convolution lie in a frame that holds all which any pixel of its images gets."""
    return [(kernel[n] - 1 - padding[n]) // stride[n] for n in range(2)]


def times(number: int, each: int) -> int:
    """How often another fits into a number, rounded up."""
    return -(-number // each)
