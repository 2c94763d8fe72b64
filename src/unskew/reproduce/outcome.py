"""What runs of a table's cells came to, beside the published numbers. Needs run folders, but no data."""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unskew import metrics, record
from unskew.errors import UserError
from unskew.notation import parse_class_groups
from unskew.record import Json
from unskew.report.measures import MEASURES, series
from unskew.report.read import SavedRun, read_own_run
from unskew.reproduce.identity import difference
from unskew.reproduce.published import (
    PERCENT,
    Cell,
    ExperimentSettings,
    Published,
    PublishedTable,
    Reading,
    experiment,
)

BASELINE = "fedavg"
"""The row that speed-ups are told against."""


@dataclass(frozen=True)
class Version:
    """A table as it was published, or a smaller version of it: runs of one are never taken for those of
    another."""

    rounds: int | None = None
    fraction: float | None = None
    """Of the training samples."""
    precision: str = "fp32"
    fast: bool = False
    """Whether a GPU takes its fastest kernels."""

    @property
    def full(self) -> bool:
        """Whether it is the published one."""
        return self == Version()

    @property
    def smaller(self) -> bool:
        """Whether it has fewer rounds or samples, so that its numbers compare with none that is published."""
        return self.rounds is not None or self.fraction is not None

    @property
    def folder(self) -> str:
        """The name of the folder that its runs are in."""
        parts = []
        if self.rounds is not None:
            parts.append(f"rounds={self.rounds}")
        if self.fraction is not None:
            parts.append(f"fraction={self.fraction:g}")
        return ",".join([*parts, *self._computed()]) or "full"

    def _computed(self) -> list[str]:
        return [self.precision] * (self.precision != "fp32") + ["fast"] * self.fast

    @property
    def words(self) -> str:
        """What differs from the published version, in words; nothing where it is that one."""
        parts = []
        if self.rounds is not None:
            parts.append(f"{self.rounds} round{'s' * (self.rounds != 1)}")
        if self.fraction is not None:
            parts.append(f"{100 * self.fraction:g} % of the training samples")
        smaller = f"a smaller version, with {' and '.join(parts)}" if parts else ""
        return ", ".join(filter(None, (smaller, *self._computed())))

    def experiment(self, cell: Cell, reading: Reading, seed: int) -> ExperimentSettings:
        """The experiment of a cell in this version."""
        whole = experiment(cell, reading, seed, rounds=self.rounds, fraction=self.fraction)
        whole["precision"] = self.precision
        return {**whole, "fast": True} if self.fast else whole


def run_stem(settings: ExperimentSettings) -> str:
    """What the folders of an experiment's seeds begin with: the same for cells of several tables that are one
    experiment, so that it runs once."""
    without = {key: value for key, value in settings.items() if key != "seed"}
    if settings["precision"] == "fp32":  # folders were named before it was among the settings
        del without["precision"]
    digest = hashlib.sha256(json.dumps(without, sort_keys=True).encode()).hexdigest()[:10]
    recipe = settings["skew"]["recipe"].partition(",")[0]
    words = "-".join([settings["method"]["name"], settings["data"]["name"], recipe])
    return f"{re.sub(r'[^A-Za-z0-9.=_]+', '-', words)}-{digest}"


def run_folder(out: Path, version: Version, settings: ExperimentSettings) -> Path:
    """Where the run of an experiment is, in the folder of all that is reproduced."""
    return out / version.folder / f"{run_stem(settings)}-seed{settings['seed']}"


