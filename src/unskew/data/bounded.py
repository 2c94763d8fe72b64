"""Compressed files, unpacked up to a limit, since a few bytes can stand for terabytes of zeros."""

from __future__ import annotations

import math
import sys
import zipfile
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from unskew.errors import UserError

SMALL = 256 << 20
"""Bytes that any file may unpack to."""
RATIO = 100
"""How many times its own size a larger file may unpack to; pixels and text reach a tenth of it."""
MOST_EMPTY = 1 << 16
"""The longest axis of an array without values, which takes no bytes however long the axis is."""
CHUNK = 1 << 20

Array = npt.NDArray[Any]

DAMAGED = Exception
"""What reading a damaged archive or array raises: the errors are not documented, and depend on the damage."""


class TooLargeError(ValueError):
    """A file unpacks to more than the limit."""


def check_regular(path: Path) -> None:
    """Refuse a path that is no regular file: a pipe, or /dev/zero, has no end."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is {'a folder' if path.is_dir() else 'no regular file'}: name a file.")


def most_unpacked(packed: int) -> int:
    """Return how many bytes a file of this size may unpack to."""
    return max(SMALL, RATIO * packed)


def read_all(stream: IO[bytes], packed: int) -> bytes:
    """Read a decompressing stream to its end, up to the limit for a compressed file of `packed` bytes."""
    limit, parts, done = most_unpacked(packed), [], 0
    while block := stream.read(CHUNK):
        done += len(block)
        if done > limit:
            raise TooLargeError(f"unpacks to more than {limit:,} bytes")
        parts.append(block)
    return b"".join(parts)


def open_zip(file: BinaryIO | Path) -> zipfile.ZipFile:
    """Open a zip archive whose files together claim to unpack to no more than `most_unpacked`. The zipfile
    module reads no more of a file than it claims."""
    archive = zipfile.ZipFile(file)
    claimed = sum(info.file_size for info in archive.infolist())
    assert archive.fp is not None
    packed = archive.fp.seek(0, 2)
    if claimed > most_unpacked(packed):
        archive.close()
        raise TooLargeError(f"unpacks to {claimed:,} bytes")
    for info in archive.infolist():
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            archive.close()
            raise zipfile.BadZipFile("compressed in a way that is not used here")
    return archive


def read_npz(path: Path) -> dict[str, Array]:
    """Read the plain arrays in an .npz file; raise one of DAMAGED if it is not such a file."""
    arrays: dict[str, Array] = {}
    with path.open("rb") as file, open_zip(file) as archive:
        for info in archive.infolist():
            with archive.open(info) as member:
                shape, fortran, dtype = read_npy_header(member)
                arrays[info.filename.removesuffix(".npy")] = read_npy_data(
                    member, shape, fortran, dtype, info.file_size
                )
    return arrays


def read_npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an .npy stream: shape, whether in Fortran order, and type of the array."""
    major = np.lib.format.read_magic(file)[0]
    header = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = header(file)
    return shape, fortran, dtype


def read_npy_data(
    file: IO[bytes], shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any], size: int
) -> Array:
    """Read the values that follow the header in an .npy stream of at most `size` bytes."""
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError("an array of objects, or of nothing, is not plain data")
    check_shape(shape)
    whole = math.prod(shape) * dtype.itemsize
    if whole > size:
        raise EOFError("an array breaks off")
    values = np.empty(whole, np.uint8)
    done = 0
    while done < whole:
        block = file.read(min(CHUNK, whole - done))
        if not block:
            raise EOFError("an array breaks off")
        values[done : done + len(block)] = np.frombuffer(block, np.uint8)
        done += len(block)
    if dtype.kind == "U" and whole and values.view(f"{dtype.byteorder}u4").max() > sys.maxunicode:
        raise ValueError("a text holds what is no letter")
    array = values.view(dtype)
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def check_shape(shape: tuple[int, ...]) -> None:
    """Refuse a negative axis, and in an array without values an axis too long to loop over."""
    if min(shape, default=0) < 0 or (math.prod(shape) == 0 and max(shape, default=0) > MOST_EMPTY):
        raise ValueError("an array's shape is out of bounds")
