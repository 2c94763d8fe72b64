"""A cache of partitions that took long to draw, so that they are drawn once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from unskew.data.cache import Arrays, cache_folder, read_arrays, write_arrays
from unskew.data.partitions.pool import Division, SamplePool
from unskew.version import VERSION

SLOW = 0.5
"""A division that takes this many seconds or more is cached."""
MOST_FILES = 64
MOST_BYTES = 256 << 20
"""Beyond this number of files or bytes, the files that were used longest ago are removed."""


def cached_division(
    recipe: str, pool: SamplePool, clients: int, seed: int, draw: Callable[[], Division]
) -> Division:
    """Return draw(), or its earlier result for the same recipe, samples, clients and seed. If a file is
    damaged, or cannot be written, only the time changes."""
    key = _key(recipe, pool, clients, seed)
    path = cache_folder("partitions") / f"{key[:32]}.npz"
    if (found := _unpacked(read_arrays(path) or {}, key)) is not None:
        with contextlib.suppress(OSError):
            path.touch()
        return found
    start = time.perf_counter()
    division = draw()
    if time.perf_counter() - start >= SLOW:
        with contextlib.suppress(OSError):
            write_arrays(path, _packed(division, key))
            _remove_oldest(path.parent)
    return division


def _key(recipe: str, pool: SamplePool, clients: int, seed: int) -> str:
    """Return a hash of everything that a division depends on, the code and NumPy's version included."""
    about = [recipe, clients, seed, pool.classes, pool.domain_names, VERSION, np.__version__, _code()]
    digest = hashlib.sha256(json.dumps(about).encode())
    for array in (pool.labels, pool.owners, pool.domains):
        digest.update(b"-" if array is None else len(array).to_bytes(8, "little"))
        digest.update(b"" if array is None else array.astype("<i8").tobytes())
    return digest.hexdigest()


@cache
def _code() -> str:
    """Return a hash of the partitioners' code, so that a change of it makes older files useless."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _packed(division: Division, key: str) -> Arrays:
    about = json.dumps({"key": key, "notes": division.notes, "tries": division.tries})
    arrays: Arrays = {
        "about": np.frombuffer(about.encode(), dtype=np.uint8),
        "sizes": np.array([len(mine) for mine in division.clients], dtype=np.int64),
        "indices": np.concatenate([*division.clients, np.zeros(0, dtype=np.int64)]),
    }
    return arrays | {"sha256": np.frombuffer(_digest(arrays), dtype=np.uint8)}


def _unpacked(arrays: Arrays, key: str) -> Division | None:
    """Return the division that was packed under this key; None if the file has another or is damaged."""
    if arrays.keys() != {"about", "sizes", "indices", "sha256"}:
        return None
    if arrays.pop("sha256").tobytes() != _digest(arrays):
        return None
    about = json.loads(arrays["about"].tobytes())
    if about["key"] != key:
        return None
    cuts = np.cumsum(arrays["sizes"])[:-1]
    return Division(tuple(np.split(arrays["indices"], cuts)), tuple(about["notes"]), about["tries"])


def _digest(arrays: Arrays) -> bytes:
    digest = hashlib.sha256()
    for name in ("about", "sizes", "indices"):
        digest.update(f"{arrays[name].dtype.str}{arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    return digest.digest()


def _remove_oldest(folder: Path) -> None:
    """Remove the oldest files beyond the limits, also those that a killed process has left incomplete."""
    files = sorted(((file.stat(), file) for file in folder.iterdir()), key=lambda each: -each[0].st_mtime_ns)
    total = 0
    for number, (stat, file) in enumerate(files, 1):
        total += stat.st_size
        if number > MOST_FILES or total > MOST_BYTES:
            with contextlib.suppress(OSError):  # another process may have removed it
                file.unlink()
