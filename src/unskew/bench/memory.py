"""Measures the peak memory of a piece of work."""

from __future__ import annotations

import contextlib
import gc
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Peak:
    used: int | None
    reserved: int | None = None


def forget(device: torch.device) -> None:
    """Free unused memory, and start a new peak."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(OSError):  # without such a file the old peak stays
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def peak(device: torch.device, *, without: Collection[int] = ()) -> Peak:
    """Return the peak memory since `forget`; None if the system does not report it.

    On a GPU it is the memory that PyTorch counts. On a CPU it is the sum of the peak resident memory of this
    process and of those it started, except the processes in `without`.
    """
    if device.type == "cuda":
        used = torch.cuda.max_memory_allocated(device)
        return Peak(used, torch.cuda.max_memory_reserved(device))
    try:
        return Peak(sum(_resident(each) for each in _family(os.getpid()) if each not in without))
    except OSError:
        return Peak(None)


def _resident(process: int) -> int:
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except FileNotFoundError:  # it has just ended
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return 1024 * int(found[1]) if found else 0


def _family(process: int) -> list[int]:
    """Return a process and all its descendants."""
    members = [process]
    for task in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            members += [
                each for child in (task / "children").read_text().split() for each in _family(int(child))
            ]
    return members
