"""The data of a cell: the publisher's files if they are here, otherwise random data of the same shape."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from unskew.data import Dataset, Split
from unskew.data.loading import load_one
from unskew.data.sources import SOURCES, data_folder


def dataset(name: str, folder: Path | None) -> tuple[Dataset, tuple[str, ...]]:
    """Load a dataset of `unskew data`; if it is not here, make one of its shape, and return a note too.

    Training on the made one is as fast: the work does not depend on the pixels, and its classes have equally
    many samples.
    """
    source = SOURCES[name]
    if source.bundled or source.find(data_folder(folder)):
        return load_one(name, folder), ()
    shape = tuple(map(int, source.shape.split("x")))
    note = f"{source.title} is not in {data_folder(folder)}: random pixels of its shape took its place."
    return made(name, shape, source.train, source.test, source.classes), (note,)


@cache
def made(name: str, shape: tuple[int, ...], train: int, test: int, classes: int = 10) -> Dataset:
    """Make random images, equally many of each class."""
    generator = torch.Generator().manual_seed(0)

    def split(samples: int) -> Split:
        pixels = torch.randint(256, (samples, *shape), dtype=torch.uint8, generator=generator)
        return Split(pixels, torch.arange(samples) % classes)

    middle = (0.5,) * shape[0]
    names = tuple(map(str, range(classes)))
    return Dataset(name, split(train), split(test), names, middle, middle)
