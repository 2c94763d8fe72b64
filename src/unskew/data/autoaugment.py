"""AutoAugment: the policy found for CIFAR-10, with the operations it consists of.

Cubuk et al., "AutoAugment: Learning Augmentation Strategies from Data", CVPR 2019: the policy found on
reduced CIFAR-10. FedVLS uses it for CIFAR-10, CIFAR-100 and Tiny-ImageNet, with the magnitudes of its
release: index m stands for a uniform draw from [grid[m], grid[m+1]] of an 11-point grid over the
operation's range, and no sign is drawn, so Rotate 2 always turns by -18 to -12 degrees.

As in that release: coordinates are (row, column), so TranslateX moves the picture left for positive
magnitudes and ShearY shifts columns by row; each operation ends in whole pixel values; colour operations
are Pillow's.

Deviations from it:

- Bicubic interpolation in place of a cubic spline (less than one grey level apart on average on CIFAR-10).
- Two geometric operations in a row are one resampling; pixels that the first lost stay lost (zero).
- Rotation and shear keep the centre of the image in place; there, a point one pixel below and right of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.transfer import upload


class Op(IntEnum):
    """An operation of the policy."""

    NONE = 0
    SHEAR_Y = 1
    TRANSLATE_X = 2
    TRANSLATE_Y = 3
    ROTATE = 4
    AUTO_CONTRAST = 5
    INVERT = 6
    EQUALIZE = 7
    SOLARIZE = 8
    POSTERIZE = 9
    CONTRAST = 10
    COLOR = 11
    BRIGHTNESS = 12
    SHARPNESS = 13


RANGES: dict[Op, tuple[float, float]] = {
    Op.SHEAR_Y: (-0.3, 0.3),
    Op.TRANSLATE_X: (-150 / 331, 150 / 331),  # of the width; 331 was the image size of the search
    Op.TRANSLATE_Y: (-150 / 331, 150 / 331),
    Op.ROTATE: (-30.0, 30.0),
    Op.SOLARIZE: (0.0, 256.0),
    Op.POSTERIZE: (4.0, 8.0),
    Op.CONTRAST: (0.1, 1.9),
    Op.COLOR: (0.1, 1.9),
    Op.BRIGHTNESS: (0.1, 1.9),
    Op.SHARPNESS: (0.1, 1.9),
}
"""The magnitudes of each operation; an operation without a range has none."""

PolicyStep = tuple[Op, float, int]
"""An operation, its probability, and the index of its magnitude."""

POLICY: tuple[tuple[PolicyStep, PolicyStep], ...] = (
    ((Op.INVERT, 0.1, 7), (Op.CONTRAST, 0.2, 6)),
    ((Op.ROTATE, 0.7, 2), (Op.TRANSLATE_X, 0.3, 9)),
    ((Op.SHARPNESS, 0.8, 1), (Op.SHARPNESS, 0.9, 3)),
    ((Op.SHEAR_Y, 0.5, 8), (Op.TRANSLATE_Y, 0.7, 9)),
    ((Op.AUTO_CONTRAST, 0.5, 8), (Op.EQUALIZE, 0.9, 2)),
    ((Op.SHEAR_Y, 0.2, 7), (Op.POSTERIZE, 0.3, 7)),
    ((Op.COLOR, 0.4, 3), (Op.BRIGHTNESS, 0.6, 7)),
    ((Op.SHARPNESS, 0.3, 9), (Op.BRIGHTNESS, 0.7, 9)),
    ((Op.EQUALIZE, 0.6, 5), (Op.EQUALIZE, 0.5, 1)),
    ((Op.CONTRAST, 0.6, 7), (Op.SHARPNESS, 0.6, 5)),
    ((Op.COLOR, 0.7, 7), (Op.TRANSLATE_X, 0.5, 8)),
    ((Op.EQUALIZE, 0.3, 7), (Op.AUTO_CONTRAST, 0.4, 8)),
    ((Op.TRANSLATE_Y, 0.4, 3), (Op.SHARPNESS, 0.2, 6)),
    ((Op.BRIGHTNESS, 0.9, 6), (Op.COLOR, 0.2, 8)),
    ((Op.SOLARIZE, 0.5, 2), (Op.INVERT, 0.0, 3)),
    ((Op.EQUALIZE, 0.2, 0), (Op.AUTO_CONTRAST, 0.6, 0)),
    ((Op.EQUALIZE, 0.2, 8), (Op.EQUALIZE, 0.6, 4)),
    ((Op.COLOR, 0.9, 9), (Op.EQUALIZE, 0.6, 6)),
    ((Op.AUTO_CONTRAST, 0.8, 4), (Op.SOLARIZE, 0.2, 8)),
    ((Op.BRIGHTNESS, 0.1, 3), (Op.COLOR, 0.7, 0)),
    ((Op.SOLARIZE, 0.4, 5), (Op.AUTO_CONTRAST, 0.9, 3)),
    ((Op.TRANSLATE_Y, 0.9, 9), (Op.TRANSLATE_Y, 0.7, 9)),
    ((Op.AUTO_CONTRAST, 0.9, 2), (Op.SOLARIZE, 0.8, 3)),
    ((Op.EQUALIZE, 0.8, 8), (Op.INVERT, 0.1, 3)),
    ((Op.TRANSLATE_Y, 0.7, 9), (Op.AUTO_CONTRAST, 0.9, 1)),
)


@cache
def _policy() -> tuple[Tensor, Tensor]:
    """Return the policy as tensors: operations [25, 2], and for each its probability, lowest magnitude and
    width of the range of magnitudes [25, 2, 3]."""

    def numbers(op: Op, probability: float, m: int) -> tuple[float, float, float]:
        low, high = RANGES.get(op, (0.0, 0.0))
        return probability, low + (high - low) * m / 10, (high - low) / 10

    ops = torch.tensor([[step[0] for step in pair] for pair in POLICY])
    return ops, torch.tensor([[numbers(*step) for step in pair] for pair in POLICY])


def autoaugment(x: Tensor, u: Sequence[Tensor]) -> Tensor:
    """Apply a random sub-policy to each of the uint8 images [B, 1 or 3, H, W].

    u: five uniform numbers per image, [B] each, on the host: they choose the sub-policy, then whether and how
    strongly its first and its second operation is applied."""
    ops, numbers = _policy()
    chosen = whole_below(u[0], len(POLICY))
    ops, numbers = ops[chosen], numbers[chosen]
    steps = []
    for k in range(2):
        probability, low, width = numbers[:, k].unbind(dim=1)
        op = torch.where(u[2 * k + 1] < probability, ops[:, k], int(Op.NONE))
        steps.append((op, low + u[2 * k + 2] * width))
    # One resampling does the geometry of both operations. It comes between the colour operations, which is
    # the right order whichever of the two operations changes colours.
    x = recolour(x, *steps[0])
    x = resample(x, steps)
    return recolour(x, *steps[1])


def recolour(x: Tensor, op: Tensor, magnitude: Tensor) -> Tensor:
    """Apply to each image its own colour operation; geometric ones and NONE leave it as it is. Operations
    and magnitudes, [B] each, are on the host."""
    order = op.argsort(stable=True)
    groups = op.bincount(minlength=len(Op)).tolist()
    rows = upload(order, x.device).split_with_sizes(groups)
    strength = upload(magnitude[order], x.device).split_with_sizes(groups)
    out = x.clone()
    for each, change in COLOURS.items():
        if groups[each]:
            some = x.index_select(0, rows[each])
            out.index_copy_(0, rows[each], change(some, strength[each].view(-1, 1, 1, 1)))
    return out


def _auto_contrasted(x: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel from its lowest and highest value to 0 and 255, as Pillow's ImageOps.autocontrast.
    It is computed in float64 and cut off to whole values, as there."""
    low, high = x.amin((2, 3)).long().unsqueeze(2), x.amax((2, 3)).long().unsqueeze(2)
    values = _values(x)
    span = (high - low).clamp(min=1).double()
    scale = torch.full_like(span, 255) / span  # 255 / span would round twice
    table = (values.double() * scale - low * scale).clamp(0, 255).floor().float()
    return _looked_up(x, torch.where(high > low, table, values))


