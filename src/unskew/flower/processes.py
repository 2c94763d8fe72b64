"""Starts processes that outlive their command, and finds and ends them from a later command.

Each carries a mark in its environment, which the processes that it starts inherit, in any session. Only
processes with the mark are ended, even if another process has by now the number of one that has ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from unskew.errors import UserError

MARK = "UNSKEW_FLOWER"
"""The environment variable that has the mark."""
PATIENCE = 10.0
"""Seconds that a process has to end after a signal."""
PROC = Path("/proc")


def need_proc() -> None:
    """Refuse systems on which the environment of a process, and so its mark, cannot be read."""
    if not (PROC / "self" / "environ").exists():
        raise UserError(
            "a local federation needs Linux, whose /proc tells processes apart: start flower-superlink and "
            "flower-supernode by hand here."
        )


def start(command: list[str], environment: Mapping[str, str], log: Path) -> tuple[int, int]:
    """Start a process in a session of its own, with its output in a file. Return its number and its start
    time as soon as `running` can find it by its mark."""
    if log.exists():
        log.replace(log.with_suffix(".before.log"))
    pid = os.posix_spawn(
        command[0],
        command,
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGPIPE),
    )
    # For a moment after its start a process shows no environment.
    while (found := _parent_and_start(pid)) and not _environment(pid):
        time.sleep(0.001)
    return pid, found[1] if found else 0


def running(mark: str) -> dict[int, int]:
    """Return the processes that carry a mark or descend from one that does: their start times by their
    numbers, in clock ticks since the machine was started."""
    pids = [int(each.name) for each in PROC.iterdir() if each.name.isdecimal()]
    alive = {pid: found for pid in pids if (found := _parent_and_start(pid)) is not None}
    ours = {pid for pid in alive if _carries(pid, mark)}
    while more := {pid for pid, (parent, _) in alive.items() if parent in ours} - ours:
        ours |= more
    return {pid: alive[pid][1] for pid in ours}


def end(mark: str, first: Collection[int] = ()) -> set[int]:
    """End the processes that `running` finds for a mark, those with the numbers `first` before the others.
    They are asked to end, and killed if they do not. Return the numbers of all of them."""
    seen: set[int] = set()
    for sign, some in ((signal.SIGTERM, first), (signal.SIGTERM, None), (signal.SIGKILL, None)):
        signalled: set[int] = set()
        until = time.monotonic() + PATIENCE
        while left := {pid for pid in running(mark) if some is None or pid in some}:
            for pid in left - signalled:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, sign)
            signalled |= left
            seen |= left
            if time.monotonic() > until:
                break
            time.sleep(0.1)
    for pid in seen:
        with contextlib.suppress(ChildProcessError):  # it is not a child of this process
            os.waitpid(pid, os.WNOHANG)
    if left:
        raise UserError(f"processes {', '.join(map(str, sorted(left)))} do not end: end them by hand.")
    return seen


def _parent_and_start(pid: int) -> tuple[int, int] | None:
    """Return the parent of a process and its start time, or None if it has ended."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    state, parent, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else (int(parent), int(rest[17]))


def _carries(pid: int, mark: str) -> bool:
    return f"{MARK}={mark}".encode() in _environment(pid).split(b"\0")


def _environment(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "environ").read_bytes()
    except OSError:  # it is another user's, or has ended
        return b""
