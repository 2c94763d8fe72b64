"""Runs side by side, each in a forked process of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial

from unskew import record
from unskew.client_tensors import default_limit
from unskew.engines import choose
from unskew.engines.cpu.pool import workers_for
from unskew.errors import UserError
from unskew.experiment import Prepared
from unskew.forked import Forked, Returned, Sent, StopRequest
from unskew.report.read import SavedRun, read_run
from unskew.runs import (
    failure_of,
    write_failure,
)
from unskew.sweep.cells import SweepRun, finished_run, is_finished, run_one
from unskew.sweep.signals import handles_signals, stopping
from unskew.sweep.watcher import Watcher


def at_once(cells: Sequence[SweepRun], log: Sequence[str] = ()) -> int:
    """Return how many of these runs train side by side in processes of this machine: one per core if the
    engine is `pool`, else 1. Runs with loggers train one after another."""
    if len(cells) < 2 or log or not handles_signals():
        return 1
    try:
        engines = {choose(cell.prepared.trial) for cell in cells}
    except UserError:  # the run itself will raise it
        return 1
    return min(len(cells), _workers_of(cells)) if engines == {"pool"} else 1


def _workers_of(cells: Sequence[SweepRun]) -> int:
    """Return how many clients of any of these runs may train at once."""
    return min(workers_for(cell.prepared.trial) for cell in cells)


@dataclass(frozen=True)
class Message:
    """A report from the process of a run to the watcher."""

    notes: Sequence[str] = ()
    skipped: int = 0
    round: tuple[record.RoundRecord, record.ProbeRecord | None] | None = None

    def __call__(self, watch: Watcher) -> None:
        watch.say(self.notes)
        watch.skip(self.skipped)
        if self.round is not None:
            watch(*self.round)


def run_in_processes(
    cells: Sequence[SweepRun], watch: Watcher, processes: int, *, more: bool
) -> list[SavedRun | record.Failure]:
    """Train each cell in a process of its own, `processes` of them at a time, which share the workers. Every
    round is reported to the watcher when it ends."""
    each, rest = divmod(_workers_of(cells), processes)
    shares = [each + (number < rest) for number in range(len(cells))]
    works = [partial(_run_forked, *pair, processes) for pair in zip(cells, shares, strict=True)]
    forked = Forked(works, processes)
    ends: dict[int, SavedRun | record.Failure] = {}
    signals, shown = list[int](), -1
    with stopping(forked.stop, watch, signals), closing(forked.events()) as events:
        for number, event in events:
            cell = cells[number]
            if isinstance(event, Sent):
                if number != shown:
                    watch.label(cell.name)
                    shown = number
                event.message(watch)
            elif isinstance(event, Returned):
                ends[number] = event.value or read_run(cell.folder)
            elif is_finished(cell.folder):  # the process died after the run had ended
                ends[number] = finished_run(cell)
            elif isinstance(event.error, Exception):
                ends[number] = failure = failure_of(event.error)
                with suppress(UserError):  # of a disk that is full, or a folder that is not there
                    write_failure(cell.folder, failure)
            elif not signals:  # such as KeyboardInterrupt from a method's own code
                raise event.error
    if signals and (more or len(ends) < len(cells)):
        raise KeyboardInterrupt
    return [ends[number] for number in range(len(cells))]


class ForwardingWatcher:
    """A watcher that sends each report to the watcher of another process."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send

    def label(self, text: str) -> None:
        """Do nothing: the other process knows which run this is."""

    def say(self, notes: Iterable[str]) -> None:
        self._send(Message(notes=list(notes)))

    def skip(self, rounds: int) -> None:
        self._send(Message(skipped=rounds))

    def __call__(self, line: record.RoundRecord, probe: record.ProbeRecord | None) -> None:
        self._send(Message(round=(line, probe)))


def _run_forked(
    cell: SweepRun, workers: int, processes: int, send: Callable[[Message], None], request: StopRequest
) -> record.Failure | None:
    """Train a cell in this forked process, with so many workers."""
    trial = cell.prepared.trial
    most = trial.client_memory
    if most is None:
        most = default_limit(trial.pick_device()) / 1e9
    trial = replace(trial, workers=workers, client_memory=most / processes)
    mine = replace(cell, prepared=Prepared(cell.prepared.experiment, trial, cell.prepared.method))
    end = run_one(mine, ForwardingWatcher(send), request=request)
    return end if isinstance(end, record.Failure) else None
