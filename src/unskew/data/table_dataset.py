"""The user's own tables as a Dataset: one file or several, with the site of every row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from unskew.data.arrays import by_class_and_owner, from_arrays, number_owners, stratified
from unskew.data.columns import Columns, Missing, Rows, Scale, is_missing, learn
from unskew.data.dataset import Dataset
from unskew.data.names import distinct_names, shortened
from unskew.data.tables import ColumnRoles, Table, aligned, joined_or_none, owned, read_table, stacked
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
    """Make a dataset of a CSV file with a header row, or of a Parquet file.

    Column `label` holds the classes (any text). All other columns hold numbers, or categories if a column has
    no number.

    path: a file, or several with the same columns, each of which is then a site.
    test: another file with the same columns; without it a stratified `test_fraction` is cut off.
    scale: subtract each column's mean and divide by its standard deviation (constant columns become 0): over
    the training rows of all sites, or of each site for itself; none leaves numbers as they are.
    site: the column that names the owner of each row.
    columns: those to use as features; without it all but label and site. drop: those to leave out.
    categorical: columns whose numbers are categories. A category becomes one feature, 1 or 0.
    missing: what to do with missing values (nothing, ?, NA, N/A, NaN or null): refuse them; fill in the mean
    or the most frequent category of the training rows; or fill them and mark them in a column of its own.

    Classes are the label's values in the training rows, sorted as numbers if all are whole numbers, else as
    text. `Dataset.columns` has the learnt scales and categories, `Dataset.notes` what was decided."""
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
    """A table file, and the file with test rows of the same site."""

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
    """Make one dataset of several tables; see `from_csv`. A part without a test file gives some of its own
    rows for testing, unless `test` is given for all."""
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
    """Make a dataset of training tables and test tables, all with the same columns in the same order.

    cut: for each of `tables`, whether a part of it is cut off for testing.
    sites: the sites' names in the order of their numbers; empty for alphabetical order.
    site: the column that names the sites, if there is one."""
    number = {text: at for at, text in enumerate(classes)}
    _refuse_new_classes(tests, classes)
    rows, labels = stacked([t.rows for t in tables]), np.array([number[x] for t in tables for x in t.labels])
    owners = joined_or_none([table.sites for table in tables])
    groups = by_class_and_owner(labels, owners, len(classes))
    is_test = np.zeros(len(labels), np.bool_)
    if any(cut):
        candidates = np.flatnonzero(np.repeat(cut, [len(table.labels) for table in tables]))
        is_test[candidates[stratified(groups[candidates], test_fraction, seed)[1]]] = True
    train_at, test_at = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    test_labels = np.array([*labels[test_at], *(number[x] for t in tests for x in t.labels)], np.int64)
    cut_owners = [] if not len(test_at) else [None if owners is None else owners[test_at].tolist()]
    train_owners = None if owners is None else owners[train_at]
    test_owners = joined_or_none([*cut_owners, *(table.sites for table in tests)])
    train_rows = replace(rows.take(train_at), sites=None if train_owners is None else train_owners.tolist())
    test_rows = replace(
        stacked([rows.take(test_at), *(table.rows for table in tests)]),
        sites=None if test_owners is None else test_owners.tolist(),
    )
    if scale == "site":
        _require_sites(train_rows, test_rows, tests)

    learnt = learn(train_rows, categorical=categorical, missing=missing, scale=scale, site=site)
    dataset = from_arrays(
        learnt.apply(train_rows),
        labels[train_at],
        learnt.apply(test_rows),
        test_labels,
        name=name,
        classes=classes,
    )
    numbers, owner_names = number_owners([train_owners, test_owners], sites)
    train, test = (
        split if own is None else replace(split, owners=torch.from_numpy(own))
        for split, own in zip((dataset.train, dataset.test), numbers, strict=True)
    )
    return replace(
        dataset,
        train=train,
        test=test,
        owners=owner_names,
        columns=learnt,
        notes=tuple(_notes(learnt, train_rows, test_rows, missing, len(owner_names))),
    )


def _refuse_new_classes(tests: Sequence[Table], classes: Sequence[str]) -> None:
    """Refuse test rows of a class that no training row has."""
    known = set(classes)
    for table in tests:
        for at, text in enumerate(table.labels):
            if text not in known:
                raise UserError(
                    f"{table.rows.files[at]} has the class '{text}' in row {table.rows.lines[at]}, and no "
                    f"training row has: add training rows of it, or remove it (training has "
                    f"{shortened(classes)})."
                )


def _require_sites(train: Rows, test: Rows, tests: Sequence[Table]) -> None:
    """Refuse rows without a site, since scale=site scales each row by the rows of its site."""
    if train.sites is None:
        raise UserError(
            "scale=site needs sites: name the column of a table that holds them, site=COLUMN, or several "
            "files, or use scale=all."
        )
    if test.sites is None:
        raise UserError(
            f"scale=site needs the site of every test row, and {tests[0].rows.files[0]} names none: add "
            "its column, give each file a test= of its own, or use scale=all."
        )


def _notes(columns: Columns, train: Rows, test: Rows, missing: Missing, sites: int) -> Iterable[str]:
    """Yield what a reader of the results has to know about how the table was read."""
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
        how = f"replaced by the mean or the most frequent category of {whose}"
        if missing == "column":
            how = f"marked by a feature of their own; numbers are replaced by the mean of {whose}"
        yield f"Some of {len(train) + len(test)} rows lack values ({listed}): missing values are {how}."
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
        yield from _what_sites_send(columns, missing)


def _what_sites_send(columns: Columns, missing: Missing) -> Iterable[str]:
    """Yield a sentence on what every site would have to send so that rows are scaled and filled as here."""
    numbers, text = (any(c.kind == kind for c in columns) for kind in ("number", "category"))
    if columns.scale == "site":
        sent = ["which categories it has"] * text
        sent += ["in which columns it lacks values"] * (missing == "column")
        traffic = (
            f"each would have to send {' and '.join(sent)}, and no number" if sent else "none sends anything"
        )
        yield f"Columns are scaled and filled by each site's own training rows: {traffic}."
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
