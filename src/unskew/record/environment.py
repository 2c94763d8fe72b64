"""environment.json and error.json: where a run ran, and why it failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unskew.record.base import DECLARED


@DECLARED
@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where and when something began."""

    started: str
    command: list[str]
    device: str
    device_name: str
    cores: int | None
    platform: str
    python: str
    versions: dict[str, str]
    unskew_commit: str | None
    working_directory_commit: str | None


@DECLARED
@dataclass(frozen=True, kw_only=True)
class Environment(Machine):
    """What environment.json holds: where a run ran, and which."""

    identity: str
    """The hash of the experiment (`Experiment.identity`), here too for runs that do not end."""
    changed: dict[str, dict[str, Any]] | None = None
    """The hyperparameters that do not have their defaults, by the parts of the method: the method's label is
    made of them. None if these are not known."""


@DECLARED
@dataclass(frozen=True, kw_only=True)
class Failure:
    """error.json: why a run ended before its last round."""

    error: str
    """In one line."""
    notes: list[str]
    """Where it happened, such as the client, the round and the stage; a sentence each."""
    traceback: str

    @property
    def sentence(self) -> str:
        """The error and where it happened."""
        return " ".join(
            [self.error if self.error.endswith((".", "!", "?")) else f"{self.error}.", *self.notes]
        )
