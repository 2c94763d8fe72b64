"""`unskew compare`: several methods under the same conditions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew import metrics
from unskew.cli import options
from unskew.cli.progress import Watch
from unskew.cli.setup import Cells, set_up
from unskew.cli.show import (
    compared_sites,
    console,
    cost_grid,
    difference_grid,
    forest_grid,
    report_command,
    result_grid,
    say,
    say_next,
    score_grid,
    sweep_time_line,
    table_command,
)
from unskew.clock import Clock, process_age
from unskew.comparison import comparison, summary_of
from unskew.errors import Interrupted, UserError, unknown
from unskew.experiment import Experiment, MethodSpec
from unskew.lock import locked
from unskew.methods import METHODS
from unskew.notation import flatten
from unskew.reading import method_labels, shorten
from unskew.record import (
    COMPARE,
    PLAN,
    DamagedError,
    FailedRun,
    Failure,
    Plan,
    Planned,
    SweepTime,
    is_tunable,
    to_json,
)
from unskew.report.answer import Answer
from unskew.report.read import Run
from unskew.runs import (
    EMPTY,
    FINISHED,
    claim,
    differences,
    differing_keys,
    free_folder,
    slug,
    write_whole,
)
from unskew.sweep import SweepRun, how_to_go_on, is_finished, resume_command, sweep


def compare(
    methods: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD",
            help="Methods of `unskew methods`, such as fedprox:mu=0.1, or experiment files, such as those of "
            "`unskew tune`.",
        ),
    ],
    experiment: Annotated[
        Path | None, options.option("--experiment", "PATH", "An experiment file; flags change it.")
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
        options.option("--method", "NAME", "Of experiment files with a method of one's own: its file."),
    ] = None,
    reference: Annotated[
        str | None,
        options.option(
            "--reference", "METHOD", "What the others are compared with.", "fedavg, or the first named"
        ),
    ] = None,
    seeds: Annotated[str | None, options.option("--seeds", "NUMBERS", "Such as 1,2,3 or 1-3.")] = None,
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
    """Train several methods on the same partition, initial weights and batches, over several seeds."""
    clock = Clock(process_age())
    clock.mark("imports")
    options.refuse_unshared(set_, seeds)
    if experiment is not None and any(method.endswith(".toml") for method in methods):
        raise UserError("--experiment and experiment files in the place of methods are both given: keep one.")
    flags: dict[str, Any] = {
        "dataset": dataset,
        "augment": augment,
        "attack": attack,
        "validation": validation,
        "stop": stop,
        "skew": skew,
        "clients": clients,
        "model": model,
        "init": init,
        "rounds": rounds,
        "cohort": cohort,
        "epochs": epochs,
        "steps": steps,
        "batch_size": batch_size,
        "lr": lr,
        "schedule": schedule,
        "optimizer": optimizer,
        "engine": engine,
        "device": device,
        "workers": workers,
        "precision": precision,
        "data": data,
        "probe": options.probe_period(probe),
        "checkpoint": checkpoint,
        "on_fault": on_fault,
    }
    shared = options.settings(experiment, set_, **flags)
    base = [
        options.settings(Path(method), set_, trusted=trusted or [], method=None, **flags)
        if method.endswith(".toml")
        else shared | {"method": options.method_table(method)}
        for method in methods
    ]
    loggers = options.loggers(log)
    first = Experiment(**base[0])
    numbers = [first.seed] if seeds is None else options.seed_list(seeds)
    specs = (
        (method, Experiment(**{**settings, "seed": seed}))
        for seed in numbers
        for method, settings in zip(methods, base, strict=True)
    )
    typed = set_up(specs, clock, quiet=quiet)
    if any(method.endswith(".toml") for method in methods):
        _refuse_other_conditions(typed)
    labels = method_labels([prepared.experiment for _, prepared in typed[: len(methods)]])
    cells = [(label, cell[1]) for label, cell in zip(labels * len(numbers), typed, strict=True)]
    against = None if reference is None else _find_label(reference, dict(zip(methods, labels, strict=True)))
    settings = cells[0][1].experiment
    folder = out or free_folder("-".join(["compare", *settings.words()[1:-1]]))
    if claim(folder) == FINISHED and not _failed_before(folder):
        raise UserError(
            f"the output folder {folder} holds a finished run or compare: see `unskew table {folder}`, or "
            "choose another with --out."
        )
    finish(folder, cells, clock, loggers, against, json=json, quiet=quiet, table=table)


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
    """What has to be the same for methods that are compared, by the names of settings."""
    return {
        key: value
        for key, value in flatten(experiment.told())
        if key.partition(".")[0] not in ("method", "model") and not is_tunable(key)
    }


def finish(
    folder: Path,
    cells: Cells,
    clock: Clock,
    loggers: tuple[str, ...],
    reference: str | None,
    *,
    json: bool,
    quiet: bool,
    table: bool,
) -> None:
    """Run in a folder what of these cells is not finished there, and show all of them."""
    found = claim(folder)
    folders = _folders(dict.fromkeys(method for method, _ in cells))
    planned = [
        SweepRun(
            f"{method} seed {(seed := each.experiment.seed)}", folder / f"{folders[method]}-seed{seed}", each
        )
        for method, each in cells
    ]
    experiments = [prepared.experiment for _, prepared in cells]
    with locked(folder):
        _agree_on_plan(folder, found, planned, cells, reference)
        rounds = cells[0][1].experiment.budget.rounds
        left = sum(not is_finished(cell.folder) for cell in planned)
        with Watch(left * rounds, cells=left, quiet=quiet, table=table) as watch:
            clock.mark("set-up")
            try:
                ends = sweep(planned, watch, loggers)
            except KeyboardInterrupt:
                raise Interrupted(f"stopped; {how_to_go_on(folder, experiments)}") from None
            clock.mark("runs")
        _conclude(folder, cells, planned, ends, clock, reference, json=json, quiet=quiet)


def _agree_on_plan(
    folder: Path, found: str, planned: list[SweepRun], cells: Cells, reference: str | None
) -> None:
    """Write down what is going to run, or check that it is what the folder says."""
    runs = [
        Planned(cell.folder.name, cell.identity, method, prepared.experiment.model_dump(exclude_none=True))
        for cell, (method, prepared) in zip(planned, cells, strict=True)
    ]
    if found == EMPTY:
        plan = Plan(runs, cells[0][1].experiment.budget.rounds, reference)
        write_whole(folder / "plan.json", to_json(plan))
        return
    if not (folder / "plan.json").exists():
        raise UserError(f"the output folder {folder} holds a run: choose another with --out.")
    there = {run.folder: run for run in read_plan(folder).runs}
    if [(run.folder, run.identity) for run in runs] != [(run.folder, run.identity) for run in there.values()]:
        raise UserError(
            f"the output folder {folder} holds another compare ({_difference(runs, there)}): choose another "
            "with --out, or ask for the same."
        )


def _failed_before(folder: Path) -> bool:
    """Whether runs of a compare that has ended have failed, and may be tried again."""
    try:
        return bool(COMPARE.parse((folder / "compare.json").read_text()).get("failed"))
    except (OSError, UnicodeDecodeError, DamagedError):
        return False


def _difference(runs: list[Planned], there: dict[str, Planned]) -> str:
    """What is asked for now and differs from what a plan says."""
    names = {run.folder for run in runs}
    if missing := sorted(there.keys() - names):
        return f"with {missing[0]}"
    if more := sorted(names - there.keys()):
        return f"without {more[0]}"
    for run in runs:
        if run.identity != there[run.folder].identity:
            return differences(Experiment(**there[run.folder].experiment), Experiment(**run.experiment))
    return "in another order"


def read_plan(folder: Path) -> Plan:
    """What a compare in this folder is going to run."""
    path = folder / "plan.json"
    try:
        return PLAN.parse(path.read_text())
    except (OSError, UnicodeDecodeError, DamagedError) as error:
        raise UserError(
            f"{path} cannot be used ({error}): run the compare again in another folder."
        ) from None


def _conclude(
    folder: Path,
    cells: Cells,
    planned: list[SweepRun],
    ends: list[Run | Failure],
    clock: Clock,
    reference: str | None,
    *,
    json: bool,
    quiet: bool,
) -> None:
    methods = list(dict.fromkeys(method for method, _ in cells))
    by_method: dict[str, dict[int, Run]] = {method: {} for method in methods}
    failed: list[FailedRun] = []
    named = {run.path: run for run in shorten([end for end in ends if isinstance(end, Run)])}
    for (method, prepared), cell, end in zip(cells, planned, ends, strict=True):
        seed = prepared.experiment.seed
        if isinstance(end, Failure):
            failed.append(FailedRun(method, seed, cell.identity, str(cell.folder), end.sentence))
        else:
            by_method[method][seed] = named[end.path]
    settings = cells[0][1].experiment
    seeds = [prepared.experiment.seed for method, prepared in cells if method == methods[0]]
    found, told = comparison(settings, seeds, by_method, failed, reference)
    clock.mark("end")
    time = _time(clock)
    whole = found | {"run_dir": str(folder), "time": time}
    write_whole(folder / "compare.json", to_json(whole))
    known = {method: list(each.values()) for method, each in by_method.items() if each}
    if json:
        print(to_json(whole, indent=None))
    else:
        title = f"{settings.title()}, seed{'s' * (len(seeds) > 1)} {','.join(map(str, seeds))}"
        if told:
            _show(title, known, told)
        console().print(f"\nrun folders: {folder}", soft_wrap=True)
    if not quiet:
        summaries = [summary_of(run) for each in known.values() for run in each]
        on_cluster = any(prepared.trial.engine == "ray" for _, prepared in cells)
        say(sweep_time_line(time, summaries, len(cells), side_by_side=on_cluster))
    if failed:
        again = resume_command(folder, [prepared.experiment for _, prepared in cells])
        raise UserError(_failure(failed, len(cells), again))
    if not (json or quiet):
        say_next(report_command(folder), table_command(folder))


def _show(title: str, known: dict[str, list[Run]], told: Answer) -> None:
    rows = list(known.items())
    screen = console()
    screen.print(title)
    screen.print(told.skew)
    grids = [result_grid(rows), score_grid(rows), *compared_sites(rows), cost_grid(rows)]
    settles = told.reference is not None and len(told.seeds) >= metrics.FEWEST
    if told.reference is not None:
        grids.insert(1, difference_grid(told))
    for grid in [*grids, *([forest_grid(told)] if settles else [])]:
        screen.print()
        screen.print(grid)
    screen.print(f"\n{told.sentence}")
    failed = (note for _, runs in rows for run in runs for note in summary_of(run).notes)
    for note in dict.fromkeys((*told.notes, *failed)):
        screen.print(f"note: {note}")


def _time(clock: Clock) -> SweepTime:
    start = {name: spent for name, spent in clock.parts.items() if name not in ("runs", "end")}
    return SweepTime(clock.total, start, clock.parts["runs"], clock.parts["end"])


def _failure(failed: list[FailedRun], runs: int, again: str) -> str:
    """That runs have failed, in one sentence: the first in full, where the others stand."""
    first = failed[0]
    there = Path(first.run_dir, "error.json").exists()
    seen = f"see error.json in {first.run_dir}, and " if there else ""
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    return (
        f"{len(failed)} of {runs} runs failed: {first.method} seed {first.seed}{more} "
        f"({first.error.removesuffix('.')}): {seen}run what failed again with: {again}; the other runs are "
        "whole."
    )


def _folders(labels: Iterable[str]) -> dict[str, str]:
    """What the folders of methods begin with."""
    found: dict[str, str] = {}
    for label in labels:
        name, number = slug(label), 2
        while name in found.values():
            name, number = f"{slug(label)}-{number}", number + 1
        found[label] = name
    return found


def _find_label(text: str, labels: Mapping[str, str]) -> str:
    """What a method is called that is named here; `labels` are those there are, by what was typed."""
    if text in labels:
        return labels[text]
    with contextlib.suppress(UserError):  # no method at all
        spec = MethodSpec(**options.method_table(text))
        text = spec.brief() if spec.parts().keys() <= METHODS.keys() else text
    if text not in labels.values():
        raise unknown("method to compare with", text, labels.values())
    return text
