"""`unskew bench`: how fast this machine trains."""

from __future__ import annotations

import contextlib
import sys
import typing
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from unskew.bench import COLUMNS, LEGEND, Section, Settings, measure, suited
from unskew.cli import options
from unskew.cli.terminal import console
from unskew.errors import UserError, unknown
from unskew.record import to_json
from unskew.runs import writing
from unskew.trial import Precision


def bench(
    cells: Annotated[
        list[str] | None,
        typer.Argument(metavar="CELL", help="Workloads to measure; by default those that suit this machine."),
    ] = None,
    rounds: Annotated[
        str | None,
        options.option(
            "--rounds", "NUMBER", "Rounds of each run; the first is measured separately.", "the workload's"
        ),
    ] = None,
    repeats: Annotated[
        str | None, options.option("--repeats", "NUMBER", "Runs of each competitor.", "the workload's")
    ] = None,
    method: Annotated[
        str | None,
        options.option("--method", "NAMES", "Methods to measure, such as fedavg,scaffold.", "the workload's"),
    ] = None,
    engine: Annotated[
        str | None,
        options.option(
            "--engine", "NAMES", "Engines to measure, such as loop,pool.", "loop,auto; on a GPU auto"
        ),
    ] = None,
    precision: Annotated[
        str | None,
        options.option(
            "--precision",
            "NAMES",
            "Numerical precisions to measure: of fp32, tf32 and bf16.",
            "the workload's",
        ),
    ] = None,
    device: Annotated[
        str | None,
        options.option("--device", "NAME", "Device to measure: auto, cpu, cuda or cuda:N.", "the workload's"),
    ] = None,
    workers: Annotated[
        str, options.option("--workers", "NUMBER", "Clients trained in parallel; 0: chosen for the machine.")
    ] = "0",
    fast: Annotated[
        bool,
        typer.Option(
            "--fast",
            help="Allow non-deterministic, compiled GPU kernels; results then vary in the last bits.",
        ),
    ] = False,
    profile: Annotated[
        Path | None,
        options.option(
            "--profile", "PATH", "Write a profile of three rounds to this file: the time of each kernel."
        ),
    ] = None,
    out: Annotated[Path, options.option("--out", "PATH", "Folder for the dated .json and .md files.")] = Path(
        "bench"
    ),
    data: options.Data = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure training speed on this machine: engines take turns on named workloads; results are medians.

    On a CPU: cnn, digits, fashion (against bare PyTorch steps). On a GPU: fedlmd, blazefl, blazefl-resnet18,
    pfl, fedvls (against one model in large batches). Anywhere: startup, load, idle. docs/bench.md describes
    them.
    """
    if profile and profile.exists():
        raise UserError(f"{profile} is there already: choose another file with --profile, or remove it.")
    if profile and not profile.parent.is_dir():
        raise UserError(f"there is no folder {profile.parent}: choose another file with --profile.")
    if out.is_file():
        raise UserError(f"the output folder {out} is a file: choose another with --out.")
    with writing(out), contextlib.suppress(FileNotFoundError):  # it is made when there is something to write
        out.stat()
    settings = Settings(
        rounds=None
        if rounds is None
        else _number("rounds", rounds, 2),  # the first one is measured separately
        repeats=None if repeats is None else _number("repeats", repeats, 1),
        methods=_names(method),
        engines=_names(engine),
        precisions=_precisions(precision),
        device=device,
        workers=_number("workers", workers, 0),
        fast=fast,
        data=data,
        profile=profile,
    )

    def tell(what: str) -> None:
        if not quiet:
            print(what, file=sys.stderr)

    report = measure(cells or suited(), settings, tell)
    written = report.save(out)
    if json:
        print(to_json(report.json(), indent=None))
        return
    screen = console()
    for name, value in report.conditions.items():
        screen.print(f"{name}: {value}", soft_wrap=True)
    for section in report.sections:
        screen.print(f"\n{section.name}: {section.title}\n")
        screen.print(table(section))
        for note in section.notes:
            screen.print(f"note: {note}", soft_wrap=True)
    screen.print(f"\n{LEGEND}")
    for path in [*written, *([profile] if profile else [])]:
        screen.print(f"written: {path}", soft_wrap=True)


def _names(given: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in given.split(",")) if given else ()


def table(section: Section) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in COLUMNS:
        table.add_column(title, justify="left" if title in ("what", "target") else "right")
    for line in section.lines:
        table.add_row(*line.cells())
    return table


def _precisions(text: str | None) -> tuple[Precision, ...]:
    known: tuple[Precision, ...] = typing.get_args(Precision)
    named = _names(text)
    for name in named:
        if name not in known:
            raise unknown("precision", name, known)
    return tuple(each for each in known if each in named)


def _number(flag: str, text: str, least: int) -> int:
    if not text.strip().isdecimal() or int(text) < least:
        raise UserError(f"--{flag} is '{text}' but should be a whole number, at least {least}.")
    return int(text)