@dataclass(frozen=True, eq=False)
class CellOutcome:
    """An experiment of a cell, beside the published numbers."""

    cell: Cell
    reading: str
    """As which it is read: paper, as-coded, or both where they are one experiment."""
    runs: tuple[SavedRun, ...]
    """Its finished runs, by seed."""
    measured: Mapping[str, tuple[float, ...]]
    """By measure, over the runs that have it, in the published unit; infinite where a run never reached
    what is to be reached."""
    smaller: bool
    """Whether these are runs of a smaller version."""

    def reached(self, measure: str) -> list[float]:
        """The values but for runs that never got there."""
        return [value for value in self.measured.get(measure, ()) if math.isfinite(value)]

    def over_seeds(self, measure: str) -> metrics.SeedsSummary | None:
        """Over the seeds that got there; None where none did."""
        return metrics.over_seeds(self.reached(measure))

    def last_ten(self) -> str:
        """The accuracy over the last ten rounds, as a person reads it."""
        each = [run.summary.accuracy.mean_last_10 for run in self.runs if run.summary is not None]
        known = metrics.over_seeds(each)
        return "-" if known is None else f"{100 * known.mean:.2f}"

    def difference(self, measure: str) -> float | None:
        """Ours less the published one; None of a smaller version."""
        if self.smaller:
            return None
        published, ours = self.cell.published.get(measure), self.over_seeds(measure)
        if published is None or published.value is None or ours is None:
            return None
        return ours.mean - published.value

    def text(self, measure: str) -> str:
        """Ours as a person reads it."""
        ours = self.over_seeds(measure)
        count, reached = len(self.measured.get(measure, ())), len(self.reached(measure))
        seeds = f"{count} seed{'s' * (count > 1)}"
        if ours is None:
            return f"never ({seeds})" if count else "-"
        return f"{metrics.plus_minus(ours, digits=2)} ({f'{reached} of ' * (reached < count)}{seeds})"


def outcomes(
    table: PublishedTable, wanted: Iterable[tuple[Cell, Reading]], out: Path, version: Version
) -> list[CellOutcome]:
    """What the finished runs in a folder came to, of every seed there is."""
    found, seen = [], set()
    first = {(cell.column, cell.row): cell for cell in table.cells}
    asked = [pair for pair in wanted if not pair[0].not_runnable]
    for cell, reading in asked:
        asked_for = version.experiment(cell, reading, 1)
        stem = run_stem(asked_for)
        if (cell.id, stem) in seen:
            continue
        seen.add((cell.id, stem))
        readings = [
            other
            for mine, other in asked
            if mine is cell and run_stem(version.experiment(mine, other, 1)) == stem
        ]
        runs = _finished(asked_for, out, version)
        others: dict[int, SavedRun] = {}
        against = first.get((cell.column, BASELINE))
        if "speed_up" in table.measures and against is not None and runs:
            theirs = version.experiment(against, reading, 1)
            others = {run.seed: run for run in _finished(theirs, out, version)}
        values = {
            name: tuple(
                value
                for run in runs
                if (value := measure(name, run, table.statistic, others.get(run.seed))) is not None
            )
            for name in table.measures
        }
        found.append(CellOutcome(cell, ", ".join(readings), runs, values, version.smaller))
    return found


def _finished(settings: ExperimentSettings, out: Path, version: Version) -> tuple[SavedRun, ...]:
    """The finished runs of an experiment, of every seed. What has its name and is another one is refused."""
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


def measure(name: str, run: SavedRun, statistic: str, baseline: SavedRun | None = None) -> float | None:
    """A measure of a table, of a finished run, in the published unit. Accuracies are those that the table
    reports; the best, the worst class and domains are of that same round. None where it is not known, and
    infinite where a run never reached what is to be reached."""
    assert run.summary is not None
    kind, _, which = name.partition(":")
    value: float | None
    if kind == "accuracy":
        value = getattr(run.summary.accuracy, statistic)
    elif kind == "speed_up":
        if baseline is None:
            return None
        times = metrics.speed_up(series(run, MEASURES["accuracy"]), series(baseline, MEASURES["accuracy"]))
        return math.inf if times is None else times
    elif kind == "drift":
        return run.probes[-1].drift.aggregated if run.probes else None
    elif kind == "cost":
        return _cost(float(which) / 100, run)
    else:
        line = _line(run, statistic)
        if line is None:
            return None
        value = _domain(line, which) if kind == "domain" else getattr(line, kind)
    return None if value is None else 100 * value


