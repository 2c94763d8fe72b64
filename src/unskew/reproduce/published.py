"""The tables and figures of papers: their numbers, and the experiment behind each of them.

A file in `tables/` has one paper: settings that all its experiments share, the conditions of columns, the
methods of rows, and its tables. What a paper prints and what its released code does are two `readings`: the
settings of a reading stand under its name and go on top of those beside it. Nothing here needs PyTorch.
"""

from __future__ import annotations

import copy
import fnmatch
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from unskew import metrics
from unskew.errors import UserError, unknown
from unskew.notation import items, joined, named

Reading = Literal["paper", "as-coded"]
READINGS: tuple[Reading, ...] = ("paper", "as-coded")
PAPERS = ("fedlmd", "fedvls", "feded", "fedlc", "pkd")
Statistic = Literal["best_by_test", "last", "mean_last_10"]
ExperimentSettings = dict[str, Any]
"""Tables of an experiment file. In the method's, `parts` has the names and each part a table of its own."""

PERCENT = ("accuracy", "max_class", "min_class", "domain")
"""Measures published in percent, by what their names begin with; the others are numbers as they are."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Layer(_Strict):
    """Settings, and those of each reading on top."""

    data: ExperimentSettings = {}
    skew: ExperimentSettings = {}
    model: ExperimentSettings = {}
    method: ExperimentSettings = {}
    budget: ExperimentSettings = {}
    probe: ExperimentSettings = {}
    paper: ExperimentSettings = {}
    as_coded: ExperimentSettings = Field(default={}, alias="as-coded")

    def under(self, reading: Reading) -> list[ExperimentSettings]:
        tables = ("data", "skew", "model", "method", "budget", "probe")
        plain = {name: getattr(self, name) for name in tables}
        return [plain, self.paper if reading == "paper" else self.as_coded]


class _Column(_Layer):
    base: str = ""
    """The column whose settings come first."""


class _Row(_Layer):
    at: dict[str, ExperimentSettings] = {}
    """Other settings under a column, and under those whose names go on from it."""
    same_as: str = ""
    """The row that this one is another name of."""
    assumed: str = ""


class _Table(_Strict):
    id: str
    title: str
    reports: str = ""
    statistic: Statistic = "last"
    not_runnable: str = ""
    note: str = ""
    assumed: str = ""
    columns: list[str] = []
    rows: list[str] = []
    """Where no numbers are published; else the rows are those of `values`."""
    settings: _Layer = _Layer()
    column: dict[str, _Column] = {}
    row: dict[str, _Row] = {}
    values: dict[str, dict[str, str]] = {}
    """By measure and row: a number for each column, ± its deviation; - where none is known."""
    same_numbers: dict[str, str] = {}
    """Further rows that are compared with the numbers of another."""


class _Paper(_Strict):
    title: str
    reference: str
    readings: list[Reading]
    differences: list[str] = []
    assumed: str = ""
    base: str = ""
    """The paper whose settings, columns and rows are this one's too."""
    settings: _Layer = _Layer()
    column: dict[str, _Column] = {}
    row: dict[str, _Row] = {}
    table: list[_Table]


@dataclass(frozen=True)
class Published:
    """A published number: in percent where the measure is an accuracy."""

    value: float | None
    std: float | None = None
    word: str = ""
    """What is printed in the place of a number: never (reached), failed."""

    @classmethod
    def read(cls, text: str) -> Published | None:
        """From 61.25±0.06, 61.25, never or failed; None for -."""
        if text == "-":
            return None
        if text in ("never", "failed"):
            return cls(None, word=text)
        value, _, std = text.partition("±")
        return cls(float(value), float(std) if std else None)

    def __str__(self) -> str:
        """As it is printed, with the decimals papers have."""
        if self.value is None:
            return self.word
        return metrics.mean_and_std(self.value, self.std, digits=2)


@dataclass(frozen=True, eq=False)
class Cell:
    """One number of a table, or several that one experiment gives, and that experiment."""

    id: str
    """Such as cifar10/dirichlet:0.05/fedlmd: the column, and the row behind the last slash."""
    table: str
    """The table's id."""
    column: str
    row: str
    readings: tuple[Reading, ...]
    published: Mapping[str, Published]
    """By measure."""
    not_runnable: str
    """Why it cannot be run; empty where it can."""
    assumed: tuple[str, ...]
    """What is not published and had to be chosen."""
    _layers: Mapping[Reading, Sequence[ExperimentSettings]] = field(default_factory=dict, repr=False)

    @property
    def datasets(self) -> tuple[str, ...]:
        """The datasets it takes, by their names."""
        if self.not_runnable:
            return ()
        name = str(settings(self)["data"]["name"])
        return tuple(named(part)[0] for part in joined(name))


