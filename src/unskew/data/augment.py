"""Random changes of training images, on whole batches, on any device.

Every random choice comes in as a uniform number, so a picture depends on its own pixels and its own row of
numbers alone: not on the batch it is in, nor on what ran before. The numbers come from the host, which never
waits for a device here: what is done to which image is known beforehand, and done to no other.

The order is that of the published pipelines: crop, flip, rotate, AutoAugment, normalise, Cutout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.errors import UserError, unknown
from unskew.notation import items, named
from unskew.transfer import upload
from unskew.types import Inputs

STEPS = ("crop", "flip", "rotate", "autoaugment", "cutout")


@dataclass(frozen=True)
class Augment:
    """What happens to a training image. Written `crop:4,flip,autoaugment,cutout:16`, or `none`.

    Joined by commas, in this order:

        crop:P        shift by up to P pixels each way, zeros outside (crop:P/reflect: mirrored pixels)
        flip          mirror left and right, half of the time
        rotate:D      turn by up to D degrees each way, nearest pixel, zeros outside
        autoaugment   the CIFAR-10 policy of Cubuk et al. (CVPR 2019), as FedVLS runs it
        cutout:L      zero a square of side L after normalisation (DeVries & Taylor, 2017)
    """

    crop: int = 0
    reflect: bool = False
    flip: bool = False
    rotate: float = 0.0
    autoaugment: bool = False
    cutout: int = 0

    def __post_init__(self) -> None:
        for name, value in (("crop", self.crop), ("rotate", self.rotate), ("cutout", self.cutout)):
            if not value >= 0:
                raise UserError(f"augmentation '{name}:{value:g}' needs a number of 0 or more.")

    @classmethod
    def parse(cls, text: str) -> Augment:
        text = text.strip()
        crop, reflect, rotate, cutout = 0, False, 0.0, 0
        names: list[str] = []
        for step in items(text) if text != "none" else ():
            name, value = named(step.text)
            if name not in STEPS:
                raise unknown("augmentation", name, STEPS)
            if name in ("flip", "autoaugment") and value is not None:
                raise UserError(f"augmentation '{name}' takes no number: write '{name}', not '{step.text}'.")
            value = value or ""
            if name == "crop":
                pixels, slash, fill = value.partition("/")
                if slash and fill != "reflect":
                    raise unknown("fill of augmentation 'crop'", fill, ("reflect",))
                crop, reflect = int(_number(name, pixels, whole=True)), bool(slash)
            elif name == "rotate":
                rotate = _number(name, value, whole=False)
            elif name == "cutout":
                cutout = int(_number(name, value, whole=True))
            names.append(name)
        if names != [step for step in STEPS if step in names]:
            raise UserError(
                f"augmentation '{text}' is out of order or repeats itself: write each step once, in the "
                f"order {', '.join(STEPS)}."
            )
        return cls(crop, reflect, "flip" in names, rotate, "autoaugment" in names, cutout)

    def __str__(self) -> str:
        steps = {
            f"crop:{self.crop}{'/reflect' if self.reflect else ''}": self.crop > 0,
            "flip": self.flip,
            f"rotate:{self.rotate:g}": self.rotate > 0,
            "autoaugment": self.autoaugment,
            f"cutout:{self.cutout}": self.cutout > 0,
        }
        return ",".join(step for step, wanted in steps.items() if wanted) or "none"

    @property
    def draws(self) -> int:
        """How many uniform numbers each sample needs."""
        return (
            2 * (self.crop > 0) + self.flip + (self.rotate > 0) + 5 * self.autoaugment + 2 * (self.cutout > 0)
        )

    def check(self, inputs: Inputs) -> None:
        """Raise a UserError if this cannot be done to such samples."""
        if not self.draws:
            return
        if inputs.kind != "image":
            raise UserError(
                f"augmentation '{self}' changes images, but these are {inputs.kind} data: use 'none'."
            )
        channels, height, width = inputs.shape
        side = min(height, width)
        most = side - 1 if self.reflect else side
        if self.crop > most:
            raise UserError(
                f"augmentation '{self}' shifts images of {height}×{width} too far: crop by {most} at most."
            )
        if self.rotate > 180:
            raise UserError(f"augmentation 'rotate:{self.rotate:g}' turns too far: use at most 180 degrees.")
        if self.cutout > side:
            raise UserError(
                f"augmentation 'cutout:{self.cutout}' exceeds images of {height}×{width}: use {side} at most."
            )
        if self.autoaugment and channels not in (1, 3):
            raise UserError(
                f"augmentation 'autoaugment' needs grey or RGB images, not {channels} channels: leave it out."
            )

    def apply(self, x: Tensor, u: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
        """Augment and normalise: uint8 [B, channels, height, width] to float32, with u in [0, 1) of shape
        [B, draws], on the host. Without augmentation it is `normalise`, for tables and tokens too."""
        if not self.draws:
            return normalise(x, mean, std)
        self.check(Inputs("image" if x.dtype == torch.uint8 else "table", tuple(x.shape[1:])))
        if u.shape != (len(x), self.draws):
            raise UserError(
                f"augmentation '{self}' needs {self.draws} numbers for each of {len(x)} images, not an array "
                f"of shape {list(u.shape)}."
            )
        chosen, cut = 5 * self.autoaugment, 2 * (self.cutout > 0)
        moves = self.draws - chosen - cut
        move, choose, cut_at = u.cpu().split_with_sizes([moves, chosen, cut], dim=1)
        x = self._move(x, iter(upload(move, x.device).unbind(dim=1)))
        if self.autoaugment:
            x = autoaugment(x, choose.unbind(dim=1))
        out = normalise(x, mean, std)
        return _cut_out(out, self.cutout, *upload(cut_at, x.device).unbind(dim=1)) if self.cutout else out

    def _move(self, x: Tensor, numbers: Iterator[Tensor]) -> Tensor:
        """Crop, flip and rotate as one gather: for each pixel of the result, the pixel it comes from."""
        if not (self.crop or self.flip or self.rotate):
            return x
        B, C, H, W = x.shape
        shift = [_whole(next(numbers), 2 * self.crop + 1) - self.crop for _ in range(2)] if self.crop else []
        mirrored = next(numbers) < 0.5 if self.flip else None
        rows = torch.arange(H, device=x.device).view(1, H, 1)
        columns = torch.arange(W, device=x.device).view(1, 1, W)
        inside = torch.ones((1, 1, 1), dtype=torch.bool, device=x.device)
        # From the last step back to the first.
        if self.rotate:
            rows, columns = _turned(H, W, (2 * next(numbers) - 1) * self.rotate)
            inside = _within(rows, H) & _within(columns, W)
        if mirrored is not None:
            columns = torch.where(_wide(mirrored), W - 1 - columns, columns)
        if shift:
            rows, columns = rows + _wide(shift[0]), columns + _wide(shift[1])
            if self.reflect:
                rows, columns = _reflected(rows, H), _reflected(columns, W)
            else:
                inside = inside & _within(rows, H) & _within(columns, W)
        index = rows.clamp(0, H - 1) * W + columns.clamp(0, W - 1)
        moved = x.flatten(2).gather(2, index.expand(B, H, W).reshape(B, 1, H * W).expand(B, C, H * W))
        return moved.view(B, C, H, W) * inside.unsqueeze(1)


def normalise(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """uint8 images to float32, (x / 255 - mean) / std; without mean and std, x / 255. Tables and tokens
    come back as they are."""
    if x.dtype != torch.uint8:
        return x
    if not mean:
        return x.float() / 255
    scale, offset = _scale(tuple(mean), tuple(std), x.device)
    return x.float() * scale + offset


def _number(name: str, text: str, *, whole: bool) -> float:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        kind = "whole number" if whole else "number"
        raise UserError(f"augmentation '{name}' needs a {kind}, as in '{name}:4', not '{text}'.") from None


@cache
def _scale(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    m, s = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
    scale, offset = (1 / (255 * s)).float(), (-m / s).float()
    return scale.view(-1, 1, 1).to(device), offset.view(-1, 1, 1).to(device)


def _whole(u: Tensor, n: int) -> Tensor:
    """Uniform in 0 .. n-1; u * n may round up to n."""
    return (u * n).long().clamp(max=n - 1)


def _wide(per_sample: Tensor) -> Tensor:
    return per_sample.view(-1, 1, 1)


def _within(index: Tensor, size: int) -> Tensor:
    return (index >= 0) & (index < size)


def _reflected(index: Tensor, size: int) -> Tensor:
    """Mirrored at the first and last pixel, which are not repeated."""
    return (size - 1) - ((size - 1) - index.abs()).abs()


def _cos_sin(degrees: Tensor) -> tuple[Tensor, Tensor]:
    """In float64, rounded: the last bit of float32 sines differs between devices and places in a batch."""
    angle = degrees.double() * (math.pi / 180)
    return angle.cos().float(), angle.sin().float()


def _turned(H: int, W: int, degrees: Tensor) -> tuple[Tensor, Tensor]:
    """Where each pixel comes from when the image turns counter-clockwise about its centre; nearest pixel, as
    torchvision's RandomRotation."""
    cos, sin = map(_wide, _cos_sin(degrees))
    r = (torch.arange(H, device=degrees.device) + (0.5 - H / 2)).view(1, H, 1)
    c = (torch.arange(W, device=degrees.device) + (0.5 - W / 2)).view(1, 1, W)
    rows, columns = sin * c + cos * r + H / 2, cos * c - sin * r + W / 2
    return rows.floor().long(), columns.floor().long()


