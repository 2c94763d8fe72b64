"""Parquet files, row by row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unskew.data.bounded import most_unpacked
from unskew.errors import UserError

MAGIC = b"PAR1"
BATCH = 4096
CELL = 8
"""The fewest bytes that a cell takes in memory."""


def is_parquet(path: Path) -> bool:
    """Say whether a file is a Parquet file, by its name or its first bytes."""
    if path.suffix.lower() == ".parquet":
        return True
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def parquet_header(path: Path) -> tuple[Any, tuple[str, ...]]:
    """Open a Parquet file; return it and the names of its columns."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"{path} needs pyarrow to be read: pip install 'unskew[parquet]'.") from None
    try:
        file = parquet.ParquetFile(path)
        nested = [field.name for field in file.schema_arrow if pyarrow.types.is_nested(field.type)]
        names = tuple(name.strip() for name in _stored(file))
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise damaged(path) from error
    if nested:
        raise UserError(
            f"{path} has lists or tables in the column '{nested[0]}': write a column for each value."
        )
    return file, names


def parquet_rows(file: Any, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of every row, from 1 on, and its cells as text."""
    import pyarrow

    limit = most_unpacked(path.stat().st_size)
    done = CELL * file.metadata.num_rows * file.metadata.num_columns
    number = 0
    try:
        for batch in file.iter_batches(batch_size=BATCH, columns=_stored(file)) if done <= limit else ():
            columns = [[_text(value) for value in column.to_pylist()] for column in batch.columns]
            done += sum(max(0, len(text) - CELL) for column in columns for text in column)
            if done > limit:
                break
            for cells in zip(*columns, strict=True):
                number += 1
                yield number, list(cells)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, ValueError, OverflowError) as error:
        if isinstance(error, UserError):
            raise
        raise damaged(path) from error
    if done > limit:
        raise UserError(f"{path} unpacks to more than {limit:,} bytes: give a smaller one.")


def _stored(file: Any) -> list[str]:
    """Return the names of the columns, without the index of row numbers that pandas adds."""
    return [name for name in file.schema_arrow.names if not re.fullmatch(r"__index_level_\d+__", name)]


def _text(value: object) -> str:
    """Return a cell as a CSV file would have it; a missing value is an empty text."""
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return repr(value) if isinstance(value, float) else str(value)


def damaged(path: Path) -> UserError:
    return UserError(f"{path} is not a readable Parquet file: write it again.")
