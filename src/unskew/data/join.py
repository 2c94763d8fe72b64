"""Join several datasets as the domains of one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from unskew.data.dataset import Dataset, Split
from unskew.data.images import channel_stats
from unskew.errors import UserError
from unskew.notation import in_order

CHUNK = 4096  # images that are resized at once, so that their float copy stays small


def join(
    datasets: Sequence[Dataset],
    shape: tuple[int, int, int] = (3, 32, 32),
    name: str = "",
    *,
    union: bool = False,
) -> Dataset:
    """Make one dataset with a domain for each of `datasets`.

    Images are brought to `shape` (channels, height, width): they are resized bilinearly with antialiasing,
    and grey is repeated over the channels. Tables must have the same number of features. If the samples of a
    dataset have no owners, the dataset itself becomes their owner.
    union: the classes are those of all datasets together, matched by name, and a dataset may lack some;
    without it all datasets must have the same classes."""
    if len(datasets) < 2:
        raise UserError(f"joining needs at least 2 datasets, not {len(datasets)}.")
    names = tuple(dataset.name for dataset in datasets)
    if len(set(names)) < len(names):
        raise UserError(f"{', '.join(names)} cannot be joined: every dataset may be named once.")
    if len(shape) != 3 or min(shape) < 1:
        raise UserError(f"images cannot have the shape {shape}: give (channels, height, width).")
    tables = all(dataset.kind == "table" for dataset in datasets)
    for dataset in datasets:
        _check_inputs(dataset, datasets[0], None if tables else shape[0])
        if not union:
            _check_classes(dataset, datasets[0])
    classes = _union(datasets) if union else datasets[0].classes
    number = {each: at for at, each in enumerate(classes)}
    first_owner, owners = list[int](), list[str]()
    for dataset in datasets:
        first_owner.append(len(owners))
        owners += [f"{dataset.name}/{each}" for each in _owners(dataset)] or [dataset.name]
    splits = list[Split]()
    for parts in ([d.train for d in datasets], [d.test for d in datasets]):
        labels = [
            torch.tensor([number[each] for each in dataset.classes])[part.labels]
            for dataset, part in zip(datasets, parts, strict=True)
        ]
        owned_by = [
            first + (torch.zeros_like(part.labels) if part.owners is None else part.owners)
            for first, part in zip(first_owner, parts, strict=True)
        ]
        known = all(p.owners is not None or not _owners(d) for d, p in zip(datasets, parts, strict=True))
        splits.append(
            Split(
                torch.cat([part.inputs if tables else _resize(part.inputs, shape) for part in parts]),
                torch.cat(labels),
                torch.cat(owned_by) if known else None,
                domains=torch.repeat_interleave(
                    torch.arange(len(parts)), torch.tensor([len(part) for part in parts])
                ),
            )
        )
    mean, std = ((), ()) if tables else channel_stats(splits[0].inputs.numpy())
    notes = tuple(dict.fromkeys(note for dataset in datasets for note in dataset.notes))
    return Dataset(
        name or "+".join(names),
        splits[0],
        splits[1],
        classes,
        mean,
        std,
        domains=names,
        owners=tuple(owners),
        notes=notes,
    )


def _union(datasets: Sequence[Dataset]) -> tuple[str, ...]:
    """Return the classes of all datasets together, sorted if the classes of every dataset are."""
    classes = tuple(dict.fromkeys(each for dataset in datasets for each in dataset.classes))
    is_sorted = all(list(dataset.classes) == in_order(dataset.classes) for dataset in datasets)
    return tuple(in_order(classes)) if is_sorted else classes


def _owners(dataset: Dataset) -> list[str]:
    """Return the names of the dataset's owners, or their numbers as texts; empty if it has no owners."""
    if dataset.train.owners is None:
        return []
    held = [split.owners for split in (dataset.train, dataset.test) if split.owners is not None]
    return list(dataset.owners) or [str(each) for each in range(1 + max(int(each.max()) for each in held))]


def _check_inputs(dataset: Dataset, first: Dataset, channels: int | None) -> None:
    if dataset.domains:
        raise UserError(f"'{dataset.name}' has domains already: join its parts in one step.")
    if channels is None:
        if dataset.columns is not None:
            raise UserError(
                f"'{dataset.name}' is a table whose columns were scaled apart: load the files together, "
                "csv:a.csv,label=COLUMN+csv:b.csv, or from_csv([a, b])."
            )
        if dataset.inputs.shape != first.inputs.shape:
            raise UserError(
                f"'{first.name}' has {first.inputs.shape[0]} features and '{dataset.name}' has "
                f"{dataset.inputs.shape[0]}: only tables of the same features can be joined."
            )
        return
    if dataset.kind != "image":
        raise UserError(f"'{dataset.name}' holds no images: only image datasets can be joined.")
    if dataset.inputs.shape[0] not in (1, channels):
        raise UserError(
            f"'{dataset.name}' has {dataset.inputs.shape[0]} channels, which cannot become {channels}: give "
            f"shape=({dataset.inputs.shape[0]}, height, width)."
        )


def _check_classes(dataset: Dataset, first: Dataset) -> None:
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


def _resize(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    channels, *size = shape
    if list(images.shape[2:]) != size:
        chunks = (images[start : start + CHUNK].float() for start in range(0, len(images), CHUNK))
        resized = (interpolate(chunk, size, mode="bilinear", antialias=True) for chunk in chunks)
        images = torch.cat([chunk.round_().clamp_(0, 255).to(torch.uint8) for chunk in resized])
    return images.expand(-1, channels, -1, -1).contiguous() if images.shape[1] < channels else images