@dataclass(frozen=True, eq=False)
class PublishedTable:
    """A table or a figure of a paper."""

    id: str
    """Such as fedlmd:table3."""
    title: str
    reports: str
    """What the numbers are, in words."""
    statistic: Statistic
    """Which of a run's accuracies is compared with them."""
    readings: tuple[Reading, ...]
    """Those that differ; the first is taken where none is asked for."""
    not_runnable: str
    notes: tuple[str, ...]
    """Where the paper contradicts itself, and what was not legible."""
    differences: tuple[str, ...]
    """Between the readings, and between both and this library."""
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    measures: tuple[str, ...]
    """What its numbers measure; of a figure without numbers accuracy."""
    cells: tuple[Cell, ...]


@dataclass(frozen=True, eq=False)
class Paper:
    """A paper with its tables and figures."""

    name: str
    title: str
    reference: str
    tables: tuple[PublishedTable, ...]


@cache
def papers() -> dict[str, Paper]:
    """All papers by their names, in the order of `PAPERS`."""
    return {name: _paper(name) for name in PAPERS}


def tables() -> dict[str, PublishedTable]:
    """All tables and figures by their ids."""
    return {table.id: table for paper in papers().values() for table in paper.tables}


def find_table(name: str) -> PublishedTable:
    """The table of an id such as fedlmd:table3."""
    known = tables()
    if name not in known:
        paper, colon, _ = name.partition(":")
        if colon and paper in PAPERS:
            ids = [table.id for table in papers()[paper].tables]
            raise unknown("table", name, ids)
        raise UserError(
            f"'{name}' is no table of these papers: write one such as fedlmd:table3, from "
            "`unskew reproduce --list`."
        )
    return known[name]


def cells(table: PublishedTable, pattern: str = "*") -> list[Cell]:
    """The cells of a table whose ids match a pattern such as cifar10/dirichlet:0.05/*, or one of several with
    spaces between."""
    wanted = pattern.split()
    found = [cell for cell in table.cells if any(fnmatch.fnmatchcase(cell.id, each) for each in wanted)]
    if not found and table.cells:
        raise UserError(
            f"no cell of {table.id} matches '{pattern}': write a pattern for names such as "
            f"'{table.cells[0].id}', where * stands for anything, or several separated by spaces."
        )
    return found


def settings(cell: Cell, reading: Reading | None = None) -> ExperimentSettings:
    """The settings of a cell's experiment, without a seed: the tables of an experiment file."""
    if cell.not_runnable:
        raise UserError(f"{cell.table} {cell.id} cannot be run: {cell.not_runnable}.")
    reading = check_reading(cell, reading)
    whole: ExperimentSettings = {}
    for layer in cell._layers[reading]:
        _merge(whole, layer)
    whole["method"] = _method(whole.get("method", {}))
    return {name: table for name, table in whole.items() if table}


def experiment(
    cell: Cell,
    reading: Reading | None = None,
    seed: int = 1,
    *,
    rounds: int | None = None,
    fraction: float | None = None,
) -> ExperimentSettings:
    """The experiment file of a cell, as a dictionary: `Experiment(**experiment(cell))` is the experiment.
    With `rounds` or a `fraction` of the data, a smaller version of it."""
    whole = {"seed": seed, "precision": "fp32", **settings(cell, reading)}
    if rounds is not None:
        whole["budget"]["rounds"] = rounds
        _fit(whole["method"], rounds)
    if fraction is not None:
        whole["skew"]["recipe"] = f"part:{fraction:g}+{_scaled(whole['skew']['recipe'], fraction)}"
    return whole


def check_reading(cell: Cell | PublishedTable, reading: str | None) -> Reading:
    """The reading asked for, or the first; a UserError where the paper has no such reading."""
    if reading is None:
        return cell.readings[0]
    for known in cell.readings:
        if reading == known:
            return known
    if reading not in READINGS:
        raise unknown("reading", reading, READINGS)
    name = cell.id if isinstance(cell, PublishedTable) else cell.table
    raise UserError(f"{name} has the reading {cell.readings[0]} alone: no code was released with the paper.")


def _fit(method: ExperimentSettings, rounds: int) -> None:
    """Let the stages of a method fit into fewer rounds than it was published with."""
    for key in ("warmup", "encoder_rounds"):
        if isinstance(method.get(key), int) and method[key] >= rounds:
            method[key] = "auto"
    if method.get("expert_rounds", 0) > rounds:
        method["expert_rounds"] = rounds


