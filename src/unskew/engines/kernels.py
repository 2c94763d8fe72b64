"""Programs for a GPU, where a compiler's own are slow."""

from __future__ import annotations

import torch
from torch import Tensor

PIXELS, CHANNELS, WARPS = 16, 32, 2
"""Pairs of pixels and channels that a program sees at once, and who look: the fastest of seven on an H200."""
PROGRAMS = 512


def tap_slopes(
    images: Tensor, slopes: Tensor, place: list[int], stride: list[int], size: list[int]
) -> Tensor:
    """For a kernel of 3×3 weights for each channel, how the loss changes with each of them, [9, C]. Images
    [N, H, W, C] in a frame of zeros; so the slopes of the output, from a place on, `stride` apart."""
    parts: Tensor = _in_parts(images, slopes, place, stride, size)
    return parts.sum(dim=0)


@torch.library.custom_op("unskew::tap_slopes", mutates_args=(), device_types="cuda")
def _in_parts(images: Tensor, slopes: Tensor, place: list[int], stride: list[int], size: list[int]) -> Tensor:
    from unskew.engines import triton_kernels

    (N, HF, WF, C), (H, W) = images.shape, size
    parts = _parts(C)
    pairs = N * H * -(-W // 2)
    steps = -(-pairs // (parts * PIXELS))
    full = C % CHANNELS == 0 and W % 2 == 0 and parts * steps * PIXELS == pairs
    out = images.new_empty((parts, 9, C), dtype=torch.float32)
    with torch.cuda.device(images.device):
        triton_kernels.tap_slopes[(parts * -(-C // CHANNELS),)](
            images, slopes, out, pairs,
            H, W, HF, WF, slopes.shape[1], slopes.shape[2], *place, *stride, C, steps, full, PIXELS, CHANNELS,
            num_warps=WARPS,
        )  # fmt: skip
    return out


@_in_parts.register_fake
def _shaped(images: Tensor, slopes: Tensor, place: list[int], stride: list[int], size: list[int]) -> Tensor:
    C = images.shape[3]
    return images.new_empty((_parts(C), 9, C), dtype=torch.float32)


def _parts(channels: int) -> int:
    """Programs that share the pixels."""
    return max(1, PROGRAMS // -(-channels // CHANNELS))
