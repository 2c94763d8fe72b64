"""Prepared experiments, each into its folder: side by side on the cores of this machine or on a Ray cluster,
or one after another."""

from __future__ import annotations

import shlex
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from unskew import record
from unskew.checkpoints import Checkpoints
from unskew.client_tensors import default_limit
from unskew.clock import Clock
from unskew.engines import FLOWER, choose, compiles
from unskew.engines.cpu.pool import workers_for
from unskew.engines.job import LostError
from unskew.engines.ray.connect import connect
from unskew.engines.ray.engine import for_worker
from unskew.engines.ray.fleet import RemoteCall, fleet_for
from unskew.engines.ray.payload import Payload, pack, pack_code, unpack
from unskew.errors import Interrupted, UserError
from unskew.experiment import Experiment, Prepared, Resolved
from unskew.forked import Forked, Returned, Sent, StopRequest
from unskew.lock import NAME as LOCK
from unskew.lock import locked
from unskew.loggers import Log
from unskew.program import MakeRun
from unskew.record import to_json
from unskew.report.read import SavedRun, read_own_run, read_run
from unskew.result import Result, Round, State
from unskew.runs import (
    CHECKPOINTS,
    EMPTY,
    FIRST_ROUND,
    ROUNDS,
    RunFolder,
    check_partition,
    check_same,
    claim,
    environment,
    failure_of,
    time_of,
    write_failure,
    write_whole,
)
from unskew.train import train
from unskew.trial import Trial

CLIENT_FILES = "clients"
"""Folders in a run's folder while the run is under way: its checkpoints, and what clients keep."""


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
    """Somebody who follows how a sweep goes."""

    def label(self, text: str, /) -> None: ...

    def say(self, notes: Iterable[str], /) -> None: ...

    def skip(self, rounds: int, /) -> None:
        """A run has ended so many rounds early."""

    def __call__(self, line: record.RoundRecord, probe: record.ProbeRecord | None, /) -> None:
        """A round, as it stands in rounds.jsonl and probes.jsonl."""


def sweep(
    cells: Sequence[SweepRun], watch: Watcher, log: Sequence[str] = (), *, more: bool = False
) -> list[SavedRun | record.Failure]:
    """Run all cells, each with the loggers named. What they came to is in their order: runs as their folders
    have them, and failures, which keep no other cell from running. What is finished already is not run again,
    what was stopped is resumed. `more` says that other sweeps follow, which a request to stop is for too."""
    left = [cell for cell in cells if not is_finished(cell.folder)]
    if any(cell.prepared.trial.engine == "ray" for cell in left):
        ends = dict(zip(left, _on_cluster(left, watch, log), strict=True))
    elif (processes := at_once(left, log)) > 1:
        ends = dict(zip(left, _in_processes(left, watch, processes, more=more), strict=True))
    else:
        with _termination_as_ctrl_c():
            ends = {cell: _end(cell, watch, log, last=not more and cell is left[-1]) for cell in left}
    return [ends[cell] if cell in ends else _finished(cell) for cell in cells]


def at_once(cells: Sequence[SweepRun], log: Sequence[str] = ()) -> int:
    """How many of these runs train side by side in processes of this machine: as many as have a core, where
    the engine is `pool`. Loggers are told of one run after another."""
    if len(cells) < 2 or log or not _handles_signals():
        return 1
    try:
        engines = {choose(cell.prepared.trial) for cell in cells}
    except UserError:  # which the run itself will tell
        return 1
    return min(len(cells), _workers(cells)) if engines == {"pool"} else 1


def _workers(cells: Sequence[SweepRun]) -> int:
    """How many clients of any of these runs may train at once."""
    return min(workers_for(cell.prepared.trial) for cell in cells)


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a run that has ended with a summary."""
    return (folder / "summary.json").is_file()


def _finished(cell: SweepRun) -> SavedRun | record.Failure:
    """The finished run in a cell's folder, where that is the same experiment on the same data."""
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
    remove_leftovers(cell.folder)  # of one that was killed when it had just finished
    return run


def _end(
    cell: SweepRun,
    watch: Watcher,
    log: Sequence[str] = (),
    *,
    last: bool = True,
    request: StopRequest | None = None,
) -> SavedRun | record.Failure:
    watch.label(cell.name)
    if is_finished(cell.folder):  # by another process, meanwhile
        watch.skip(cell.prepared.trial.budget.rounds)
        return _finished(cell)
    try:
        return execute(cell.prepared, cell.folder, watch, log, last=last, request=request)
    except Exception as error:  # whatever a method may raise
        return failure_of(error)