def _line(run: SavedRun, statistic: str) -> record.TestedRound | None:
    """The round that a statistic chooses."""
    tested = list(run.tested)
    if not tested:
        return None
    return max(tested, key=lambda line: line.accuracy or 0.0) if statistic == "best_by_test" else tested[-1]


def _domain(line: record.TestedRound, which: str) -> float | None:
    if line.domains is None:
        return None
    if which != "mean":
        return line.domains.get(which)
    known = [value for value in line.domains.values() if value is not None]
    return statistics.fmean(known) if known else None


def _cost(target: float, run: SavedRun) -> float | None:
    """What was computed until the worst class reached an accuracy; None where that is not known."""
    costs = costs_by_round(run)
    if costs is None:
        return None
    spent = metrics.cost_to(target, series(run, MEASURES["worst"]), costs)
    return math.inf if spent is None else spent


def costs_by_round(run: SavedRun) -> dict[int, float] | None:
    """As PKD counts it: a round is 1, experts count by the samples of their groups, in the round after the
    warm-up, and later by the samples that they are asked about. None where that is not known."""
    assert run.summary is not None
    costs = dict.fromkeys(range(1, run.done + 1), 1.0)
    method = run.experiment["method"]
    if method["name"] != "pkd":
        return costs
    tally = run.summary.tallies.get("activated")
    if not method["groups"] or not isinstance(method["warmup"], int) or tally is None:
        return None
    epochs = run.experiment["budget"].get("epochs")
    if epochs is None:  # the budget is in steps
        return None
    groups = [list(group) for group in parse_class_groups(method["groups"])]
    by_class = run.counts.sum(axis=0)
    samples = int(by_class.sum())
    sizes = [int(by_class[group].sum()) for group in groups]
    first = method["warmup"] + 1
    experts = method["expert_rounds"] * metrics.expert_cost(sizes, samples, epochs=epochs)
    shares = dict(zip(range(run.done - len(tally.share) + 1, run.done + 1), tally.share, strict=True))
    for number in costs:
        costs[number] += (shares.get(number) or 0.0) / 3 + (experts if number == first else 0.0)
    return costs


def to_json(table: PublishedTable, cells: Sequence[CellOutcome], version: Version) -> dict[str, Json]:
    """For programs. Numbers are in the published unit."""
    return {
        "table": table.id,
        "title": table.title,
        "reports": table.reports,
        "statistic": table.statistic,
        "version": {
            "full": version.full,
            "words": version.words,
            "rounds": version.rounds,
            "fraction": version.fraction,
            "precision": version.precision,
            "fast": version.fast,
        },
        "notes": list(table.notes),
        "differences": list(table.differences),
        "cells": [_cell_json(table, each) for each in cells],
    }


def _cell_json(table: PublishedTable, outcome: CellOutcome) -> dict[str, Json]:
    summaries = [run.summary for run in outcome.runs if run.summary is not None]
    return {
        "cell": outcome.cell.id,
        "reading": outcome.reading,
        "assumed": list(outcome.cell.assumed),
        "seeds": [run.seed for run in outcome.runs],
        "measures": {
            name: {
                "published": published_json(outcome.cell.published.get(name)),
                "mean": found.mean if (found := outcome.over_seeds(name)) else None,
                "std": found.std if found else None,
                "values": [
                    value if math.isfinite(value) else None for value in outcome.measured.get(name, ())
                ],
                "difference": outcome.difference(name),
            }
            for name in table.measures
        },
        "beside": {
            **{
                f"accuracy.{name}": [_percent(getattr(each.accuracy, name)) for each in summaries]
                for name in ("best_by_test", "last", "mean_last_10")
            },
            "worst_class": [_percent(each.worst_class_accuracy) for each in summaries],
            "drift.received": [run.probes[-1].drift.received if run.probes else None for run in outcome.runs],
        },
        "seconds": [each.seconds for each in summaries],
        "devices": [str(run.experiment.get("device", "")) for run in outcome.runs],
        "runs": [str(run.path) for run in outcome.runs],
    }


