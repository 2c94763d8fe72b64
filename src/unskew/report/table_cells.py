"""The cells of a table of methods: for each method and measure the mean over seeds, with its mark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from unskew import metrics
from unskew.errors import UserError, unknown
from unskew.metrics import Difference, SeedsSummary
from unskew.report.answer import Answer, answer
from unskew.report.conditions import Condition
from unskew.report.measures import MEASURES, Measure, find
from unskew.report.read import SavedRun
from unskew.report.standings import (
    Moment,
    RunsByMethod,
    Values,
    best_backed,
    choose_reference,
    runs_at_moment,
)

Mark = Literal["best", "above", "below", ""]
NONE = "—"


@dataclass(frozen=True)
class Column:
    """A measure that a table can show."""

    name: str
    """The name of the column in a CSV file."""
    title: str
    scale: float = 1.0
    digits: int = 1
    lower: bool = False
    """Whether less is better."""
    counted: bool = False
    """Whether it is a count that may be the same for all seeds; then no spread is shown."""
    exact: bool = False
    """Whether it follows from the settings; then the best method is marked without a test."""


BY_VALIDATION = Column("best_by_validation", "best by validation", 100)
"""The column of runs that chose a round by validation."""
COLUMNS = (
    Column("last", "last", 100),
    Column("best_by_test", "best by test", 100),
    Column("mean_last_10", "mean last 10", 100),
    Column("worst_class", "worst class", 100),
    Column("majority", "majority", 100),
    Column("minority", "minority", 100),
    Column("vacant", "vacant", 100),
    Column("rounds_to_target", "rounds to target", lower=True, counted=True),
    Column("speed_up", "speed-up", digits=2, counted=True),
    Column("traffic", "traffic (MB)", 1e-6, lower=True, counted=True, exact=True),
    Column("cost", "cost (U)", lower=True, counted=True, exact=True),
)
COMPARED = {"worst_class": "worst", "majority": "majority", "minority": "minority", "vacant": "vacant"}
"""Columns that take their marks from the answer, each with the name of its measure there."""


@dataclass(frozen=True)
class TableCell:
    value: SeedsSummary | None
    """None if not every seed has a value."""
    seeds: tuple[int, int]
    """The number of seeds that have a value, and the number of all seeds."""
    text: str
    mark: Mark = ""
    """Whether the method is the best of its condition, or else differs significantly from the reference."""

    @property
    def is_best(self) -> bool:
        return self.mark == "best"


@dataclass(frozen=True)
class ConditionCells:
    """The cells of all methods under one condition."""

    condition: Condition
    cells: Mapping[str, Sequence[TableCell]]
    """For each method its cells, one for each measure."""
    answer: Answer
    reference: str
    when: Moment | None
    """None if the runs have no tested round in common: each is then at its own end, and nothing is marked."""
    shown: RunsByMethod
    """For each method the runs that its cells are made from."""


def choose_columns(names: Sequence[str], runs: Sequence[SavedRun], *, only_one: bool) -> list[Column]:
    """Return the columns with these names; without names all columns, or `only_one` of them, the first."""
    chose = any(run.summary and run.summary.validation for run in runs)
    known = {column.name: column for column in ((BY_VALIDATION,) if chose else ()) + COLUMNS}
    if not names:
        return list(known.values())[: 1 if only_one else None]
    found = []
    for name in names:
        own = name.replace("-", "_")
        if own in known:
            found.append(known[own])
            continue
        if name not in MEASURES and not name.startswith("class:"):
            if name == BY_VALIDATION.name:
                raise UserError(f"no run has {name}: give runs with --validation, or leave the measure out.")
            raise unknown("measure of a table", name, [*known, *MEASURES, "class:NAME"])
        measure = find(name, runs)
        found.append(Column(name, measure.title, measure.scale, 1 if measure.percent else 3, measure.lower))
    return found


def has_method(condition: Condition, method: str) -> bool:
    """Say whether a method ran under a condition, by its name there or by its label."""
    return any(method in (name, runs[0].label) for name, runs in condition.methods.items())


def cells_of(
    condition: Condition,
    columns: Sequence[Column],
    measure: Measure,
    target: float | None,
    reference: str | None,
) -> ConditionCells:
    """Make the cells of all methods under a condition, with their marks.

    A `reference` that did not run under this condition is ignored.
    """
    wanted = reference if reference is not None and has_method(condition, reference) else None
    found = answer(condition.methods, reference=choose_reference(condition.methods, wanted))
    against = found.reference or choose_reference(condition.methods, wanted)
    when, methods = runs_at_moment(condition.methods, found)
    baselines = {run.seed: _series(run, measure, when) for run in methods[against]}
    values = {
        name: {
            column.name: {run.seed: value for run, value in zip(members, each, strict=True)}
            for column, each in _values(members, columns, measure, baselines, target, when).items()
        }
        for name, members in methods.items()
    }
    marks = {} if when is None else _marks(columns, values, found, measure, methods)
    cells = {
        name: [
            _cell(column, list(each[column.name].values()), marks.get((name, column.name), ""))
            for column in columns
        ]
        for name, each in values.items()
    }
    return ConditionCells(condition, cells, found, against, when, methods)


# Values


def _series(run: SavedRun, measure: Measure, when: Moment | None) -> dict[int, float]:
    """Return a measure of a run by round, until the moment of the comparison."""
    return (when or Moment(None)).series(run, measure)


def _values(
    runs: Sequence[SavedRun],
    columns: Sequence[Column],
    measure: Measure,
    baselines: Mapping[int, Mapping[int, float]],
    target: float | None,
    when: Moment | None,
) -> dict[Column, list[float | None]]:
    """Return the values of a method's runs for each column, in the order of the runs."""
    numbers = [_numbers(run, measure, baselines, target, when) for run in runs]
    return {
        column: [
            each[column.name] if column.name in each else _at_moment(run, find(column.name, runs), when)
            for run, each in zip(runs, numbers, strict=True)
        ]
        for column in columns
    }