def execute(
    prepared: Prepared,
    path: Path,
    watch: Watcher,
    log: Sequence[str] = (),
    clock: Clock | None = None,
    *,
    last: bool = True,
    make_run: MakeRun | None = None,
    request: StopRequest | None = None,
) -> SavedRun:
    """Train in a run folder, with the loggers named: a new one, or one in which the same experiment was
    stopped. A run that is interrupted ends its round first and can be resumed, and so can one that
    fails, which writes down why. The clock, by default one from now on, tells the summary where the time
    went. Where it is not the `last` of several, it is interrupted also when it has just ended or failed.
    `make_run` is that of `train`. With a `request`, that one and no signal asks the run to stop."""
    clock, signals = clock or Clock(), list[int]()
    stopped = Interrupted(f"stopped; {how_to_resume(path, [prepared.experiment], log)}")
    with run_folder(path, prepared, log) as folder:
        try:
            watch.say([*_beforehand(prepared), *folder.notes])
            with _loggers(log, prepared, path, watch) as loggers:
                try:
                    _train_in(folder, prepared, watch, loggers, clock, make_run, signals, request)
                except SystemExit as error:  # of a method's code: it is not to end this process in silence
                    raise RuntimeError(f"the code ended by {error!r}") from error
        except Interrupted:
            raise
        except KeyboardInterrupt:
            raise stopped from None
        except Exception as error:
            with suppress(UserError):  # of a disk that is full
                write_failure(path, failure_of(error))
            if signals and not last:
                raise stopped from error
            raise
    if signals and not last:
        raise stopped
    return read_run(path)


@contextmanager
def run_folder(path: Path, resolved: Resolved, log: Sequence[str] = ()) -> Iterator[RunFolder]:
    """The folder of a run, which nobody else writes to meanwhile. Where it cannot be made a run's, what was
    empty is left empty, and what is new is taken away."""
    new = not path.exists()
    claim(path)
    try:
        with locked(path):
            empty = claim(path) == EMPTY  # asked again, since nobody else changes it from here on
            try:
                folder = RunFolder(path, resolved)
            except BaseException as error:
                for each in path.iterdir() if empty else ():
                    if each.name != LOCK:
                        each.unlink(missing_ok=True)
                if isinstance(error, KeyboardInterrupt) and not empty:
                    raise Interrupted(f"stopped; {how_to_resume(path, [resolved.experiment], log)}") from None
                raise
            yield folder
    except BaseException:
        if new:
            with suppress(OSError):  # it is not empty
                path.rmdir()
        raise


def _train_in(
    folder: RunFolder,
    prepared: Prepared,
    watch: Watcher,
    loggers: Log,
    clock: Clock,
    make_run: MakeRun | None,
    signals: list[int],
    request: StopRequest | None,
) -> None:
    """Train and write everything down; `signals` comes to hold those that asked to stop."""
    path, done = folder.path, 0
    trial, kept = _checkpoints_in(path, prepared, lambda sentence: watch.say([sentence]))

    def on_round(round: Round) -> None:
        nonlocal done
        done = round.number
        _tell(folder, loggers, watch, round)
        _mark_round(clock)

    def stopped() -> Interrupted:
        so_far = f" after round {done} of {trial.budget.rounds}" if done else ""
        return Interrupted(f"stopped{so_far}; {how_to_resume(path, [prepared.experiment], loggers.names)}")

    with closing(kept) as checkpoints:
        clock.mark("set-up")
        stop = partial(checkpoints.stop, stopped)
        with stopping(stop, watch, signals) if request is None else request.listening(stop):
            result = train(trial, prepared.method, on_round=on_round, keeper=checkpoints, make_run=make_run)
            watch.skip(trial.budget.rounds - len(result.rounds))
            result = replace(
                result,
                notes=(*result.notes, *folder.notes),
                seconds=result.seconds + checkpoints.seconds_before,
            )
            _finish(folder, prepared, result, loggers, partial(time_of, clock))
    remove_leftovers(path)  # open as they are, clients' files can still be read


def _checkpoints_in(path: Path, prepared: Prepared, say: Callable[[str], None]) -> tuple[Trial, Checkpoints]:
    """The checkpoints in a run's folder, and the trial whose clients keep their files there."""
    experiment, trial = prepared.experiment, replace(prepared.trial, client_files=path / CLIENT_FILES)
    every, identity = experiment.checkpoint, experiment.identity()
    return trial, Checkpoints(path / CHECKPOINTS, trial, identity, every=every, say=say)


