"""Options that several commands share."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.engines import ENGINES
from unskew.errors import UserError
from unskew.experiment import Experiment
from unskew.loggers import find

DEFAULT = Experiment()


def option(flag: str, metavar: str, text: str, default: object = None) -> Any:
    """Declare a flag that changes a setting; the help text shows `default`, its value without the flag."""
    more = "" if default is None else f" [default: {default}]"
    return typer.Option(flag, metavar=metavar, help=text + more, show_default=default is None)


ExperimentFile = Annotated[
    Path | None,
    typer.Argument(metavar="EXPERIMENT", help="An experiment file; options given here override it."),
]
Dataset = Annotated[
    str | None,
    option(
        "--dataset",
        "NAME",
        "A dataset that `unskew data` lists, or your own, such as folder:PATH or csv:PATH,label=COLUMN.",
        DEFAULT.data.name,
    ),
]
Skew = Annotated[
    str | None,
    option(
        "--skew",
        "SKEW",
        "How labels are spread over the clients: see `unskew skew --help`.",
        DEFAULT.skew.recipe,
    ),
]
Clients = Annotated[
    str | None, option("--clients", "NUMBER", "Number of clients.", "10, unless the data or the skew fix it")
]
Model = Annotated[
    str | None,
    option(
        "--model",
        "NAME",
        "A built-in model, or your own as my_net.py:Net; by default one that suits the data.",
    ),
]
Init = Annotated[
    str | None,
    option("--init", "PATH", "Trained weights to start from: a .safetensors file or a run's folder."),
]
Rounds = Annotated[str | None, option("--rounds", "NUMBER", "Number of rounds.", DEFAULT.budget.rounds)]
Cohort = Annotated[
    str | None,
    option("--cohort", "NUMBER", "Number of clients that take part in a round.", DEFAULT.budget.cohort),
]
Epochs = Annotated[
    str | None,
    option(
        "--epochs",
        "NUMBER",
        "Local epochs in a round; may be a fraction, such as 0.5.",
        DEFAULT.budget.epochs,
    ),
]
Steps = Annotated[
    str | None,
    option("--steps", "NUMBER", "Local steps in a round, the same for every client, instead of epochs."),
]
BatchSize = Annotated[
    str | None, option("--batch-size", "NUMBER", "Batch size of local training.", DEFAULT.budget.batch_size)
]
Lr = Annotated[str | None, option("--lr", "NUMBER", "Learning rate of the first round.", DEFAULT.budget.lr)]
Schedule = Annotated[
    str | None,
    option(
        "--schedule",
        "SCHEDULE",
        "Learning-rate schedule: constant, cosine:final=0.001, step:at=50/75 or exponential:0.99; each may "
        "have warmup=ROUNDS.",
        DEFAULT.budget.schedule,
    ),
]
Optimizer = Annotated[
    str | None,
    option(
        "--optimizer", "NAME", "Local optimiser: sgd, adam:betas=0.9/0.99 or adamw.", DEFAULT.budget.optimizer
    ),
]
Augment = Annotated[
    str | None,
    option(
        "--augment",
        "STEPS",
        "Augmentation of training images, such as crop:4,flip,cutout:16.",
        DEFAULT.data.augment,
    ),
]
Attack = Annotated[
    str | None,
    option(
        "--attack", "ATTACK", "Attack by some of the clients, such as sign-flip:fraction=0.2.", DEFAULT.attack
    ),
]
Validation = Annotated[
    str | None,
    option(
        "--validation",
        "SHARE|DATA",
        "Validation set that chooses the best round: a share of each client's samples, such as 0.1, or data "
        "such as csv:PATH,label=COLUMN.",
        DEFAULT.validation,
    ),
]
Stop = Annotated[
    str | None,
    option(
        "--stop",
        "patience=ROUNDS,metric=NAME",
        "Stop early, after ROUNDS rounds without a better value on the validation set; NAME is accuracy, "
        "macro-f1, balanced-accuracy, worst-class or loss.",
        DEFAULT.stop,
    ),
]
Seed = Annotated[
    str | None,
    option(
        "--seed",
        "NUMBER",
        "Random seed of initial weights, cohorts, batches and the partition.",
        DEFAULT.seed,
    ),
]
Engine = Annotated[
    str | None,
    option(
        "--engine",
        "NAME",
        f"How clients are run: {', '.join(ENGINES)}; auto: the fastest for the device.",
        DEFAULT.engine,
    ),
]
Workers = Annotated[
    str | None,
    option("--workers", "NUMBER", "Clients trained in parallel; 0: chosen for the machine.", DEFAULT.workers),
]
Precision = Annotated[
    str | None,
    option(
        "--precision",
        "NAME",
        "Numerical precision: fp32, tf32 (GPU), bf16; auto: tf32 on a GPU, fp32 on a CPU.",
        DEFAULT.precision,
    ),
]
Device = Annotated[
    str | None, option("--device", "NAME", "Device to train on: auto, cpu, cuda or cuda:N.", DEFAULT.device)
]
Probe = Annotated[
    str | None,
    option("--probe", "every=NUMBER", "Also test the clients' own models, every NUMBER rounds.", "never"),
]
OnFault = Annotated[
    str | None,
    option(
        "--on-fault",
        "NAME",
        "What to do when a client fails: skip it, stop the run, or stop-at-errors (stop only where code "
        "raised an error, else skip).",
        DEFAULT.faults.on_fault,
    ),
]
Checkpoint = Annotated[
    str | None,
    option(
        "--checkpoint",
        "PERIOD",
        "When to save a checkpoint for `unskew resume`: every=ROUNDS, a time such as 30s or 5m, or never.",
        "auto, by time",
    ),
]
Log = Annotated[
    str | None,
    option(
        "--log",
        "NAMES",
        "Also log for tensorboard, mlflow or wandb (several with commas), offline, in the run folder.",
    ),
]
TablePerRound = Annotated[
    bool, typer.Option("--table", help="Print a line for every tested round, on stderr.")
]
Out = Annotated[Path | None, option("--out", "PATH", "Folder to write to; by default a new one in runs/.")]
Data = Annotated[
    Path | None,
    option("--data", "PATH", "Folder with the datasets; by default UNSKEW_DATA or the cache folder."),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON object, the last line of stdout.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Overwrite existing files.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
Set = Annotated[
    list[str] | None,
    option(
        "--set", "KEY=VALUE", "Set any setting of an experiment file, such as budget.lr=0.1; may be repeated."
    ),
]

TrainedRun = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder, or its model.safetensors file alone.")
]
WhoseModel = Annotated[
    str | None,
    option(
        "--client",
        "NUMBER|NAME",
        "Client whose model to use, if the run has one model per client (local-only).",
    ),
]
WhoseRows = Annotated[
    str | None,
    option(
        "--site", "NAME", "Site whose rows these are, if each site is scaled by its own rows (scale=site)."
    ),
]
OwnModel = Annotated[
    str | None,
    option("--model", "FILE:NAME", "Code of your own model, such as my_net.py:Net; it will run."),
]


def check_output(path: Path, overwrite: bool) -> None:
    """Refuse to overwrite a file without --overwrite."""
    if path.is_dir():
        raise UserError(f"{path} is a folder: name a file with --out.")
    if path.exists() and not overwrite:
        raise UserError(f"{path} is there already: choose another file with --out, or give --overwrite.")


def listed(text: str) -> list[str]:
    """Split a list of names at its commas; a name that contains a comma is in double quotes."""
    (names,) = csv.reader([" ".join(text.splitlines())], skipinitialspace=True)
    return [name.strip() for name in names] or [""]


def loggers(text: str | None) -> tuple[str, ...]:
    """Check the loggers that a list such as tensorboard,wandb names, and return their names."""
    return () if text is None else find(part.strip() for part in text.split(","))


def seed_list(text: str) -> list[int]:
    """Read a list of seeds such as 1,2,3 or 1-5."""
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
