"""`unskew reproduce`: the tables and figures of papers, made again."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import tomli_w
import typer

from unskew.cli import options
from unskew.cli.flags import apply_flags, check_computing
from unskew.cli.progress import ProgressDisplay
from unskew.cli.setup import set_up
from unskew.cli.terminal import Grid, console, say
from unskew.clock import Clock, process_age
from unskew.data.partitions.compose import kept_of
from unskew.data.sources import SOURCES, available, data_folder
from unskew.errors import Interrupted, UserError, unknown
from unskew.experiment import Experiment
from unskew.record import Failure, Json, to_json
from unskew.reproduce import READINGS, Cell, PublishedTable, Reading, cells, experiment, find_table, papers
from unskew.reproduce import outcome as outcomes
from unskew.reproduce.outcome import CellOutcome, Pace, Version, run_folder, run_stem
from unskew.reproduce.published import check_reading
from unskew.runs import write_whole, writing
from unskew.sweep import SweepRun, at_once, is_finished, sweep
from unskew.trial import Precision, Trial

FOLDER = Path("runs/reproduce")
BOTH = "both"
LARGEST_EXCESS = 1.1
"""By how much the part of the training samples that is used may exceed the one asked for."""
USED = {
    "--list": ("data",),
    "--show": ("cell", "reading", "rounds", "fraction", "precision", "fast", "out"),
    "--write": (
        "cell", "seeds", "reading", "rounds", "fraction", "engine", "device", "workers", "precision", "fast",
        "checkpoint", "data",
    ),
}  # fmt: skip
"""What options without a run take into account."""


def reproduce(
    table: Annotated[
        str | None,
        typer.Argument(metavar="TABLE", help="A table or figure that --list shows, such as fedlmd:table3."),
    ] = None,
    list_: Annotated[
        bool,
        typer.Option(
            "--list", help="List all tables and figures, or the published numbers of TABLE, and exit."
        ),
    ] = False,
    cell: Annotated[
        str | None,
        options.option(
            "--cell",
            "PATTERN",
            "Cells to run, such as 'cifar10/dirichlet:0.05/*'; several patterns are separated by spaces.",
            "all",
        ),
    ] = None,
    seeds: Annotated[
        str | None, options.option("--seeds", "NUMBERS", "Random seeds, such as 1,2,3 or 1-3.", 1)
    ] = None,
    reading: Annotated[
        str | None,
        options.option(
            "--reading",
            "NAME",
            "Whose settings to use: paper (its text), as-coded (its released code; for FedLC, what public "
            "implementations have in common) or both.",
            "the first reading that --list TABLE names",
        ),
    ] = None,
    rounds: Annotated[
        str | None, options.option("--rounds", "NUMBER", "Run a smaller version, with this many rounds.")
    ] = None,
    fraction: Annotated[
        str | None,
        options.option(
            "--fraction",
            "SHARE",
            "Run a smaller version, with this share of the training samples, such as 0.1.",
        ),
    ] = None,
    write: Annotated[
        Path | None,
        options.option("--write", "FOLDER", "Only write the experiment files of the cells to this folder."),
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Only show what has been run in the folder so far.")
    ] = False,
    engine: options.Engine = None,
    device: options.Device = None,
    workers: options.Workers = None,
    precision: Annotated[
        str | None,
        options.option(
            "--precision", "NAME", "Numerical precision: fp32, tf32 (GPU) or bf16.", Version.precision
        ),
    ] = None,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast",
            help="Allow non-deterministic, compiled GPU kernels; results then vary in the last bits.",
        ),
    ] = False,
    checkpoint: options.Checkpoint = None,
    out: Annotated[
        Path | None, options.option("--out", "FOLDER", "Folder where runs are kept and looked for.", FOLDER)
    ] = None,
    data: options.Data = None,
    log: options.Log = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run cells of a paper's table and show them beside the published numbers.

    Runs are kept in a folder: finished runs are not repeated, interrupted runs are resumed, and cells of
    several tables that are the same experiment share their runs."""
    clock = Clock(process_age())
    modes = {"--list": list_, "--show": show, "--write": write is not None}
    given: dict[str, object] = {
        "cell": cell,
        "seeds": seeds,
        "reading": reading,
        "rounds": rounds,
        "fraction": fraction,
        "engine": engine,
        "device": device,
        "workers": workers,
        "precision": precision,
        "fast": fast or None,
        "checkpoint": checkpoint,
        "out": out,
        "data": data,
        "log": log,
    }
    _refuse_idle([mode for mode, asked in modes.items() if asked], given)
    check_computing(engine=engine, device=device, workers=workers, checkpoint=checkpoint)
    flags = {"engine": engine, "device": device, "workers": workers, "data": data, "checkpoint": checkpoint}
    loggers, numbers = options.loggers(log), options.seed_list("1" if seeds is None else seeds)
    version, out = _version(rounds, fraction, precision, fast=fast), out or FOLDER
    here = _Here.find(data)
    if table is None:
        if not list_:
            raise UserError(
                "no table is named: write one such as fedlmd:table3, or see them all with --list."
            )
        _list(here, json=json)
        return
    found = find_table(table)
    if list_:
        _list_table(found, here, json=json)
        return
    if found.not_runnable:
        raise UserError(f"{found.id} cannot be run: {found.not_runnable}.")
    readings = _readings(found, reading)
    wanted = [(each, read) for each in cells(found, "*" if cell is None else cell) for read in readings]
    _check_fewer(wanted, version)
    if write is not None:
        _write(write, wanted, numbers, version, flags, json=json, quiet=quiet)
        return
    failed: dict[Path, Failure] = {}
    left_out: dict[str, str] = {}
    if not show:
        left_out = {each.id: why for each, _ in wanted if (why := here.missing(each))}
        if len({each.id for each, _ in wanted}) == len(left_out):
            raise UserError(f"none of these cells can be run here: {next(iter(left_out.values()))}.")
        jobs = _jobs([each for each in wanted if each[0].id not in left_out], numbers, out, version, flags)
        _known(found, out, version)  # what is refused there is refused before anything runs
        failed = _run(jobs, out, version, clock, loggers, quiet=quiet)
    results = outcomes.outcomes(found, wanted, out, version)
    _keep(found, out, version)
    if json:
        whole = outcomes.to_json(found, results, version)
        print(to_json({**whole, "left_out": _plain(left_out), "failed": _failures(failed)}, indent=None))
    else:
        _show(found, results, version, left_out)
        if not quiet:
            console().print(f"\nruns and tables: {out / version.folder}", soft_wrap=True)
    if failed:
        folder, first = next(iter(failed.items()))
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise UserError(
            f"{folder.name}{more} failed ({first.sentence.removesuffix('.')}): give the same command again "
            "to try what failed once more; what is finished is kept."
        )


