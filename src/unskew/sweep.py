"""Prepared experiments, each into its folder: one after another, or side by side on a Ray cluster."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from unskew import record
from unskew.clock import Clock
from unskew.engines import compiles
from unskew.engines.job import LostError
from unskew.engines.ray.connect import connect
from unskew.engines.ray.engine import for_worker
from unskew.engines.ray.fleet import RemoteCall, fleet_for
from unskew.engines.ray.payload import Payload, pack, pack_code, unpack
from unskew.errors import Interrupted, UserError
from unskew.experiment import Prepared
from unskew.loggers import Log
from unskew.record import to_json
from unskew.runs import FIRST_ROUND, ROUNDS, RunFolder, environment, failure_of, time_of, write_whole
from unskew.train import Result, Round, State, train

CLIENT_FILES = "clients"
"""The folder in a run's folder for what clients keep beyond memory, while the run is under way."""


@dataclass(frozen=True, eq=False)
class SweepRun:
    """One run of a sweep."""

    name: str
    """For who watches."""
    folder: Path
    prepared: Prepared

    @property
    def identity(self) -> str:
        """Of the experiment as it will run: on a cluster, by the engine of a worker."""
        on_cluster = self.prepared.trial.engine == "ray"
        return (_for_worker(self.prepared) if on_cluster else self.prepared).experiment.identity()


class Watcher(Protocol):
    """Who is told how a sweep goes."""

    def label(self, text: str, /) -> None: ...

    def say(self, notes: Iterable[str], /) -> None: ...

    def __call__(self, line: record.Round, probe: record.Probe | None, /) -> None:
        """A round, as it stands in rounds.jsonl and probes.jsonl."""


Finished = tuple[Result, record.Summary]
"""A result and its summary."""


def sweep(
    cells: Sequence[SweepRun], watch: Watcher, log: Sequence[str] = ()
) -> list[Finished | record.Failure]:
    """Run all cells, each with the loggers named. What they came to is in their order: outcomes, which hold
    no state of the clients, and failures, which keep no other cell from running."""
    if any(cell.prepared.trial.engine == "ray" for cell in cells):
        return _side_by_side(cells, watch, log)
    ends: list[Finished | record.Failure] = []
    for cell in cells:
        watch.label(cell.name)
        try:
            result, summary = execute(cell.prepared, cell.folder, watch, log)
            ends.append((_brief(result), summary))
        except Exception as error:  # whatever a method may raise
            ends.append(failure_of(error))
    return ends


def execute(
    prepared: Prepared, path: Path, watch: Watcher, log: Sequence[str] = (), clock: Clock | None = None
) -> Finished:
    """Train in a new run folder, with the loggers named. A run that is interrupted keeps the rounds it
    finished, and one that fails writes down why. The clock, by default one from now on, tells the summary
    where the time went."""
    clock = clock or Clock()
    folder = RunFolder(path, prepared)
    watch.say(_beforehand(prepared))
    try:
        with _loggers(log, prepared, path, watch) as loggers:
            clock.mark("set-up")
            timed = partial(_timed, clock, partial(_tell, folder, loggers, watch))
            trial = replace(prepared.trial, client_files=path / CLIENT_FILES)
            result = train(trial, prepared.method, on_round=timed)
            finished = _finish(folder, prepared, result, loggers, partial(time_of, clock))
            shutil.rmtree(path / CLIENT_FILES, ignore_errors=True)  # open as they are, they can still be read
            return finished
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; the rounds that were finished are in {path}.") from None
    except Exception as error:
        folder.fail(failure_of(error))
        raise


def _timed(clock: Clock, on_round: Callable[[Round], None], round: Round) -> None:
    on_round(round)
    clock.mark(ROUNDS if FIRST_ROUND in clock.parts else FIRST_ROUND)


def _beforehand(prepared: Prepared) -> Iterator[str]:
    """What to know before the numbers come."""
    trial = prepared.trial
    yield from prepared.method.notes
    if compiles(trial):
        yield (
            "fast=true compiles the step in the first round, for minutes if the network is deep; later runs "
            "find it in PyTorch's cache."
        )
    elif trial.fast:
        yield "fast=true changes nothing here: it is for the graphs engine on a GPU."


def _loggers(names: Sequence[str], prepared: Prepared, path: Path, watch: Watcher) -> Log:
    experiment = prepared.experiment
    return Log(
        names,
        settings=experiment.model_dump(exclude_none=True),
        classes=prepared.trial.federation.dataset.classes,
        folder=path,
        name=f"{experiment.method.brief()} seed {experiment.seed}",
        say=watch.say,
    )