def _cut_out(x: Tensor, side: int, u: Tensor, v: Tensor) -> Tensor:
    """Zero the square around a pixel of the image: side // 2 before it, side // 2 from it on, clipped."""
    H, W = x.shape[2:]
    half = side // 2

    def covered(size: int, centre: Tensor) -> Tensor:
        away = torch.arange(size, device=x.device) - centre.unsqueeze(1)
        return (away >= -half) & (away < half)

    rows, columns = covered(H, _whole(u, H)), covered(W, _whole(v, W))
    return x.masked_fill((rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1), 0.0)


# AutoAugment ----------------------------------------------------------------------------------------------
#
# Cubuk et al., "AutoAugment: Learning Augmentation Strategies from Data", CVPR 2019: the policy found on
# reduced CIFAR-10. FedVLS uses it for CIFAR-10, CIFAR-100 and Tiny-ImageNet, with the magnitudes of its
# release: index m stands for a uniform draw from [grid[m], grid[m+1]] of an 11-point grid over the
# operation's range, and no sign is drawn, so Rotate 2 always turns by -18 to -12 degrees.
#
# As in that release: coordinates are (row, column), so TranslateX moves the picture left for positive
# magnitudes and ShearY shifts columns by row; each operation ends in whole pixel values; colour operations
# are Pillow's.
# Deviations from it:
# - Bicubic interpolation in place of a cubic spline (less than one grey level apart on average on CIFAR-10).
# - Two geometric operations in a row are one resampling; pixels the first lost stay lost (zero).
# - Rotation and shear keep the centre of the image in place; there, a point one pixel below and right of it.