def _at_moment(run: SavedRun, measure: Measure, when: Moment | None) -> float | None:
    """Return a measure of a run's model at the moment of the comparison."""
    return (when or Moment(None)).value(run, measure)


def _numbers(
    run: SavedRun,
    measure: Measure,
    baselines: Mapping[int, Mapping[int, float]],
    target: float | None,
    when: Moment | None,
) -> dict[str, float | None]:
    """Return a run's values for all COLUMNS; `baselines` has the reference's measure by seed and round."""
    values = _series(run, measure, when)
    ends = metrics.best_last_mean(list(values.values()))
    chose = run.summary is not None and run.summary.validation is not None
    baseline = baselines.get(run.seed)
    goal = max(baseline.values()) if target is None and baseline else target
    ended = when is None or when.round is None
    # The summary includes what was sent outside of the rounds, such as by PKD's experts.
    rounds = [line for line in run.rounds if ended or line.round <= max(values)]
    sent = [run.summary.traffic] if run.summary and ended else [line.traffic for line in rounds]
    return {
        "best_by_validation": _at_moment(run, measure, when) if chose and ended else None,
        "last": ends["last"],
        "best_by_test": ends["best"],
        "mean_last_10": ends["mean_last_10"],
        **{name: _at_moment(run, MEASURES[of], when) for name, of in COMPARED.items()},
        "rounds_to_target": None if goal is None else metrics.rounds_to(goal, values),
        "speed_up": None if baseline is None else metrics.speed_up(values, baseline, target=goal),
        "traffic": float(sum(each.up + each.down for each in sent)) if sent else None,
        "cost": run.summary.cost if run.summary and ended else None,
    }


def _cell(column: Column, values: Sequence[float | None], mark: Mark) -> TableCell:
    value, known = metrics.over_seeds(values), sum(each is not None for each in values)
    whole = value if known == len(values) else None
    partly = f" ({known} of {len(values)})" if known else ""
    return TableCell(whole, (known, len(values)), _write(whole, column) if whole else NONE + partly, mark)


def _write(value: SeedsSummary, column: Column) -> str:
    if column.counted and not value.std:
        value = replace(value, std=None)
    return metrics.plus_minus(value, scale=column.scale, digits=column.digits)


# Marks

Claim = tuple[str | None, Mapping[str, Difference | None]]
"""What is claimed in a column: the best method, and the difference of each other method to the reference."""


def is_tested(column: Column) -> bool:
    """Say whether the marks of a column come from tests."""
    return column.name in {BY_VALIDATION.name, "last", *COMPARED} or column not in COLUMNS


def _marks(
    columns: Sequence[Column], values: Values, answer: Answer, measure: Measure, methods: RunsByMethod
) -> dict[tuple[str, str], Mark]:
    """Return the marks by method and column.

    They are the claims of the answer. Measures that were asked for and that the answer does not compare are
    tested in the same way, all of them as one family. Other columns have no mark: the round of best by test
    was chosen on the test set, and the claim about accuracy is not made twice.
    """
    chose = any(run.summary and run.summary.validation for runs in methods.values() for run in runs)
    final = BY_VALIDATION.name if chose and answer.round is None else "last"
    compared = {name: name for name in answer.measures} | COMPARED
    compared |= {final: "accuracy"} if measure is MEASURES["accuracy"] else {}
    claims: dict[str, Claim] = {
        column: (answer.best[key], {each.name: each.differences[key] for each in answer.others})
        for column, key in compared.items()
        if key in answer.measures
    }
    own = [column for column in columns if column not in (BY_VALIDATION, *COLUMNS) or column.name == final]
    claims |= _test([column for column in own if column.name not in claims], values, answer)
    claims |= {column.name: (_lowest(values, column.name), {}) for column in columns if column.exact}
    marks: dict[tuple[str, str], Mark] = {}
    for column in columns:
        best, differences = claims.get(column.name, (None, {}))
        for name in values:
            found = differences.get(name)
            if name == best:
                marks[name, column.name] = "best"
            elif found is not None and found.settled:
                marks[name, column.name] = "above" if found.difference > 0 else "below"
    return marks


def _lowest(values: Values, column: str) -> str | None:
    """Return the method with the lowest value; None if it is not one alone or seeds have different values."""
    each = {name: set(own[column].values()) for name, own in values.items()}
    if any(len(seeds) != 1 or None in seeds for seeds in each.values()):
        return None
    known = {name: value for name, seeds in each.items() for value in seeds if value is not None}
    lowest = [name for name, value in known.items() if value == min(known.values())]
    return lowest[0] if len(lowest) == 1 < len(known) else None


def _test(columns: Sequence[Column], values: Values, answer: Answer) -> dict[str, Claim]:
    """Test columns that the answer does not compare, on the methods and seeds that it compares.

    The differences of all these columns are corrected together by Holm's procedure.
    """
    reference, family = answer.reference, [column.name for column in columns]
    if reference is None or not family:
        return {}
    own = {
        each.name: {key: {seed: values[each.name][key][seed] for seed in answer.seeds} for key in family}
        for each in answer.standings
    }
    found = metrics.against_reference(own, reference, families=[family])
    claims: dict[str, Claim] = {}
    for column in columns:
        sign = -1 if column.lower else 1
        better = {
            name: {seed: None if value is None else sign * value for seed, value in each[column.name].items()}
            for name, each in own.items()
        }
        differences = {name: each[column.name] for name, each in found.items()}
        claims[column.name] = best_backed(better, reference, differences), differences
    return claims
