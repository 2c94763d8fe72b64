"""The commands that try a recommended method next to FedAvg."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
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


RATES = (0.05, 0.2, 0.5, 1, 2, 5)
"""The learning rates of a search, as multiples of the one that a method was measured with."""
RATE = "budget.lr"
USUAL_RATE = 0.02
"""The learning rate to search around where none was measured: the median of those that were chosen for FedAvg
in docs/results/tuned-study.md."""
STRONG_FEDAVG = "fedavg+ema:decay=auto"
"""A FedAvg that needs no more of its clients than FedAvg and is mostly stronger."""


def commands_to_try(
    choice: ChosenCandidate,
    setting: Setting,
    *,
    same_data: bool,
    clients: int,
    given: Mapping[str, Any],
    more: Sequence[str] = (),
) -> tuple[str, str]:
    """Write two commands that try a method next to FedAvg, with the budget that it was measured with: one at
    the learning rate that it was measured with, and one that searches each method's rate first.

    What is `given` takes precedence over the setting of the evidence. On other data than there, the commands
    leave the model to its default. A norm that FedAvg was measured without is varied by the first, so that
    both methods run with it and without it. The second gives it to all methods, and also tries the strongest
    FedAvg on that network and `more` methods.
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
    everywhere = wanted | {k: v for k, v in candidate.network.changed.items() if k not in wanted}
    for key, value in candidate.network.changed.items():
        if key in UNCHANGED and key not in wanted and key not in reference.changed:
            varied += ["--vary", f"{key}={UNCHANGED[key]}", "--vary", f"{key}={value}"]
        else:
            wanted.setdefault(key, value)
    method = candidate.method.name
    at_one_rate = ["unskew", "compare", REFERENCE, method, *_options(wanted), *varied, "--seeds", "1-5"]
    strongest = choice.strongest_fedavg
    server = strongest.candidate.method.name if strongest else STRONG_FEDAVG
    return shlex.join(at_one_rate), search_rates([REFERENCE, server, *more, method], everywhere)


def search_rates(methods: Iterable[str], settings: Mapping[str, Any]) -> str:
    """Write the command that searches the learning rate of each method on validation data, around the one of
    the settings, and compares the winners."""
    rate = float(settings.get(RATE, USUAL_RATE))
    rates = "|".join(f"{multiple * rate:g}" for multiple in RATES)
    search = ["unskew", "tune", "--over", f"{RATE}={rates}", *dict.fromkeys(methods), "--sampler", "grid"]
    search += _options({key: value for key, value in settings.items() if key != RATE})
    search += ["--seeds", "101-103", "--out", "tuned"]
    return f"{shlex.join(search)} && unskew compare tuned/best/*.toml --seeds 1-5"


def _options(settings: Mapping[str, Any]) -> list[str]:
    """Write settings as options, those with a flag first."""
    words = []
    for key in sorted(settings, key=lambda key: key not in FLAGS):
        words += [FLAGS[key], str(settings[key])] if key in FLAGS else ["--set", f"{key}={settings[key]}"]
    return words


def _is_replaced(key: str, given: Mapping[str, Any]) -> bool:
    """Say whether something that is given takes the place of a setting of the budget."""
    if key == "budget.momentum":
        return named(str(given.get("budget.optimizer", "sgd")))[0] != "sgd"
    return INSTEAD.get(key) in given