def _tell(folder: RunFolder, loggers: Log, watch: Watcher, round: Round) -> None:
    lines = folder.append(round)
    loggers.round(*lines)
    watch(*lines)


def _finish(
    folder: RunFolder, prepared: Prepared, result: Result, loggers: Log, time: Callable[[], record.Time]
) -> Finished:
    summary = folder.finish(prepared, replace(result, notes=(*result.notes, *loggers.notes)), time)
    loggers.end(summary)
    return replace(result, notes=(*result.notes, *loggers.notes)), summary


def _side_by_side(
    cells: Sequence[SweepRun], watch: Watcher, log: Sequence[str]
) -> list[Finished | record.Failure]:
    """A cell to each worker of the cluster. Folders are written here, as the cells end."""
    first, ray = cells[0].prepared.trial, connect()
    workers = fleet_for(
        cuda=first.pick_device().type == "cuda",
        threads=max(cell.prepared.trial.threads for cell in cells),
        limit=first.workers,
    )
    workers.grow(len(cells))
    each = [_for_worker(cell.prepared) for cell in cells]
    folders = [RunFolder(cell.folder, mine) for cell, mine in zip(cells, each, strict=True)]
    for mine in each:
        watch.say(_beforehand(mine))
    ends: dict[int, Finished | record.Failure] = {}

    def fail(number: int, error: UserError) -> None:
        ends[number] = failure = failure_of(error)
        folders[number].fail(failure)

    sent: dict[int, RemoteCall] = {}
    for number, mine in enumerate(each):
        try:
            sent[number] = RemoteCall(_train, [ray.put(pack_code(mine, "method"))], None)
        except UserError as error:  # it cannot be sent
            fail(number, error)
    numbers = list(sent)
    try:
        with closing(workers.run(list(sent.values()))) as answers:
            for place, answer in answers:
                number = numbers[place]
                if isinstance(answer, LostError):
                    fail(number, answer)
                    continue
                watch.label(cells[number].name)
                ends[number] = _take(unpack(answer), folders[number], each[number], watch, log)
    except UserError as error:  # no worker starts: nobody will run what is left
        for number in sent.keys() - ends.keys():
            fail(number, error)
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; the runs that were finished are in {cells[0].folder.parent}.") from None
    return [ends[number] for number in range(len(cells))]


@dataclass(frozen=True, eq=False)
class _Done:
    """What a worker tells of a run."""

    where: record.Environment
    time: record.Time
    rounds: list[Round]
    """Those that were finished."""
    end: Result | record.Failure


def _take(
    done: _Done, folder: RunFolder, prepared: Prepared, watch: Watcher, log: Sequence[str]
) -> Finished | record.Failure:
    """Write down what a worker tells."""
    with _loggers(log, prepared, folder.path, watch) as loggers:
        for round in done.rounds:
            _tell(folder, loggers, watch, round)
        _note_where(folder.path / "environment.json", done.where)
        if isinstance(done.end, Result):
            return _finish(folder, prepared, done.end, loggers, lambda: done.time)
        loggers.end(None)
    folder.fail(done.end)
    return done.end


def _for_worker(prepared: Prepared) -> Prepared:
    trial = for_worker(prepared.trial)
    settings = prepared.experiment.model_copy(update={"engine": trial.engine, "device": trial.device})
    return Prepared(settings, trial, prepared.method)


def _train(sent: list[Any], value: Payload) -> Payload:
    """Train one run in a worker of the cluster."""
    import ray

    clock, rounds = Clock(), list[Round]()
    prepared: Prepared = unpack(ray.get(sent[0]))
    where = environment(prepared)
    clock.mark("set-up")
    try:
        on_round = partial(_timed, clock, rounds.append)
        end: Result | record.Failure = _brief(train(prepared.trial, prepared.method, on_round=on_round))
    except Exception as error:  # whatever a method may raise
        end = failure_of(error)
    return pack(_Done(where, time_of(clock), rounds, end))


def _brief(result: Result) -> Result:
    """What the clients remember may be many times as large as the model, and nobody asks for it here."""
    return replace(result, state=State(result.state.server))


def _note_where(path: Path, where: record.Environment) -> None:
    """That a run ran in another place than its command was given."""
    here = record.ENVIRONMENT.parse(path.read_text())
    commit = here.working_directory_commit
    write_whole(path, to_json(replace(where, command=here.command, working_directory_commit=commit)))
