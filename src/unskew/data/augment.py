"""Random changes of training images, on whole batches, on any device.

Every random choice is given as a uniform number. So the augmented image depends only on its own pixels and
its own row of numbers, not on its batch, nor on what ran before. The numbers are on the host, so it never has
to wait for a device to know which operation applies to which image.

The order is that of the published pipelines: crop, flip, rotate, AutoAugment, normalise, Cutout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from unskew.data.autoaugment import autoaugment, cos_sin, whole_below
from unskew.errors import UserError, unknown
from unskew.notation import items, named
from unskew.transfer import upload
from unskew.types import Inputs

STEPS = ("crop", "flip", "rotate", "autoaugment", "cutout")


@dataclass(frozen=True)
class Augment:
    """The random changes of a training image, written `crop:4,flip,autoaugment,cutout:16`, or `none`.

    The steps, joined by commas, in this order:

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
        """Read the steps from their text, such as crop:4,flip,cutout:16."""
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
        """The number of uniform numbers that each sample needs."""
        return (
            2 * (self.crop > 0) + self.flip + (self.rotate > 0) + 5 * self.autoaugment + 2 * (self.cutout > 0)
        )

    def check(self, inputs: Inputs) -> None:
        """Raise a UserError if samples of this form cannot be augmented so."""
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
        """Augment uint8 images [B, channels, height, width] and normalise them to float32. Without any step,
        only normalise, and allow tables and tokens too.

        u: uniform numbers in [0, 1), [B, draws], on the host."""
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
        """Crop, flip and rotate by one gather, which takes each pixel of the result from its place in `x`."""
        if not (self.crop or self.flip or self.rotate):
            return x
        B, C, H, W = x.shape
        shift = (
            [whole_below(next(numbers), 2 * self.crop + 1) - self.crop for _ in range(2)] if self.crop else []
        )
        mirrored = next(numbers) < 0.5 if self.flip else None
        rows = torch.arange(H, device=x.device).view(1, H, 1)
        columns = torch.arange(W, device=x.device).view(1, 1, W)
        inside = torch.ones((1, 1, 1), dtype=torch.bool, device=x.device)
        # Coordinates are traced back from the result: the last step comes first.
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
    """Normalise uint8 images to float32, (x / 255 - mean) / std, or x / 255 without mean and std. Return
    tables and tokens as they are."""
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


def _wide(per_sample: Tensor) -> Tensor:
    return per_sample.view(-1, 1, 1)


def _within(index: Tensor, size: int) -> Tensor:
    return (index >= 0) & (index < size)


def _reflected(index: Tensor, size: int) -> Tensor:
    """Mirror indices outside of the image at its first and last pixel, which are not repeated."""
    return (size - 1) - ((size - 1) - index.abs()).abs()


def _turned(H: int, W: int, degrees: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each pixel of an image turned counter-clockwise about its centre, the row and the column of
    the nearest pixel in the original, as torchvision's RandomRotation."""
    cos, sin = map(_wide, cos_sin(degrees))
    r = (torch.arange(H, device=degrees.device) + (0.5 - H / 2)).view(1, H, 1)
    c = (torch.arange(W, device=degrees.device) + (0.5 - W / 2)).view(1, 1, W)
    rows, columns = sin * c + cos * r + H / 2, cos * c - sin * r + W / 2
    return rows.floor().long(), columns.floor().long()


def _cut_out(x: Tensor, side: int, u: Tensor, v: Tensor) -> Tensor:
    """Set a square around a random pixel to zero: side // 2 pixels before it and as many from it on."""
    H, W = x.shape[2:]
    half = side // 2

    def covered(size: int, centre: Tensor) -> Tensor:
        away = torch.arange(size, device=x.device) - centre.unsqueeze(1)
        return (away >= -half) & (away < half)

    rows, columns = covered(H, whole_below(u, H)), covered(W, whole_below(v, W))
    return x.masked_fill((rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1), 0.0)
