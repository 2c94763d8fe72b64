"""How a sweep reports its progress."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from unskew import record


class Watcher(Protocol):
    """Receives the progress of a sweep, such as a progress bar."""

    def label(self, text: str, /) -> None: ...

    def say(self, notes: Iterable[str], /) -> None: ...

    def skip(self, rounds: int, /) -> None:
        """Note that a run has ended so many rounds early."""

    def __call__(self, line: record.RoundRecord, probe: record.ProbeRecord | None, /) -> None:
        """Receive a round, as rounds.jsonl and probes.jsonl have it."""
