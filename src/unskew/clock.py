"""Where the time of a command goes."""

from __future__ import annotations

import os
import time
from pathlib import Path

_IMPORTED = time.perf_counter()


class Clock:
    """Seconds by what they went to: those between two marks belong to the later one, so that all parts add up
    to the whole."""

    def __init__(self, age: float = 0.0) -> None:
        """`age` is how long ago it began."""
        self.parts: dict[str, float] = {}
        self._began = self._last = time.perf_counter() - age

    def mark(self, name: str) -> None:
        """What went by since the last mark is of this name."""
        now = time.perf_counter()
        self.parts[name] = self.parts.get(name, 0.0) + now - self._last
        self._last = now

    @property
    def total(self) -> float:
        """Seconds from the beginning to the last mark."""
        return self._last - self._began


def process_age() -> float:
    """Seconds since this process was started; where the system does not tell, since this module was
    imported."""
    try:
        # Behind the program's name, which may hold anything, the 20th field is when it began, since the boot.
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return time.perf_counter() - _IMPORTED