class Op(IntEnum):
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
"""Operations without a range have no magnitude."""

PolicyStep = tuple[Op, float, int]
"""Operation, probability, magnitude index."""

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
    """Operations [25, 2], and their probability, lowest magnitude and magnitude range [25, 2, 3]."""

    def numbers(op: Op, probability: float, m: int) -> tuple[float, float, float]:
        low, high = RANGES.get(op, (0.0, 0.0))
        return probability, low + (high - low) * m / 10, (high - low) / 10

    ops = torch.tensor([[step[0] for step in pair] for pair in POLICY])
    return ops, torch.tensor([[numbers(*step) for step in pair] for pair in POLICY])


def autoaugment(x: Tensor, u: Sequence[Tensor]) -> Tensor:
    """uint8 images [B, 1 or 3, H, W] to the same, by five uniform numbers [B] each, on the host: which
    sub-policy, then whether and how strongly for its first and for its second operation."""
    ops, numbers = _policy()
    chosen = _whole(u[0], len(POLICY))
    ops, numbers = ops[chosen], numbers[chosen]
    steps = []
    for k in range(2):
        probability, low, width = numbers[:, k].unbind(dim=1)
        op = torch.where(u[2 * k + 1] < probability, ops[:, k], int(Op.NONE))
        steps.append((op, low + u[2 * k + 2] * width))
    # Both operations' geometry shares one resampling between the colour steps, where either one's colour step
    # is in its proper place.
    x = recolour(x, *steps[0])
    x = resample(x, steps)
    return recolour(x, *steps[1])


