"""`unskew resume`: continue a run, compare or search that was interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.cli import options
from unskew.cli.compare import finish
from unskew.cli.flags import apply_flags
from unskew.cli.progress import ProgressDisplay
from unskew.cli.run import answer
from unskew.cli.setup import set_up
from unskew.cli.tune.searching import finish_search
from unskew.clock import Clock, process_age
from unskew.comparison.study import Study, StudyCell, read_plan
from unskew.errors import UserError
from unskew.experiment import Experiment, refuse_code
from unskew.experiment import read as read_experiment
from unskew.lock import locked
from unskew.record import Plan
from unskew.report.read import read_run
from unskew.sweep import execute, is_finished, remove_leftovers
from unskew.tune.folder import read_search


def resume(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A folder that `unskew run`, `compare` or `tune` wrote."),
    ],
    method: Annotated[
        list[str] | None,
        options.option("--method", "FILE", "Method file of the run, if it had one; its code will run again."),
    ] = None,
    model: Annotated[
        str | None,
        options.option(
            "--model", "FILE:NAME", "Model code of the run, if it had its own; it will run again."
        ),
    ] = None,
    skew: Annotated[
        str | None,
        options.option("--skew", "SKEW", "Partition code of the run, if it had its own; it will run again."),
    ] = None,
    engine: options.Engine = None,
    workers: options.Workers = None,
    checkpoint: options.Checkpoint = None,
    data: options.Data = None,
    log: options.Log = None,
    table: options.TablePerRound = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Resume an interrupted run, compare or search; the result is the same as without the interruption.
    Only settings that results do not depend on can be changed."""
    clock = Clock(process_age())
    clock.mark("imports")
    loggers = options.loggers(log)
    changes: dict[str, Any] = {"engine": engine, "workers": workers, "checkpoint": checkpoint, "data": data}
    trusted = method or [], model or "", skew or ""
    if (run / "plan.json").is_file():
        plan = read_plan(run)
        cells = set_up(_planned(run, plan, changes, trusted), clock, quiet=quiet)
        study = Study(
            tuple(
                StudyCell(method, prepared, planned.condition)
                for planned, (method, prepared) in zip(plan.runs, cells, strict=True)
            ),
            plan.reference,
        )
        finish(run, study, clock, loggers, json=json, quiet=quiet, table=table)
        return
    if (run / "search.json").is_file():
        search = read_search(run)
        for each in search.methods:
            refuse_code({**search.experiment, "method": each.table}, run / "search.json", *trusted)
        search = replace(search, experiment=apply_flags(search.experiment, **changes))
        finish_search(run, search, clock, json=json, quiet=quiet)
        return
    if not (run / "experiment.toml").is_file():
        what = "is no folder of a run" if run.exists() else "is not there"
        raise UserError(f"{run} {what}: give a folder that unskew run, compare or tune has written.")
    settings = read_experiment(run / "experiment.toml")
    refuse_code(settings, run / "experiment.toml", *trusted)
    spec = Experiment(**apply_flags(settings, **changes))
    if is_finished(run):
        with locked(run):
            remove_leftovers(run)  # the run may have been killed just after it finished
        answer(read_run(run), spec, clock, json=json, quiet=True)
        return
    [(_, prepared)] = set_up([("", spec)], clock, quiet=quiet)
    with ProgressDisplay(spec.budget.rounds, quiet=quiet, table=table) as display:
        display.label(f"{spec.method.brief()} seed {spec.seed}")
        finished = execute(prepared, run, display, loggers, clock)
    answer(finished, prepared.experiment, clock, json=json, quiet=quiet)


def _planned(
    folder: Path, plan: Plan, changes: dict[str, Any], trusted: tuple[list[str], str, str]
) -> Iterator[tuple[str, Experiment]]:
    """Yield the experiments that a compare planned, each with its method's label."""
    for planned in plan.runs:
        if not planned.experiment:
            raise UserError(
                f"{folder} was written by a version that could not resume: run the compare again."
            )
        refuse_code(planned.experiment, folder / "plan.json", *trusted)
        yield planned.method, Experiment(**apply_flags(planned.experiment, **changes))
