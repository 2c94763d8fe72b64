"""In Triton's language. Imported only where there is a GPU: Triton comes with PyTorch's CUDA builds."""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def weigh(
    images, weights, out, pairs,
    H: tl.constexpr, W: tl.constexpr,
    HF: tl.constexpr, WF: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr,
    C: tl.constexpr, TURNED: tl.constexpr,
    FULL: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """What some channels' kernels see, weighed and added up, for pairs of pixels beside each other, which see
    most of the same. FULL: neither pixels nor channels are left over."""
    blocks: tl.constexpr = (C + CHANNELS - 1) // CHANNELS
    across: tl.constexpr = (W + 1) // 2
    channels = tl.program_id(0) % blocks * CHANNELS + tl.arange(0, CHANNELS)
    pair = tl.program_id(0) // blocks * PIXELS + tl.arange(0, PIXELS)
    line, x = pair // across, 2 * (pair % across)
    some = channels < C
    there = (pair < pairs)[:, None] & some[None, :]
    room = WF - x[:, None] * SW
    at = images + (((line // H * HF + line % H * SH) * WF + x * SW) * C)[:, None] + channels[None, :]
    left = tl.zeros([PIXELS, CHANNELS], tl.float32)
    right = left
    for row in tl.static_range(KH):
        for column in tl.static_range(KW + SW):
            seen = _numbers(at + (row * WF + column) * C, there & (column < room), FULL)
            tap = KH * KW - 1 - row * KW - column if TURNED else row * KW + column
            back = -SW if TURNED else SW
            if column < KW:
                left += seen * tl.load(weights + tap * C + channels, some, other=0)[None, :]
            if column >= SW:
                right += seen * tl.load(weights + (tap - back) * C + channels, some, other=0)[None, :]
    to = out + ((line * W + x) * C)[:, None] + channels[None, :]
    tl.store(to, left.to(out.dtype.element_ty), there)
    tl.store(to + C, right.to(out.dtype.element_ty), there & (x + 1 < W)[:, None])


@triton.jit
def tap_slopes(
    images, slopes, out, pairs, steps,
    H: tl.constexpr, W: tl.constexpr,
    HF: tl.constexpr, WF: tl.constexpr,
    HG: tl.constexpr, WG: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr,
    C: tl.constexpr,
    FULL: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Nine sums over a part of the pixels, for some channels. Two output pixels beside each other at a time,
    which see most of the same. FULL: neither pixels nor channels are left over."""
    blocks: tl.constexpr = (C + CHANNELS - 1) // CHANNELS
    across: tl.constexpr = (W + 1) // 2
    part = tl.program_id(0) // blocks
    channels = tl.program_id(0) % blocks * CHANNELS + tl.arange(0, CHANNELS)
    some = channels < C
    a = tl.zeros([PIXELS, CHANNELS], tl.float32)
    b, c, d, e, f, g, h, i = a, a, a, a, a, a, a, a
    for step in range(steps):
        pair = (part * steps + step) * PIXELS + tl.arange(0, PIXELS)
        line = pair // across
        x, y, n = 2 * (pair % across), line % H, line // H
        there = (pair < pairs)[:, None] & some[None, :]
        at = slopes + (((n * HG + TOP + y * SH) * WG + LEFT + x * SW) * C)[:, None] + channels[None, :]
        left = _numbers(at, there, FULL)
        right = _numbers(at + SW * C, there & (x + 1 < W)[:, None], FULL)
        at = images + (((n * HF + y * SH) * WF + x * SW) * C)[:, None] + channels[None, :]
        room = WF - x[:, None] * SW
        a, b, c = _row(at, left, right, a, b, c, there, room, SW, C, FULL)
        d, e, f = _row(at + WF * C, left, right, d, e, f, there, room, SW, C, FULL)
        g, h, i = _row(at + 2 * WF * C, left, right, g, h, i, there, room, SW, C, FULL)
    to = out + part * 9 * C + channels
    tl.store(to, tl.sum(a, 0), some)
    tl.store(to + C, tl.sum(b, 0), some)
    tl.store(to + 2 * C, tl.sum(c, 0), some)
    tl.store(to + 3 * C, tl.sum(d, 0), some)
    tl.store(to + 4 * C, tl.sum(e, 0), some)
    tl.store(to + 5 * C, tl.sum(f, 0), some)
    tl.store(to + 6 * C, tl.sum(g, 0), some)
    tl.store(to + 7 * C, tl.sum(h, 0), some)
    tl.store(to + 8 * C, tl.sum(i, 0), some)


@triton.jit
def _row(
    at, left, right, first, second, third, there, room,
    SW: tl.constexpr, C: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """The three sums of a row of the kernel, with what the two pixels see there."""
    for column in tl.static_range(3 + SW):
        seen = _numbers(at + column * C, there & (column < room), FULL)
        if column == 0:
            first += seen * left
        if column == 1:
            second += seen * left
        if column == 2:
            third += seen * left
        if column == SW:
            first += seen * right
        if column == SW + 1:
            second += seen * right
        if column == SW + 2:
            third += seen * right
    return first, second, third


@triton.jit
def _numbers(at, there, FULL: tl.constexpr):
    numbers = tl.load(at) if FULL else tl.load(at, there, other=0)
    return numbers.to(tl.float32)