def _refuse_idle(modes: Sequence[str], given: Mapping[str, object]) -> None:
    """Refuse options that do nothing with one that runs nothing, and several of these."""
    if len(modes) > 1:
        raise UserError(f"{', '.join(modes)} cannot be combined: keep one.")
    for mode in modes:
        idle = [f"--{name}" for name, value in given.items() if value is not None and name not in USED[mode]]
        if idle:
            does, them = ("do", "them") if len(idle) > 1 else ("does", "it")
            raise UserError(f"{', '.join(idle)} {does} nothing with {mode}: leave {them} out.")


def _version(rounds: str | None, fraction: str | None, precision: str | None, *, fast: bool) -> Version:
    """What was asked for, checked."""
    number = None if rounds is None else _number("--rounds", rounds)
    share = None if fraction is None else _number("--fraction", fraction)
    if number is not None and not (number >= 1 and number.is_integer()):
        raise UserError(f"--rounds is {rounds} but should be a whole number of at least 1.")
    if share is not None and not 0 < share < 1:
        raise UserError(f"--fraction is {fraction} but should be a share between 0 and 1, such as 0.1.")
    if precision is not None and precision not in get_args(Precision):
        raise unknown("precision", precision, get_args(Precision))
    return Version(None if number is None else int(number), share, precision or Version.precision, fast)


