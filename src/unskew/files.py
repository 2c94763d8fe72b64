"""Files that a reader sees whole or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what is to stand at `path`; it goes there when all is written, and away when it is
    not."""
    partial = path.with_name(path.name + ".part")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
