"""The time that each part of a command takes."""

from __future__ import annotations

import os
import time
from pathlib import Path

_IMPORTED = time.perf_counter()


class Clock:
    """A clock that adds up seconds by part. The time between two marks belongs to the later mark, so that the
    parts add up to the whole."""

    def __init__(self, age: float = 0.0) -> None:
        """Start a clock that began `age` seconds ago."""
        self.parts: dict[str, float] = {}
        self._began = self._last = time.perf_counter() - age

    def mark(self, name: str) -> None:
        """Add the seconds since the last mark to the part of this name."""
        now = time.perf_counter()
        self.parts[name] = self.parts.get(name, 0.0) + now - self._last
        self._last = now

    @property
    def total(self) -> float:
        """Seconds from the beginning to the last mark."""
        return self._last - self._began


def process_age() -> float:
    """Return the seconds since this process was started, or since this module was imported if the system does
    not say when the process was started."""
    try:
        # The program's name, in parentheses, may contain anything. The 20th field after it is the time of the
        # start, in ticks since the boot.
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return time.perf_counter() - _IMPORTED
