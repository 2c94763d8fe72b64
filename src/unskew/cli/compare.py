"""`unskew compare`: several methods under the same conditions, or under each of several."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from unskew import metrics
from unskew.cli import options
from unskew.cli.closing import report_command, say_next, sweep_time_line, table_command
from unskew.cli.flags import experiment_settings, given_flags, refuse_unshared
from unskew.cli.progress import ProgressDisplay
from unskew.cli.result_tables import (
    compared_sites,
    cost_grid,
    difference_grid,
    forest_grid,
    result_grid,
    score_grid,
)
from unskew.cli.setup import Cells, Loaded, set_up
from unskew.cli.table import show_table
from unskew.cli.terminal import console, say
from unskew.cli.vary import refuse_given, varied
from unskew.clock import Clock, process_age
from unskew.comparison.statistics import summary_of
from unskew.comparison.study import (
    ConditionResult,
    Study,
    StudyCell,
    combinations,
    compare_json,
    failed_before,
)
from unskew.errors import Interrupted, UserError, unknown
from unskew.experiment import Experiment, MethodSpec, method_table
from unskew.labelled_runs import method_labels
from unskew.lock import locked
from unskew.methods import METHODS
from unskew.notation import flatten
from unskew.record import FailedRun, Failure, SweepTime, is_tunable, to_json
from unskew.report.read import SavedRun
from unskew.report.table import tabulate
from unskew.report.table_layout import CONDITION
from unskew.runs import FINISHED, claim, differing_keys, free_folder, write_whole
from unskew.sweep import SweepRun, at_once, how_to_resume, is_finished, resume_command, sweep
from unskew.user_code import existing


def compare(
    context: typer.Context,
    methods: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD",
            help="Methods of `unskew methods`, such as fedprox:mu=0.1, or experiment files, such as those of "
            "`unskew tune`.",
        ),
    ],
    experiment: Annotated[
        Path | None,
        options.option("--experiment", "PATH", "An experiment file; options given here override it."),
    ] = None,
    dataset: options.Dataset = None,
    skew: options.Skew = None,
    clients: options.Clients = None,
    model: options.Model = None,
    init: options.Init = None,
    rounds: options.Rounds = None,
    cohort: options.Cohort = None,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    batch_size: options.BatchSize = None,
    lr: options.Lr = None,
    schedule: options.Schedule = None,
    optimizer: options.Optimizer = None,
    augment: options.Augment = None,
    attack: options.Attack = None,
    validation: options.Validation = None,
    stop: options.Stop = None,
    trusted: Annotated[
        list[str] | None,
        options.option("--method", "FILE", "Method file that an experiment file names; its code will run."),
    ] = None,
    reference: Annotated[
        str | None,
        options.option(
            "--reference", "METHOD", "Method that the others are compared with.", "fedavg, or the first named"
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        options.option(
            "--vary",
            "NAME=VALUE",
            "Compare under each of several settings, such as --vary skew=iid --vary skew=shards:2.",
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        options.option(
            "--seeds",
            "NUMBERS",
            "Random seeds, such as 1,2,3 or 1-3; every method runs with each.",
            "that of the experiment, else 1",
        ),
    ] = None,
    engine: options.Engine = None,
    device: options.Device = None,
    workers: options.Workers = None,
    precision: options.Precision = None,
    probe: options.Probe = None,
    checkpoint: options.Checkpoint = None,
    on_fault: options.OnFault = None,
    out: options.Out = None,
    data: options.Data = None,
    log: options.Log = None,
    table: options.TablePerRound = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    set_: options.Set = None,
) -> None:
    """Train several methods on the same partition, initial weights and batches, over several seeds; with
    --vary also under each of several settings."""
    clock = Clock(process_age())
    clock.mark("imports")
    refuse_unshared(set_, seeds)
    for method in methods:
        _refuse_folder(method)
    if experiment is not None and any(method.endswith(".toml") for method in methods):
        raise UserError("--experiment and experiment files in the place of methods are both given: keep one.")
    if trusted and not any(method.endswith(".toml") for method in methods):
        raise UserError(
            f"--method {trusted[0]} is for the code of experiment files in the place of methods, and none is "
            f"given: to compare it write unskew compare {shlex.join([*methods, *trusted])}."
        )
    flags = given_flags(context)
    loggers = options.loggers(log)
    numbers = None if seeds is None else options.seed_list(seeds)
    cells: list[StudyCell] = []
    known: dict[str, str] = {}
    loaded = Loaded()
    variations = varied(vary or [])
    refuse_given(variations, flags, set_ or [])
    for choice in combinations(variations):
        given = flags | {key: value for key, value in choice.items() if key in flags}
        others = [f"{key}={value}" for key, value in choice.items() if key not in flags]
        assigned = [*(set_ or []), *others]
        shared = experiment_settings(experiment, assigned, **given)
        base = [
            experiment_settings(Path(method), assigned, trusted=trusted or [], method=None, **given)
            if method.endswith(".toml")
            else shared | {"method": method_table(method)}
            for method in methods
        ]
        if numbers is None:
            own = list(dict.fromkeys(Experiment(**settings).seed for settings in base))
            if len(own) > 1:
                raise UserError(f"the experiments have seeds {own[0]} and {own[1]}: give --seeds for all.")
            numbers = own
        specs = (
            (method, Experiment(**{**settings, "seed": seed}))
            for seed in numbers
            for method, settings in zip(methods, base, strict=True)
        )
        typed = set_up(specs, clock, loaded, quiet=quiet)
        if any(method.endswith(".toml") for method in methods):
            _refuse_other_conditions(typed)
        labels = method_labels([prepared.experiment for _, prepared in typed[: len(methods)]])
        name = ", ".join(f"{key}={value}" for key, value in choice.items())
        same = known.setdefault(typed[0][1].experiment.identity(), name)
        if same != name:
            raise UserError(f"--vary {name} is the same condition as {same}: give each condition once.")
        cells += [
            StudyCell(label, prepared, name)
            for label, (_, prepared) in zip(labels * len(numbers), typed, strict=True)
        ]
    against = None if reference is None else _find_label(reference, dict(zip(methods, labels, strict=True)))
    study = Study(tuple(cells), against)
    folder = out or free_folder("-".join(["compare", *cells[0].experiment.words()[1:-1]]))
    if claim(folder) == FINISHED and not failed_before(folder):
        raise UserError(
            f"the output folder {folder} holds a finished run or compare: see `unskew table {folder}`, or "
            "choose another with --out."
        )
    finish(folder, study, clock, loggers, json=json, quiet=quiet, table=table)


def _refuse_folder(method: str) -> None:
    """Refuse a folder in the place of a method, and say what can be done with what it holds."""
    folder, quoted = existing(method), shlex.quote(method.rstrip("/"))
    if method in METHODS or folder is None or not folder.is_dir():
        return
    if any(folder.glob("best/*.toml")):
        raise UserError(f"{method} is the folder of a search: compare its winners, {quoted}/best/*.toml.")
    if any(folder.glob("experiment.toml")) or any(folder.glob("*/experiment.toml")):
        raise UserError(
            f"{method} holds runs, and compare trains new ones: see `unskew table {quoted}` or "
            f"`unskew report {quoted}`."
        )


def _refuse_other_conditions(cells: Cells) -> None:
    """Refuse experiments that differ in more than method, model and how clients take their steps."""
    (first, prepared), *_ = cells
    theirs = _conditions(prepared.experiment)
    for name, other in cells:
        mine = _conditions(other.experiment)
        if mine["seed"] == theirs["seed"] and (differing := differing_keys(theirs, mine)):
            key = differing[0]
            raise UserError(
                f"{name} and {first} would be compared under other conditions ({key} is "
                f"{mine.get(key)!r} for {name} and {theirs.get(key)!r} for {first}): give both the same."
            )


def _conditions(experiment: Experiment) -> dict[str, object]:
    """Return the settings that must be the same for all compared methods, by their names."""
    return {
        key: value
        for key, value in flatten(experiment.result_settings())
        if key.partition(".")[0] not in ("method", "model") and not is_tunable(key)
    }


def finish(
    folder: Path,
    study: Study,
    clock: Clock,
    loggers: tuple[str, ...],
    *,
    json: bool,
    quiet: bool,
    table: bool,
) -> None:
    """Run the runs of a study that are not finished in a folder, and show all of them."""
    found = claim(folder)
    planned = study.planned(folder)
    experiments = [cell.experiment for cell in study.cells]
    with locked(folder):
        study.agree_on_plan(folder, found, planned)
        left = [run for run in planned if not is_finished(run.folder)]
        rounds = sum(run.prepared.experiment.budget.rounds for run in left)
        together = at_once(left, loggers) > 1
        with ProgressDisplay(
            rounds, cells=len(left), quiet=quiet, table=table, side_by_side=together
        ) as display:
            clock.mark("set-up")
            try:
                ends = sweep(planned, display, loggers)
            except KeyboardInterrupt:
                raise Interrupted(f"stopped; {how_to_resume(folder, experiments, loggers)}") from None
            clock.mark("runs")
        together |= any(cell.prepared.trial.engine == "ray" for cell in study.cells)
        _conclude(folder, study, planned, ends, left, loggers, clock, together, json=json, quiet=quiet)


def _conclude(
    folder: Path,
    study: Study,
    planned: list[SweepRun],
    ends: list[SavedRun | Failure],
    left: list[SweepRun],
    loggers: Sequence[str],
    clock: Clock,
    together: bool,
    *,
    json: bool,
    quiet: bool,
) -> None:
    results, failed = study.conclude(planned, ends)
    clock.mark("end")
    time = _time(clock)
    whole = compare_json(results) | {"run_dir": str(folder), "time": time}
    write_whole(folder / "compare.json", to_json(whole))
    runs = [run for each in results for some in each.runs.values() for run in some]
    if json:
        print(to_json(whole, indent=None))
    else:
        for each in results:
            if each.answer:
                _show(each)
        if len(results) > 1 and runs:
            console().print()
            show_table(tabulate(runs, columns=CONDITION, reference=study.reference))
        console().print(f"\nrun folders: {folder}", soft_wrap=True)
    if not quiet:
        ran = {run.folder for run in left}
        now = [summary_of(run) for run in runs if run.path in ran]
        say(sweep_time_line(time, now, len(left), side_by_side=together))
    if failed:
        again = resume_command(folder, [cell.experiment for cell in study.cells], loggers)
        raise UserError(_failure(failed, len(planned), again))
    if not (json or quiet):
        say_next(report_command(folder), table_command(folder))


def _show(compared: ConditionResult) -> None:
    answer, rows = compared.answer, list(compared.runs.items())
    assert answer is not None
    screen = console()
    seeds = compared.seeds
    title = f"{compared.experiment.title()}, seed{'s' * (len(seeds) > 1)} {','.join(map(str, seeds))}"
    screen.print(f"\n{compared.condition}: {title}" if compared.condition else title)
    screen.print(answer.skew)
    grids = [result_grid(rows), score_grid(rows), *compared_sites(rows), cost_grid(rows)]
    settles = answer.reference is not None and len(answer.seeds) >= metrics.FEWEST
    if answer.reference is not None:
        grids.insert(1, difference_grid(answer))
    for grid in [*grids, *([forest_grid(answer)] if settles else [])]:
        screen.print()
        screen.print(grid)
    screen.print(f"\n{answer.sentence}")
    failed = (note for _, runs in rows for run in runs for note in summary_of(run).notes)
    for note in dict.fromkeys((*answer.notes, *failed)):
        screen.print(f"note: {note}")


def _time(clock: Clock) -> SweepTime:
    start = {name: spent for name, spent in clock.parts.items() if name not in ("runs", "end")}
    return SweepTime(clock.total, start, clock.parts["runs"], clock.parts["end"])


def _failure(failed: list[FailedRun], runs: int, again: str) -> str:
    """Return a sentence that says how many runs failed, why the first did, and how to run them again."""
    first = failed[0]
    there = Path(first.run_dir, "error.json").exists()
    seen = f"see error.json in {first.run_dir}, and " if there else ""
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    return (
        f"{len(failed)} of {runs} runs failed: {first.method} seed {first.seed}{more} "
        f"({first.error.removesuffix('.')}): {seen}run what failed again with: {again}"
        f"{'; the other runs are whole' * (len(failed) < runs)}."
    )


def _find_label(text: str, labels: Mapping[str, str]) -> str:
    """Return the label of the method that --reference names; `labels` has all labels by what was typed."""
    if text in labels:
        return labels[text]
    with contextlib.suppress(UserError):  # the text is no method
        spec = MethodSpec(**method_table(text))
        text = spec.brief() if spec.parts().keys() <= METHODS.keys() else text
    if text not in labels.values():
        raise unknown("method to compare with", text, labels.values())
    return text
