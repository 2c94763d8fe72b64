"""How the columns of a table become features: learnt from training rows, then applied to any rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from unskew.errors import UserError, unknown
from unskew.notation import in_order

CellValue = float | str
"""A number if the cell holds one, else its text."""
Missing = Literal["refuse", "fill", "column"]
Scale = Literal["all", "site", "none"]
"""Which training rows decide how numbers are scaled and missing values filled: those of all sites together,
or each site's own. none: numbers stay as they are."""
Floats = npt.NDArray[np.float64]

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null"})
"""Texts that stand for a missing value, in lower case."""
LARGEST = float(np.finfo(np.float32).max)
NAMELESS = frozenset({"", "?", "nan"})
"""Texts that stand for a missing class or site. Other words of MISSING, such as na, may be names."""
MOST_FOUND = 100
"""The most categories of a column that is taken as categories because it holds only text."""
MOST_ASKED = 1000
"""The most categories of a column that the user called categorical."""


VERSION = 1
"""The version of the format that `Columns.to_json` writes."""
FEWEST_ROWS = 10
"""The fewest rows from which the scale of a site can be computed that was not trained on."""
FILL_IT = ("put a value there", "missing=fill or missing=column")


def cell_of(text: str) -> CellValue:
    text = text.strip()
    try:
        number = float(text)
    except ValueError:
        return text
    if "_" in text:  # Python reads 10_20 as a number; in a table it is text
        return text
    return text if math.isnan(number) else number


def is_missing(cell: CellValue) -> bool:
    return isinstance(cell, str) and cell.lower() in MISSING


