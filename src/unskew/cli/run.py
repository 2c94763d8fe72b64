"""`unskew run`: train one method and show every class."""

from __future__ import annotations

from typing import Annotated

import typer

from unskew.cli import options
from unskew.cli.closing import report_command, say_next, time_line
from unskew.cli.flags import experiment_settings, given_flags
from unskew.cli.progress import ProgressDisplay
from unskew.cli.result_tables import (
    class_table,
    cost_grid,
    result_grid,
    score_grid,
    site_grid,
    spread_line,
    validation_line,
)
from unskew.cli.setup import set_up
from unskew.cli.terminal import console, percent, say
from unskew.clock import Clock, process_age
from unskew.comparison.statistics import summary_of
from unskew.experiment import Experiment, method_table
from unskew.record import Summary, to_json
from unskew.report.read import SavedRun
from unskew.report.skew_words import skew_in_words
from unskew.runs import free_folder, time_of
from unskew.sweep import execute


def run(
    context: typer.Context,
    experiment: options.ExperimentFile = None,
    method: Annotated[
        str | None,
        options.option("--method", "NAME", "A method of `unskew methods`, such as fedprox:mu=0.1.", "fedavg"),
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
    seed: options.Seed = None,
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
    """Train one method and show the accuracy of every class."""
    clock = Clock(process_age())
    clock.mark("imports")
    spec = Experiment(
        **experiment_settings(
            experiment,
            set_,
            method=None if method is None else method_table(method),
            **given_flags(context),
        )
    )
    loggers = options.loggers(log)
    [(_, prepared)] = set_up([("", spec)], clock, quiet=quiet)
    settings = prepared.experiment
    label = settings.method.brief()
    with ProgressDisplay(settings.budget.rounds, quiet=quiet, table=table) as display:
        display.label(f"{label} seed {settings.seed}")
        folder = out or free_folder("-".join(settings.words()))
        finished = execute(prepared, folder, display, loggers, clock)
    answer(finished, settings, clock, json=json, quiet=quiet)


def answer(run: SavedRun, settings: Experiment, clock: Clock, *, json: bool, quiet: bool) -> None:
    """Show a finished run."""
    summary = summary_of(run)
    if json:
        print(to_json(summary, indent=None))
    else:
        _show(settings, run, summary)
    if not quiet:
        resumed = (run.path / "resumed.jsonl").exists()
        say(time_line(time_of(clock), None if resumed else summary.rounds))
    if not (json or quiet):
        say_next(report_command(run.path))


def _show(settings: Experiment, run: SavedRun, summary: Summary) -> None:
    label, screen = settings.method.brief(), console()
    screen.print(settings.title() + f", seed {settings.seed}")
    screen.print(f"{skew_in_words(run)}\n")
    screen.print(class_table(run, screen.width))
    for grid in (result_grid, score_grid, cost_grid):
        screen.print()
        screen.print(grid([(label, [run])]))
    if sites := site_grid(summary):
        screen.print()
        screen.print(sites)
        screen.print(spread_line(summary))
    if chosen := validation_line(summary):
        screen.print(f"\n{chosen}")
    if summary.domains and not sites:
        each = [f"{name} {percent(value)}" for name, value in summary.domains.items() if value is not None]
        screen.print(f"\naccuracy % by domain: {', '.join(each)}")
    for note in summary.notes:
        screen.print(f"\nnote: {note}")
    screen.print(f"\nrun folder: {summary.run_dir}", soft_wrap=True)
