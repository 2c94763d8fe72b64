"""Prepared experiments, each into its folder: one after another, or side by side on a Ray cluster."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from unskew.engines import compiles
from unskew.engines.ray.connect import connect
from unskew.engines.ray.engine import for_worker
from unskew.engines.ray.fleet import RemoteCall, fleet_for
from unskew.engines.ray.payload import Payload, pack, pack_code, unpack
from unskew.errors import Interrupted
from unskew.experiment import Prepared
from unskew.loggers import Log
from unskew.runs import Json, RunFolder, environment, to_json, write_whole
from unskew.train import Result, Round, State, train


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of a sweep."""

    name: str
    """For who watches."""
    folder: Path
    prepared: Prepared


class Watcher(Protocol):
    """Who is told how a sweep goes."""

    def label(self, text: str, /) -> None: ...

    def say(self, notes: Iterable[str], /) -> None: ...

    def __call__(self, record: dict[str, Json], probe: dict[str, Json] | None, /) -> None:
        """A round, as it stands in rounds.jsonl and probes.jsonl."""


Outcome = tuple[Result, dict[str, Json]]
"""A result and its summary."""


def sweep(cells: Sequence[Cell], watch: Watcher, log: Sequence[str] = ()) -> list[Outcome]:
    """Run all cells, each with the loggers named; the outcomes are in their order, and hold no state of the
    clients."""
    if any(cell.prepared.trial.engine == "ray" for cell in cells):
        return _side_by_side(cells, watch, log)
    outcomes: list[Outcome] = []
    for cell in cells:
        watch.label(cell.name)
        result, summary = execute(cell.prepared, cell.folder, watch, log)
        outcomes.append((_brief(result), summary))
    return outcomes


def execute(prepared: Prepared, path: Path, watch: Watcher, log: Sequence[str] = ()) -> Outcome:
    """Train in a new run folder, with the loggers named; a run that is interrupted keeps the rounds it
    finished."""
    folder = RunFolder(path, prepared)
    watch.say(_beforehand(prepared))
    try:
        with _loggers(log, prepared, path, watch) as loggers:
            on_round = partial(_tell, folder, loggers, watch)
            result = train(prepared.trial, prepared.method, on_round=on_round)
            return _finish(folder, prepared, result, loggers)
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; the rounds that were finished are in {path}.") from None


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


def _finish(folder: RunFolder, prepared: Prepared, result: Result, loggers: Log) -> Outcome:
    summary = folder.finish(prepared, replace(result, notes=(*result.notes, *loggers.notes)))
    loggers.end(summary)
    return replace(result, notes=(*result.notes, *loggers.notes)), summary


def _side_by_side(cells: Sequence[Cell], watch: Watcher, log: Sequence[str]) -> list[Outcome]:
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
    calls = [RemoteCall(_train, [ray.put(pack_code(mine, "method"))], None) for mine in each]
    outcomes: dict[int, Outcome] = {}
    try:
        with closing(workers.run(calls)) as answers:
            for number, answer in answers:
                result, where = unpack(answer)
                watch.label(cells[number].name)
                with _loggers(log, each[number], folders[number].path, watch) as loggers:
                    for round in result.rounds:
                        _tell(folders[number], loggers, watch, round)
                    _note_where(folders[number].path / "environment.json", where)
                    outcomes[number] = _finish(folders[number], each[number], result, loggers)
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; the runs that were finished are in {cells[0].folder.parent}.") from None
    return [outcomes[number] for number in range(len(cells))]


def _for_worker(prepared: Prepared) -> Prepared:
    trial = for_worker(prepared.trial)
    settings = prepared.experiment.model_copy(update={"engine": trial.engine, "device": trial.device})
    return Prepared(settings, trial, prepared.method)


def _train(sent: list[Any], value: Payload) -> Payload:
    """In a worker."""
    import ray

    prepared: Prepared = unpack(ray.get(sent[0]))
    where = environment(prepared.trial.pick_device())
    return pack((_brief(train(prepared.trial, prepared.method)), where))


def _brief(result: Result) -> Result:
    """What the clients remember may be many times as large as the model, and nobody asks for it here."""
    return replace(result, state=State(result.state.server))


def _note_where(path: Path, where: dict[str, Json]) -> None:
    """That a run ran in another place than its command was given."""
    here = json.loads(path.read_text())
    mine = {key: here[key] for key in ("command", "working_directory_commit")}
    write_whole(path, to_json(where | mine))
