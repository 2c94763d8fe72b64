"""Write files so that a reader sees them whole or not at all, even after a loss of power."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


def write_file(path: Path, content: str | bytes) -> None:
    """Replace the content of `path`. Until all of it is written, the file is as before."""
    with replacing(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which no other process uses. At the end of the `with` block it is renamed to
    `path`; after an error it is removed."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield partial
        put(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def sync_file(path: Path) -> None:
    """Wait until the disk has the content of a file."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def put(ready: Path, path: Path) -> None:
    """Rename a complete file or folder to `path`. Its content reaches the disk before its name does, so that
    a crash leaves either the old or the new content there."""
    if ready.is_dir():
        if hasattr(os, "sync"):  # one call for all files in it; Windows has none
            os.sync()
    else:
        sync_file(ready)
    ready.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Wait until the disk has the names of a folder's files."""
    with contextlib.suppress(OSError):  # not every system lets a folder be opened or synchronised
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
