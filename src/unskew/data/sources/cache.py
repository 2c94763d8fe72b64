"""Decoded arrays, kept in the user's cache folder so that slow files are decoded once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import platformdirs

Arrays = dict[str, npt.NDArray[Any]]
FORMAT = 1  # raise it when what is kept for the same files changes


def cached(name: str, files: Sequence[Path], decode: Callable[[], Arrays]) -> Arrays:
    """decode(), or what it gave before for exactly these files (by path, size and time of change)."""
    folder = platformdirs.user_cache_path("unskew") / "decoded"
    place = hashlib.sha256(str(files[0].parent.resolve()).encode()).hexdigest()[:12]
    kept = folder / f"{name}-{place}-{signature(files)[:24]}.npz"
    with contextlib.suppress(OSError, ValueError, EOFError, zipfile.BadZipFile), kept.open("rb") as file:
        return dict(np.load(file))
    arrays = decode()
    try:
        keep(kept, arrays)
    except OSError as error:
        warnings.warn(f"decoded images cannot be kept in {folder} ({error}).", stacklevel=2)
        return arrays
    for old in folder.glob(f"{name}-{place}-*.npz"):
        if old != kept:
            with contextlib.suppress(OSError):  # another process may be reading it, or has removed it
                old.unlink()
    return arrays


def signature(files: Sequence[Path]) -> str:
    digest = hashlib.sha256(f"{FORMAT}".encode())
    for path in files:
        stat = path.stat()
        digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def keep(path: Path, arrays: Arrays) -> None:
    """Write all of it under another name, then rename: nobody ever sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