def _handles_signals() -> bool:
    """Whether signals are handled in this thread: they are in no other than the first."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def _termination_as_ctrl_c() -> Iterator[None]:
    """Let a request to terminate that comes between two runs raise what Ctrl-C does, which says how to go
    on."""
    if not _handles_signals() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def stopping(stop: Callable[[], None], watch: Watcher, came: list[int]) -> Iterator[None]:
    """Let Ctrl-C and a request to terminate end the present round first; the second one stops at once. The
    list gets the signals that came."""
    if not _handles_signals():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handled = [number for number, handler in before.items() if handler is not signal.SIG_IGN]

    def handle(number: int, _: object) -> None:
        came.append(number)
        for each in handled:
            signal.signal(each, signal.default_int_handler)
        stop()
        watch.say(["stopping after this round; press Ctrl-C again to stop at once."])

    try:
        for number in handled:
            signal.signal(number, handle)
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number] or signal.SIG_DFL)


def remove_leftovers(path: Path) -> None:
    """Remove what a finished run does not need any more."""
    for name in (CHECKPOINTS, CLIENT_FILES):
        shutil.rmtree(path / name, ignore_errors=True)


def how_to_resume(path: Path, experiments: Iterable[Experiment], log: Sequence[str] = ()) -> str:
    """What to do about runs that have stopped, and that were told to these loggers."""
    experiments = list(experiments)
    if any(each.engine == FLOWER for each in experiments):
        return f"resume with the same flwr run and federation.out={shlex.quote(str(path))}"
    return f"resume with: {resume_command(path, experiments, log)}"


def resume_command(path: Path, experiments: Iterable[Experiment], log: Sequence[str] = ()) -> str:
    """The command that resumes these experiments in a folder, and tells these loggers of them."""
    code = dict.fromkeys(flag for each in experiments for flag in each.code())
    loggers = [f"--log {','.join(log)}"] if log else []
    return " ".join(["unskew resume", shlex.quote(str(path)), *code, *loggers])


def _mark_round(clock: Clock) -> None:
    clock.mark(ROUNDS if FIRST_ROUND in clock.parts else FIRST_ROUND)


def _beforehand(prepared: Prepared) -> Iterator[str]:
    """What to know before the numbers come."""
    trial = prepared.trial
    yield from trial.start_notes
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
) -> None:
    summary = folder.finish(prepared, replace(result, notes=(*result.notes, *loggers.notes)), time)
    loggers.end(summary)


@dataclass(frozen=True)
class Message:
    """One thing that a watcher is told by another process."""

    notes: Sequence[str] = ()
    skipped: int = 0
    round: tuple[record.RoundRecord, record.ProbeRecord | None] | None = None

    def __call__(self, watch: Watcher) -> None:
        watch.say(self.notes)
        watch.skip(self.skipped)
        if self.round is not None:
            watch(*self.round)


def _in_processes(
    cells: Sequence[SweepRun], watch: Watcher, processes: int, *, more: bool
) -> list[SavedRun | record.Failure]:
    """Each cell in a process of its own, so many at once, which share the workers. Watchers are told of every
    round as it comes."""
    each, rest = divmod(_workers(cells), processes)
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
            elif is_finished(cell.folder):  # it died after that
                ends[number] = _finished(cell)
            elif isinstance(event.error, Exception):
                ends[number] = failure = failure_of(event.error)
                with suppress(UserError):  # of a disk that is full, or a folder that is not there
                    write_failure(cell.folder, failure)
            elif not signals:  # a method's code has raised it, as in one process
                raise event.error
    if signals and (more or len(ends) < len(cells)):
        raise KeyboardInterrupt
    return [ends[number] for number in range(len(cells))]


class _Sender:
    """Sends what a watcher is told to the watcher of another process."""

    def __init__(self, tell: Callable[[Message], None]) -> None:
        self._tell = tell

    def label(self, text: str) -> None:
        """The watcher of the other process knows the run already."""

    def say(self, notes: Iterable[str]) -> None:
        self._tell(Message(notes=list(notes)))

    def skip(self, rounds: int) -> None:
        self._tell(Message(skipped=rounds))

    def __call__(self, line: record.RoundRecord, probe: record.ProbeRecord | None) -> None:
        self._tell(Message(round=(line, probe)))


def _run_forked(
    cell: SweepRun, workers: int, processes: int, tell: Callable[[Message], None], request: StopRequest
) -> record.Failure | None:
    """Run a cell in a process of its own, beside others, with so many workers."""
    trial = cell.prepared.trial
    most = trial.client_memory
    if most is None:
        most = default_limit(trial.pick_device()) / 1e9
    trial = replace(trial, workers=workers, client_memory=most / processes)
    mine = replace(cell, prepared=Prepared(cell.prepared.experiment, trial, cell.prepared.method))
    end = _end(mine, _Sender(tell), request=request)
    return end if isinstance(end, record.Failure) else None


def _on_cluster(
    cells: Sequence[SweepRun], watch: Watcher, log: Sequence[str]
) -> list[SavedRun | record.Failure]:
    """A cell to each worker of the cluster. Records are written here, as the cells end; checkpoints by the
    workers that can reach the cells' folders."""
    first, ray = cells[0].prepared.trial, connect()
    fleet = fleet_for(
        cuda=first.pick_device().type == "cuda",
        threads=max(cell.prepared.trial.threads for cell in cells),
    )
    workers = fleet.grow(min(len(cells), first.workers or len(cells)))
    each = [_for_worker(cell.prepared) for cell in cells]
    folders = [RunFolder(cell.folder, mine) for cell, mine in zip(cells, each, strict=True)]
    for mine in each:
        watch.say(_beforehand(mine))
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
    except UserError as error:  # no worker starts: nobody will run what is left
        for number in sent.keys() - ends.keys():
            fail(number, error)
    except KeyboardInterrupt:
        experiments = [cell.prepared.experiment for cell in cells]
        raise Interrupted(f"stopped; {how_to_resume(cells[0].folder.parent, experiments, log)}") from None
    return [ends[number] for number in range(len(cells))]


