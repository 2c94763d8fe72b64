"""Reads the tables and figures of papers from the TOML files in `tables/`.

Each file has one paper: settings that all its experiments share, the conditions of columns, the methods of
rows, and its tables. If a paper's text and its released code differ, they are two `readings`: the settings of
a reading stand under its name and override the others. Nothing here needs PyTorch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources

from pydantic import BaseModel, ConfigDict, Field

from unskew.errors import UserError, unknown
from unskew.reproduce.published import (
    Cell,
    ExperimentSettings,
    Paper,
    Published,
    PublishedTable,
    Reading,
    Statistic,
)

PAPERS = ("fedlmd", "fedvls", "feded", "fedlc", "pkd")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Layer(_Strict):
    """Settings, and those of each reading, which override them."""

    data: ExperimentSettings = {}
    skew: ExperimentSettings = {}
    model: ExperimentSettings = {}
    method: ExperimentSettings = {}
    budget: ExperimentSettings = {}
    probe: ExperimentSettings = {}
    paper: ExperimentSettings = {}
    as_coded: ExperimentSettings = Field(default={}, alias="as-coded")

    def under(self, reading: Reading) -> list[ExperimentSettings]:
        """Return the settings under a reading, as layers of which later ones override earlier ones."""
        tables = ("data", "skew", "model", "method", "budget", "probe")
        plain = {name: getattr(self, name) for name in tables}
        return [plain, self.paper if reading == "paper" else self.as_coded]


class _Column(_Layer):
    base: str = ""
    """The column whose settings this one's override."""


class _Row(_Layer):
    at: dict[str, ExperimentSettings] = {}
    """Settings under a column, by its name or by the first parts of its name up to a slash."""
    same_as: str = ""
    """The row whose settings this one has, under another name."""
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
    """The rows if no numbers are published; otherwise the rows are those of `values`."""
    settings: _Layer = _Layer()
    column: dict[str, _Column] = {}
    row: dict[str, _Row] = {}
    values: dict[str, dict[str, str]] = {}
    """By measure and row: a number for each column, ± its standard deviation; - if none is known."""
    same_numbers: dict[str, str] = {}
    """Further rows, each with the row whose numbers it is compared with."""


class _Paper(_Strict):
    title: str
    reference: str
    readings: list[Reading]
    differences: list[str] = []
    assumed: str = ""
    base: str = ""
    """Another paper whose settings, columns and rows this one has as well."""
    settings: _Layer = _Layer()
    column: dict[str, _Column] = {}
    row: dict[str, _Row] = {}
    table: list[_Table]


@cache
def papers() -> dict[str, Paper]:
    """Return all papers by their names, in the order of `PAPERS`."""
    return {name: _paper(name) for name in PAPERS}


def tables() -> dict[str, PublishedTable]:
    """Return all tables and figures by their ids."""
    return {table.id: table for paper in papers().values() for table in paper.tables}


def find_table(name: str) -> PublishedTable:
    """Return the table with an id such as fedlmd:table3."""
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
