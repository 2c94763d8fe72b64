"""`unskew reproduce`: the tables and figures of papers, made again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unskew.cli import options
from unskew.cli.closing import work_time_line
from unskew.cli.flags import check_computing
from unskew.cli.reproduce.checks import check_fewer_rounds, choose_readings, parse_version, refuse_idle
from unskew.cli.reproduce.datasets_here import DatasetsHere
from unskew.cli.reproduce.listing import list_table, list_tables
from unskew.cli.reproduce.results import keep_table, read_table, show_results, write_experiments
from unskew.cli.reproduce.running import cell_runs, run_cells
from unskew.cli.terminal import console, say
from unskew.clock import Clock, process_age
from unskew.errors import UserError
from unskew.record import Failure, Json, to_json
from unskew.reproduce import cells, find_table, presentation
from unskew.reproduce.outcome import outcomes
from unskew.reproduce.version import Version

FOLDER = Path("runs/reproduce")


def reproduce(
    context: typer.Context,
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
        list[str] | None,
        options.option(
            "--cell",
            "PATTERN",
            "Cells to run, such as 'cifar10/dirichlet:0.05/*'; may be repeated, or have several patterns "
            "separated by spaces.",
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
    clock.mark("imports")
    refuse_idle({"--list": list_, "--show": show, "--write": write is not None}, context.params)
    check_computing(engine=engine, device=device, workers=workers, checkpoint=checkpoint)
    flags = {"engine": engine, "device": device, "workers": workers, "data": data, "checkpoint": checkpoint}
    loggers, numbers = options.loggers(log), options.seed_list("1" if seeds is None else seeds)
    version, out = parse_version(rounds, fraction, precision, fast=fast), out or FOLDER
    here = DatasetsHere.find(data)
    if table is None:
        if not list_:
            raise UserError(
                "no table is named: write one such as fedlmd:table3, or see them all with --list."
            )
        list_tables(here, json=json)
        return
    found = find_table(table)
    if list_:
        list_table(found, here, json=json)
        return
    if found.not_runnable:
        raise UserError(f"{found.id} cannot be run: {found.not_runnable}.")
    readings = choose_readings(found, reading)
    wanted = [(each, read) for each in cells(found, " ".join(cell or ["*"])) for read in readings]
    check_fewer_rounds(wanted, version)
    if write is not None:
        write_experiments(write, wanted, numbers, version, flags, json=json, quiet=quiet)
        return
    failed: dict[Path, Failure] = {}
    left_out: dict[str, str] = {}
    if not show:
        left_out = {each.id: why for each, _ in wanted if (why := here.missing(each))}
        if len({each.id for each, _ in wanted}) == len(left_out):
            raise UserError(f"none of these cells can be run here: {next(iter(left_out.values()))}.")
        runs = cell_runs(
            [each for each in wanted if each[0].id not in left_out], numbers, out, version, flags
        )
        read_table(found, out, version)  # a folder that it refuses is to be refused before anything runs
        failed = run_cells(runs, out / version.folder, version.fraction, clock, loggers, quiet=quiet)
    results = outcomes(found, wanted, out, version)
    keep_table(found, out, version)
    if json:
        whole = presentation.to_json(found, results, version)
        whole["left_out"] = dict[str, Json](left_out)
        whole["failed"] = {str(folder): end.sentence for folder, end in failed.items()}
        print(to_json(whole, indent=None))
    else:
        show_results(found, results, version, left_out)
        if not quiet:
            console().print(f"\nruns and tables: {out / version.folder}", soft_wrap=True)
    if "runs" in clock.parts and not quiet:
        say(work_time_line(clock, "runs"))
    if failed:
        folder, first = next(iter(failed.items()))
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise UserError(
            f"{folder.name}{more} failed ({first.sentence.removesuffix('.')}): give the same command again "
            "to try what failed once more; what is finished is kept."
        )
