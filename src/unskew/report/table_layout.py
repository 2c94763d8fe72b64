"""The layout of a table of methods: which cells stand below and next to each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from unskew.errors import UserError, unknown
from unskew.notation import write_value
from unskew.report.grouping import hyperparameters, settings
from unskew.report.read import SavedRun
from unskew.report.table_cells import NONE, Column, ConditionCells, TableCell

METHOD, CONDITION, MEASURE = "method", "condition", "measure"
SETTINGS = {"skew": "skew.recipe", "data": "data.name", "dataset": "data.name", "model": "model.name"}
"""Settings with a shorter name, like that of their flag of `unskew run`."""
EMPTY = TableCell(None, (0, 0), NONE)


@dataclass(frozen=True)
class Row:
    keys: tuple[str, ...]
    """A text for each of the table's `heads`; the last one is the name of the row."""
    cells: tuple[TableCell, ...]

    @property
    def name(self) -> str:
        return self.keys[-1]


@dataclass(frozen=True)
class ColumnHeader:
    """The text above a column of cells."""

    group: str
    """What the column has in common with its neighbours, such as a condition; empty if there is nothing."""
    title: str
    name: str
    """The name of the column in a CSV file."""

    @property
    def line(self) -> str:
        """Group and title in one line."""
        return f"{self.group} {self.title}" if self.group else self.title


@dataclass(frozen=True)
class _PlacedCell:
    """A cell with its method, condition and measure, from which its row and column follow."""

    method: str
    condition: str
    rest: str
    """The part of the condition that is not a setting with an axis of its own."""
    settings: Mapping[str, str]
    column: Column
    cell: TableCell


def lay_out(
    blocks: Sequence[ConditionCells], columns: Sequence[Column], row_axis: str, column_axis: str
) -> tuple[tuple[str, ...], tuple[ColumnHeader, ...], tuple[Row, ...]]:
    """Return the heads of the rows, the headers of the columns, and the rows.

    The axes say what rows and columns are: method, condition, measure or a setting.
    """
    if row_axis == column_axis:
        raise UserError(f"--rows and --columns are both {row_axis}: choose two different ones.")
    axes = {
        axis: _setting(axis, blocks)
        for axis in (row_axis, column_axis)
        if axis not in (METHOD, CONDITION, MEASURE)
    }
    places = list(_places(blocks, columns, list(axes.values())))

    def of(axis: str, place: _PlacedCell) -> str:
        plain = {METHOD: place.method, CONDITION: place.condition, MEASURE: place.column.title}
        return plain[axis] if axis in plain else place.settings[axes[axis]]

    before: list[tuple[str, Callable[[_PlacedCell], str]]] = []
    if CONDITION not in (row_axis, column_axis) and any(place.rest for place in places):
        before.append((CONDITION, lambda place: place.rest))
    before.append((row_axis, lambda place: of(row_axis, place)))
    if METHOD not in (row_axis, column_axis) and (
        row_axis != CONDITION or len({place.method for place in places}) > 1
    ):
        before.append((METHOD, lambda place: place.method))

    several = len(columns) > 1 and MEASURE not in (row_axis, column_axis)

    def head(place: _PlacedCell) -> ColumnHeader:
        if column_axis == MEASURE:
            return ColumnHeader("", place.column.title, place.column.name)
        text = of(column_axis, place)
        return (
            ColumnHeader(text, place.column.title, f"{text} {place.column.name}")
            if several
            else ColumnHeader("", text, text)
        )

    # The measures of one group stand next to each other.
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
    blocks: Sequence[ConditionCells], columns: Sequence[Column], axes: Sequence[str]
) -> Iterable[_PlacedCell]:
    for each in blocks:
        condition = each.condition
        rest = ", ".join(text for key, text in condition.differs.items() if key not in axes)
        for name, cells in each.cells.items():
            known = _settings_of(condition.methods[name][0])
            values = {axis: write_value(known.get(axis, NONE)) for axis in axes}
            method = _without(name, [axis for axis in axes if axis.startswith("method.")])
            for column, cell in zip(columns, cells, strict=True):
                yield _PlacedCell(method, condition.short or condition.title, rest, values, column, cell)


def _settings_of(run: SavedRun) -> dict[str, object]:
    """Return the settings of a run and the hyperparameters of its method, which may be rows or columns."""
    return settings(run) | {key: value for key, value in hyperparameters(run).items() if key != "method.name"}


def _without(method: str, axes: Sequence[str]) -> str:
    """Return the name of a method without the hyperparameters that are rows or columns."""
    for axis in axes:
        option = re.escape(axis.rpartition(".")[2])
        method = re.sub(rf"(?<=[:,]){option}=[^,+ ]*,?", "", method)
    return re.sub(r"[:,](?=$|[+ ])", "", method)


def _setting(axis: str, blocks: Sequence[ConditionCells]) -> str:
    """Return the full name of a setting that may be given in short, such as skew.recipe for skew."""
    each = [_settings_of(runs[0]) for block in blocks for runs in block.condition.methods.values()]
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
