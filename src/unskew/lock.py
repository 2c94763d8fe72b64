"""A lock on a folder, so that only one process at a time writes to it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from unskew.errors import UserError

NAME = ".lock"
_mine: set[Path] = set()
"""The locks that this process holds, since the system lets a process lock the same file twice."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock an existing folder, or refuse and name the process that has locked it. The system releases the
    lock of a process that has ended, however it ended; the file that it left behind is used again."""
    path = folder.resolve() / NAME
    if path in _mine:
        raise UserError(f"this process is writing to {folder} already: choose another folder with --out.")
    descriptor = _acquire(path, folder)
    _mine.add(path)
    try:
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        with contextlib.suppress(OSError):  # on a full disk, the error of others does not name this process
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps(owner).encode())
        yield
    finally:
        _mine.discard(path)
        with contextlib.suppress(OSError):
            path.unlink()  # while it is locked: a process that waits for it sees that it is gone
        os.close(descriptor)


def _acquire(path: Path, folder: Path) -> int:
    """Open and lock the file at `path`, and return its descriptor."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        except OSError as error:
            raise UserError(
                f"cannot write to {folder} ({error.strerror}): choose another folder with --out."
            ) from None
        try:
            if not _lock(descriptor):
                raise UserError(_held(descriptor, folder))
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the process before has just removed the file


def _lock(descriptor: int) -> bool:
    """Lock a file and return True, or return False if another process has locked it. Child processes do not
    inherit the lock."""
    try:
        import fcntl
    except ImportError:  # Windows
        return _lock_on_windows(descriptor)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _lock_on_windows(descriptor: int) -> bool:
    import msvcrt

    try:
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)  # beyond the bytes that others read
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError:
        return False
    os.lseek(descriptor, 0, os.SEEK_SET)
    return True


def _held(descriptor: int, folder: Path) -> str:
    """Return the error that names the process that holds the lock."""
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        owner = json.loads(os.read(descriptor, 4096))
        pid, host, since = int(owner["pid"]), str(owner["host"]), float(owner["since"])
        age = timedelta(seconds=round(max(0.0, time.time() - since)))
        who = f"process {pid} on {host}, since {datetime.fromtimestamp(since):%Y-%m-%d %H:%M:%S} ({age} ago)"
    except (ValueError, KeyError, TypeError, OSError, OverflowError):
        who = "another process"
    return f"{folder} is being written by {who}: wait for it, stop it, or choose another folder with --out."