SCALED = {("dirichlet", "min_size"), ("quantity", "variant")}
"""The options of skews that a part of the data cannot have as they are."""


def _scaled(recipe: str, fraction: float) -> str:
    """A skew that a part of the data can be divided by: the least number of samples is a part too, and where
    a published code has one of its own that cannot be changed, the clean form is taken."""
    parts = []
    for rule in joined(recipe):
        name, rest = named(rule)
        given = {item.key or item.value: item for item in items(rest)}
        texts = [item.text for key, item in given.items() if (name, key) not in SCALED]
        if name == "dirichlet":
            least = int(given["min_size"].value) if "min_size" in given else 10
            texts.append(f"min_size={max(1, int(fraction * least))}")
        parts.append(f"{name}:{','.join(texts)}" if texts else name)
    return "+".join(parts)


def _method(table: Mapping[str, Any]) -> ExperimentSettings:
    """The [method] table of an experiment file."""
    parts = table["parts"]
    options = {part: dict(table.get(part, {})) for part in parts}
    return {"name": "+".join(parts), **(options[parts[0]] if len(parts) == 1 else options)}


def _merge(under: ExperimentSettings, over: Mapping[str, Any]) -> None:
    """Put settings over others, table by table."""
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(under.get(key), dict):
            _merge(under[key], value)
        else:
            under[key] = copy.deepcopy(value)


def _file(name: str) -> _Paper:
    text = resources.files(__package__).joinpath("tables", f"{name}.toml").read_text(encoding="utf-8")
    return _Paper(**tomllib.loads(text))


def _paper(name: str) -> Paper:
    whole = _file(name)
    base = _file(whole.base) if whole.base else whole
    columns, rows = base.column | whole.column, base.row | whole.row
    published = tuple(
        _table(name, table, whole, base.settings, columns | table.column, rows | table.row)
        for table in whole.table
    )
    return Paper(name, whole.title, whole.reference, published)


def _table(
    paper: str,
    table: _Table,
    whole: _Paper,
    shared: _Layer,
    columns: Mapping[str, _Column],
    rows: Mapping[str, _Row],
) -> PublishedTable:
    names = list(dict.fromkeys([*(row for each in table.values.values() for row in each), *table.rows]))
    for row, of in table.same_numbers.items():
        names.insert(names.index(of) + 1, row)
    readings = tuple(whole.readings)
    notes = tuple(filter(None, (table.note,)))
    made = []
    for column in table.columns:
        for name in names:
            given = rows.get(name, _Row())
            if given.same_as:
                given = rows[given.same_as]
            layers: dict[Reading, list[ExperimentSettings]] = {}
            for reading in readings if not table.not_runnable else ():
                layers[reading] = [*shared.under(reading), *table.settings.under(reading)]
                layers[reading] += [*_of_column(column, columns, reading), *_of_row(given, column, reading)]
            made.append(
                Cell(
                    id=f"{column}/{name}",
                    table=f"{paper}:{table.id}",
                    column=column,
                    row=name,
                    readings=readings,
                    published=_numbers(table, column, name),
                    not_runnable=table.not_runnable,
                    assumed=tuple(filter(None, (whole.assumed, table.assumed, given.assumed))),
                    _layers=layers,
                )
            )
    return PublishedTable(
        id=f"{paper}:{table.id}",
        title=table.title,
        reports=table.reports,
        statistic=table.statistic,
        readings=readings,
        not_runnable=table.not_runnable,
        notes=notes,
        differences=tuple(whole.differences),
        columns=tuple(table.columns),
        rows=tuple(names),
        measures=tuple(table.values) or ("accuracy",),
        cells=tuple(made),
    )


def _of_column(name: str, columns: Mapping[str, _Column], reading: Reading) -> Iterator[ExperimentSettings]:
    column = columns[name]
    if column.base:
        yield from _of_column(column.base, columns, reading)
    yield from column.under(reading)


def _of_row(row: _Row, column: str, reading: Reading) -> Iterable[ExperimentSettings]:
    plain, read = row.under(reading)
    at = [over for name, over in row.at.items() if column == name or column.startswith(f"{name}/")]
    return [plain, *at, read]


def _numbers(table: _Table, column: str, row: str) -> dict[str, Published]:
    row = table.same_numbers.get(row, row)
    place = table.columns.index(column)
    found = {}
    for measure, by_row in table.values.items():
        if row in by_row:
            texts = by_row[row].split()
            if len(texts) != len(table.columns):
                raise ValueError(
                    f"{table.id}, {measure}, {row}: {len(texts)} numbers for {len(table.columns)} columns"
                )
            if (number := Published.read(texts[place])) is not None:
                found[measure] = number
    return found
