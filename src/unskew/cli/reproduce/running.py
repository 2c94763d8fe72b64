"""Runs the experiments of cells."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unskew.cli.flags import apply_flags
from unskew.cli.progress import ProgressDisplay
from unskew.cli.setup import set_up
from unskew.cli.terminal import say
from unskew.clock import Clock
from unskew.data.partitions.compose import kept_of
from unskew.errors import Interrupted, UserError
from unskew.experiment import Experiment
from unskew.record import Failure
from unskew.reproduce import Cell, Reading
from unskew.reproduce.pace import Pace, duration
from unskew.reproduce.version import Version, run_folder
from unskew.runs import writing
from unskew.sweep import SweepRun, at_once, is_finished, sweep
from unskew.trial import Trial

LARGEST_EXCESS = 1.1
"""The factor by which the part of the training samples that is used may exceed the one asked for."""


@dataclass(frozen=True)
class CellRun:
    """A run that a cell needs; its name appears in the progress display."""

    name: str
    folder: Path
    settings: dict[str, Any]


def cell_runs(
    wanted: Iterable[tuple[Cell, Reading]],
    seeds: Sequence[int],
    out: Path,
    version: Version,
    flags: Mapping[str, Any],
) -> list[CellRun]:
    """Return the runs that cells need, each once: all cells with the first seed, then with the next."""
    pairs = list(wanted)
    found: dict[Path, CellRun] = {}
    for seed in seeds:
        for cell, reading in pairs:
            settings = version.experiment(cell, reading, seed)
            folder = run_folder(out, version, settings)
            name = f"{cell.id} {reading} seed {seed}"
            found.setdefault(folder, CellRun(name, folder, apply_flags(settings, **flags)))
    return list(found.values())


def run_cells(
    wanted: Sequence[CellRun],
    folder: Path,
    fraction: float | None,
    clock: Clock,
    loggers: tuple[str, ...],
    *,
    quiet: bool,
) -> dict[Path, Failure]:
    """Run the wanted runs that are not finished, and return the failures by run folder.

    `folder` holds the run folders; `fraction` is the share of the training samples in a smaller version.
    """
    left = [run for run in wanted if not is_finished(run.folder)]
    done = len(wanted) - len(left)
    if not left:
        if not quiet:
            say(f"{'the run is' if done == 1 else f'all {done} runs are'} finished already.")
        return {}
    prepared = set_up(((run.name, Experiment(**run.settings)) for run in left), clock, quiet=quiet)
    if fraction is not None:
        _check_share(fraction, {each.experiment.data.name: each.trial for _, each in prepared})
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    runs = [SweepRun(run.name, run.folder, each) for run, (_, each) in zip(left, prepared, strict=True)]
    settings = [each.experiment.model_dump() for _, each in prepared]
    processes = at_once(runs, loggers)
    if not quiet:
        finished = f", {done} other{'s are' if done > 1 else ' is'} finished" if done else ""
        time = _expected_time(Pace.of(folder).estimate(settings), processes)
        say(f"{len(left)} run{'s' * (len(left) > 1)} to do{finished}; {time}")
    total = sum(each["budget"]["rounds"] for each in settings)
    with _Estimating(total, settings, folder, processes, quiet=quiet) as display:
        try:
            ends = sweep(runs, display, loggers)
        except KeyboardInterrupt:
            again = shlex.join(["unskew", *sys.argv[1:]])
            raise Interrupted(f"stopped; what is finished is kept; resume with: {again}") from None
    clock.mark("runs")
    return {run.folder: end for run, end in zip(runs, ends, strict=True) if isinstance(end, Failure)}


def _check_share(fraction: float, trials: Mapping[str, Trial]) -> None:
    """Refuse a share of the training samples that is too small for the data of a trial.

    One sample of each class or owner is always kept, so that the part used may be larger than asked for.
    """
    for name, trial in trials.items():
        train = trial.federation.dataset.train
        groups, what = (train.labels, "class") if train.owners is None else (train.owners, "owner")
        sizes = np.unique(groups.numpy(), return_counts=True)[1].tolist()

        def used(share: float, sizes: list[int] = sizes) -> float:
            return sum(kept_of(size, share) for size in sizes) / sum(sizes)

        if used(fraction) > LARGEST_EXCESS * fraction:
            shares = (float(f"{digit}e-{place}") for place in range(9, 0, -1) for digit in (1, 2, 5))
            fits = (each for each in shares if each > fraction and used(each) <= LARGEST_EXCESS * each)
            enough = next(fits, 0.9)
            raise UserError(
                f"--fraction {fraction:g} would be {100 * used(fraction):.2g} % of the training samples of "
                f"{name}, of which each {what} keeps at least one: ask for more, such as {enough:g}."
            )


def _expected_time(seconds: float | None, processes: int) -> str:
    if seconds is None:
        return "how long they take is not known before a run of each network and dataset has finished."
    return f"about {duration(seconds / processes)}, going by runs in the same folder."


class _Estimating(ProgressDisplay):
    """Says how long the remaining runs will take, as soon as the finished ones allow an estimate."""

    def __init__(
        self, rounds: int, settings: Sequence[dict[str, Any]], folder: Path, processes: int, *, quiet: bool
    ) -> None:
        super().__init__(rounds, cells=len(settings), quiet=quiet, side_by_side=processes > 1)
        self._settings, self._folder, self._processes = settings, folder, processes
        self._estimated = Pace.of(folder).estimate(settings) is not None

    def label(self, text: str) -> None:
        before = len(self._begun)
        super().label(text)
        if self._estimated or not before or len(self._begun) == before:
            return
        left = self._settings[before:]
        seconds = Pace.of(self._folder).estimate(left)
        if seconds is not None:
            self._estimated = True
            remaining = duration(seconds / self._processes)
            self.say([f"about {remaining} for the {len(left)} runs that are left."])
