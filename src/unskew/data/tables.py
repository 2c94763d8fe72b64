"""The user's own tables as a Dataset: one file or several, with the site of every row."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from unskew.data.arrays import from_arrays, number_owners, stratified
from unskew.data.bounded import check_regular
from unskew.data.columns import (
    NAMELESS,
    CellValue,
    Columns,
    Missing,
    Rows,
    Scale,
    cell_of,
    is_missing,
    learn,
)
from unskew.data.dataset import Dataset
from unskew.data.names import distinct_names, shortened
from unskew.data.parquet import is_parquet, parquet_header, parquet_rows
from unskew.errors import UserError, unknown
from unskew.notation import in_order


def from_csv(
    path: Path | Sequence[Path],
    *,
    label: str,
    test: Path | None = None,
    scale: Scale = "all",
    test_fraction: float = 0.2,
    seed: int = 0,
    site: str | None = None,
    columns: tuple[str, ...] = (),
    drop: tuple[str, ...] = (),
    categorical: tuple[str, ...] = (),
    missing: Missing = "refuse",
) -> Dataset:
    """A CSV file with a header row, or a Parquet file: column `label` holds the classes (any text), all
    others numbers or, where a column has none, categories.

    path: a file, or several with the same columns, each of which is then a site.
    test: another file with the same columns; without it a stratified `test_fraction` is cut off.
    scale: subtract each column's mean and divide by its standard deviation (constant columns become 0): over
    the training rows of all sites, or of each site for itself; none leaves numbers as they are.
    site: the column that names who owns a row.
    columns: those to use as features; without it all but label and site. drop: those to leave out.
    categorical: columns whose numbers are categories. A category becomes one feature, 1 or 0.
    missing: what to do where a value is missing (nothing, ?, NA, N/A, NaN or null): refuse; fill in the mean
    or the most frequent category of the training rows; or fill and say so in a column of its own.

    Classes are the label's values in the training rows, sorted as numbers where all are whole numbers, else
    as text. `Dataset.columns` has what was learnt, `Dataset.notes` what was decided."""
    paths = [Path(path)] if isinstance(path, str | Path) else [Path(each) for each in path]
    return from_tables(
        [TablePart(each) for each in paths],
        label=label,
        test=test,
        scale=scale,
        test_fraction=test_fraction,
        seed=seed,
        site=site,
        columns=columns,
        drop=drop,
        categorical=categorical,
        missing=missing,
    )


@dataclass(frozen=True)
class TablePart:
    """A file of rows, and the file that tests on the same site."""

    path: Path
    test: Path | None = None


def from_tables(
    parts: Sequence[TablePart],
    *,
    label: str,
    test: Path | None = None,
    scale: Scale = "all",
    test_fraction: float = 0.2,
    seed: int = 0,
    site: str | None = None,
    columns: Sequence[str] = (),
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    missing: Missing = "refuse",
) -> Dataset:
    """Tables as one dataset; a part without a test file gives some of its rows, unless `test` is for all. See
    `from_csv`."""
    if not parts:
        raise UserError("no file is named: give the path of at least one.")
    if label == site:
        raise UserError(f"the column '{label}' cannot be both label and site: name two.")
    names = distinct_names([part.path for part in parts])
    columns, drop = ((each,) if isinstance(each, str) else each for each in (columns, drop))
    roles = ColumnRoles(label, site, tuple(columns), tuple(drop))
    tables = [read_table(part.path, roles) for part in parts]
    known = {name for table in tables for name in table.header}
    for name in drop:
        if name not in known:
            raise unknown(f"column of {parts[0].path}", name, known)
    for name in categorical:
        if name not in tables[0].rows.columns:
            raise unknown(f"feature of {parts[0].path}", name, tables[0].rows.columns)
    given = [(names[at], part.test) for at, part in enumerate(parts) if part.test is not None]
    tests = [(name, read_table(path, roles, is_test=True)) for name, path in given]
    if test is not None:
        tests.append(("", read_table(Path(test), roles, is_test=True)))
    tables = [aligned(table, tables[0]) for table in tables]
    tests = [(name, aligned(table, tables[0])) for name, table in tests]
    if site is None and len(tables) > 1:
        tables = [owned(table, name) for name, table in zip(names, tables, strict=True)]
        tests = [(name, owned(table, name) if name else table) for name, table in tests]
    return dataset_of(
        "+".join(names),
        tables,
        [table for _, table in tests],
        cut=[part.test is None and test is None for part in parts],
        classes=in_order({text for table in tables for text in table.labels}),
        sites=() if site else names,
        scale=scale,
        test_fraction=test_fraction,
        seed=seed,
        categorical=categorical,
        missing=missing,
        site=site,
    )


def dataset_of(
    name: str,
    tables: Sequence[Table],
    tests: Sequence[Table],
    *,
    cut: Sequence[bool],
    classes: Sequence[str],
    sites: Sequence[str],
    scale: Scale,
    test_fraction: float,
    seed: int,
    categorical: Sequence[str],
    missing: Missing,
    site: str | None = None,
) -> Dataset:
    """The dataset of these tables, which have the same columns in the same order.

    cut: from which of `tables` a part is cut off for testing. sites: the order of their names, where it is
    not that of the alphabet. site: the column that names them, where there is one."""
    number = {text: at for at, text in enumerate(classes)}
    for table in tests:
        for at, text in enumerate(table.labels):
            if text not in number:
                raise UserError(
                    f"{table.rows.files[at]} has the class '{text}' in row {table.rows.lines[at]}, and no "
                    f"training row has: add training rows of it, or remove it (training has "
                    f"{shortened(classes)})."
                )
    rows, labels = stacked([t.rows for t in tables]), np.array([number[x] for t in tables for x in t.labels])
    holders = joined_or_none([table.sites for table in tables])
    cells = labels if holders is None else labels + len(classes) * np.unique(holders, return_inverse=True)[1]
    is_test = np.zeros(len(labels), np.bool_)
    if any(cut):
        candidates = np.flatnonzero(np.repeat(cut, [len(table.labels) for table in tables]))
        is_test[candidates[stratified(cells[candidates], test_fraction, seed)[1]]] = True
    train_at, test_at = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    test_labels = np.array([*labels[test_at], *(number[x] for t in tests for x in t.labels)], np.int64)
    cut_owners = [] if not len(test_at) else [None if holders is None else holders[test_at].tolist()]
    test_holders = joined_or_none([*cut_owners, *(table.sites for table in tests)])
    train_rows = replace(rows.take(train_at), sites=None if holders is None else holders[train_at].tolist())
    test_rows = replace(
        stacked([rows.take(test_at), *(table.rows for table in tests)]),
        sites=None if test_holders is None else test_holders.tolist(),
    )

    if scale == "site":
        if holders is None:
            raise UserError(
                "scale=site needs sites: name the column of a table that tells them, site=COLUMN, or several "
                "files, or use scale=all."
            )
        if test_holders is None:
            raise UserError(
                f"scale=site needs the site of every test row, and {tests[0].rows.files[0]} names none: add "
                "its column, give each file a test= of its own, or use scale=all."
            )
    learnt = learn(train_rows, categorical=categorical, missing=missing, scale=scale, site=site)
    dataset = from_arrays(
        learnt.apply(train_rows),
        labels[train_at],
        learnt.apply(test_rows),
        test_labels,
        name=name,
        classes=classes,
    )
    numbers, owner_names = number_owners(
        [None if holders is None else holders[train_at], test_holders], sites
    )
    splits = [
        split if own is None else replace(split, owners=torch.from_numpy(own))
        for split, own in zip((dataset.train, dataset.test), numbers, strict=True)
    ]
    return replace(
        dataset,
        train=splits[0],
        test=splits[1],
        owners=owner_names,
        columns=learnt,
        notes=tuple(_notes(learnt, train_rows, test_rows, missing, len(owner_names))),
    )


def _notes(columns: Columns, train: Rows, test: Rows, missing: Missing, sites: int) -> Iterable[str]:
    """What a reader of the results has to know of how the table was read."""
    text = [f"{c.name} ({len(c.categories)})" for c in columns if c.kind == "category"]
    if text:
        yield f"Categories, one feature each, as training rows have them: {shortened(text, 12)}."
    gaps = Counter(
        {
            name: sum(map(is_missing, train.column(name))) + sum(map(is_missing, test.column(name)))
            for name in columns.names
        }
    )
    if any(gaps.values()):
        listed = shortened([f"{name} {n}" for name, n in gaps.most_common() if n], 12)
        whose = "the site's training rows" if columns.scale == "site" else "the training rows"
        how = f"mean or the most frequent category of {whose}"
        if missing == "column":
            how = f"mean of {whose}, or for no category, and a feature of its own says so"
        yield f"Of {len(train) + len(test)} rows values are missing ({listed}): they are taken for the {how}."
    for column in columns:
        if strange := column.unseen(test):
            yield (
                f"{sum(strange.values())} test rows have a category of '{column.name}' that no training row "
                f"has ({shortened(strange)}): they are 0 in all its features."
            )
    unseen = [name for name in dict.fromkeys(test.sites or []) if name not in columns.sites]
    if columns.scale == "site" and unseen:
        yield f"No training row is of {shortened(unseen)}: their test rows are scaled by themselves."
    if sites > 1:
        yield from _what_leaves(columns, missing)


def _what_leaves(columns: Columns, missing: Missing) -> Iterable[str]:
    """What every site would have to send for its rows to be scaled and filled as they are."""
    numbers, text = (any(c.kind == kind for c in columns) for kind in ("number", "category"))
    if columns.scale == "site":
        sent = ["which categories it has"] * text
        sent += ["in which columns it lacks values"] * (missing == "column")
        leaves = (
            f"each would have to send {' and '.join(sent)}, and no number" if sent else "none sends anything"
        )
        yield f"Columns are scaled and filled by each site's own training rows: {leaves}."
        return
    sent = list[str]()
    if numbers and (columns.scale == "all" or missing != "refuse"):
        squares = " and the sum of squares" if columns.scale == "all" else ""
        sent.append(f"the sum{squares} of every column of numbers")
    if text:
        sent.append("how often it has each category")
    if sent:
        yield (
            "What columns are scaled and filled by is learnt from the training rows of all sites together "
            f"(scale={columns.scale}): each would have to send its number of rows, {', '.join(sent)}."
        )


@dataclass(frozen=True)
class ColumnRoles:
    """Which columns of a file are what."""

    label: str | None
    site: str | None
    columns: tuple[str, ...]
    """The features; empty: all that are not named otherwise."""
    drop: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Table:
    """What a file holds of the chosen columns."""

    header: tuple[str, ...]
    rows: Rows
    labels: list[str]
    sites: list[str] | None


def read_table(path: Path, roles: ColumnRoles, *, is_test: bool = False) -> Table:
    """The chosen columns of a file. Only a test file may lack the site."""
    with _opened(path) as (header, lines):
        return chosen(path, header, lines, roles, is_test=is_test)


def read_rows(path: Path, columns: Columns, *, site: str | None = None) -> Rows:
    """The rows of a file for which `columns` was learnt, or of one like it; see `read_like`."""
    return read_like(path, columns, site=site).rows


def read_like(path: Path, columns: Columns, *, site: str | None = None) -> Table:
    """A file like that for which `columns` was learnt, with its columns in any order, and more. It needs no
    label. Who owns them, where their scale goes by it, is said by `site`, for all
    of them, or by the column that named it before, where the file has it."""
    owner = columns.site if columns.scale == "site" and site is None else None
    with _opened(path) as (header, lines):
        if lacking := [name for name in columns.names if name not in header]:
            raise UserError(
                f"{path} lacks {'the columns' if len(lacking) > 1 else 'the column'} {shortened(lacking)}: "
                "add what is missing."
            )
        table = chosen(path, header, lines, ColumnRoles(None, owner, columns.names, ()), is_test=True)
    sites = table.sites if site is None else [site] * len(table.rows)
    return replace(table, rows=replace(table.rows, sites=sites))


def read_texts(path: Path, columns: Sequence[str], other: str) -> tuple[list[str], list[int]]:
    """The text of every row, which stands in these columns or all of it in the other one, and its number."""
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
    """The header of a file, and the rows below it."""
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
    """The chosen columns of these lines."""
    for name in (roles.label, None if is_test else roles.site, *roles.columns):
        if name is not None and name not in header:
            raise unknown(f"column of {path}", name, header)
    apart = {roles.label, roles.site, *roles.drop}
    features = roles.columns or header
    use = [header.index(name) for name in features if name not in apart]
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
    """The table with its features in the order of the first one's."""
    mine, theirs = table.rows.columns, first.rows.columns
    if mine == theirs:
        return table
    if apart := sorted(set(mine) ^ set(theirs)):
        raise UserError(
            f"{table.rows.files[0]} and {first.rows.files[0]} have different columns ('{apart[0]}' is in one "
            f"alone): add it, or leave it out with drop={apart[0]}."
        )
    order = [mine.index(name) for name in theirs]
    cells: list[list[CellValue]] = [[row[at] for at in order] for row in table.rows.cells]
    return replace(table, rows=replace(table.rows, columns=theirs, cells=cells))


def owned(table: Table, site: str) -> Table:
    """The table, all of it a site's."""
    return replace(table, sites=[site] * len(table.labels))


def stacked(parts: Sequence[Rows]) -> Rows:
    """Rows after rows, all with the same columns."""
    return Rows(
        parts[0].columns,
        [row for part in parts for row in part.cells],
        [file for part in parts for file in part.files],
        [line for part in parts for line in part.lines],
    )


def joined_or_none(parts: Collection[Sequence[str] | None]) -> np.ndarray | None:
    """One array of names; None where a part has none."""
    if not parts or any(part is None for part in parts):
        return None
    return np.array([name for part in parts if part is not None for name in part], np.str_)
