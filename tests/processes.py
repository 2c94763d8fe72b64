"""The processes that a process has started."""

from pathlib import Path


def children(pid: int) -> list[int]:
    try:
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # it is gone
        return []


def processes_of(pid: int) -> list[int]:
    """A process's own, and theirs."""
    return [each for child in children(pid) for each in (child, *processes_of(child))]


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]
