"""How long runs take, estimated from finished ones."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unskew.report.read import read_own_run


@dataclass(frozen=True)
class Pace:
    """The seconds that rounds of finished runs took, from which the time of other runs is estimated."""

    seconds: Mapping[tuple[str, ...], Sequence[float]]
    """Seconds per round of each run, by the conditions with and without the method."""

    @classmethod
    def of(cls, folder: Path) -> Pace:
        """Read the pace of all finished runs in a folder."""
        found: dict[tuple[str, ...], list[float]] = {}
        for path in folder.glob("*/summary.json"):
            run = read_own_run(path.parent)
            if run.summary is not None and run.done:
                for key in _alike(run.experiment):
                    found.setdefault(key, []).append(run.summary.seconds / run.done)
        return cls(found)

    def estimate(self, experiments: Iterable[Mapping[str, Any]]) -> float | None:
        """Return the seconds that experiments will take; None if no run is similar to one of them."""
        total = 0.0
        for each in experiments:
            known = next((self.seconds[key] for key in _alike(each) if key in self.seconds), None)
            if known is None:
                return None
            total += each["budget"]["rounds"] * statistics.fmean(known)
        return total


def _alike(experiment: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the conditions that the time of a round depends on, with the method and without it."""
    budget = experiment["budget"]
    parts = [experiment["device"], experiment["data"]["name"], experiment["model"]["name"]]
    parts += [experiment["skew"]["clients"], budget["cohort"], budget.get("epochs"), budget.get("steps")]
    parts += [budget["batch_size"], experiment["probe"]["every"]]
    same = tuple(map(str, parts))
    return [(*same, experiment["method"]["name"]), same]


def duration(seconds: float) -> str:
    """Return seconds as text, such as 40 s, 12 min or 3 h 20 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
