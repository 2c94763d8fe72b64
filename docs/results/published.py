"""Makes docs/results/published.md: every published number with the numbers of our runs.

python docs/results/published.py

The runs are the lines in docs/results/raw. A run belongs to a cell of a table if `unskew reproduce` would run
the same experiment for it, except for the precision and the engine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

from build import anchor
from grouping import raw_lines, resolve, text_of
from scipy.stats import spearmanr
from tables import table

from unskew import metrics, models
from unskew.experiment import Experiment, MethodSpec, brief_skew
from unskew.report.differences import signed
from unskew.report.grouping import conditions_of
from unskew.reproduce import Cell, PublishedTable, Reading, experiment, papers
from unskew.reproduce.outcome import BASELINE

PAGE = Path(__file__).with_name("published.md")
Line = dict[str, Any]
COMPUTED = ("seed", "skew.seed", "precision", "fast", "probe.every")
"""Settings that runs of a cell may differ in."""
NAMES = {"max_class": "best class", "min_class": "worst class", "speed_up": "speed-up"}
brief = cache(brief_skew)  # thousands of runs have a few dozen skews
CLOSE = 2.0
"""Percentage points within which a number counts as close."""
FEWEST_METHODS = 5
"""The fewest methods whose order is compared."""
INTRODUCTION = """\
# Published numbers and ours

Every published accuracy for which we have runs. `python docs/results/published.py` makes this page from the
[raw results](raw/).

- **Ours** is what the table reports: the best round by test accuracy, or the last round. It is the mean ±
  standard deviation over seeds, in %. Without ± there is one seed.
- A best round chosen on the test set is partly luck. So the **mean of the last 10** rounds stands beside it.
- **Difference** is ours minus the published number, in points.
- **Reading** is `as-coded` for what the released code does, and `paper` for what the paper says
  ([more](../reproduce.md)).
- Speed-up is `never` where no run reached the best accuracy of FedAvg. The paper prints 1.00 there.
- Cost is what was computed until the worst class reached an accuracy, in rounds of FedAvg, experts included.
- Each line of the raw results has its commit, device, precision and the whole experiment.

`unskew reproduce TABLE --cell CELL --seeds 1-3` runs a cell again."""


@dataclass(frozen=True)
class Row:
    """A cell in a reading, and its runs by seed."""

    cell: Cell
    reading: str
    runs: Mapping[int, Line]
    baseline: Mapping[int, Line]
    """The runs of FedAvg in the same column."""

    def values(self, measure: str, statistic: str) -> list[float]:
        """Return the known values of a measure, by seed, in the published unit."""
        each = (
            value_of(measure, statistic, line, self.baseline.get(seed)) for seed, line in self.runs.items()
        )
        return [value for value in each if value is not None]

    def difference(self, statistic: str) -> float | None:
        """Return our accuracy minus the published one; None if none is published."""
        published, ours = self.cell.published.get("accuracy"), self.values("accuracy", statistic)
        return None if published is None or published.value is None else fmean(ours) - published.value


def value_of(measure: str, statistic: str, line: Line, baseline: Line | None) -> float | None:
    """Return a measure of a run; None if its line does not have it, infinite if a target was never
    reached."""
    kind, _, target = measure.partition(":")
    found: float | None
    if kind == "accuracy":
        return float(100 * line["accuracy"][statistic])
    if kind in ("max_class", "min_class") and statistic == "last":
        return float(100 * (max if kind == "max_class" else min)(line["class_accuracy"]))
    if kind == "speed_up" and baseline is not None:
        found = metrics.speed_up(*(_by_round(each["curve"]) for each in (line, baseline)))
    elif kind == "cost" and "worst_curve" in line:
        costs = line.get("costs", [1.0] * len(line["worst_curve"]))  # as a rule
        if costs is None:
            return None
        found = metrics.cost_to(float(target) / 100, _by_round(line["worst_curve"]), _by_round(costs))
    else:
        return None
    return math.inf if found is None else found


def _by_round(values: Sequence[float]) -> dict[int, float]:
    return dict(enumerate(values, 1))


def key_of(settings: Mapping[str, Any]) -> str:
    """Return a key that two settings share if and only if they are the same experiment except for seeds."""
    resolved = resolve({**settings, "skew": {"seed": 1, **settings["skew"]}})
    conditions = conditions_of(resolved) | {"skew.recipe": brief(resolved["skew"]["recipe"])}
    if conditions["model.norm"] == "auto":
        conditions["model.norm"] = models.MODELS[resolved["model"]["name"]].norms[0]
    kept = {key: value for key, value in conditions.items() if key not in COMPUTED}
    return text_of([kept, MethodSpec(**resolved["method"]).brief()])


class Runs:
    """All lines, which can be found by experiment."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._found: dict[str, dict[tuple[int, int], Line]] = {}
        # If a seed ran twice the first run counts, so that reported numbers do not change by chance.
        for line in sorted(lines, key=lambda each: each["started"]):
            resolved = line["experiment"]
            seeds = resolved["seed"], resolved["skew"]["seed"]
            self._found.setdefault(key_of(resolved), {}).setdefault(seeds, line)

    def of(self, settings: Mapping[str, Any]) -> dict[int, Line]:
        """Return the runs of an experiment by seed. Its partition has a fixed seed, or follows the seed."""
        fixed = settings["skew"].get("seed")
        resolved = Experiment(**settings).model_dump(mode="json", exclude_none=True)
        found = self._found.get(key_of(resolved), {})
        return {
            seed: line
            for (seed, skew), line in sorted(found.items())
            if skew == (seed if fixed is None else fixed)
        }


