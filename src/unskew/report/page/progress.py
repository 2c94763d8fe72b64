"""The progress of runs: how many rounds are done, and how long the others will take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unskew.record import Json
from unskew.report.read import SavedRun

RECENT = 10
"""The number of last rounds from which the time of the next ones is estimated."""


def progress(runs: Sequence[SavedRun], coming: Sequence[int] = ()) -> dict[str, Json]:
    """Return the progress of all runs together. `coming` has the number of rounds of each run not begun yet.

    `total` is the number of rounds when all runs will have ended. `left` is the estimated time in seconds,
    None if it cannot be estimated. `pace` is the seconds of a round of the slowest run under way. `changed`
    is when a round was last written, None before the first one.
    """
    waiting = [run for run in runs if not run.over]
    paces = [pace for run in runs if (pace := _pace(run)) is not None]
    left = [_left(run, runs) for run in waiting]
    left += [rounds * sum(paces) / len(paces) if paces else None for rounds in coming]
    known = [seconds for seconds in left if seconds is not None]
    return {
        "runs": len(runs) + len(coming),
        "done": sum(run.done for run in runs),
        "total": sum(run.done if run.over else run.total_rounds for run in runs) + sum(coming),
        "failed": sum(run.failure is not None for run in runs),
        "finished": bool(runs) and not waiting and not coming,
        "left": round(sum(known), 1) if len(known) == len(left) else None,
        "pace": max((pace for run in waiting if (pace := _pace(run)) is not None), default=None),
        "changed": max((time for run in runs if (time := _changed(run.path)) is not None), default=None),
    }


def _left(run: SavedRun, runs: Sequence[SavedRun]) -> float | None:
    """Estimate the seconds until a run ends; None if no run has a pace.

    Before its first round, a run is given the mean pace of the runs with its method, or else of all runs.
    """
    pace = _pace(run)
    if pace is None:
        paces = [(other.label == run.label, pace) for other in runs if (pace := _pace(other)) is not None]
        likely = [pace for same, pace in paces if same] or [pace for _, pace in paces]
        pace = sum(likely) / len(likely) if likely else None
    return None if pace is None else pace * (run.total_rounds - run.done)


def _pace(run: SavedRun) -> float | None:
    """Return the seconds of a round, including its share of the probes."""
    if not run.rounds:
        return None
    recent = [line.seconds for line in run.rounds[-RECENT:]]
    probing = sum(probe.seconds for probe in run.probes) / run.done
    return sum(recent) / len(recent) + probing


def _changed(path: Path) -> float | None:
    try:
        return (path / "rounds.jsonl").stat().st_mtime
    except OSError:
        return None