def _equalized(x: Tensor, _: Tensor) -> Tensor:
    """Flatten each channel's histogram, as Pillow's ImageOps.equalize. All numbers are whole, and so exact in
    float32."""
    flat, high = x.flatten(2).long(), x.amax((2, 3)).long().unsqueeze(2)
    ones = torch.ones((), device=x.device).expand_as(flat)
    counts = torch.zeros((*x.shape[:2], 256), device=x.device).scatter_add_(2, flat, ones)
    total = counts.sum(dim=2, keepdim=True)
    step = ((total - counts.gather(2, high)) / 255).floor()
    below = counts.cumsum(dim=2) - counts
    table = (((step / 2).floor() + below) / step.clamp(min=1)).floor().clamp(max=255)
    return _looked_up(x, torch.where(step > 0, table, _values(x)))


def _posterized(x: Tensor, bits: Tensor) -> Tensor:
    return x & (256 - (1 << (8 - bits.round().long()))).to(torch.uint8)


def _contrasted(x: Tensor, factor: Tensor) -> Tensor:
    pixels = x.float()
    mean = (_grey(pixels).sum((2, 3), keepdim=True) / (x.shape[2] * x.shape[3]) + 0.5).floor()
    return _blend(mean, pixels, factor)


def _coloured(x: Tensor, factor: Tensor) -> Tensor:
    pixels = x.float()
    return _blend(_grey(pixels), pixels, factor)


def _sharpened(x: Tensor, factor: Tensor) -> Tensor:
    pixels = x.float()
    return _blend(_smooth(pixels), pixels, factor)


