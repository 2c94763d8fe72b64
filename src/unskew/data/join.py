"""Several datasets of the same classes as the domains of one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from unskew.data.dataset import Dataset, Split
from unskew.data.images import channel_stats
from unskew.errors import UserError

CHUNK = 4096  # images resized at once: their float copy stays small


def join(datasets: Sequence[Dataset], shape: tuple[int, int, int] = (3, 32, 32), name: str = "") -> Dataset:
    """One image dataset with a domain for each of `datasets`, all brought to `shape` (channels, height,
    width): resized bilinearly with antialiasing, grey repeated over the channels. Owners are not kept."""
    if len(datasets) < 2:
        raise UserError(f"joining needs at least 2 datasets, not {len(datasets)}.")
    names = tuple(dataset.name for dataset in datasets)
    if len(set(names)) < len(names):
        raise UserError(f"{', '.join(names)} cannot be joined: every dataset may be named once.")
    if len(shape) != 3 or min(shape) < 1:
        raise UserError(f"images cannot have the shape {shape}: give (channels, height, width).")
    for dataset in datasets:
        _check(dataset, datasets[0], shape[0])
    train, test = (
        Split(
            torch.cat([_resize(split.inputs, shape) for split in splits]),
            torch.cat([split.labels for split in splits]),
            domains=torch.repeat_interleave(
                torch.arange(len(splits)), torch.tensor([len(s) for s in splits])
            ),
        )
        for splits in ([d.train for d in datasets], [d.test for d in datasets])
    )
    mean, std = channel_stats(train.inputs.numpy())
    return Dataset(name or "+".join(names), train, test, datasets[0].classes, mean, std, domains=names)


def _check(dataset: Dataset, first: Dataset, channels: int) -> None:
    if dataset.inputs.kind != "image":
        raise UserError(f"'{dataset.name}' holds no images: only image datasets can be joined.")
    if dataset.domains:
        raise UserError(f"'{dataset.name}' has domains already: join its parts in one step.")
    if len(dataset.classes) != len(first.classes):
        raise UserError(
            f"'{first.name}' has {len(first.classes)} classes and '{dataset.name}' has "
            f"{len(dataset.classes)}: only datasets of the same classes can be joined."
        )
    for c, (mine, theirs) in enumerate(zip(dataset.classes, first.classes, strict=True)):
        if mine != theirs:
            raise UserError(
                f"class {c} is '{theirs}' in '{first.name}' and '{mine}' in '{dataset.name}': only datasets "
                "of the same classes can be joined."
            )
    if dataset.inputs.shape[0] not in (1, channels):
        raise UserError(
            f"'{dataset.name}' has {dataset.inputs.shape[0]} channels, which cannot become {channels}: give "
            f"shape=({dataset.inputs.shape[0]}, height, width)."
        )


def _resize(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    channels, *size = shape
    if list(images.shape[2:]) != size:
        chunks = (images[start : start + CHUNK].float() for start in range(0, len(images), CHUNK))
        resized = (interpolate(chunk, size, mode="bilinear", antialias=True) for chunk in chunks)
        images = torch.cat([chunk.round_().clamp_(0, 255).to(torch.uint8) for chunk in resized])
    return images.expand(-1, channels, -1, -1).contiguous() if images.shape[1] < channels else images
