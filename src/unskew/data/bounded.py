"""Packed files, unpacked only as far as an honest one goes: a few bytes can stand for terabytes of zeros."""

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
"""How many times its own size a larger one may unpack to: pixels and text reach a tenth of it."""
MOST_EMPTY = 1 << 16
"""The longest axis of an array without any value, which takes no bytes however long it is."""
CHUNK = 1 << 20

Array = npt.NDArray[Any]

DAMAGED = Exception
"""What reading a damaged archive or array raises: which one is not documented, and depends on the place."""


class TooLargeError(ValueError):
    """A file that unpacks to more than it should."""


def check_regular(path: Path) -> None:
    """Check that what is to be read is a file that has an end: no pipe, and nothing like /dev/zero."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is {'a folder' if path.is_dir() else 'no regular file'}: name a file.")


def most_unpacked(packed: int) -> int:
    """How many bytes a file of this size may unpack to."""
    return max(SMALL, RATIO * packed)


def read_all(stream: IO[bytes], packed: int) -> bytes:
    """All that an unpacking stream gives, of a file of so many bytes."""
    limit, parts, done = most_unpacked(packed), [], 0
    while block := stream.read(CHUNK):
        done += len(block)
        if done > limit:
            raise TooLargeError(f"unpacks to more than {limit:,} bytes")
        parts.append(block)
    return b"".join(parts)


def open_zip(file: BinaryIO | Path) -> zipfile.ZipFile:
    """A zip archive whose files, unpacked, are together no larger than `most_unpacked` says. What each claims
    to unpack to is the most that is read of it."""
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
    """The plain arrays in an .npz file; raises one of DAMAGED where it is not such a file."""
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
    """Shape, whether columns come first, and type of the array in an .npy stream."""
    major = np.lib.format.read_magic(file)[0]
    header = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = header(file)
    return shape, fortran, dtype


def read_npy_data(
    file: IO[bytes], shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any], size: int
) -> Array:
    """The values that follow a header in a stream of at most `size` bytes."""
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
    """Check that no axis is negative, nor longer than a loop over it should take where there is nothing to
    loop over."""
    if min(shape, default=0) < 0 or (math.prod(shape) == 0 and max(shape, default=0) > MOST_EMPTY):
        raise ValueError("an array's shape is out of bounds")