COLOURS: dict[Op, Callable[[Tensor, Tensor], Tensor]] = {
    Op.AUTO_CONTRAST: _auto_contrasted,
    Op.INVERT: lambda x, _: 255 - x,
    Op.EQUALIZE: _equalized,
    Op.SOLARIZE: lambda x, threshold: torch.where(x < threshold, x, 255 - x),
    Op.POSTERIZE: _posterized,
    Op.CONTRAST: _contrasted,
    Op.COLOR: _coloured,
    Op.BRIGHTNESS: lambda x, factor: _blend(torch.zeros((), device=x.device), x.float(), factor),
    Op.SHARPNESS: _sharpened,
}
"""The colour operations: functions of uint8 images [B, C, H, W] and magnitudes [B, 1, 1, 1]."""


def _values(x: Tensor) -> Tensor:
    return torch.arange(256, dtype=torch.float32, device=x.device)


def _looked_up(x: Tensor, table: Tensor) -> Tensor:
    """Replace every value by its entry in the table [B, C, 256] of its channel."""
    return table.to(torch.uint8).gather(2, x.flatten(2).long()).view_as(x)


def _blend(plain: Tensor, picture: Tensor, factor: Tensor) -> Tensor:
    """Mix two images as Pillow's Image.blend: extrapolate beyond factor 1, and cut off to whole values."""
    return (picture - plain).mul_(factor).add_(plain).clamp_(0, 255).floor_().to(torch.uint8)


def _grey(pixels: Tensor) -> Tensor:
    """Convert to grey as Pillow does: ITU-R 601 weights in 16-bit fixed point, below 2**24 and so exact in
    float32."""
    if pixels.shape[1] == 1:
        return pixels
    r, g, b = pixels.unbind(dim=1)
    grey = (19595 * r).add_(g, alpha=38470).add_(b, alpha=7471).add_(32768).div_(65536).floor_()
    return grey.unsqueeze(1)


def _smooth(pixels: Tensor) -> Tensor:
    """Apply Pillow's SMOOTH filter: 3×3, centre 5, others 1, over 13; the border stays as it is."""
    inner = pixels[:, :, 1:-1, 1:-1]
    rows = (pixels[:, :, :-2] + pixels[:, :, 1:-1]).add_(pixels[:, :, 2:])
    box = (rows[:, :, :, :-2] + rows[:, :, :, 1:-1]).add_(rows[:, :, :, 2:])
    smooth = pixels.clone()
    smooth[:, :, 1:-1, 1:-1] = box.add_(inner, alpha=4).div_(13).add_(0.5).floor_()
    return smooth


def resample(x: Tensor, steps: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Apply to each image its own geometric operations, in order, with zeros for coordinates outside of it.
    Other operations leave it as it is. Operations and magnitudes, [B] each, are on the host."""
    H, W = x.shape[2:]
    rows = torch.stack([_is_geometric(op) for op, _ in steps]).any(dim=0).nonzero().squeeze(1)
    if not len(rows):
        return x
    numbers = []
    for op, magnitude in reversed([(op[rows], magnitude[rows]) for op, magnitude in steps]):
        cos, sin = cos_sin(torch.where(op == Op.ROTATE, magnitude, 0.0))
        shear = torch.where(op == Op.SHEAR_Y, magnitude, 0.0)
        down = torch.where(op == Op.TRANSLATE_Y, magnitude * H, 0.0)
        right = torch.where(op == Op.TRANSLATE_X, magnitude * W, 0.0)
        numbers.append(torch.stack([cos, sin, shear, down, right]))
    # Coordinates from the centre, traced back from the result to the image.
    r = (torch.arange(H, device=x.device) - (H - 1) / 2).view(1, H, 1)
    c = (torch.arange(W, device=x.device) - (W - 1) / 2).view(1, 1, W)
    inside = torch.ones((1, 1, 1), dtype=torch.bool, device=x.device)
    for cos, sin, shear, down, right in upload(torch.stack(numbers), x.device).unsqueeze(3).unsqueeze(4):
        r, c = cos * r - sin * c + down, (sin + shear) * r + cos * c + right
        inside = inside & (r.abs() <= (H - 1) / 2) & (c.abs() <= (W - 1) / 2)
    grid = torch.stack((c * (2 / W), r * (2 / H)), dim=3)
    rows = upload(rows, x.device)
    some = x.index_select(0, rows).float()
    out = F.grid_sample(some, grid, mode="bicubic", padding_mode="border", align_corners=False)
    moved = (out.round().clamp(0, 255) * inside.unsqueeze(1)).to(torch.uint8)
    return x.index_copy(0, rows, moved)


def _is_geometric(op: Tensor) -> Tensor:
    return (op >= Op.SHEAR_Y) & (op <= Op.ROTATE)


def whole_below(u: Tensor, n: int) -> Tensor:
    """Turn uniform numbers in [0, 1) into whole numbers 0 .. n-1; u * n may round up to n."""
    return (u * n).long().clamp(max=n - 1)


def cos_sin(degrees: Tensor) -> tuple[Tensor, Tensor]:
    """Compute cosine and sine in float64 and round them to float32: the last bit of float32 sines differs
    between devices and places in a batch."""
    angle = degrees.double() * (math.pi / 180)
    return angle.cos().float(), angle.sin().float()