@dataclass(frozen=True, eq=False)
class _Done:
    """What a worker tells of a run."""

    where: record.Environment
    time: record.Time
    rounds: list[Round]
    """Those that were finished."""
    end: Result | record.Failure
    notes: list[str]
    """What was said of checkpoints."""


def _take(
    done: _Done, folder: RunFolder, prepared: Prepared, watch: Watcher, log: Sequence[str]
) -> SavedRun | record.Failure:
    """Write down what a worker tells."""
    watch.say(done.notes)
    with _loggers(log, prepared, folder.path, watch) as loggers:
        for round in done.rounds:
            _tell(folder, loggers, watch, round)
        _note_where(folder.path / "environment.json", done.where)
        if isinstance(done.end, Result):
            watch.skip(prepared.trial.budget.rounds - len(done.rounds))
            _finish(folder, prepared, done.end, loggers, lambda: done.time)
            remove_leftovers(folder.path)
            return read_run(folder.path)
        loggers.end(None)
    write_failure(folder.path, done.end)
    return done.end


def _for_worker(prepared: Prepared) -> Prepared:
    trial = for_worker(prepared.trial)
    settings = prepared.experiment.model_copy(update={"engine": trial.engine, "device": trial.device})
    return Prepared(settings, trial, prepared.method)


def _train(sent: list[Any], value: Payload) -> Payload:
    """Train one run in a worker of the cluster."""
    import ray

    clock, rounds, notes = Clock(), list[Round](), list[str]()
    prepared: Prepared = unpack(ray.get(sent[0]))
    where = environment(prepared)

    def on_round(round: Round) -> None:
        rounds.append(round)
        _mark_round(clock)

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
    """The checkpoints in a run's folder, and the trial that uses the folder, where this machine sees the
    folder and no other worker writes there. Elsewhere the run begins anew, and is kept nowhere."""
    with ExitStack() as stack:
        try:
            check_same(path, prepared.experiment)
            (path / CHECKPOINTS).mkdir(exist_ok=True)
            stack.enter_context(locked(path / CHECKPOINTS))
        except (UserError, OSError):
            yield prepared.trial, None
            return
        trial, checkpoints = _checkpoints_in(path, prepared, say)
        yield trial, stack.enter_context(closing(checkpoints))


def _brief(result: Result) -> Result:
    """What the clients remember may be many times as large as the model, and nobody asks for it here."""
    return replace(result, state=State(result.state.server), trial=None)


def _note_where(path: Path, where: record.Environment) -> None:
    """Note that a run ran in another place than its command was given."""
    here = record.ENVIRONMENT.parse(path.read_text(encoding="utf-8"))
    commit = here.working_directory_commit
    write_whole(path, to_json(replace(where, command=here.command, working_directory_commit=commit)))
