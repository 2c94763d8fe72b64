"""The words in figures about the runs that they show."""

from __future__ import annotations

from collections.abc import Sequence

from unskew.errors import UserError
from unskew.record import Summary
from unskew.report.conditions import by_condition, in_common
from unskew.report.read import SavedRun


def heading(runs: Sequence[SavedRun], title: str | None) -> str:
    """Return the given title, or if it is None, the conditions that all runs share and their seeds."""
    if title is not None:
        return title
    every = {run.conditions for run in runs}
    shared = every.pop() if len(every) == 1 else in_common(runs)
    return ", ".join(part for part in (shared, seeds_of(runs)) if part)


def seeds_of(runs: Sequence[SavedRun]) -> str:
    """Say how many seeds each method has under its condition, or if it is one, which."""
    groups = [[run.seed for run in seeds] for part in by_condition(runs) for seeds in part.methods.values()]
    least, most = min(map(len, groups)), max(map(len, groups))
    if most == 1:
        seeds = sorted({seed for group in groups for seed in group})
        return f"seed {seeds[0]}" if len(seeds) == 1 else f"one seed each ({', '.join(map(str, seeds))})"
    return f"{most} seeds" if least == most else f"{least} to {most} seeds"


def finished(run: SavedRun) -> Summary:
    """Return the summary of a run; a UserError if the run has not ended."""
    if run.summary is None:
        raise UserError(
            f"{run.path} has no summary.json, which is written when a run ends: wait for it, or give another."
        )
    return run.summary
