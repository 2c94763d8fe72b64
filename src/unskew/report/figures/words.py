"""What figures say of the runs they show."""

from __future__ import annotations

from collections.abc import Sequence

from unskew.errors import UserError
from unskew.record import Summary
from unskew.report.read import Run


def conditions(runs: Sequence[Run]) -> str:
    """The conditions that all runs share; nothing where they differ."""
    every = {run.conditions for run in runs}
    return every.pop() if len(every) == 1 else ""


def heading(runs: Sequence[Run], title: str | None) -> str:
    """The title that was asked for, or else the conditions."""
    return conditions(runs) if title is None else title


def finished(run: Run) -> Summary:
    """The summary of a run that has ended."""
    if run.summary is None:
        raise UserError(
            f"{run.path} has no summary.json, which is written when a run ends: wait for it, or give another."
        )
    return run.summary
