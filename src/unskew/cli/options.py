"""Options that several commands share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.errors import UserError
from unskew.experiment import assign, read

ExperimentFile = Annotated[Path | None, typer.Argument(help="An experiment file; flags change it.")]
Dataset = Annotated[
    str | None,
    typer.Option("--dataset", help="A dataset of `unskew data`, or folder:, csv:, npz: and a path."),
]
Skew = Annotated[
    str | None, typer.Option("--skew", help="Who holds what, such as dirichlet:0.05 or shards:2.")
]
Clients = Annotated[str | None, typer.Option("--clients", metavar="NUMBER", help="Number of clients.")]
Model = Annotated[str | None, typer.Option("--model", help="A model; by default one that suits the data.")]
Rounds = Annotated[str | None, typer.Option("--rounds", metavar="NUMBER", help="Rounds of training.")]
Cohort = Annotated[
    str | None,
    typer.Option("--cohort", metavar="NUMBER", help="Clients that take part in a round, or 'all'."),
]
Epochs = Annotated[
    str | None, typer.Option("--epochs", metavar="NUMBER", help="Passes over a client's data in a round.")
]
BatchSize = Annotated[
    str | None, typer.Option("--batch-size", metavar="NUMBER", help="Samples in a local step.")
]
Lr = Annotated[str | None, typer.Option("--lr", metavar="NUMBER", help="Learning rate of the first round.")]
Augment = Annotated[str | None, typer.Option("--augment", help="Such as crop:4,flip,cutout:16.")]
Seed = Annotated[
    str | None,
    typer.Option("--seed", metavar="NUMBER", help="Of initial weights, cohorts, batches and the partition."),
]
Engine = Annotated[str | None, typer.Option("--engine", help="How clients are run: loop.")]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder to write to; by default a new one in runs/.")]
Data = Annotated[
    Path | None, typer.Option("--data", help="Folder with the datasets; by default UNSKEW_DATA or the cache.")
]
Json = Annotated[bool, typer.Option("--json", help="The last line of stdout is one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting of an experiment file, such as budget.lr=0.1.")
]

PATHS = {
    "method": "method",
    "dataset": "data.name",
    "augment": "data.augment",
    "skew": "skew.recipe",
    "clients": "skew.clients",
    "model": "model.name",
    "rounds": "budget.rounds",
    "cohort": "budget.cohort",
    "epochs": "budget.epochs",
    "batch_size": "budget.batch_size",
    "lr": "budget.lr",
    "seed": "seed",
    "engine": "engine",
    "device": "device",
    "data": "data.folder",
}
"""Where each flag stands in an experiment file."""


def settings(file: Path | None, assignments: list[str] | None, **flags: Any) -> dict[str, Any]:
    """The experiment file, then the flags that were given, then --set: later ones win. Numbers in flags are
    left to be read with the setting, so that a flag, --set and a file get the same answer."""
    base = read(file) if file else {}
    if file and not base:
        raise UserError(f"the experiment file {file} is empty: write settings into it, or leave it out.")
    for flag, value in flags.items():
        if value is None:
            continue
        table, _, key = PATHS[flag].rpartition(".")
        inner = base.setdefault(table, {}) if table else base
        if not isinstance(inner, dict):
            raise UserError(f"{table} is {inner!r} in {file} but should be a table: write [{table}].")
        inner[key] = str(value) if isinstance(value, Path) else value
    return assign(base, assignments or [])


def method_table(text: str) -> dict[str, Any]:
    """`NAME`, `NAME:option=value,option=value`, or several of these joined by +, as the [method] table of an
    experiment."""
    parts = [part.strip().partition(":") for part in re.split(r"\+(?!\d)", text)]
    if not all(name for name, _, _ in parts):
        raise UserError(f"--method is '{text}' but a name is missing: write one, or several joined by +.")
    for name, colon, options in parts:
        if colon and not all("=" in option for option in options.split(",")):
            raise UserError(f"'{name}:{options}' is not a method: write {name}, or {name}:option=value.")
    tables = {name: assign({}, options.split(",") if options else []) for name, _, options in parts}
    name = "+".join(name for name, _, _ in parts)
    return {"name": name, **(tables[name] if len(parts) == 1 else tables)}


def seed_list(text: str) -> list[int]:
    """Such as 1,2,3 or 1-5."""
    seeds: list[int] = []
    for part in text.split(","):
        if not (match := re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)):
            raise UserError(f"--seeds is '{text}' but should be numbers such as 1,2,3 or 1-3.")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise UserError(f"--seeds is '{text}' but a range goes upwards: write {last}-{first}.")
        seeds.extend(range(first, last + 1))
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds is '{text}' but every seed should be named once.")
    return seeds
