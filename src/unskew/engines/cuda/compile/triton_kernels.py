"""In Triton's language. Imported only where there is a GPU: Triton comes with PyTorch's CUDA builds."""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def weigh(
    images, weights, out, fours,
    H: tl.constexpr, W: tl.constexpr,
    HF: tl.constexpr, WF: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr,
    C: tl.constexpr, TURNED: tl.constexpr,
    FULL: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """What some channels' kernels see, weighed and added up. Four pixels beside each other at a time, which
    see most of the same. FULL: neither pixels nor channels are left over."""
    blocks: tl.constexpr = (C + CHANNELS - 1) // CHANNELS
    across: tl.constexpr = (W + 3) // 4
    channels = tl.program_id(0) % blocks * CHANNELS + tl.arange(0, CHANNELS)
    four = tl.program_id(0) // blocks * PIXELS + tl.arange(0, PIXELS)
    line, x = four // across, 4 * (four % across)
    some = channels < C
    there = (four < fours)[:, None] & some[None, :]
    room = WF - x[:, None] * SW
    at = images + (((line // H * HF + line % H * SH) * WF + x * SW) * C)[:, None] + channels[None, :]
    a = tl.zeros([PIXELS, CHANNELS], tl.float32)
    b, c, d = a, a, a
    for row in tl.static_range(KH):
        for column in tl.static_range(KW + 3 * SW):
            seen = _numbers(at + (row * WF + column) * C, there & (column < room), FULL)
            if column < KW:
                a += seen * _weight(weights, row, column, channels, some, KH, KW, C, TURNED)
            if column >= SW and column < KW + SW:
                b += seen * _weight(weights, row, column - SW, channels, some, KH, KW, C, TURNED)
            if column >= 2 * SW and column < KW + 2 * SW:
                c += seen * _weight(weights, row, column - 2 * SW, channels, some, KH, KW, C, TURNED)
            if column >= 3 * SW:
                d += seen * _weight(weights, row, column - 3 * SW, channels, some, KH, KW, C, TURNED)
    to = out + ((line * W + x) * C)[:, None] + channels[None, :]
    tl.store(to, a.to(out.dtype.element_ty), there)
    tl.store(to + C, b.to(out.dtype.element_ty), there & (x + 1 < W)[:, None])
    tl.store(to + 2 * C, c.to(out.dtype.element_ty), there & (x + 2 < W)[:, None])
    tl.store(to + 3 * C, d.to(out.dtype.element_ty), there & (x + 3 < W)[:, None])


@triton.jit
def weigh_back(
    slopes, weights, out, places,
    H: tl.constexpr, W: tl.constexpr,
    HF: tl.constexpr, WF: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr,
    C: tl.constexpr,
    FULL: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """What the slopes of a convolution with strides give to some channels of the images. As many pixels at a
    time as a stride passes: which weights saw them is known before. FULL: as above."""
    blocks: tl.constexpr = (C + CHANNELS - 1) // CHANNELS
    down: tl.constexpr = (H + SH - 1) // SH
    across: tl.constexpr = (W + SW - 1) // SW
    channels = tl.program_id(0) % blocks * CHANNELS + tl.arange(0, CHANNELS)
    place = tl.program_id(0) // blocks * PIXELS + tl.arange(0, PIXELS)
    line, x = place // across, place % across
    n, y = line // down, line % down
    some = channels < C
    there = (place < places)[:, None] & some[None, :]
    at = slopes + (((n * HF + TOP + y) * WF + LEFT + x) * C)[:, None] + channels[None, :]
    to = out + (((n * H + y * SH) * W + x * SW) * C)[:, None] + channels[None, :]
    for p in tl.static_range(SH):
        for q in tl.static_range(SW):
            total = tl.zeros([PIXELS, CHANNELS], tl.float32)
            for row in tl.static_range(KH):
                for column in tl.static_range(KW):
                    if (p + PH - row) % SH == 0 and (q + PW - column) % SW == 0:
                        seen = at + ((p + PH - row) // SH * WF + (q + PW - column) // SW) * C
                        total += _numbers(seen, there, FULL) * _weight(
                            weights, row, column, channels, some, KH, KW, C, False
                        )
            inside = there & (y * SH + p < H)[:, None] & (x * SW + q < W)[:, None]
            tl.store(to + (p * W + q) * C, total.to(out.dtype.element_ty), inside)


@triton.jit
def _weight(
    weights, row, column, channels, some,
    KH: tl.constexpr, KW: tl.constexpr, C: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    tap = KH * KW - 1 - row * KW - column if TURNED else row * KW + column
    return tl.load(weights + tap * C + channels, some, other=0)[None, :]


@triton.jit
def tap_slopes(
    images, slopes, out, fours, steps,
    H: tl.constexpr, W: tl.constexpr,
    HF: tl.constexpr, WF: tl.constexpr,
    HG: tl.constexpr, WG: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr,
    C: tl.constexpr,
    FULL: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Nine sums over a part of the pixels, for some channels. Four output pixels beside each other at a time,
    which see most of the same. FULL: neither pixels nor channels are left over."""
    blocks: tl.constexpr = (C + CHANNELS - 1) // CHANNELS
    across: tl.constexpr = (W + 3) // 4
    part = tl.program_id(0) // blocks
    channels = tl.program_id(0) % blocks * CHANNELS + tl.arange(0, CHANNELS)
    some = channels < C
    a = tl.zeros([PIXELS, CHANNELS], tl.float32)
    b, c, d, e, f, g, h, i = a, a, a, a, a, a, a, a
    for step in range(steps):
        four = (part * steps + step) * PIXELS + tl.arange(0, PIXELS)
        line = four // across
        x, y, n = 4 * (four % across), line % H, line // H
        there = (four < fours)[:, None] & some[None, :]
        at = slopes + (((n * HG + TOP + y) * WG + LEFT + x) * C)[:, None] + channels[None, :]
        p = _numbers(at, there, FULL)
        q = _numbers(at + C, there & (x + 1 < W)[:, None], FULL)
        r = _numbers(at + 2 * C, there & (x + 2 < W)[:, None], FULL)
        s = _numbers(at + 3 * C, there & (x + 3 < W)[:, None], FULL)
        at = images + (((n * HF + y * SH) * WF + x * SW) * C)[:, None] + channels[None, :]
        room = WF - x[:, None] * SW
        a, b, c = _row(at, p, q, r, s, a, b, c, there, room, SW, C, FULL)
        d, e, f = _row(at + WF * C, p, q, r, s, d, e, f, there, room, SW, C, FULL)
        g, h, i = _row(at + 2 * WF * C, p, q, r, s, g, h, i, there, room, SW, C, FULL)
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
    at, p, q, r, s, first, second, third, there, room,
    SW: tl.constexpr, C: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """The three sums of a row of the kernel, with what the four pixels see there."""
    for column in tl.static_range(3 + 3 * SW):
        seen = _numbers(at + column * C, there & (column < room), FULL)
        first, second, third = _tapped(seen, p, column, first, second, third)
        first, second, third = _tapped(seen, q, column - SW, first, second, third)
        first, second, third = _tapped(seen, r, column - 2 * SW, first, second, third)
        first, second, third = _tapped(seen, s, column - 3 * SW, first, second, third)
    return first, second, third


@triton.jit
def _tapped(seen, slope, tap: tl.constexpr, first, second, third):
    """The same, with what a pixel sees by one of the three weights, or by none of them."""
    if tap == 0:
        first += seen * slope
    if tap == 1:
        second += seen * slope
    if tap == 2:
        third += seen * slope
    return first, second, third


@triton.jit
def _numbers(at, there, FULL: tl.constexpr):
    numbers = tl.load(at) if FULL else tl.load(at, there, other=0)
    return numbers.to(tl.float32)
