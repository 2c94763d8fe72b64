"""Files that a reader sees whole or not at all, also after the power was cut."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


def write_file(path: Path, content: str | bytes) -> None:
    """Let `path` hold this content: until it does, it is as it was."""
    with replacing(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what is to stand at `path`: it goes there when all is written, and away when it is not.
    Nobody else writes to the same place."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield partial
        put(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def sync_file(path: Path) -> None:
    """Wait until the disk has a file's content."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def put(ready: Path, path: Path) -> None:
    """Rename a file or folder that is ready to `path`, in such an order that a crash leaves there what was or
    what is to be: first its content reaches the disk, then its name."""
    if ready.is_dir():
        if hasattr(os, "sync"):  # one call for all files in it; Windows has none
            os.sync()
    else:
        sync_file(ready)
    ready.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Let the names of a folder's files reach the disk."""
    with contextlib.suppress(OSError):  # not every system lets a folder be opened or synchronised
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
