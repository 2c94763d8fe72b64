"""The flags of a command as settings of its experiment."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from unskew.checkpoints import Period
from unskew.engines import ENGINES, FLOWER, ON_FLOWER
from unskew.errors import UserError, unknown
from unskew.experiment import Experiment, assign, read, refuse_code
from unskew.methods import METHODS
from unskew.notation import named

PATHS = {
    "method": "method",
    "dataset": "data.name",
    "augment": "data.augment",
    "attack": "attack",
    "validation": "validation",
    "stop": "stop",
    "skew": "skew.recipe",
    "clients": "skew.clients",
    "model": "model.name",
    "init": "model.init",
    "rounds": "budget.rounds",
    "cohort": "budget.cohort",
    "epochs": "budget.epochs",
    "steps": "budget.steps",
    "batch_size": "budget.batch_size",
    "lr": "budget.lr",
    "schedule": "budget.schedule",
    "optimizer": "budget.optimizer",
    "seed": "seed",
    "engine": "engine",
    "device": "device",
    "workers": "workers",
    "precision": "precision",
    "data": "data.folder",
    "probe": "probe.every",
    "checkpoint": "checkpoint",
    "on_fault": "faults.on_fault",
}
"""The setting of an experiment file that each flag sets."""
HASHES = {"model": "sha256", "skew": "sha256", "init": "init_sha256"}
"""The keys next to these settings that hold the hash of a flag's file."""

REPLACES = {
    "steps": "epochs",
    "epochs": "steps",
    "schedule": "lr_decay",
    "lr_decay": "schedule",
    "optimizer": "momentum",
}
"""Settings of the budget that exclude each other: one on the command line replaces the other in a file."""


def given_flags(context: typer.Context) -> dict[str, Any]:
    """Return the values of all options of the called command that are settings of an experiment, by their
    names in `PATHS`; None for an option that was not given. Each command reads its own --method."""
    flags = {name: context.params[name] for name in PATHS if name in context.params and name != "method"}
    if "probe" in flags:
        flags["probe"] = _probe_period(flags["probe"])
    return flags


def experiment_settings(
    file: Path | None, assignments: list[str] | None, *, trusted: Sequence[str] = (), **flags: Any
) -> dict[str, Any]:
    """Return the settings of the experiment file, overridden by the given flags, and these by --set.

    Numbers in flags stay text until the experiment reads them, so that a flag, --set and a file get the same
    error messages. `trusted` are method files whose code the experiment file may name.
    """
    if file and "method" in flags and not file.exists() and re.split("[:+]", str(file))[0] in METHODS:
        raise UserError(
            f"{file} is a method and no experiment file: write --method {shlex.quote(str(file))}."
        )
    base = read(file) if file else {}
    if file and not base:
        raise UserError(f"the experiment file {file} is empty: write settings into it, or leave it out.")
    if file:
        assigned = [each.partition("=")[0].strip() for each in assignments or []]
        _refuse_code_of(base, file, assigned, flags, trusted)
    given, held = assign(apply_flags({}, **flags), assignments or []).get("budget"), base.get("budget")
    if isinstance(given, dict) and isinstance(held, dict):
        for key, other in REPLACES.items():
            keeps = (
                key == "optimizer" and named(str(given.get(key)))[0] == "sgd"
            )  # SGD has a momentum, so the file's one stays
            if key in given and other not in given and not keeps:
                held.pop(other, None)
    return assign(apply_flags(base, file, **flags), assignments or [])


def _refuse_code_of(
    base: dict[str, Any], file: Path, assigned: list[str], flags: dict[str, Any], methods: Sequence[str]
) -> None:
    """Refuse code that a file names, unless the command line names or replaces it, or it will not run."""

    def trusted(flag: str, nothing: Any) -> Any:
        here = flags.get(flag) is not None or PATHS[flag] in assigned or f"{PATHS[flag]}.name" in assigned
        return None if here or flag not in flags else nothing

    refuse_code(base, file, trusted("method", methods), trusted("model", ""), trusted("skew", ""))


def apply_flags(base: dict[str, Any], file: Path | None = None, **flags: Any) -> dict[str, Any]:
    """Set the settings of the given flags in place, and return all settings; `file` is named in errors."""
    for flag, value in flags.items():
        if value is None:
            continue
        table, _, key = PATHS[flag].rpartition(".")
        inner = base.setdefault(table, {}) if table else base
        if not isinstance(inner, dict):
            raise UserError(f"{table} is {inner!r} in {file} but should be a table: write [{table}].")
        if flag in HASHES and inner.get(key) != value:  # the hash is of another file
            inner.pop(HASHES[flag], None)
        inner[key] = str(value) if isinstance(value, Path) else value
    return base


def _probe_period(text: str | None) -> str | None:
    """Return the number in every=10 or 10, as text that the experiment reads; 0 for never."""
    if (text or "").strip() == "never":
        return "0"
    key, sign, value = (text or "").partition("=")
    if sign and key.strip() != "every":
        raise UserError(f"--probe is '{text}' but should be every=NUMBER, such as every=10.")
    return value if sign else text


def refuse_unshared(assignments: list[str] | None, seeds: str | None) -> None:
    """Refuse a --set of hyperparameters, since there are several methods, and of the seed next to --seeds."""
    for assignment in assignments or []:
        setting = assignment.partition("=")[0].partition(".")[0].strip()
        if setting == "method":
            raise UserError(
                f"'{assignment}' does not say for which method: write hyperparameters after a method's name, "
                "such as fedprox:mu=0.1."
            )
        if setting == "seed" and seeds is not None:
            raise UserError(f"'{assignment}' and --seeds are both given: keep one.")


def check_computing(
    *, engine: str | None, device: str | None, workers: str | None, checkpoint: str | None
) -> None:
    """Refuse values that are not valid on any machine; what this machine has does not matter."""
    if engine == FLOWER:
        raise UserError(ON_FLOWER)
    if engine is not None and engine not in ("auto", *ENGINES):
        raise unknown("engine", engine, ["auto", *ENGINES])
    if device is not None and not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise UserError(f"unknown device '{device}': choose auto, cpu, cuda or cuda:N.")
    if checkpoint is not None:
        Period.parse(checkpoint)
    Experiment(**apply_flags({}, workers=workers))
