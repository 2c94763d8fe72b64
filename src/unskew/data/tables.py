"""Tables in CSV and Parquet files: the chosen columns of every row, with its label and its site."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from unskew.data.bounded import check_regular
from unskew.data.columns import NAMELESS, CellValue, Columns, Rows, cell_of
from unskew.data.names import shortened
from unskew.data.parquet import is_parquet, parquet_header, parquet_rows
from unskew.errors import UserError, unknown


@dataclass(frozen=True)
class ColumnRoles:
    """Which columns of a file are the label, the site and the features."""

    label: str | None
    site: str | None
    columns: tuple[str, ...]
    """The features; if empty, all columns that are neither label nor site nor dropped."""
    drop: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Table:
    """The chosen columns of a file."""

    header: tuple[str, ...]
    """All columns of the file."""
    rows: Rows
    """The features of every row."""
    labels: list[str]
    sites: list[str] | None
    """The site of every row; None if the file has no column for it."""


def read_table(path: Path, roles: ColumnRoles, *, is_test: bool = False) -> Table:
    """Read the chosen columns of a file. Only a test file may lack the site."""
    with _opened(path) as (header, lines):
        return chosen(path, header, lines, roles, is_test=is_test)


def read_rows(path: Path, columns: Columns, *, site: str | None = None) -> Rows:
    """Read the rows of the file from which `columns` was learnt, or of one like it; see `read_like`."""
    return read_like(path, columns, site=site).rows


def read_like(path: Path, columns: Columns, *, site: str | None = None) -> Table:
    """Read a file with the columns that `columns` was learnt from, in any order; it may have others too, and
    needs no label.

    If each site has a scale of its own, `site` names the site of all rows. Without it, the column that named
    the sites in training does, if the file has it."""
    owner = columns.site if columns.scale == "site" and site is None else None
    with _opened(path) as (header, lines):
        if lacking := [name for name in columns.names if name not in header]:
            raise UserError(
                f"{path} lacks {'the columns' if len(lacking) > 1 else 'the column'} {shortened(lacking)}: "
                "add what is missing."
            )
        table = chosen(path, header, lines, ColumnRoles(None, owner, columns.names, ()), is_test=True)
    sites = table.sites if site is None else [site] * len(table.rows)
    return replace(table, rows=replace(table.rows, sites=sites, settled=True))


def read_texts(path: Path, columns: Sequence[str], other: str) -> tuple[list[str], list[int]]:
    """Read the text and the number of every row. The text is in `columns`, or, if the file lacks one of
    these, in the column `other`."""
    with _opened(path) as (header, lines):
        named = columns if columns and set(columns) <= set(header) else (other,)
        if not set(named) <= set(header):
            wanted = " and ".join(f"'{name}'" for name in columns)
            either = f", or {wanted}" if columns else ""
            raise UserError(f"{path} lacks the column '{other}'{either}: name the texts so.")
        texts, numbers = list[str](), list[int]()
        for number, cells in lines:
            if cells and len(cells) != len(header):
                raise UserError(
                    f"{path} has {len(cells)} cells in row {number} but {len(header)} columns: fix that row."
                )
            if cells:
                texts.append(" ".join(cells[header.index(name)] for name in named))
                numbers.append(number)
    if not texts:
        raise UserError(f"{path} has no rows below its header: add some.")
    return texts, numbers


Lines = Iterator[tuple[int, Sequence[str]]]
"""The cells of every row, and the number of the row."""


@contextmanager
def _opened(path: Path) -> Iterator[tuple[tuple[str, ...], Lines]]:
    """Open a file; yield its header and the rows below it."""
    try:
        check_regular(path)
        if is_parquet(path):
            opened, names = parquet_header(path)
            with opened:
                yield names, parquet_rows(opened, path)
            return
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = tuple(name.strip() for name in next(reader, []))
            if not any(header):
                raise UserError(f"{path} is empty: give it a header and rows.")
            if len(header) == 1 and (other := {";", "\t", "|"} & set(header[0])):
                raise UserError(
                    f"the columns of {path} seem to be separated by {min(other)!r}: save it with commas."
                )
            yield header, enumerate(reader, 2)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: give the path of a .csv or .parquet file.") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{path} cannot be read as comma-separated UTF-8 text, save it as such: {error}."
        ) from error


def chosen(
    path: Path, header: tuple[str, ...], lines: Lines, roles: ColumnRoles, *, is_test: bool = False
) -> Table:
    """Pick the chosen columns out of the rows of a file."""
    for name in (roles.label, None if is_test else roles.site, *roles.columns):
        if name is not None and name not in header:
            raise unknown(f"column of {path}", name, header)
    excluded = {roles.label, roles.site, *roles.drop}
    features = roles.columns or header
    use = [header.index(name) for name in features if name not in excluded]
    if not use or len(set(header)) < len(header):
        raise UserError(f"{path} needs a label column, feature columns and no name twice in its header.")
    label_at, site_at = (
        None if name is None or name not in header else header.index(name)
        for name in (roles.label, roles.site)
    )
    rows = Rows(tuple(header[at] for at in use), [], [], [])
    labels, sites = list[str](), list[str]()
    for number, cells in lines:
        if not cells:
            continue  # a blank line
        if len(cells) != len(header):
            raise UserError(
                f"{path} has {len(cells)} cells in row {number} but {len(header)} columns: fix that row."
            )
        for at, what, into in ((label_at, "label", labels), (site_at, "site", sites)):
            if at is None:
                continue
            into.append(cells[at].strip())
            if into[-1].lower() in NAMELESS:
                raise UserError(
                    f"{path} has no {what} in row {number}, column '{header[at]}': fill or remove it."
                )
        rows.cells.append([cell_of(cells[at]) for at in use])
        rows.files.append(path)
        rows.lines.append(number)
    if not rows.cells:
        raise UserError(f"{path} has no rows below its header: add some.")
    return Table(header, rows, labels, None if site_at is None else sites)


def aligned(table: Table, first: Table) -> Table:
    """Return the table with its features in the order of the first table's."""
    mine, theirs = table.rows.columns, first.rows.columns
    if mine == theirs:
        return table
    if different := sorted(set(mine) ^ set(theirs)):
        raise UserError(
            f"{table.rows.files[0]} and {first.rows.files[0]} have different columns ('{different[0]}' is in "
            f"one alone): add it, or leave it out with drop={different[0]}."
        )
    order = [mine.index(name) for name in theirs]
    cells: list[list[CellValue]] = [[row[at] for at in order] for row in table.rows.cells]
    return replace(table, rows=replace(table.rows, columns=theirs, cells=cells))


def owned(table: Table, site: str) -> Table:
    """Return the table with all its rows owned by one site."""
    return replace(table, sites=[site] * len(table.labels))


def stacked(parts: Sequence[Rows]) -> Rows:
    """Concatenate rows that have the same columns."""
    return Rows(
        parts[0].columns,
        [row for part in parts for row in part.cells],
        [file for part in parts for file in part.files],
        [line for part in parts for line in part.lines],
    )


def joined_or_none(parts: Collection[Sequence[str] | None]) -> np.ndarray | None:
    """Concatenate the names of several parts; return None if a part has no names."""
    if any(part is None for part in parts):
        return None
    return np.array([name for part in parts if part is not None for name in part], np.str_)
