"""Run several experiments: on a cluster, side by side in processes, or one after another."""

from __future__ import annotations

from collections.abc import Sequence

from unskew import record
from unskew.report.read import SavedRun
from unskew.sweep.cells import SweepRun, finished_run, is_finished, run_one
from unskew.sweep.cluster import run_on_cluster
from unskew.sweep.processes import at_once, run_in_processes
from unskew.sweep.signals import sigterm_as_ctrl_c
from unskew.sweep.watcher import Watcher


def sweep(
    cells: Sequence[SweepRun], watch: Watcher, log: Sequence[str] = (), *, more: bool = False
) -> list[SavedRun | record.Failure]:
    """Run all cells, and log to the named loggers. Return a finished run or a failure for each cell, in their
    order; a failure does not keep other cells from running. Runs that are finished already are not repeated,
    and runs that were stopped are resumed. `more` says that other sweeps follow, which a request to stop ends
    too."""
    left = [cell for cell in cells if not is_finished(cell.folder)]
    if any(cell.prepared.trial.engine == "ray" for cell in left):
        ends = dict(zip(left, run_on_cluster(left, watch, log), strict=True))
    elif (processes := at_once(left, log)) > 1:
        ends = dict(zip(left, run_in_processes(left, watch, processes, more=more), strict=True))
    else:
        with sigterm_as_ctrl_c():
            ends = {cell: run_one(cell, watch, log, last=not more and cell is left[-1]) for cell in left}
    return [ends[cell] if cell in ends else finished_run(cell) for cell in cells]
