"""Why a run failed."""

from __future__ import annotations

import traceback
from pathlib import Path

from unskew import record
from unskew.errors import UserError
from unskew.record import to_json
from unskew.runs.write import write_whole


def write_failure(path: Path, failure: record.Failure) -> None:
    """Write error.json, which says why a run's folder has no summary."""
    write_whole(path / "error.json", to_json(failure))


def failure_of(error: Exception) -> record.Failure:
    """Describe an error as a record: its message, and the notes it carries about where it happened. Notes of
    several lines appear in the traceback only."""
    said = " ".join(str(error).split())
    if not isinstance(error, UserError):
        said = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return record.Failure(
        error=said,
        notes=[note for note in getattr(error, "__notes__", ()) if "\n" not in note],
        traceback="".join(traceback.format_exception(error)),
    )
