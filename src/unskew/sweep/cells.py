"""One run of a sweep, and how it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unskew import record
from unskew.engines.ray.engine import for_worker
from unskew.errors import UserError
from unskew.experiment import Prepared
from unskew.forked import StopRequest
from unskew.report.read import SavedRun, read_own_run
from unskew.runs import (
    check_partition,
    failure_of,
)
from unskew.sweep.one_run import execute
from unskew.sweep.resume import remove_leftovers
from unskew.sweep.watcher import Watcher


@dataclass(frozen=True, eq=False)
class SweepRun:
    """One run of a sweep."""

    name: str
    """What the watcher calls it."""
    folder: Path
    prepared: Prepared

    @property
    def identity(self) -> str:
        """The identity of the experiment as it will run: on a cluster, with the engine of a worker."""
        on_cluster = self.prepared.trial.engine == "ray"
        return (for_ray_worker(self.prepared) if on_cluster else self.prepared).experiment.identity()


def is_finished(folder: Path) -> bool:
    """Say whether a folder holds a run that has ended with a summary."""
    return (folder / "summary.json").is_file()


def finished_run(cell: SweepRun) -> SavedRun | record.Failure:
    """Read the finished run in a cell's folder; it is a failure if it is of another experiment or of other
    data."""
    try:
        run = read_own_run(cell.folder)
        if run.summary is None or run.summary.identity != cell.identity:
            raise UserError(
                f"the finished run in {cell.folder} is another experiment than the one asked for: choose "
                "another folder with --out."
            )
        check_partition(cell.folder / "partition.json", cell.prepared.trial.federation)
    except UserError as error:
        return failure_of(error)
    remove_leftovers(cell.folder)  # of a run that was killed right after its summary was written
    return run


def run_one(
    cell: SweepRun,
    watch: Watcher,
    log: Sequence[str] = (),
    *,
    last: bool = True,
    request: StopRequest | None = None,
) -> SavedRun | record.Failure:
    """Train one cell, or read its result if another process has finished it meanwhile."""
    watch.label(cell.name)
    if is_finished(cell.folder):
        watch.skip(cell.prepared.trial.budget.rounds)
        return finished_run(cell)
    try:
        return execute(cell.prepared, cell.folder, watch, log, last=last, request=request)
    except Exception as error:  # whatever a method may raise
        return failure_of(error)


def for_ray_worker(prepared: Prepared) -> Prepared:
    trial = for_worker(prepared.trial)
    settings = prepared.experiment.model_copy(update={"engine": trial.engine, "device": trial.device})
    return Prepared(settings, trial, prepared.method)