def published_json(number: Published | None) -> Json:
    """A published number for programs; null where none is known."""
    return None if number is None else {"value": number.value, "std": number.std, "word": number.word or None}


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def rows_of(
    table: PublishedTable, cells: Sequence[CellOutcome], version: Version
) -> tuple[list[str], list[list[str]]]:
    """The heads and the rows of the table that is shown: published, ours, difference, reading. Where a best
    round is reported, which was chosen on the test set, the mean of the last ten stands beside it."""
    several = len(table.measures) > 1
    ours = "ours, smaller version" if version.smaller else "ours"
    best = table.statistic == "best_by_test" and "accuracy" in table.measures
    heads = ["cell", *["measure"] * several, "published", ours, "difference"]
    heads += [*["mean of last 10"] * best, "reading"]
    rows = []
    for each in cells:
        for name in table.measures:
            published = each.cell.published.get(name)
            if several and published is None and not each.measured.get(name):
                continue
            difference = each.difference(name)
            rows.append(
                [
                    each.cell.id,
                    *[name] * several,
                    "-" if published is None else str(published),
                    each.text(name),
                    "-" if difference is None else f"{difference:+.2f}",
                    *[each.last_ten() if name == "accuracy" else ""] * best,
                    each.reading,
                ]
            )
    return heads, rows


def caption(table: PublishedTable, version: Version) -> list[str]:
    """What stands above the numbers."""
    percent = [name.startswith(PERCENT) for name in table.measures]
    unit = "in %" if all(percent) else "accuracies in %" if any(percent) else ""
    lines = [f"{table.id}: {table.title}", f"published: {table.reports}" + f" ({unit})" * bool(unit)]
    if not version.full:
        warning = ": not to be compared with what is published" * version.smaller
        lines.append(f"ours: {version.words}{warning}")
    return lines


def to_markdown(table: PublishedTable, cells: Sequence[CellOutcome], version: Version) -> str:
    """As a page that can be kept beside the runs."""
    heads, rows = rows_of(table, cells, version)
    first, *rest = caption(table, version)
    lines = [f"# {first}", "", *(f"{line}.  " for line in rest), ""]
    lines += [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    about = [*table.notes, *(f"assumed: {each}" for each in assumptions(cells)), *table.differences]
    if about:
        lines += ["", *(f"- {each}" for each in about)]
    return "\n".join(lines) + "\n"


def assumptions(cells: Iterable[CellOutcome]) -> list[str]:
    """What had to be chosen for these cells, each once."""
    return list(dict.fromkeys(each for one in cells for each in one.cell.assumed))


@dataclass(frozen=True)
class Pace:
    """What finished runs say about how long others take."""

    seconds: Mapping[tuple[str, ...], Sequence[float]]
    """Of a round, by the conditions, and by the conditions without the method."""

    @classmethod
    def of(cls, folder: Path) -> Pace:
        """From all finished runs in a folder."""
        found: dict[tuple[str, ...], list[float]] = {}
        for path in folder.glob("*/summary.json"):
            run = read_own_run(path.parent)
            if run.summary is not None and run.done:
                for key in _alike(run.experiment):
                    found.setdefault(key, []).append(run.summary.seconds / run.done)
        return cls(found)

    def estimate(self, experiments: Iterable[Mapping[str, Any]]) -> float | None:
        """The seconds that these will take; None where nothing like one of them has run."""
        total = 0.0
        for each in experiments:
            known = next((self.seconds[key] for key in _alike(each) if key in self.seconds), None)
            if known is None:
                return None
            total += each["budget"]["rounds"] * statistics.fmean(known)
        return total


def _alike(experiment: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """What tells how long a round takes: with the method, and without it where none of its runs is known."""
    budget = experiment["budget"]
    parts = [experiment["device"], experiment["data"]["name"], experiment["model"]["name"]]
    parts += [experiment["skew"]["clients"], budget["cohort"], budget.get("epochs"), budget.get("steps")]
    parts += [budget["batch_size"], experiment["probe"]["every"]]
    same = tuple(map(str, parts))
    return [(*same, experiment["method"]["name"]), same]


def duration(seconds: float) -> str:
    """Such as 40 s, 12 min or 3 h 20 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