def category_of(cell: CellValue) -> str:
    """Return the category that a cell names: 1 and 1.0 are the same."""
    return cell if isinstance(cell, str) else repr(cell).removesuffix(".0")


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one or more files, and the file and line of each."""

    columns: tuple[str, ...]
    cells: list[list[CellValue]]
    files: list[Path]
    lines: list[int]
    sites: list[str] | None = None
    """The site of each row; None if the sites are not known."""
    settled: bool = False
    """Whether other rows have settled how the columns are read, so that no option can change it."""

    def __len__(self) -> int:
        return len(self.cells)

    def take(self, rows: npt.NDArray[np.intp]) -> Rows:
        at = rows.tolist()
        cells, files = [self.cells[i] for i in at], [self.files[i] for i in at]
        sites = None if self.sites is None else [self.sites[i] for i in at]
        return Rows(self.columns, cells, files, [self.lines[i] for i in at], sites, self.settled)

    def column(self, name: str) -> list[CellValue]:
        at = self.columns.index(name)
        return [row[at] for row in self.cells]

    def mistake(self, row: int, column: str, remedy: str, option: str = "") -> UserError:
        """Make the error that a cell in this row and column is wrong. `option` is another remedy, which only
        rows have whose columns are not settled."""
        cell = self.cells[row][self.columns.index(column)]
        shown = cell if isinstance(cell, str) else f"{cell:g}"
        either = f", or give {option}" if option and not self.settled else ""
        return UserError(
            f"{self.files[row]} has '{shown}' in row {self.lines[row]}, column '{column}': {remedy}{either}."
        )


@dataclass(frozen=True)
class InputColumn:
    """How one column becomes features.

    A number becomes (number - mean) / scale. A category becomes one feature for each of `categories`: 1 for
    its own and 0 for the others. A category that no training row has becomes 0 in all of them."""

    name: str
    kind: Literal["number", "category"]
    mean: float = 0.0
    scale: float = 1.0
    categories: tuple[str, ...] = ()
    fill: float | str | None = None
    """The value that replaces a missing one; if it is None, missing values are refused unless `flagged`."""
    flagged: bool = False
    """Whether one more feature says that the value is missing."""
    unknown: tuple[float, ...] = ()
    """Numbers that stand for a missing value, such as 0 for a blood pressure."""

    @property
    def features(self) -> list[str]:
        named = (
            [f"{self.name}={each}" for each in self.categories] if self.kind == "category" else [self.name]
        )
        return [*named, *([f"{self.name} is missing"] if self.flagged else [])]

    def apply(self, rows: Rows) -> Floats:
        """Return the features that this column of the rows becomes, [n, features]."""
        cells = rows.column(self.name)
        missing = np.array([is_missing(cell) or cell in self.unknown for cell in cells], np.bool_)
        if missing.any() and self.fill is None and not self.flagged:
            raise rows.mistake(int(missing.argmax()), self.name, *FILL_IT)
        if self.kind == "number":
            values = numbers_in(rows, self.name)
            if isinstance(self.fill, float):
                values[missing] = self.fill
            parts = [((values - self.mean) / self.scale)[:, None]]
        else:
            number = {each: at for at, each in enumerate(self.categories)}
            hot = np.zeros((len(cells), len(self.categories)))
            for row, cell in enumerate(cells):
                text = str(self.fill) if missing[row] and self.fill is not None else category_of(cell)
                if text in number and not (missing[row] and self.fill is None):
                    hot[row, number[text]] = 1
            parts = [hot]
        return np.concatenate(
            [*parts, *([missing[:, None].astype(np.float64)] if self.flagged else [])], axis=1
        )

    def unseen(self, rows: Rows) -> Counter[str]:
        """Count the categories in these rows that no training row has."""
        if self.kind == "number":
            return Counter()
        found = Counter(category_of(cell) for cell in rows.column(self.name) if not is_missing(cell))
        return Counter({name: n for name, n in found.items() if name not in self.categories})


@dataclass(frozen=True)
class Columns:
    """How a table's rows become the features of a dataset, in the order of its columns."""

    columns: tuple[InputColumn, ...]
    """The columns for all sites together; with scale=site they have no scale, and those in `sites` have."""
    scale: Scale = "all"
    site: str | None = None
    """The column that names the site of each row, if the table has one."""
    sites: dict[str, tuple[InputColumn, ...]] = field(default_factory=dict)
    """With scale=site, the columns of each site that was trained on."""

    def __iter__(self) -> Iterator[InputColumn]:
        return iter(self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that a table needs."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """A name for every feature."""
        return tuple(name for column in self.columns for name in column.features)

    def apply(self, rows: Rows) -> Floats:
        """Return the features of these rows, [n, features]. With scale=site, the rows of a site that was not
        trained on are scaled by themselves; rows without a site count as one such site."""
        if self.scale != "site":
            return _features(self.columns, rows)
        found = np.zeros((len(rows), len(self.features)))
        for name, mine in rows_by_site(rows).items():
            part = rows.take(mine)
            found[mine] = _features(self.sites.get(name) or self.of_new_site(name, part), part)
        return found

    def of_new_site(self, name: str, rows: Rows) -> tuple[InputColumn, ...]:
        """Return the columns for a site that was not trained on, scaled by these rows of it."""
        if len(rows) < FEWEST_ROWS:
            called = f"the site '{name}'" if name else "a site without a name"
            raise UserError(
                f"{called} was not trained on and has {len(rows)} row{'s' * (len(rows) != 1)} to learn its "
                f"scale from: give at least {FEWEST_ROWS} rows of it at once, name one of the trained sites, "
                "or train with scale=all."
            )
        return tuple(_own_scale(column, rows) for column in self.columns)

    def to_json(self) -> dict[str, Any]:
        """Return everything that is needed to apply the columns elsewhere, as JSON values."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, value: object) -> Columns:
        """Return the columns that `to_json` wrote."""
        if not isinstance(value, dict) or value.get("version") != VERSION:
            there = value.get("version") if isinstance(value, dict) else None
            raise UserError(
                f"the columns of a table are of version {there!r}, and this unskew reads {VERSION}: use the "
                "version that wrote them."
            )
        try:
            return TypeAdapter(cls).validate_python({key: value[key] for key in value if key != "version"})
        except ValidationError as error:
            where = ".".join(map(str, error.errors(include_url=False)[0]["loc"])) or "content"
            raise UserError(f"the columns of a table are not as they were written ({where}).") from None


def numbers_in(rows: Rows, name: str) -> Floats:
    """Return a column of numbers, with NaN for missing values; refuse other text and too large numbers."""
    cells = rows.column(name)
    for row, cell in enumerate(cells):
        if isinstance(cell, str) and not is_missing(cell):
            raise rows.mistake(row, name, "put a number there", f"categorical={name}")
        if isinstance(cell, float) and abs(cell) > LARGEST:
            raise rows.mistake(row, name, f"put a number there that 32 bits can hold, at most {LARGEST:.1e}")
    return np.array([math.nan if isinstance(cell, str) else cell for cell in cells], np.float64)


def rows_by_site(rows: Rows) -> dict[str, npt.NDArray[np.intp]]:
    """Return the rows of each site. If sites are not known, all rows belong to one site without a name."""
    if rows.sites is None:
        return {"": np.arange(len(rows))}
    names, number = np.unique(np.array(rows.sites, np.str_), return_inverse=True)
    return {str(name): np.flatnonzero(number == at) for at, name in enumerate(names)}


def _features(columns: tuple[InputColumn, ...], rows: Rows) -> Floats:
    return np.concatenate([column.apply(rows) for column in columns], axis=1)


TO_NOTHING = 1e30
"""The scale of a column in which a site has no number: it turns later values into almost 0."""


def _own_scale(column: InputColumn, rows: Rows) -> InputColumn:
    """Return a column that is scaled and filled by the rows of one site. If the site has no value in it,
    numbers become almost 0, and missing values get no category."""
    cells = rows.column(column.name)
    present = [cell for cell in cells if not is_missing(cell) and cell not in column.unknown]
    if column.kind == "category":
        if column.fill is None:
            return column
        if not present:
            return replace(column, fill="")  # no category has this name
        found = Counter(map(category_of, present))
        return replace(column, fill=min(found, key=lambda each: (-found[each], each)))
    values = numbers_in(rows, column.name)
    values = values[~np.isnan(values) & ~np.isin(values, column.unknown)]
    if not len(values):
        return replace(column, scale=TO_NOTHING)
    (mean,), (scale,) = (each.tolist() for each in _mean_and_scale(values[:, None]))
    fill = None if column.fill is None else mean
    return replace(column, mean=mean, scale=scale, fill=fill)


def _mean_and_scale(matrix: Floats) -> tuple[Floats, Floats]:
    """Return the mean and the standard deviation of every column, without its missing values. A constant
    column has its value and 1: its computed deviation would be a rounding error."""
    if not matrix.size:
        return np.zeros(matrix.shape[1]), np.ones(matrix.shape[1])
    gaps = bool(np.isnan(matrix).any())
    mean, std = (np.nanmean, np.nanstd) if gaps else (np.mean, np.std)
    low, high = np.nanmin(matrix, axis=0), np.nanmax(matrix, axis=0)
    constant = low == high
    return np.where(constant, low, mean(matrix, axis=0)), np.where(constant, 1, std(matrix, axis=0))


def learn(
    rows: Rows,
    *,
    categorical: Collection[str],
    missing: Missing,
    scale: Scale = "all",
    site: str | None = None,
) -> Columns:
    """Learn from training rows how columns become features. A column holds categories if it is named in
    `categorical`, or has no number. `site` is the column that names the site of each row, if there is one."""
    for name, given, known in (("missing", missing, Missing), ("scale", scale, Scale)):
        if given not in get_args(known):
            raise unknown(name, str(given), get_args(known))
    if scale != "site":
        return Columns(_learn(rows, categorical, missing, standardise=scale == "all"), scale, site)
    # All sites share the list of features, but no statistics of their values.
    shared = tuple(
        replace(each, fill=None if each.fill is None else 0.0)
        if each.kind == "number"
        else replace(each, fill=None if each.fill is None else each.categories[0])
        for each in _learn(rows, categorical, missing, standardise=False)
    )
    own = {
        name: tuple(_own_scale(column, rows.take(mine)) for column in shared)
        for name, mine in rows_by_site(rows).items()
    }
    return Columns(shared, scale, site, own)


def _learn(
    rows: Rows, categorical: Collection[str], missing: Missing, *, standardise: bool
) -> tuple[InputColumn, ...]:
    kinds: dict[str, Literal["number", "category"]] = {}
    for name in rows.columns:
        present = [cell for cell in rows.column(name) if not is_missing(cell)]
        if not present and missing == "refuse":
            raise rows.mistake(0, name, *FILL_IT)
        if not present:
            raise UserError(
                f"the column '{name}' has no value in any training row: leave it out, drop={name}."
            )
        is_text = name in categorical or all(isinstance(cell, str) for cell in present)
        kinds[name] = "category" if is_text else "number"
    numbers = [name for name, kind in kinds.items() if kind == "number"]
    # Together, since the means of a matrix differ in their last bits from those of its columns one by one.
    matrix = np.stack([numbers_in(rows, name) for name in numbers], axis=1) if numbers else np.zeros((0, 0))
    mean, scale = _mean_and_scale(matrix)
    columns = []
    for name, kind in kinds.items():
        flagged = missing == "column" and any(map(is_missing, rows.column(name)))
        if kind == "category":
            columns.append(_categories(rows, name, name in categorical, flagged, missing))
            continue
        at = numbers.index(name)
        fill = None if missing == "refuse" else float(mean[at])
        middle, unit = (float(mean[at]), float(scale[at])) if standardise else (0.0, 1.0)
        columns.append(InputColumn(name, kind, middle, unit, fill=fill, flagged=flagged))
    return tuple(columns)


def _categories(rows: Rows, name: str, asked: bool, flagged: bool, missing: Missing) -> InputColumn:
    found = Counter(category_of(cell) for cell in rows.column(name) if not is_missing(cell))
    if len(found) > (MOST_ASKED if asked else MOST_FOUND):
        remedy = "" if asked else f", or give categorical={name}" * (len(found) <= MOST_ASKED)
        raise UserError(
            f"the column '{name}' has {len(found)} different texts, too many for categories: leave it out, "
            f"drop={name}{remedy}."
        )
    most = min(found, key=lambda each: (-found[each], each))
    fill = None if missing == "refuse" or flagged else most
    return InputColumn(name, "category", categories=tuple(in_order(found)), fill=fill, flagged=flagged)
