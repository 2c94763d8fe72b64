"""Read image files into uint8 arrays, and compute statistics of such arrays."""

from __future__ import annotations

import contextlib
import math
import os
import struct
import threading
import warnings
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from unskew.errors import UserError

Pixels = npt.NDArray[np.uint8]
"""[n, channels, height, width], or one image without the first axis."""

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
GREY = frozenset({"1", "L", "LA"})
DEEP = ("I", "F")  # Pillow's modes of 16-bit, 32-bit and float images begin with these
FORMATS = ("PNG", "JPEG", "BMP", "DIB", "GIF", "WEBP", "TIFF", "PPM")
"""The formats of these suffixes. Pillow goes by a file's content, and would hand files of other formats, such
as PostScript, to other programs."""
CHUNK = 256  # images per task: large enough that a task costs more than its hand-over
MOST_PIXELS = 1 << 26
"""The most pixels of one image, 8192x8192. A file of a few kilobytes can claim any number."""
LARGE = 1 << 22
"""Images of more pixels than this are decoded one at a time."""
_one_by_one = threading.Lock()


def list_images(folder: Path) -> list[Path]:
    """List the image files below `folder`, which are known by their suffixes, in the order of their paths.
    Hidden files and those in hidden folders are left out."""
    found = []
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [
            os.path.join(where, name)  # noqa: PTH118 (100,000 Path objects are slow to make and to sort)
            for name in names
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122
        ]
    return [Path(path) for path in sorted(found)]


Size = int | tuple[int, int]
"""The side of a square, or width and height."""


def pixels(image: Image.Image, channels: int | None = None, size: Size | None = None) -> Pixels:
    """Return a Pillow image as an array [channels, height, width].

    channels: 1 or 3; None keeps grey images grey and makes all others RGB.
    size: resize the image to this size (bilinear, antialiased)."""
    if image.mode.startswith(DEEP):
        raise UserError(
            f"an image of mode '{image.mode}' has more than 8 bits per pixel: convert it to 8 bits."
        )
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    grey = channels == 1 or (channels is None and image.mode in GREY)
    image = image.convert("L" if grey else "RGB")
    wanted = (size, size) if isinstance(size, int) else size
    if wanted is not None and image.size != wanted:
        image = image.resize(wanted, Image.Resampling.BILINEAR)
    array = np.asarray(image)
    return array[None] if grey else array.transpose(2, 0, 1)


def read_image(path: Path, channels: int | None = None, size: Size | None = None) -> Pixels:
    """Read an image file as an array [channels, height, width]; see `pixels`."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            check_size(image)
            with _one_by_one if math.prod(image.size) > LARGE else contextlib.nullcontext():
                return pixels(image, channels, size)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    # Pillow's decoders report damage as any of these.
    except (
        *(OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError),
        *(
            TypeError,
            KeyError,
            IndexError,
            OverflowError,
            MemoryError,
            RuntimeError,
            struct.error,
            zlib.error,
        ),
    ) as error:
        raise UserError(f"{path} cannot be read as an image: replace or remove it.") from error


def has_size(path: Path, size: tuple[int, int]) -> bool:
    """Say whether an image file has this width and height. A file that cannot be read counts as if it had."""
    try:
        with warnings.catch_warnings(), Image.open(path, formats=FORMATS) as image:
            return image.size == size
    except Exception:
        return True


def check_size(image: Image.Image) -> None:
    """Refuse an image that is too large, before any of its pixels is decoded."""
    if math.prod(image.size) > MOST_PIXELS:
        raise UserError(f"an image of {image.width}x{image.height} pixels is too large: make it smaller.")


def read_images(files: Sequence[Path], channels: int | None = None, size: Size | None = None) -> Pixels:
    """Read image files of one shape by several threads into an array [n, channels, height, width]."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's about damage that it ignores
        return _read_images(files, channels, size)


def _read_images(files: Sequence[Path], channels: int | None, size: Size | None) -> Pixels:
    first = read_image(files[0], channels, size)
    out = np.empty((len(files), *first.shape), np.uint8)

    def fill(start: int) -> None:
        for i, path in enumerate(files[start : start + CHUNK], start):
            image = read_image(path, channels, size)
            if image.shape != first.shape:
                raise UserError(unlike(path, image, files[0], first))
            out[i] = image

    with ThreadPoolExecutor() as pool:
        for _ in pool.map(fill, range(0, len(files), CHUNK)):
            pass
    return out


def unlike(path: Path, image: Pixels, other: Path, first: Pixels) -> str:
    """Return the sentence that two images differ in their number of channels or in their size."""
    if image.shape[1:] == first.shape[1:]:
        kind = {1: "grey", 3: "colour"}
        return (
            f"{path} is {kind[len(image)]} but {other} is {kind[len(first)]}: give channels=1 (all grey) "
            f"or channels=3 (all RGB)."
        )
    (_, h, w), (_, H, W) = image.shape, first.shape
    return f"{path} is {w}x{h} pixels but {other} is {W}x{H}: give size=N to resize all to NxN."


def channel_stats(images: Pixels) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the exact mean and standard deviation of pixels/255 per channel. A constant channel gets std 1,
    so that normalising it gives 0 and not a division by zero."""
    channels = images.shape[1]
    counts = np.zeros((channels, 256), np.int64)
    for start in range(0, len(images), 4096):  # bincount widens its input to int64: keep that copy small
        for c in range(channels):
            counts[c] += np.bincount(images[start : start + 4096, c].ravel(), minlength=256)
    values = np.arange(256) / 255
    mean = counts @ values / counts.sum(axis=1)
    variance = (counts * (values - mean[:, None]) ** 2).sum(axis=1) / counts.sum(axis=1)
    std = np.where(variance > 0, np.sqrt(variance), 1.0)
    return tuple(mean.tolist()), tuple(std.tolist())
