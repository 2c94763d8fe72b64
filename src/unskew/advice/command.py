"""The command that tries a recommended method next to FedAvg."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from unskew.advice.evidence import Setting
from unskew.advice.verdict import ChosenCandidate
from unskew.notation import named
from unskew.report.standings import REFERENCE

PLACES = {"data.name": "DATA", "skew.recipe": "SKEW"}
"""Settings that may be unknown, each with the word that a command has in their place."""
INSTEAD = {
    "budget.epochs": "budget.steps",
    "budget.steps": "budget.epochs",
    "budget.schedule": "budget.lr_decay",
}
"""Settings of the budget, each with the one that may be given instead."""
UNCHANGED = {"model.norm": "auto"}
"""Settings of a network, each with the value that leaves it as it was published."""
FLAGS = {
    "data.name": "--dataset",
    "skew.recipe": "--skew",
    "skew.clients": "--clients",
    "budget.cohort": "--cohort",
    "model.name": "--model",
} | {
    f"{table}.{name}": f"--{name.replace('_', '-')}"
    for name in ("rounds", "epochs", "steps", "batch_size", "lr", "schedule", "optimizer", "augment")
    for table in ("budget", "data")
}
"""The settings that have a flag on the command line, with the flag."""


def command_to_try(
    choice: ChosenCandidate, setting: Setting, *, same_data: bool, clients: int, given: Mapping[str, Any]
) -> str:
    """Write the command that tries a method next to FedAvg, with the budget that it was measured with.

    What is `given` takes precedence over the setting of the evidence. On other data than there, the command
    leaves the model to its default. A norm that FedAvg was measured without is varied, so that both methods
    run with it and without it.
    """
    candidate = choice.candidate
    wanted = {**PLACES, "skew.clients": clients, **given}
    for key, value in (setting.settings | candidate.method.tuned).items():
        if _is_replaced(key, given):
            continue
        if key.startswith("budget.") or (key == "data.augment" and same_data):
            wanted.setdefault(key, value)
    if same_data:
        wanted.setdefault("model.name", candidate.network.name)
    reference, varied = choice.verdict.reference.network, list[str]()
    for key, value in candidate.network.changed.items():
        if key in UNCHANGED and key not in wanted and key not in reference.changed:
            varied += ["--vary", f"{key}={UNCHANGED[key]}", "--vary", f"{key}={value}"]
        else:
            wanted.setdefault(key, value)
    words = ["unskew", "compare", REFERENCE, candidate.method.name]
    for key in sorted(wanted, key=lambda key: key not in FLAGS):
        words += [FLAGS[key], str(wanted[key])] if key in FLAGS else ["--set", f"{key}={wanted[key]}"]
    return shlex.join([*words, *varied, "--seeds", "1-3"])


def _is_replaced(key: str, given: Mapping[str, Any]) -> bool:
    """Say whether something that is given takes the place of a setting of the budget."""
    if key == "budget.momentum":
        return named(str(given.get("budget.optimizer", "sgd")))[0] != "sgd"
    return INSTEAD.get(key) in given
