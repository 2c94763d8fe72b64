"""The operators of `depthwise_ops` in Triton's language.

This is imported only with a GPU: Triton comes with PyTorch's CUDA builds. In all kernels, H and W are the
height and width of a convolution's output, HP and WP those of padded images, HG and WG those of a padded
gradient, whose pixels begin at TOP and LEFT; K is for kernels, S for strides, C for channels. FULL says that
the blocks cover pixels and channels without a remainder, so that no load needs a mask.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def depthwise(
    images, weights, out, quads,
    H: tl.constexpr, W: tl.constexpr,
    HP: tl.constexpr, WP: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr,
    C: tl.constexpr, FLIPPED: tl.constexpr,
    FULL: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Convolve some channels of some output pixels. Four pixels side by side are computed together, because
    they read most of the same input."""
    blocks: tl.constexpr = (C + CHANNELS - 1) // CHANNELS
    quads_per_row: tl.constexpr = (W + 3) // 4
    channels = tl.program_id(0) % blocks * CHANNELS + tl.arange(0, CHANNELS)
    quad = tl.program_id(0) // blocks * PIXELS + tl.arange(0, PIXELS)
    line, x = quad // quads_per_row, 4 * (quad % quads_per_row)
    channel_mask = channels < C
    mask = (quad < quads)[:, None] & channel_mask[None, :]
    columns_left = WP - x[:, None] * SW
    source = images + (((line // H * HP + line % H * SH) * WP + x * SW) * C)[:, None] + channels[None, :]
    sum0 = tl.zeros([PIXELS, CHANNELS], tl.float32)
    sum1, sum2, sum3 = sum0, sum0, sum0
    for row in tl.static_range(KH):
        for column in tl.static_range(KW + 3 * SW):
            value = _load(source + (row * WP + column) * C, mask & (column < columns_left), FULL)
            if column < KW:
                sum0 += value * _weight(weights, row, column, channels, channel_mask, KH, KW, C, FLIPPED)
            if column >= SW and column < KW + SW:
                sum1 += value * _weight(weights, row, column - SW, channels, channel_mask, KH, KW, C, FLIPPED)
            if column >= 2 * SW and column < KW + 2 * SW:
                sum2 += value * _weight(
                    weights, row, column - 2 * SW, channels, channel_mask, KH, KW, C, FLIPPED
                )
            if column >= 3 * SW:
                sum3 += value * _weight(
                    weights, row, column - 3 * SW, channels, channel_mask, KH, KW, C, FLIPPED
                )
    target = out + ((line * W + x) * C)[:, None] + channels[None, :]
    tl.store(target, sum0.to(out.dtype.element_ty), mask)
    tl.store(target + C, sum1.to(out.dtype.element_ty), mask & (x + 1 < W)[:, None])
    tl.store(target + 2 * C, sum2.to(out.dtype.element_ty), mask & (x + 2 < W)[:, None])
    tl.store(target + 3 * C, sum3.to(out.dtype.element_ty), mask & (x + 3 < W)[:, None])


@triton.jit
def _weight(
    weights, row, column, channels, channel_mask,
    KH: tl.constexpr, KW: tl.constexpr, C: tl.constexpr, FLIPPED: tl.constexpr,
):  # fmt: skip
    """Load one weight of some channels' kernels."""
    tap = KH * KW - 1 - row * KW - column if FLIPPED else row * KW + column
    return tl.load(weights + tap * C + channels, channel_mask, other=0)[None, :]


@triton.jit
def depthwise_weight_gradient(
    images, grad, out, quads, steps,
    H: tl.constexpr, W: tl.constexpr,
    HP: tl.constexpr, WP: tl.constexpr,
    HG: tl.constexpr, WG: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr,
    C: tl.constexpr,
    FULL: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of some channels' 3×3 weights by a part of the pixels: nine sums. Four output
    pixels side by side are read together, because they are made of mostly the same input."""
    blocks: tl.constexpr = (C + CHANNELS - 1) // CHANNELS
    quads_per_row: tl.constexpr = (W + 3) // 4
    part = tl.program_id(0) // blocks
    channels = tl.program_id(0) % blocks * CHANNELS + tl.arange(0, CHANNELS)
    channel_mask = channels < C
    sum0 = tl.zeros([PIXELS, CHANNELS], tl.float32)
    sum1, sum2, sum3, sum4, sum5, sum6, sum7, sum8 = sum0, sum0, sum0, sum0, sum0, sum0, sum0, sum0
    for step in range(steps):
        quad = (part * steps + step) * PIXELS + tl.arange(0, PIXELS)
        line = quad // quads_per_row
        x, y, n = 4 * (quad % quads_per_row), line % H, line // H
        mask = (quad < quads)[:, None] & channel_mask[None, :]
        source = grad + (((n * HG + TOP + y) * WG + LEFT + x) * C)[:, None] + channels[None, :]
        grad0 = _load(source, mask, FULL)
        grad1 = _load(source + C, mask & (x + 1 < W)[:, None], FULL)
        grad2 = _load(source + 2 * C, mask & (x + 2 < W)[:, None], FULL)
        grad3 = _load(source + 3 * C, mask & (x + 3 < W)[:, None], FULL)
        source = images + (((n * HP + y * SH) * WP + x * SW) * C)[:, None] + channels[None, :]
        left = WP - x[:, None] * SW
        sum0, sum1, sum2 = _add_row(
            source, grad0, grad1, grad2, grad3, sum0, sum1, sum2, mask, left, SW, C, FULL
        )
        sum3, sum4, sum5 = _add_row(
            source + WP * C, grad0, grad1, grad2, grad3, sum3, sum4, sum5, mask, left, SW, C, FULL
        )
        sum6, sum7, sum8 = _add_row(
            source + 2 * WP * C, grad0, grad1, grad2, grad3, sum6, sum7, sum8, mask, left, SW, C, FULL
        )
    target = out + part * 9 * C + channels
    tl.store(target, tl.sum(sum0, 0), channel_mask)
    tl.store(target + C, tl.sum(sum1, 0), channel_mask)
    tl.store(target + 2 * C, tl.sum(sum2, 0), channel_mask)
    tl.store(target + 3 * C, tl.sum(sum3, 0), channel_mask)
    tl.store(target + 4 * C, tl.sum(sum4, 0), channel_mask)
    tl.store(target + 5 * C, tl.sum(sum5, 0), channel_mask)
    tl.store(target + 6 * C, tl.sum(sum6, 0), channel_mask)
    tl.store(target + 7 * C, tl.sum(sum7, 0), channel_mask)
    tl.store(target + 8 * C, tl.sum(sum8, 0), channel_mask)


@triton.jit
def _add_row(
    source, grad0, grad1, grad2, grad3, first, second, third, mask, columns_left,
    SW: tl.constexpr, C: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Add to the sums of one row of the kernel what four output pixels give."""
    for column in tl.static_range(3 + 3 * SW):
        value = _load(source + column * C, mask & (column < columns_left), FULL)
        first, second, third = _add_tap(value, grad0, column, first, second, third)
        first, second, third = _add_tap(value, grad1, column - SW, first, second, third)
        first, second, third = _add_tap(value, grad2, column - 2 * SW, first, second, third)
        first, second, third = _add_tap(value, grad3, column - 3 * SW, first, second, third)
    return first, second, third


@triton.jit
def _add_tap(value, grad, tap: tl.constexpr, first, second, third):
    """Add a product to the sum of one of the row's three weights, or to none of them."""
    if tap == 0:
        first += value * grad
    if tap == 1:
        second += value * grad
    if tap == 2:
        third += value * grad
    return first, second, third


@triton.jit
def _load(source, mask, FULL: tl.constexpr):
    """Load values as float32, zero where the mask is not set."""
    values = tl.load(source) if FULL else tl.load(source, mask, other=0)
    return values.to(tl.float32)
