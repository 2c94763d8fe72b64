"""Read plain data from JSON, pickle and NumPy files, without running any code in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, BinaryIO

from unskew.data.bounded import (
    DAMAGED,
    TooLargeError,
    check_regular,
    open_zip,
    read_npy_data,
    read_npy_header,
)
from unskew.data.pickles import unpickle
from unskew.errors import UserError


def open_regular(path: Path) -> BinaryIO:
    try:
        check_regular(path)
        return path.open("rb")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None


def json_content(path: Path) -> object:
    with open_regular(path) as file:
        try:
            content: object = json.load(file)
        except (ValueError, RecursionError):
            raise UserError(f"{path} is not valid JSON: copy or make it again.") from None
    return content


def pickle_content(path: Path) -> object:
    with open_regular(path) as file:
        return unpickle(file, path)


def npy_content(path: Path) -> object:
    with open_regular(path) as file:
        try:
            return _array(file, path, path.stat().st_size)
        except DAMAGED as error:
            raise _damaged(path, error) from None


def npz_content(path: Path) -> object:
    contents = {}
    with open_regular(path) as file:
        try:
            with open_zip(file) as archive:
                for info in archive.infolist():
                    with archive.open(info) as member:
                        contents[info.filename.removesuffix(".npy")] = _array(member, path, info.file_size)
        except DAMAGED as error:
            raise _damaged(path, error) from None
    return contents


def _array(file: IO[bytes], path: Path, size: int) -> object:
    """Read the array in an .npy stream; an array of objects is read as a pickle, by `unpickle`."""
    shape, fortran, dtype = read_npy_header(file)
    return unpickle(file, path) if dtype.hasobject else read_npy_data(file, shape, fortran, dtype, size)


def _damaged(path: Path, error: Exception) -> UserError:
    if isinstance(error, UserError):
        return error
    why = str(error) if isinstance(error, TooLargeError) else "is no NumPy file, or breaks off"
    return UserError(f"{path} {why}: copy or make it again.")
