"""Arrays kept in the user's cache folder, so that slow work is done once."""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import platformdirs

from unskew.data.bounded import read_npz
from unskew.files import replacing

Arrays = dict[str, npt.NDArray[Any]]
FORMAT = 1  # raise it when the arrays for the same files change


def cache_folder(name: str) -> Path:
    return platformdirs.user_cache_path("unskew") / name


def cached(name: str, files: Sequence[Path], decode: Callable[[], Arrays]) -> Arrays:
    """Return decode(), or its earlier result for the same files (by path, size and time of change)."""
    folder = cache_folder("decoded")
    place = hashlib.sha256(str(files[0].parent.resolve()).encode()).hexdigest()[:12]
    path = folder / f"{name}-{place}-{signature(files)[:24]}.npz"
    if (found := read_arrays(path)) is not None:
        return found
    arrays = decode()
    try:
        write_arrays(path, arrays)
    except OSError as error:
        warnings.warn(f"decoded images cannot be kept in {folder} ({error}).", stacklevel=2)
        return arrays
    for old in folder.glob(f"{name}-{place}-*.npz"):
        if old != path:
            with contextlib.suppress(OSError):  # another process may be reading it, or has removed it
                old.unlink()
    return arrays


def signature(files: Sequence[Path]) -> str:
    """Return a hash of the files' paths, sizes and times of change."""
    digest = hashlib.sha256(f"{FORMAT}".encode())
    for path in files:
        stat = path.stat()
        digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def read_arrays(path: Path) -> Arrays | None:
    """Read the arrays in a file of the cache; return None if there is no such file or it is damaged."""
    # Which errors a damaged file raises is not documented: they depend on where the damage is.
    with contextlib.suppress(Exception):
        return read_npz(path)
    return None


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Write arrays to a file of the cache. Other processes see the complete file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
