"""Methods against each other in one table: mean ± standard deviation over seeds, marked where the seeds back
it, under one condition or under several side by side."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from unskew import metrics
from unskew.errors import UserError, unknown
from unskew.metrics import Difference, SeedsSummary
from unskew.notation import span, write_value
from unskew.report.answer import Answer, answer
from unskew.report.conditions import Condition, by_condition, in_common
from unskew.report.measures import MEASURES, Measure, find, mean_of, series
from unskew.report.read import SavedRun, hyperparameters, settings
from unskew.report.skew_words import skew_in_words
from unskew.report.standings import Moment, best_backed, choose_reference, runs_at_moment

Mark = Literal["best", "above", "below", ""]
NONE = "—"
METHOD, CONDITION, MEASURE = "method", "condition", "measure"
SETTINGS = {"skew": "skew.recipe", "data": "data.name", "dataset": "data.name", "model": "model.name"}
"""Settings that have a shorter name, as the flags of `unskew run`."""


@dataclass(frozen=True)
class Column:
    name: str
    """As in a CSV file."""
    title: str
    scale: float = 1.0
    digits: int = 1
    lower: bool = False
    """Whether less is better."""
    counted: bool = False
    """Whether it may be the same for all seeds by its nature; no spread is shown then."""
    exact: bool = False
    """Whether it follows from the settings: the best is marked without a test."""


BY_VALIDATION = Column("best_by_validation", "best by validation", 100)
"""Of runs that chose a round by validation."""
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
"""Columns whose marks are those of `unskew.report.answer`, by its names of measures."""


@dataclass(frozen=True)
class TableCell:
    value: SeedsSummary | None
    """None where it does not exist, or not for all seeds."""
    seeds: tuple[int, int]
    """For how many seeds it exists, of how many."""
    text: str
    mark: Mark = ""
    """The method that is best of its condition, or else differs from the reference, beyond chance."""

    @property
    def is_best(self) -> bool:
        return self.mark == "best"


EMPTY = TableCell(None, (0, 0), NONE)


@dataclass(frozen=True)
class Row:
    keys: tuple[str, ...]
    """What the row is of, one text for each of the table's `heads`; the last is its name."""
    cells: tuple[TableCell, ...]

    @property
    def name(self) -> str:
        return self.keys[-1]


@dataclass(frozen=True)
class ColumnHeader:
    """What stands above a column of cells."""

    group: str
    """What columns beside it have in common, such as a condition; empty where there is nothing."""
    title: str
    name: str
    """As in a CSV file."""

    @property
    def line(self) -> str:
        """In one line."""
        return f"{self.group} {self.title}" if self.group else self.title


@dataclass(frozen=True)
class MethodTable:
    """What `unskew table` shows."""

    title: str
    """What all of it is about, in one line."""
    heads: tuple[str, ...]
    """What the rows are of, such as method."""
    columns: tuple[ColumnHeader, ...]
    rows: tuple[Row, ...]
    footnotes: tuple[str, ...]
    """What a reader has to know, one sentence each."""
    notes: tuple[str, ...]
    """What else the one who makes the table should know."""

    @property
    def sections(self) -> list[tuple[str, list[Row]]]:
        """The rows that have all but their names in common, and what that is."""
        each = groupby(self.rows, lambda row: ", ".join(filter(None, row.keys[:-1])))
        return [(title, list(rows)) for title, rows in each]


@dataclass(frozen=True)
class _Filled:
    """The cells of one condition."""

    condition: Condition
    cells: Mapping[str, Sequence[TableCell]]
    """By method, one for each measure."""
    answer: Answer
    reference: str
    when: Moment | None
    """None where no round was tested in all runs: each is then at its own end, and nothing is marked."""
    shown: Mapping[str, Sequence[SavedRun]]
    """By method, the runs that are in its cells."""


