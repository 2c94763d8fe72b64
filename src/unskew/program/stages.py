"""Where the stages of a run are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from unskew.result import Stage


@dataclass(frozen=True, eq=False)
class StoredStage:
    """A stage as it was stored, whole or after one of its rounds."""

    stage: Stage
    ended: bool
    """Whether the stage had ended."""


class StageStore(Protocol):
    """Stores the stages of a run, so that another run can continue where it stopped."""

    def find(self, name: str, /) -> StoredStage | None:
        """Return what is stored of the stage of this name, or None."""

    def after_round(self, name: str, stage: Stage, /) -> None:
        """Receive the stage so far after each of its rounds; it may be stored."""

    def end(self, name: str, stage: Stage, /) -> None:
        """Store a stage that has ended."""


class NoStore:
    """A stage store that stores nothing."""

    def find(self, name: str) -> None:
        return None

    def after_round(self, name: str, stage: Stage) -> None:
        return None

    def end(self, name: str, stage: Stage) -> None:
        return None
