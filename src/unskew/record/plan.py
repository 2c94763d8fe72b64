"""plan.json and the list of failed runs of a comparison."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from unskew.record.base import DECLARED


@DECLARED
@dataclass(frozen=True)
class FailedRun:
    """A run of a compare that has failed, as compare.json lists it."""

    method: str
    seed: int
    identity: str
    run_dir: str
    error: str


@DECLARED
@dataclass(frozen=True)
class Planned:
    """A run that a compare is going to make."""

    folder: str
    """The name of the run's folder in that of the compare."""
    identity: str
    method: str = ""
    """The method as it was typed."""
    experiment: dict[str, Any] = field(default_factory=dict)
    """The experiment as experiment.toml will have it."""
    condition: str = ""
    """What its setting is called, if there are several."""


@DECLARED
@dataclass(frozen=True)
class Plan:
    """plan.json: what a compare is going to run."""

    runs: list[Planned]
    rounds: int
    """How many rounds each run has."""
    reference: str | None = None
    """The method that the others are to be compared with, if it was asked for."""


SAME_FOR_ALL = ("rounds", "cohort", "epochs", "steps")
"""Settings of the budget that methods which are compared are given alike."""


def is_tunable(setting: str) -> bool:
    """Say whether the methods of a comparison may differ in a setting such as budget.lr."""
    table, _, name = setting.partition(".")
    return table == "budget" and name not in SAME_FOR_ALL