def tabulate(
    runs: Sequence[SavedRun],
    *,
    metric: str = "accuracy",
    target: float | None = None,
    measures: Sequence[str] = (),
    rows: str = METHOD,
    columns: str = MEASURE,
    reference: str | None = None,
) -> MethodTable:
    """Methods over their seeds, compared within each condition.

    `metric` is what best by validation, last, best by test, mean last 10 and the target are about. The target
    is a fraction; without one it is the best of the reference on the same seed, to which speed-up is relative
    too. What not all seeds of a method have, such as a target reached, is not averaged over the others.

    `rows` and `columns` say what stands below and beside each other: method, condition, measure, a setting
    in which conditions differ, such as skew.recipe, or a hyperparameter. What neither of them names, stands
    before the rows.
    `measures` are names of COLUMNS or of MEASURES; without any, all of COLUMNS where they are columns or
    rows, else the first.
    """
    measure = find(metric, runs)
    if measure.lower:
        raise UserError(f"of {metric} less is better: choose a metric for the table of which more is better.")
    if not any(run.tested for run in runs):
        series(next((run for run in runs if not run.failure), runs[0]), measure)  # says so
    conditions = by_condition(runs)
    chose = any(run.summary and run.summary.validation for run in runs)
    shown = _columns(measures, runs, chose=chose, alone=MEASURE not in (rows, columns))
    if reference is not None and not any(_has(each, reference) for each in conditions):
        choose_reference(conditions[0].methods, reference)
    filled = [_fill(each, shown, measure, target, reference) for each in conditions]
    titles = [
        replace(each, title=_mean_title(filled)) if each.name == "mean_last_10" else each for each in shown
    ]
    heads, told_columns, told_rows = _lay_out(filled, titles, rows, columns)
    title = in_common(runs) if len(conditions) > 1 else conditions[0].title
    if len(shown) == 1 and MEASURE not in (rows, columns):
        title = f"{_what(titles[0], measure)}: {title}"
    return MethodTable(
        title, heads, told_columns, told_rows, _footnotes(filled, shown, measure, target), _notes(filled)
    )


# Values


def _columns(names: Sequence[str], runs: Sequence[SavedRun], *, chose: bool, alone: bool) -> list[Column]:
    """The measures that are asked for."""
    known = {column.name: column for column in ((BY_VALIDATION,) if chose else ()) + COLUMNS}
    if not names:
        return list(known.values())[: 1 if alone else None]
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


def _has(condition: Condition, method: str) -> bool:
    return any(method in (name, runs[0].label) for name, runs in condition.methods.items())


