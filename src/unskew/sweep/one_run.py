"""Train one experiment in its run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from unskew import record
from unskew.checkpoints import Checkpoints
from unskew.clock import Clock
from unskew.engines import compiles
from unskew.errors import Interrupted, UserError
from unskew.experiment import Prepared, Resolved
from unskew.forked import StopRequest
from unskew.lock import NAME as LOCK
from unskew.lock import locked
from unskew.loggers import Log
from unskew.program import MakeRun
from unskew.report.read import SavedRun, read_run
from unskew.result import Result, Round
from unskew.runs import (
    CHECKPOINTS,
    EMPTY,
    FIRST_ROUND,
    ROUNDS,
    RunFolder,
    claim,
    failure_of,
    time_of,
    write_failure,
)
from unskew.sweep.resume import CLIENT_FILES, how_to_resume, remove_leftovers
from unskew.sweep.signals import stopping
from unskew.sweep.watcher import Watcher
from unskew.train import train
from unskew.trial import Trial


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
    """Train in a run folder and log to the named loggers. The folder is new, or holds the same experiment
    unfinished, which is resumed.

    On Ctrl-C or SIGTERM the present round is finished first, then `Interrupted` is raised; the run can be
    resumed. An error is written to error.json and raised. If the run is not the `last` of several, a request
    to stop raises `Interrupted` even if the run has just ended or failed. The clock, by default one that
    starts now, measures the times in the summary. `make_run` is that of `train`. With a `request`, that
    object asks the run to stop instead of signals."""
    clock, signals = clock or Clock(), list[int]()
    stopped = Interrupted(f"stopped; {how_to_resume(path, [prepared.experiment], log)}")
    with run_folder(path, prepared, log) as folder:
        try:
            watch.say([*notes_before(prepared), *folder.notes])
            with start_loggers(log, prepared, path, watch) as loggers:
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
    """Open the folder of a run, locked against other writers. If that fails, a folder that was empty is left
    empty, and a new one is removed."""
    new = not path.exists()
    claim(path)
    try:
        with locked(path):
            empty = claim(path) == EMPTY  # asked again: from here on no other process changes it
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
    """Train and write all results; the signals that asked to stop are added to `signals`."""
    path, done = folder.path, 0
    trial, kept = checkpoints_in(path, prepared, lambda sentence: watch.say([sentence]))

    def on_round(round: Round) -> None:
        nonlocal done
        done = round.number
        report_round(folder, loggers, watch, round)
        mark_round(clock)

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
            finish(folder, prepared, result, loggers, partial(time_of, clock))
    remove_leftovers(path)  # open as they are, clients' files can still be read


def checkpoints_in(path: Path, prepared: Prepared, say: Callable[[str], None]) -> tuple[Trial, Checkpoints]:
    """Return the checkpoints of a run's folder, and the trial whose clients keep their files in this
    folder."""
    experiment, trial = prepared.experiment, replace(prepared.trial, client_files=path / CLIENT_FILES)
    every, identity = experiment.checkpoint, experiment.identity()
    return trial, Checkpoints(path / CHECKPOINTS, trial, identity, every=every, say=say)


def mark_round(clock: Clock) -> None:
    clock.mark(ROUNDS if FIRST_ROUND in clock.parts else FIRST_ROUND)


def notes_before(prepared: Prepared) -> Iterator[str]:
    """Yield the notes that a user should see before the first round."""
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


def start_loggers(names: Sequence[str], prepared: Prepared, path: Path, watch: Watcher) -> Log:
    experiment = prepared.experiment
    return Log(
        names,
        settings=experiment.model_dump(exclude_none=True),
        classes=prepared.trial.federation.dataset.classes,
        folder=path,
        name=f"{experiment.method.brief()} seed {experiment.seed}",
        say=watch.say,
    )


def report_round(folder: RunFolder, loggers: Log, watch: Watcher, round: Round) -> None:
    lines = folder.append(round)
    loggers.round(*lines)
    watch(*lines)


def finish(
    folder: RunFolder, prepared: Prepared, result: Result, loggers: Log, time: Callable[[], record.Time]
) -> None:
    summary = folder.finish(prepared, replace(result, notes=(*result.notes, *loggers.notes)), time)
    loggers.end(summary)