def _check_fewer(wanted: Iterable[tuple[Cell, Reading]], version: Version) -> None:
    """Refuse to call a version smaller whose cells have as many rounds as are published, or more."""
    for cell, reading in wanted:
        if version.rounds is None or cell.not_runnable:
            continue
        published = experiment(cell, reading)["budget"]["rounds"]
        if version.rounds >= published:
            raise UserError(
                f"--rounds is {version.rounds} but {cell.id} is published with {published}: ask for fewer, "
                "leave --rounds out, or choose other cells with --cell."
            )


def _number(flag: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{flag} is '{text}' but should be a number.") from None


def _readings(table: PublishedTable, asked: str | None) -> tuple[Reading, ...]:
    if asked is not None and asked not in (*READINGS, BOTH):
        raise unknown("reading", asked, (*READINGS, BOTH))
    return table.readings if asked == BOTH else (check_reading(table, asked),)


@dataclass(frozen=True)
class _Here:
    """The datasets that are in the data folder."""

    folder: Path
    names: frozenset[str]

    @classmethod
    def find(cls, folder: Path | None) -> _Here:
        names = (each.source.name for each in available(folder) if each.ready)
        return cls(data_folder(folder), frozenset(names))

    def missing(self, cell: Cell) -> str:
        """Why a cell cannot be run here; nothing where it can."""
        if cell.not_runnable:
            return cell.not_runnable
        lacking = [SOURCES[name] for name in cell.datasets if name not in self.names]
        if not lacking:
            return ""
        commands = " && ".join(filter(None, (source.fetch_command(self.folder) for source in lacking)))
        ways = [
            f"{source.by_hand} into {self.folder / source.folders[0]}" for source in lacking if source.by_hand
        ]
        downloaded = ", downloaded by" if commands else ""
        names = " and ".join(source.title for source in lacking)
        return f"it needs {names}{downloaded}: {'; '.join(filter(None, (commands, *ways)))}"


@dataclass(frozen=True)
class _Job:
    """A run that a cell needs."""

    name: str
    folder: Path
    settings: dict[str, Any]


def _jobs(
    wanted: Iterable[tuple[Cell, Reading]],
    seeds: Sequence[int],
    out: Path,
    version: Version,
    flags: Mapping[str, Any],
) -> list[_Job]:
    """The runs that cells need, each once: all cells with the first seed, then with the next."""
    pairs = list(wanted)
    found: dict[Path, _Job] = {}
    for seed in seeds:
        for cell, reading in pairs:
            settings = version.experiment(cell, reading, seed)
            folder = run_folder(out, version, settings)
            name = f"{cell.id} {reading} seed {seed}"
            found.setdefault(folder, _Job(name, folder, apply_flags(settings, **flags)))
    return list(found.values())


def _run(
    jobs: Sequence[_Job], out: Path, version: Version, clock: Clock, loggers: tuple[str, ...], *, quiet: bool
) -> dict[Path, Failure]:
    """Run what is not finished, and return what failed."""
    folder, fraction = out / version.folder, version.fraction
    left = [job for job in jobs if not is_finished(job.folder)]
    done = len(jobs) - len(left)
    if not left:
        if not quiet:
            say(f"{'the run is' if done == 1 else f'all {done} runs are'} finished already.")
        return {}
    prepared = set_up(((job.name, Experiment(**job.settings)) for job in left), clock, quiet=quiet)
    if fraction is not None:
        _check_share(fraction, {each.experiment.data.name: each.trial for _, each in prepared})
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    runs = [SweepRun(job.name, job.folder, each) for job, (_, each) in zip(left, prepared, strict=True)]
    settings = [each.experiment.model_dump() for _, each in prepared]
    processes = at_once(runs, loggers)
    if not quiet:
        finished = f", {done} other{'s are' if done > 1 else ' is'} finished" if done else ""
        time = _time(Pace.of(folder).estimate(settings), processes)
        say(f"{len(left)} run{'s' * (len(left) > 1)} to do{finished}; {time}")
    total = sum(each["budget"]["rounds"] for each in settings)
    with _Estimating(total, settings, folder, processes, quiet=quiet) as display:
        try:
            ends = sweep(runs, display, loggers)
        except KeyboardInterrupt:
            again = shlex.join(["unskew", *sys.argv[1:]])
            raise Interrupted(f"stopped; what is finished is kept; resume with: {again}") from None
    return {run.folder: end for run, end in zip(runs, ends, strict=True) if isinstance(end, Failure)}


def _check_share(fraction: float, trials: Mapping[str, Trial]) -> None:
    """Refuse to call a share of the training samples what is more, since one sample of each class or owner
    is always kept."""
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


def _time(seconds: float | None, processes: int) -> str:
    if seconds is None:
        return "how long they take is not known before a run of each network and dataset has finished."
    return f"about {outcomes.duration(seconds / processes)}, going by runs in the same folder."


class _Estimating(ProgressDisplay):
    """Says how long the rest will take as soon as that can be told."""

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
            remaining = outcomes.duration(seconds / self._processes)
            self.say([f"about {remaining} for the {len(left)} runs that are left."])


def _write(
    folder: Path,
    wanted: Sequence[tuple[Cell, Reading]],
    seeds: Sequence[int],
    version: Version,
    flags: Mapping[str, Any],
    *,
    json: bool,
    quiet: bool,
) -> None:
    """Write ordinary experiment files. One that several cells or readings share names all of them."""
    if (data := flags["data"]) is not None:
        flags = {**flags, "data": data.expanduser().resolve()}  # from wherever a file is run
    files: dict[Path, tuple[list[str], dict[str, Any]]] = {}
    for cell, reading in wanted:
        for seed in seeds:
            settings = version.experiment(cell, reading, seed)
            path = folder / f"{run_stem(settings)}-seed{seed}.toml"
            first = [] if version.full else [f"# {version.words}"]
            head, _ = files.setdefault(path, (first, apply_flags(settings, **flags)))
            head += [f"# {cell.table} {cell.id}, reading {reading}"]
            head += [f"# assumed: {each}" for each in cell.assumed]
    folder.mkdir(parents=True, exist_ok=True)
    for path, (head, settings) in files.items():
        write_whole(path, "\n".join(dict.fromkeys(head)) + "\n\n" + tomli_w.dumps(settings))
    paths = list(map(str, files))
    if json:
        print(to_json({"files": list[Json](paths)}, indent=None))
        return
    for name in paths:
        console().print(name, soft_wrap=True)
    if quiet:
        return
    written = "1 experiment file; run it" if len(paths) == 1 else f"{len(paths)} experiment files; run one"
    say(f"{written} with: unskew run {shlex.quote(paths[0])}")


def _known(table: PublishedTable, out: Path, version: Version) -> list[CellOutcome]:
    """What the finished runs of all cells of a table came to."""
    everything = [(cell, reading) for cell in table.cells for reading in table.readings]
    return [each for each in outcomes.outcomes(table, everything, out, version) if each.runs]


def _keep(table: PublishedTable, out: Path, version: Version) -> None:
    """Write down all that is known of a table, beside its runs."""
    if kept := _known(table, out, version):
        stem = out / version.folder / table.id.replace(":", "-")
        write_whole(stem.with_suffix(".json"), to_json(outcomes.to_json(table, kept, version)))
        write_whole(stem.with_suffix(".md"), outcomes.to_markdown(table, kept, version))


def _show(
    table: PublishedTable, results: Sequence[CellOutcome], version: Version, left_out: Mapping[str, str]
) -> None:
    screen = console()
    for line in outcomes.caption(table, version):
        screen.print(line, soft_wrap=True)
    heads, rows = outcomes.rows_of(table, results, version)
    screen.print()
    screen.print(Grid(heads, rows, words=1))
    screen.print()
    for note in (*table.notes, *(f"assumed: {each}" for each in outcomes.assumptions(results))):
        screen.print(f"note: {note}", soft_wrap=True)
    for why in dict.fromkeys(left_out.values()):
        names = [name for name, each in left_out.items() if each == why]
        which = f"{len(names)} cells such as {names[0]}" if len(names) > 1 else f"the cell {names[0]}"
        screen.print(f"left out: {which}: {why}", soft_wrap=True)


def _plain(found: Mapping[str, str]) -> dict[str, Json]:
    return dict(found)


def _failures(failed: Mapping[Path, Failure]) -> dict[str, Json]:
    return {str(folder): end.sentence for folder, end in failed.items()}


def _list(here: _Here, *, json: bool) -> None:
    if json:
        print(
            to_json(
                {
                    table.id: {
                        "title": table.title,
                        "cells": len(table.cells),
                        "here": sum(not here.missing(cell) for cell in table.cells),
                        "not_runnable": table.not_runnable or None,
                    }
                    for paper in papers().values()
                    for table in paper.tables
                },
                indent=None,
            )
        )
        return
    screen = console()
    for paper in papers().values():
        rows = []
        for table in paper.tables:
            missing = [why for cell in table.cells if (why := here.missing(cell))]
            can = len(table.cells) - len(missing)
            rows.append([table.id, str(len(table.cells) or "-"), str(can or "-"), table.title])
        screen.print(f"{paper.title} ({paper.reference})", soft_wrap=True)
        screen.print(Grid(["table", "cells", "here", "what"], rows, words=1))
        screen.print()
    screen.print(
        "here: cells whose data is here. unskew reproduce --list TABLE shows the published numbers, and what "
        "a table lacks; unskew reproduce TABLE --cell PATTERN runs cells.",
        soft_wrap=True,
    )


def _list_table(table: PublishedTable, here: _Here, *, json: bool) -> None:
    if json:
        print(
            to_json(
                {
                    "table": table.id,
                    "title": table.title,
                    "reports": table.reports,
                    "statistic": table.statistic,
                    "readings": list(table.readings),
                    "notes": list(table.notes),
                    "differences": list(table.differences),
                    "not_runnable": table.not_runnable or None,
                    "cells": [
                        {
                            "cell": cell.id,
                            "published": {
                                name: outcomes.published_json(number)
                                for name, number in cell.published.items()
                            },
                            "missing": here.missing(cell) or None,
                            "assumed": list(cell.assumed),
                        }
                        for cell in table.cells
                    ],
                },
                indent=None,
            )
        )
        return
    screen = console()
    screen.print(f"{table.id}: {table.title}", soft_wrap=True)
    if table.reports:
        screen.print(f"reports {table.reports}", soft_wrap=True)
    by_place = {(cell.column, cell.row): cell for cell in table.cells}
    for name in table.measures if table.cells else ():
        rows = [
            [column, *(_number_in(by_place[column, row], name) for row in table.rows)]
            for column in table.columns
        ]
        screen.print()
        screen.print(Grid(["" if len(table.measures) == 1 else name, *table.rows], rows))
    screen.print()
    if table.cells:
        screen.print(f"cells are named row/column, such as {table.cells[0].id}", soft_wrap=True)
        screen.print(f"readings: {', '.join(table.readings)}; without --reading the first", soft_wrap=True)
    assumed = dict.fromkeys(each for cell in table.cells for each in cell.assumed)
    for note in (*table.notes, *(f"assumed: {each}" for each in assumed), *table.differences):
        screen.print(f"note: {note}", soft_wrap=True)
    lacking = dict.fromkeys(why for cell in table.cells if (why := here.missing(cell)))
    for why in lacking or ([table.not_runnable] if table.not_runnable else []):
        count = sum(here.missing(cell) == why for cell in table.cells)
        which = f" ({count} cell{'s' * (count > 1)})" * bool(count)
        screen.print(f"cannot be run{which}: {why}", soft_wrap=True)


def _number_in(cell: Cell, measure: str) -> str:
    number = cell.published.get(measure)
    return "-" if number is None else str(number)
