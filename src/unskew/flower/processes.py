"""Processes that outlive the command that starts them, and are found and ended again by another one.

Each carries a mark in its environment, which all that it starts inherits, in whatever session that is. What
has the mark is ended and nothing else, even if another process has by now the number of one that is gone.
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
PATIENCE = 10.0
"""Seconds for a process to end when it is asked to."""
PROC = Path("/proc")


def need_proc() -> None:
    """Refuse systems that do not tell which process carries which mark."""
    if not (PROC / "self" / "environ").exists():
        raise UserError(
            "a local federation needs Linux, whose /proc tells processes apart: start flower-superlink and "
            "flower-supernode by hand here."
        )


def start(command: list[str], environment: Mapping[str, str], log: Path) -> tuple[int, int]:
    """Start a process in a session of its own, whose output goes to a file: its number, and when it began.
    From then on it is found by its mark."""
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
    while (found := _look(pid)) and not _environment(pid):  # for a moment after its start it shows none
        time.sleep(0.001)
    return pid, found[1] if found else 0


def running(mark: str) -> dict[int, int]:
    """The processes that carry a mark, or descend from one that does: when each began, by number. That is in
    ticks since the machine was started."""
    found = {int(each.name): _look(int(each.name)) for each in PROC.iterdir() if each.name.isdecimal()}
    alive = {pid: look for pid, look in found.items() if look is not None}
    ours = {pid for pid in alive if _carries(pid, mark)}
    while more := {pid for pid, (parent, _) in alive.items() if parent in ours} - ours:
        ours |= more
    return {pid: alive[pid][1] for pid in ours}


def end(mark: str, first: Collection[int] = ()) -> set[int]:
    """End the processes that carry a mark, those of these numbers before the others: they are asked to, and
    killed when they do not. Returns the numbers of all that were there."""
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
        with contextlib.suppress(ChildProcessError):  # those that this very process has started
            os.waitpid(pid, os.WNOHANG)
    if left:
        raise UserError(f"processes {', '.join(map(str, sorted(left)))} do not end: end them by hand.")
    return seen


def _look(pid: int) -> tuple[int, int] | None:
    """The parent of a process and when it began; None if it has ended."""
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
