"""UCI's heart disease data: the patients of four hospitals."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Literal

from unskew.data.columns import CellValue, InputColumn, Scale
from unskew.data.dataset import Dataset
from unskew.data.sources.files import read
from unskew.data.table_dataset import dataset_of
from unskew.data.tables import ColumnRoles, Table, chosen, owned

HOSPITALS = {
    "Cleveland": "cleveland",
    "Hungary": "hungarian",
    "Switzerland": "switzerland",
    "Long Beach": "va",
}
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"),
)
CATEGORICAL = ("cp", "restecg", "slope", "thal")
NEVER_ZERO = ("trestbps", "chol")
"""Blood pressure and cholesterol, which the files give as 0 if they are unknown."""


def heart_disease(*, task: Literal["binary", "grades"] = "binary", scale: Scale = "all") -> Dataset:
    """Read 920 patients with 13 measurements each, and their hospitals as owners. A fifth of each class of
    each hospital is for testing.

    task: binary has the classes healthy and diseased; grades has the grades 0 to 4, of which Hungary recorded
    0 and 1 only. scale: how numbers are scaled, as for `from_csv`."""
    chosen_options = [task] * (task != "binary") + [f"scale={scale}"] * (scale != "all")
    tables = [_hospital(name, file, task) for name, file in HOSPITALS.items()]
    dataset = dataset_of(
        ":".join(["heart-disease", *([",".join(chosen_options)] if chosen_options else [])]),
        tables,
        (),
        cut=[True] * len(tables),
        classes=("healthy", "diseased") if task == "binary" else tuple("01234"),
        sites=tuple(HOSPITALS),
        scale=scale,
        test_fraction=0.2,
        seed=0,
        categorical=CATEGORICAL,
        missing="column",
    )
    assert dataset.columns is not None
    columns = replace(
        dataset.columns,
        columns=_never_zero(dataset.columns.columns),
        sites={name: _never_zero(own) for name, own in dataset.columns.sites.items()},
    )
    dataset = replace(dataset, columns=columns)
    if task == "binary":
        return dataset
    note = (
        "Hungary's file writes every diseased patient as grade 1 (UCI's table has 37, 26, 28 and 15 of "
        "grades 1 to 4): that it lacks grades 2 to 4 is how it was recorded. heart-disease without :grades "
        "tells healthy from diseased, which means the same in all hospitals."
    )
    return replace(dataset, notes=(note, *dataset.notes))


def _never_zero(columns: tuple[InputColumn, ...]) -> tuple[InputColumn, ...]:
    return tuple(
        replace(column, unknown=(0.0,)) if column.name in NEVER_ZERO else column for column in columns
    )


def _hospital(name: str, file: str, task: str) -> Table:
    """Read the table of one hospital, in which zeros that mean unknown become missing values."""
    path = Path(__file__).parent / "heart_disease" / f"processed.{file}.data"
    lines = csv.reader(read(path).decode().splitlines())
    table = owned(chosen(path, COLUMNS, enumerate(lines, 1), ColumnRoles("num", None, (), ())), name)
    never = {COLUMNS.index(each) for each in NEVER_ZERO}
    cells: list[list[CellValue]] = [
        ["?" if at in never and cell == 0 else cell for at, cell in enumerate(row)]
        for row in table.rows.cells
    ]
    labels = table.labels
    if task == "binary":
        labels = ["healthy" if label == "0" else "diseased" for label in labels]
    return replace(table, rows=replace(table.rows, cells=cells), labels=labels)