def _fill(
    condition: Condition,
    columns: Sequence[Column],
    measure: Measure,
    target: float | None,
    reference: str | None,
) -> _Filled:
    wanted = reference if reference is not None and _has(condition, reference) else None
    found = answer(condition.methods, reference=choose_reference(condition.methods, wanted))
    against = found.reference or choose_reference(condition.methods, wanted)
    when, methods = runs_at_moment(condition.methods, found)
    first = {run.seed: _series(run, measure, when) for run in methods[against]}
    values = {
        name: {
            column.name: {run.seed: value for run, value in zip(members, each, strict=True)}
            for column, each in _values(members, columns, measure, first, target, when).items()
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
    return _Filled(condition, cells, found, against, when, methods)


def _series(run: SavedRun, measure: Measure, when: Moment | None) -> dict[int, float]:
    """A measure by round, as far as runs are compared."""
    return (when or Moment(None)).series(run, measure)


def _values(
    runs: Sequence[SavedRun],
    columns: Sequence[Column],
    measure: Measure,
    first: Mapping[int, Mapping[int, float]],
    target: float | None,
    when: Moment | None,
) -> dict[Column, list[float | None]]:
    numbers = [_numbers(run, measure, first, target, when) for run in runs]
    return {
        column: [
            each[column.name] if column.name in each else _final(run, find(column.name, runs), when)
            for run, each in zip(runs, numbers, strict=True)
        ]
        for column in columns
    }


def _final(run: SavedRun, measure: Measure, when: Moment | None) -> float | None:
    """Of the model that is compared."""
    return (when or Moment(None)).value(run, measure)


def _numbers(
    run: SavedRun,
    measure: Measure,
    first: Mapping[int, Mapping[int, float]],
    target: float | None,
    when: Moment | None,
) -> dict[str, float | None]:
    values = _series(run, measure, when)
    ends = metrics.best_last_mean(list(values.values()))
    chose = run.summary is not None and run.summary.validation is not None
    baseline = first.get(run.seed)
    goal = max(baseline.values()) if target is None and baseline else target
    ended = when is None or when.round is None
    # The summary has what was sent beside the rounds too, such as PKD's experts.
    rounds = [line for line in run.rounds if ended or line.round <= max(values)]
    sent = [run.summary.traffic] if run.summary and ended else [line.traffic for line in rounds]
    return {
        "best_by_validation": _final(run, measure, when) if chose and ended else None,
        "last": ends["last"],
        "best_by_test": ends["best"],
        "mean_last_10": ends["mean_last_10"],
        **{name: _final(run, MEASURES[of], when) for name, of in COMPARED.items()},
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

Values = Mapping[str, Mapping[str, Mapping[int, float | None]]]
"""By method, column and seed."""


def _marks(
    columns: Sequence[Column],
    values: Values,
    answer: Answer,
    measure: Measure,
    methods: Mapping[str, Sequence[SavedRun]],
) -> dict[tuple[str, str], Mark]:
    """By method and column: what `answer` claims. Measures that it does not compare and that were asked for
    are tested likewise, all of them as one family. Other columns have no mark: best by test was chosen on the
    test set, and what accuracy tells is not to be claimed twice."""
    chose = any(run.summary and run.summary.validation for runs in methods.values() for run in runs)
    final = BY_VALIDATION.name if chose and answer.round is None else "last"
    compared = {name: name for name in answer.measures} | COMPARED
    compared |= {final: "accuracy"} if measure is MEASURES["accuracy"] else {}
    claims: dict[str, tuple[str | None, Mapping[str, Difference | None]]] = {
        column: (answer.best[key], {each.name: each.differences[key] for each in answer.others})
        for column, key in compared.items()
        if key in answer.measures
    }
    own = [column for column in columns if column not in (BY_VALIDATION, *COLUMNS) or column.name == final]
    claims |= _tested([column for column in own if column.name not in claims], values, answer)
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
    """The method with the lowest value, where every seed has the same."""
    each = {name: set(own[column].values()) for name, own in values.items()}
    if any(len(seeds) != 1 or None in seeds for seeds in each.values()):
        return None
    known = {name: value for name, seeds in each.items() for value in seeds if value is not None}
    lowest = [name for name, value in known.items() if value == min(known.values())]
    return lowest[0] if len(lowest) == 1 < len(known) else None


def _tested(
    columns: Sequence[Column], values: Values, answer: Answer
) -> dict[str, tuple[str | None, Mapping[str, Difference | None]]]:
    """Of each column the method that is better than every other one, and all against the reference, corrected
    together by Holm's procedure: of the methods and seeds that the answer compares."""
    reference, family = answer.reference, [column.name for column in columns]
    if reference is None or not family:
        return {}
    own = {
        each.name: {key: {seed: values[each.name][key][seed] for seed in answer.seeds} for key in family}
        for each in answer.standings
    }
    found = metrics.against_reference(own, reference, families=[family])
    claims: dict[str, tuple[str | None, Mapping[str, Difference | None]]] = {}
    for column in columns:
        sign = -1 if column.lower else 1
        better = {
            name: {seed: None if value is None else sign * value for seed, value in each[column.name].items()}
            for name, each in own.items()
        }
        differences = {name: each[column.name] for name, each in found.items()}
        claims[column.name] = best_backed(better, reference, differences), differences
    return claims


# Layout


@dataclass(frozen=True)
class _PlacedCell:
    """A cell, and where it belongs: what it is of, by the names of axes."""

    method: str
    condition: str
    rest: str
    """What is left of the condition beside the settings that have an axis of their own."""
    settings: Mapping[str, str]
    column: Column
    cell: TableCell


def _lay_out(
    filled: Sequence[_Filled], columns: Sequence[Column], rows: str, beside: str
) -> tuple[tuple[str, ...], tuple[ColumnHeader, ...], tuple[Row, ...]]:
    if rows == beside:
        raise UserError(f"--rows and --columns are both {rows}: choose two different ones.")
    axes = {
        axis: _setting(axis, filled) for axis in (rows, beside) if axis not in (METHOD, CONDITION, MEASURE)
    }
    places = list(_places(filled, columns, list(axes.values())))

    def of(axis: str, place: _PlacedCell) -> str:
        plain = {METHOD: place.method, CONDITION: place.condition, MEASURE: place.column.title}
        return plain[axis] if axis in plain else place.settings[axes[axis]]

    before: list[tuple[str, Callable[[_PlacedCell], str]]] = []
    if CONDITION not in (rows, beside) and any(place.rest for place in places):
        before.append((CONDITION, lambda place: place.rest))
    before.append((rows, lambda place: of(rows, place)))
    if METHOD not in (rows, beside) and (rows != CONDITION or len({place.method for place in places}) > 1):
        before.append((METHOD, lambda place: place.method))

    several = len(columns) > 1 and MEASURE not in (rows, beside)

    def head(place: _PlacedCell) -> ColumnHeader:
        if beside == MEASURE:
            return ColumnHeader("", place.column.title, place.column.name)
        text = of(beside, place)
        return (
            ColumnHeader(text, place.column.title, f"{text} {place.column.name}")
            if several
            else ColumnHeader("", text, text)
        )

    # Of what the groups have in common, measures stand side by side.
    groups = list(dict.fromkeys(head(place).group for place in places))
    heads = sorted(dict.fromkeys(map(head, places)), key=lambda each: groups.index(each.group))
    found: dict[tuple[str, ...], dict[ColumnHeader, TableCell]] = {}
    for place in places:
        found.setdefault(tuple(key(place) for _, key in before), {})[head(place)] = place.cell
    keys = list(found)
    for depth in range(len(before) - 1, 0, -1):  # rows of one section stand together
        order = list(dict.fromkeys(key[:depth] for key in keys))
        keys.sort(key=lambda key: order.index(key[:depth]))
    laid = tuple(Row(key, tuple(found[key].get(each, EMPTY) for each in heads)) for key in keys)
    return tuple(name for name, _ in before), tuple(heads), laid


def _places(
    filled: Sequence[_Filled], columns: Sequence[Column], axes: Sequence[str]
) -> Iterable[_PlacedCell]:
    for each in filled:
        condition = each.condition
        rest = ", ".join(text for key, text in condition.differs.items() if key not in axes)
        for name, cells in each.cells.items():
            asked = _asked(condition.methods[name][0])
            values = {axis: write_value(asked.get(axis, NONE)) for axis in axes}
            method = _without(name, [axis for axis in axes if axis.startswith("method.")])
            for column, cell in zip(columns, cells, strict=True):
                yield _PlacedCell(method, condition.short or condition.title, rest, values, column, cell)


def _asked(run: SavedRun) -> dict[str, object]:
    """The settings of a run and the hyperparameters of its method, which may be rows or columns."""
    return settings(run) | {key: value for key, value in hyperparameters(run).items() if key != "method.name"}


def _without(method: str, axes: Sequence[str]) -> str:
    """What a method is called without hyperparameters that are rows or columns."""
    for axis in axes:
        option = re.escape(axis.rpartition(".")[2])
        method = re.sub(rf"(?<=[:,]){option}=[^,+ ]*,?", "", method)
    return re.sub(r"[:,](?=$|[+ ])", "", method)


def _setting(axis: str, filled: Sequence[_Filled]) -> str:
    """The setting that an axis names: skew.recipe, or as short as skew, lr or mu."""
    each = [_asked(runs[0]) for one in filled for runs in one.condition.methods.values()]
    known = dict.fromkeys(key for mine in each for key in mine)
    if axis in known:
        return axis
    if axis in SETTINGS:
        return SETTINGS[axis]
    found = [key for key in known if key.rpartition(".")[2] == axis]
    if len(found) != 1:
        differing = [key for key in known if len({str(mine.get(key)) for mine in each}) > 1]
        raise unknown("rows or columns of a table", axis, [METHOD, CONDITION, MEASURE, *differing])
    return found[0]


def _mean_title(filled: Sequence[_Filled]) -> str:
    return mean_of(
        [
            sum(
                each.when is None or not each.when.round or line.round <= each.when.round
                for line in run.tested
            )
            for each in filled
            for runs in each.shown.values()
            for run in runs
        ]
    )


# Words


def _footnotes(
    filled: Sequence[_Filled], columns: Sequence[Column], measure: Measure, target: float | None
) -> tuple[str, ...]:
    notes = [*_about_marks(filled, columns), _about_numbers(filled)]
    for each in filled:
        where = _under(each, filled)
        if each.when is None:
            notes.append(
                f"{where}no round was tested in all runs: each is at its own last, and none is marked."
            )
        elif each.when.round is not None:
            notes.append(
                f"{where}not all runs have ended: the numbers are of round {each.when.round}, the last that "
                "all reached."
            )
    notes += (_about_seeds(each, _under(each, filled)) for each in filled if _seeds_differ(each))
    for each in filled:
        seeds = {run.seed for run in each.condition.runs}
        first = f" (seed {each.condition.runs[0].seed})" if len(seeds) > 1 else ""
        where = _under(each, filled)
        notes.append(f"{where}{skew_in_words(each.condition.runs[0])}{first}.")
    shown = {column.name for column in columns}
    parts = []
    if shown & {"rounds_to_target", "speed_up"}:
        who = _references(filled)
        own = f"the best {measure.title} of {who} on the same seed"
        goal = own if target is None else f"{measure.title} of {100 * target:g} %"
        parts.append(f"target: {goal}; speed-up: against {who}")
    if "cost" in shown:
        parts.append("U: the computation of a FedAvg round")
    return (*notes, *([f"{'; '.join(parts)}."] if parts else []))


def _about_numbers(filled: Sequence[_Filled]) -> str:
    """Over how many seeds and rounds the numbers are."""
    runs = [run for each in filled for run in each.condition.runs]
    seeds = {len(members) for each in filled for members in each.condition.methods.values()}
    rounds = {run.total_rounds for run in runs}
    over = "one seed" if seeds == {1} else f"{span(seeds)} seeds"
    spread = "" if seeds == {1} else "mean ± standard deviation over "
    return f"{spread}{over}, {span(rounds)} round{'s' * (rounds != {1})}."


def _about_marks(filled: Sequence[_Filled], columns: Sequence[Column]) -> Iterable[str]:
    several = [each for each in filled if len(each.cells) > 1]
    if not several or not any(_is_tested(column) for column in columns):
        return
    marked = [
        (column, cell.mark)
        for each in several
        for cells in each.cells.values()
        for column, cell in zip(columns, cells, strict=True)
        if cell.mark
    ]
    if any(each.when and len(each.answer.seeds) >= metrics.FEWEST for each in several):
        within, who = " of its condition" if len(filled) > 1 else "", _references(several)
        nothing = (
            "" if any(not column.exact for column, _ in marked) else "; no difference here is significant"
        )
        yield (
            f"bold: better than every other method{within} by paired t-tests at 5 %, {who} included; *: "
            f"differs from {who} at 5 % after Holm's correction{nothing}."
        )
    else:
        yield "the methods are not told apart: that takes three seeds that they have in common."
    if any(column.exact for column, _ in marked):
        yield "traffic and cost, in which there is no chance, are bold where they are lowest."


def _is_tested(column: Column) -> bool:
    """Whether marks of the column come from tests."""
    return column.name in {BY_VALIDATION.name, "last", *COMPARED} or column not in COLUMNS


def _under(each: _Filled, filled: Sequence[_Filled]) -> str:
    """Of which of several conditions a sentence is."""
    return f"under {each.condition.short}: " if len(filled) > 1 else ""


def _what(column: Column, measure: Measure) -> str:
    """What a cell is, where it is one measure."""
    about = column.name in (BY_VALIDATION.name, "last", "best_by_test", "mean_last_10")
    unit = " %" if column.scale == 100 else ""
    return f"{measure.title}{unit}, {column.title}" if about else f"{column.title}{unit}"


def _references(filled: Sequence[_Filled]) -> str:
    names = dict.fromkeys(each.reference for each in filled)
    return next(iter(names)) if len(names) == 1 else f"the reference ({', '.join(names)})"


def _notes(filled: Sequence[_Filled]) -> tuple[str, ...]:
    runs = [run for each in filled for run in each.condition.runs]
    notes = [f"{run.path} failed: {run.failure.sentence}" for run in runs if run.failure]
    under_way = [str(run.path) for run in runs if not run.over]
    if under_way:
        notes.append(f"not finished: {', '.join(under_way)}.")
    return tuple(notes)


def _seeds(each: _Filled) -> dict[str, list[int]]:
    """The seeds of the runs that are in the cells of each method."""
    return {name: sorted(run.seed for run in runs) for name, runs in each.shown.items()}


def _seeds_differ(each: _Filled) -> bool:
    return len({str(own) for own in _seeds(each).values()}) > 1


def _about_seeds(each: _Filled, where: str) -> str:
    seeds = "; ".join(f"{name} {', '.join(map(str, own)) or 'none'}" for name, own in _seeds(each).items())
    number = len(each.answer.seeds)
    marks = (
        f"; marks are of seeds {', '.join(map(str, each.answer.seeds))}" if number >= metrics.FEWEST else ""
    )
    return f"{where}the methods have different seeds: {seeds}{marks}."