def recolour(x: Tensor, op: Tensor, magnitude: Tensor) -> Tensor:
    """Each image by its own colour operation; geometric ones and NONE leave it as it is. Operations and
    magnitudes, [B] each, are on the host."""
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
    """Pillow's ImageOps.autocontrast: lowest value to 0, highest to 255. In float64, as it cuts off there."""
    low, high = x.amin((2, 3)).long().unsqueeze(2), x.amax((2, 3)).long().unsqueeze(2)
    values = _values(x)
    span = (high - low).clamp(min=1).double()
    scale = torch.full_like(span, 255) / span  # 255 / span would round twice
    table = (values.double() * scale - low * scale).clamp(0, 255).floor().float()
    return _looked_up(x, torch.where(high > low, table, values))


def _equalized(x: Tensor, _: Tensor) -> Tensor:
    """Pillow's ImageOps.equalize: the table that flattens the histogram. Whole numbers, exact in float32."""
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
"""What each does to uint8 images [B, C, H, W] by magnitudes [B, 1, 1, 1]."""


def _values(x: Tensor) -> Tensor:
    return torch.arange(256, dtype=torch.float32, device=x.device)


def _looked_up(x: Tensor, table: Tensor) -> Tensor:
    """By a table [B, C, 256] of each channel."""
    return table.to(torch.uint8).gather(2, x.flatten(2).long()).view_as(x)


def _blend(plain: Tensor, picture: Tensor, factor: Tensor) -> Tensor:
    """Pillow's Image.blend: extrapolates beyond 1, cuts off to whole values."""
    return (picture - plain).mul_(factor).add_(plain).clamp_(0, 255).floor_().to(torch.uint8)


def _grey(pixels: Tensor) -> Tensor:
    """Pillow's conversion to L: ITU-R 601 weights in 16-bit fixed point (exact in float32, below 2**24)."""
    if pixels.shape[1] == 1:
        return pixels
    r, g, b = pixels.unbind(dim=1)
    grey = (19595 * r).add_(g, alpha=38470).add_(b, alpha=7471).add_(32768).div_(65536).floor_()
    return grey.unsqueeze(1)


def _smooth(pixels: Tensor) -> Tensor:
    """Pillow's SMOOTH filter: 3×3, centre 5, others 1, over 13; the border stays as it is."""
    inner = pixels[:, :, 1:-1, 1:-1]
    rows = (pixels[:, :, :-2] + pixels[:, :, 1:-1]).add_(pixels[:, :, 2:])
    box = (rows[:, :, :, :-2] + rows[:, :, :, 1:-1]).add_(rows[:, :, :, 2:])
    smooth = pixels.clone()
    smooth[:, :, 1:-1, 1:-1] = box.add_(inner, alpha=4).div_(13).add_(0.5).floor_()
    return smooth


def resample(x: Tensor, steps: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Each image by its own geometric operations, one after the other; zero where a coordinate leaves the
    image. Other operations leave it as it is. Operations and magnitudes, [B] each, are on the host."""
    H, W = x.shape[2:]
    rows = torch.stack([_is_geometric(op) for op, _ in steps]).any(dim=0).nonzero().squeeze(1)
    if not len(rows):
        return x
    numbers = []
    for op, magnitude in reversed([(op[rows], magnitude[rows]) for op, magnitude in steps]):
        cos, sin = _cos_sin(torch.where(op == Op.ROTATE, magnitude, 0.0))
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
