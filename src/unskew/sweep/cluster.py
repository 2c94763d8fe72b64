"""Runs on a Ray cluster, one on each worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unskew import record
from unskew.checkpoints import Checkpoints
from unskew.clock import Clock
from unskew.engines.job import LostError
from unskew.engines.ray.connect import connect
from unskew.engines.ray.fleet import RemoteCall, fleet_for
from unskew.engines.ray.payload import Payload, pack, pack_code, unpack
from unskew.errors import Interrupted, UserError
from unskew.experiment import Prepared
from unskew.lock import locked
from unskew.record import to_json
from unskew.report.read import SavedRun, read_run
from unskew.result import Result, Round, State
from unskew.runs import (
    CHECKPOINTS,
    RunFolder,
    check_same,
    environment,
    failure_of,
    time_of,
    write_failure,
    write_whole,
)
from unskew.sweep.cells import SweepRun, for_ray_worker
from unskew.sweep.one_run import checkpoints_in, finish, mark_round, notes_before, report_round, start_loggers
from unskew.sweep.resume import how_to_resume, remove_leftovers
from unskew.sweep.watcher import Watcher
from unskew.train import train
from unskew.trial import Trial


def run_on_cluster(
    cells: Sequence[SweepRun], watch: Watcher, log: Sequence[str]
) -> list[SavedRun | record.Failure]:
    """Train each cell on a worker of the cluster. Records are written here as the cells end; checkpoints are
    written by the workers that can reach the cells' folders."""
    first, ray = cells[0].prepared.trial, connect()
    fleet = fleet_for(
        cuda=first.pick_device().type == "cuda",
        threads=max(cell.prepared.trial.threads for cell in cells),
    )
    workers = fleet.grow(min(len(cells), first.workers or len(cells)))
    each = [for_ray_worker(cell.prepared) for cell in cells]
    folders = [RunFolder(cell.folder, mine) for cell, mine in zip(cells, each, strict=True)]
    for mine in each:
        watch.say(notes_before(mine))
    ends: dict[int, SavedRun | record.Failure] = {}

    def fail(number: int, error: UserError) -> None:
        ends[number] = failure = failure_of(error)
        write_failure(folders[number].path, failure)

    sent: dict[int, RemoteCall] = {}
    for number, mine in enumerate(each):
        try:
            path = str(folders[number].path.absolute())
            sent[number] = RemoteCall(_train, [ray.put(pack_code(mine, "method"))], path)
        except UserError as error:  # it cannot be sent
            fail(number, error)
    numbers = list(sent)
    try:
        with closing(fleet.run(list(sent.values()), workers)) as answers:
            for place, answer in answers:
                number = numbers[place]
                if isinstance(answer, LostError):
                    fail(number, answer)
                    continue
                watch.label(cells[number].name)
                ends[number] = _take(unpack(answer), folders[number], each[number], watch, log)
    except UserError as error:  # no worker starts: what is left cannot run
        for number in sent.keys() - ends.keys():
            fail(number, error)
    except KeyboardInterrupt:
        experiments = [cell.prepared.experiment for cell in cells]
        raise Interrupted(f"stopped; {how_to_resume(cells[0].folder.parent, experiments, log)}") from None
    return [ends[number] for number in range(len(cells))]


@dataclass(frozen=True, eq=False)
class _Done:
    """What a worker sends back after a run."""

    where: record.Environment
    time: record.Time
    rounds: list[Round]
    """The finished ones."""
    end: Result | record.Failure
    notes: list[str]
    """Messages about checkpoints."""


def _take(
    done: _Done, folder: RunFolder, prepared: Prepared, watch: Watcher, log: Sequence[str]
) -> SavedRun | record.Failure:
    """Write the records of a run that a worker has trained."""
    watch.say(done.notes)
    with start_loggers(log, prepared, folder.path, watch) as loggers:
        for round in done.rounds:
            report_round(folder, loggers, watch, round)
        _note_where(folder.path / "environment.json", done.where)
        if isinstance(done.end, Result):
            watch.skip(prepared.trial.budget.rounds - len(done.rounds))
            finish(folder, prepared, done.end, loggers, lambda: done.time)
            remove_leftovers(folder.path)
            return read_run(folder.path)
        loggers.end(None)
    write_failure(folder.path, done.end)
    return done.end


def _train(references: list[Any], value: Payload) -> Payload:
    """Train one run on a worker of the cluster."""
    import ray

    clock, rounds, notes = Clock(), list[Round](), list[str]()
    prepared: Prepared = unpack(ray.get(references[0]))
    where = environment(prepared)

    def on_round(round: Round) -> None:
        rounds.append(round)
        mark_round(clock)

    end: Result | record.Failure
    try:
        with _reachable_checkpoints(Path(unpack(value)), prepared, notes.append) as (trial, checkpoints):
            clock.mark("set-up")
            result = train(trial, prepared.method, on_round=on_round, keeper=checkpoints)
            before = checkpoints.seconds_before if checkpoints else 0.0
            end = _brief(replace(result, seconds=result.seconds + before))
    except Exception as error:  # whatever a method may raise
        end = failure_of(error)
    return pack(_Done(where, time_of(clock), rounds, end, notes))


@contextmanager
def _reachable_checkpoints(
    path: Path, prepared: Prepared, say: Callable[[str], None]
) -> Iterator[tuple[Trial, Checkpoints | None]]:
    """Open the checkpoints in a run's folder and return the trial that uses them, if this machine sees the
    folder and no other worker writes there. Otherwise the run starts from its first round and is not
    checkpointed."""
    with ExitStack() as stack:
        try:
            check_same(path, prepared.experiment)
            (path / CHECKPOINTS).mkdir(exist_ok=True)
            stack.enter_context(locked(path / CHECKPOINTS))
        except (UserError, OSError):
            yield prepared.trial, None
            return
        trial, checkpoints = checkpoints_in(path, prepared, say)
        yield trial, stack.enter_context(closing(checkpoints))


def _brief(result: Result) -> Result:
    """Drop what clients keep from a result, since it may be many times as large as the model and is not
    needed here."""
    return replace(result, state=State(result.state.server), trial=None)


def _note_where(path: Path, where: record.Environment) -> None:
    """Record in environment.json that a run ran on another machine than the one its command was given on."""
    here = record.ENVIRONMENT.parse(path.read_text(encoding="utf-8"))
    commit = here.working_directory_commit
    write_whole(path, to_json(replace(where, command=here.command, working_directory_commit=commit)))
