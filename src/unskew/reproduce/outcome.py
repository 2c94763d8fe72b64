"""The finished runs of a table's cells, next to the published numbers. Needs run folders, but no data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from unskew import metrics
from unskew.errors import UserError
from unskew.report.read import SavedRun, read_own_run
from unskew.reproduce.identity import difference
from unskew.reproduce.measures import measure
from unskew.reproduce.published import Cell, ExperimentSettings, PublishedTable, Reading
from unskew.reproduce.version import Version, run_stem

BASELINE = "fedavg"
"""The row that speed-ups are relative to."""


@dataclass(frozen=True, eq=False)
class CellOutcome:
    """The runs of a cell's experiment, next to the published numbers."""

    cell: Cell
    reading: str
    """The reading of the paper: paper, as-coded, or both if they are one experiment."""
    runs: tuple[SavedRun, ...]
    """The finished runs of the cell, by seed."""
    measured: Mapping[str, tuple[float, ...]]
    """By measure, the values of all runs that have one, in the published unit; infinite if a run never
    reached the target."""
    smaller: bool
    """Whether these are runs of a smaller version."""

    def reached(self, measure: str) -> list[float]:
        """Return the values of the runs that reached the target."""
        return [value for value in self.measured.get(measure, ()) if math.isfinite(value)]

    def over_seeds(self, measure: str) -> metrics.SeedsSummary | None:
        """Summarise a measure over the seeds that reached the target; None if no seed did."""
        return metrics.over_seeds(self.reached(measure))

    def last_ten(self) -> str:
        """Return the mean accuracy of the last ten rounds, over all seeds, as text."""
        each = [run.summary.accuracy.mean_last_10 for run in self.runs if run.summary is not None]
        known = metrics.over_seeds(each)
        return "-" if known is None else f"{100 * known.mean:.2f}"

    def difference(self, measure: str) -> float | None:
        """Return our mean minus the published number; None for a smaller version, or if one is missing."""
        if self.smaller:
            return None
        published, ours = self.cell.published.get(measure), self.over_seeds(measure)
        if published is None or published.value is None or ours is None:
            return None
        return ours.mean - published.value

    def text(self, measure: str) -> str:
        """Return our mean with its standard deviation and the number of seeds, as text."""
        ours = self.over_seeds(measure)
        count, reached = len(self.measured.get(measure, ())), len(self.reached(measure))
        seeds = f"{count} seed{'s' * (count > 1)}"
        if ours is None:
            return f"never ({seeds})" if count else "-"
        return f"{metrics.plus_minus(ours, digits=2)} ({f'{reached} of ' * (reached < count)}{seeds})"


def outcomes(
    table: PublishedTable, wanted: Iterable[tuple[Cell, Reading]], out: Path, version: Version
) -> list[CellOutcome]:
    """Read the finished runs of cells from a folder, with all seeds that it has.

    Readings of a cell that are the same experiment share an outcome. A cell without runs has one too.
    """
    found, seen = [], set()
    first = {(cell.column, cell.row): cell for cell in table.cells}
    asked = [pair for pair in wanted if not pair[0].not_runnable]
    for cell, reading in asked:
        settings = version.experiment(cell, reading, 1)
        stem = run_stem(settings)
        if (cell.id, stem) in seen:
            continue
        seen.add((cell.id, stem))
        readings = [
            other
            for another, other in asked
            if another is cell and run_stem(version.experiment(another, other, 1)) == stem
        ]
        runs = _finished(settings, out, version)
        baselines: dict[int, SavedRun] = {}
        baseline = first.get((cell.column, BASELINE))
        if "speed_up" in table.measures and baseline is not None and runs:
            baseline_settings = version.experiment(baseline, reading, 1)
            baselines = {run.seed: run for run in _finished(baseline_settings, out, version)}
        values = {
            name: tuple(
                value
                for run in runs
                if (value := measure(name, run, table.statistic, baselines.get(run.seed))) is not None
            )
            for name in table.measures
        }
        found.append(CellOutcome(cell, ", ".join(readings), runs, values, version.smaller))
    return found


def _finished(settings: ExperimentSettings, out: Path, version: Version) -> tuple[SavedRun, ...]:
    """Read the finished runs of an experiment with any seed.

    Refuse a folder that has the experiment's name but holds a run of another one.
    """
    stem = run_stem(settings)
    runs = []
    for path in (out / version.folder).glob(f"{stem}-seed*/summary.json"):
        run = read_own_run(path.parent)
        seed = path.parent.name.removeprefix(f"{stem}-seed")
        other = f"seed is {run.seed}, not {seed}" if seed != str(run.seed) else ""
        try:
            other = other or difference({**settings, "seed": run.seed}, run.experiment)
        except UserError as error:  # of another version
            other = str(error).removesuffix(".")
        if other:
            raise UserError(
                f"{run.path} is another run than its name says ({other}): remove it, or choose another "
                "folder with --out."
            )
        runs.append(run)
    return tuple(sorted(runs, key=lambda run: run.seed))
