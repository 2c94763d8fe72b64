"""The processes that a process has started."""

import os
from pathlib import Path


def children(pid: int) -> list[int]:
    """The living processes that a process has forked, and that run no other program."""
    running = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [one for one in running if _stat(one)[1] == pid and _command(one) == _command(pid)]


def processes_of(pid: int) -> list[int]:
    """Those that a process has forked, and theirs."""
    return [each for child in children(pid) for each in (child, *processes_of(child))]


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if _stat(pid)[0] != "Z"]


def end(child: int) -> int:
    """Wait for a process that this one has forked; its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _stat(pid: int) -> tuple[str, int]:
    """State and parent of a process; Z, dead, where it is gone."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return "Z", 0
    return state, 0 if state == "Z" else int(parent)


def _command(pid: int) -> bytes:
    """The command line of a process; none where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