def rows_of(paper_table: PublishedTable, runs: Runs) -> Iterator[Row]:
    """Yield the cells with a published accuracy and at least one run; equal readings share a row."""
    places = {(cell.column, cell.row): cell for cell in paper_table.cells}
    for cell in paper_table.cells:
        if cell.not_runnable or "accuracy" not in cell.published:
            continue
        plain = places.get((cell.column, BASELINE), cell)
        same: dict[str, list[Reading]] = {}
        for reading in paper_table.readings:
            same.setdefault(text_of(experiment(cell, reading)), []).append(reading)
        for text, readings in same.items():
            if found := runs.of(json.loads(text)):
                yield Row(cell, ", ".join(readings), found, runs.of(experiment(plain, readings[0])))


def page(lines: Sequence[Line]) -> str:
    """Return the whole page."""
    runs = Runs(lines)
    run, parts = [], []
    for paper in papers().values():
        tables = [(each, rows) for each in paper.tables if (rows := list(rows_of(each, runs)))]
        run += tables
        if tables:
            parts.append(f"## {paper.title}\n\n{paper.reference.rstrip('.')}.")
        for each, rows in tables:
            parts += [f"### {heading(each)}", f"Published: {each.reports}.", *by_column(each, rows)]
            parts.append(detail(each, rows))
    return "\n\n".join([INTRODUCTION, "## How close", overview(run), *parts]) + "\n"


def heading(each: PublishedTable) -> str:
    return f"{each.id}: {each.title}"


def overview(found: Sequence[tuple[PublishedTable, Sequence[Row]]]) -> str:
    """Return a table of how many cells of each table were run, and how close they are to the published
    numbers."""
    lines = []
    for each, rows in found:
        published = [cell for cell in each.cells if "accuracy" in cell.published]
        lines.append(
            [
                f"[{each.id}](#{anchor(heading(each))})",
                f"{len({row.cell.id for row in rows})} of {len(published)}",
                *_closeness([row.difference(each.statistic) for row in rows]),
                *_closeness([row.difference("mean_last_10") for row in rows]),
            ]
        )
    close = f"within {CLOSE:g} points"
    far = "mean distance"
    heads = ["table", "cells run", far, close, f"{far}, mean of last 10", f"{close}, mean of last 10"]
    return table(heads, lines)


def _closeness(differences: Sequence[float | None]) -> list[str]:
    known = [abs(each) for each in differences if each is not None]
    if not known:
        return ["-", "-"]
    return [f"{fmean(known):.1f}", f"{sum(each <= CLOSE for each in known)} of {len(known)}"]


def by_column(each: PublishedTable, rows: Sequence[Row]) -> list[str]:
    """Return a table by column: the methods' median difference from the published numbers, and whether they
    have the same order; empty if too few methods of every column were run."""
    columns: dict[str, list[Row]] = {}
    for row in {row.cell.id: row for row in reversed(rows)}.values():  # of several readings the first
        if row.cell.published["accuracy"].value is not None:
            columns.setdefault(row.cell.column, []).append(row)
    lines = []
    for column in each.columns:
        found = columns.get(column, [])
        if len(found) < FEWEST_METHODS:
            continue
        line = [f"`{column}`", str(len(found))]
        for statistic in dict.fromkeys((each.statistic, "mean_last_10")):
            ours = [fmean(row.values("accuracy", statistic)) for row in found]
            typical = median(row.difference(statistic) for row in found)
            order = spearmanr(ours, [row.cell.published["accuracy"].value for row in found]).statistic
            line += [signed(typical / 100), f"{order:.2f}".replace("-", "−")]
        lines.append(line)
    heads = ["column", "methods", "median difference", "order", "the same, mean of last 10", "order"]
    words = "Order is Spearman's rank correlation between the published numbers of the methods and ours."
    return [f"{words}\n\n{table(heads, lines)}"] if lines else []


def detail(each: PublishedTable, rows: Sequence[Row]) -> str:
    """Return the table of all rows, with the readings of a cell below each other."""
    others = [
        name
        for name in each.measures
        if name != "accuracy" and any(row.values(name, each.statistic) for row in rows)
    ]
    heads = ["cell", "published", "ours", "difference"]
    if last := each.statistic != "mean_last_10":
        heads.append("mean of last 10")
    heads += [f"{_head(name)}{what}" for name in others for what in (", published", "")]
    readings = {row.reading for row in rows}
    heads += ["seeds", *["reading"] * (len(readings) > 1)]
    lines = []
    for row in rows:
        difference = row.difference(each.statistic)
        line = [
            row.cell.id,
            str(row.cell.published["accuracy"]),
            _mean(row.values("accuracy", each.statistic)),
            "-" if difference is None else signed(difference / 100, 2),
        ]
        if last:
            line.append(_mean(row.values("accuracy", "mean_last_10")))
        for name in others:
            line += [str(row.cell.published.get(name, "-")), _mean(row.values(name, each.statistic))]
        lines.append([*line, str(len(row.runs)), *[row.reading] * (len(readings) > 1)])
    words = f"Reading: {row.reading}.\n\n" if len(readings) == 1 else ""
    return words + table(heads, lines)


def _mean(values: Sequence[float]) -> str:
    """Return the mean over the runs that reached the target, as text."""
    found = metrics.over_seeds([value for value in values if math.isfinite(value)])
    if found is None:
        return "never" if values else "-"
    return metrics.plus_minus(found, digits=2)


def _head(measure: str) -> str:
    """Return the head of a measure's column."""
    kind, _, target = measure.partition(":")
    return f"cost to {target} %" if kind == "cost" else NAMES[kind]


def main() -> None:
    PAGE.write_text(page(raw_lines()))
    print(f"written: {PAGE.name}")


if __name__ == "__main__":
    main()
