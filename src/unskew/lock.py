"""One writer of a folder at a time."""

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
"""What this process holds: the system lets one process lock a file twice."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the one writer of a folder that is there, or say who is. The system frees the lock of a process that
    has ended, however it did; what such a one has left behind is taken over."""
    path = folder.resolve() / NAME
    if path in _mine:
        raise UserError(f"this process is writing to {folder} already: choose another folder with --out.")
    descriptor = _acquire(path, folder)
    _mine.add(path)
    try:
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        with contextlib.suppress(OSError):  # of a full disk: who holds it is told then without a name
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps(owner).encode())
        yield
    finally:
        _mine.discard(path)
        with contextlib.suppress(OSError):
            path.unlink()  # before it is free: who waits sees that its file is another
        os.close(descriptor)


def _acquire(path: Path, folder: Path) -> int:
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
        os.close(descriptor)  # the one before has just removed it


def _lock(descriptor: int) -> bool:
    """Lock a file, unless another process has. A process's own children do not inherit it."""
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
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)  # beyond what is read
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError:
        return False
    os.lseek(descriptor, 0, os.SEEK_SET)
    return True


def _held(descriptor: int, folder: Path) -> str:
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        owner = json.loads(os.read(descriptor, 4096))
        pid, host, since = int(owner["pid"]), str(owner["host"]), float(owner["since"])
        age = timedelta(seconds=round(max(0.0, time.time() - since)))
        who = f"process {pid} on {host}, since {datetime.fromtimestamp(since):%Y-%m-%d %H:%M:%S} ({age} ago)"
    except (ValueError, KeyError, TypeError, OSError, OverflowError):
        who = "another process"
    return f"{folder} is being written by {who}: wait for it, stop it, or choose another folder with --out."
