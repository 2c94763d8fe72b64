"""Makes the tables of docs/steady.md: all settings in which steady was measured with three seeds.

python docs/results/steady.py

They are there between two comments, with the numbers that docs/results/build.py made of the raw lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tables import table

from unskew import metrics
from unskew.advice.evidence import MethodResult, Setting, evidence
from unskew.report.differences import between, signed

PAGE = Path(__file__).parents[1] / "steady.md"
LOSSES = {"fedlc": "FedLC", "fedntd": "FedNTD", "fedlmd": "FedLMD", "fedvls": "FedVLS"}
SERVER = "+uniform+fedacg:beta=0+ema:decay=auto"
"""The server of steady, to be added to another loss."""
MEAN = "fedavg+ema:decay=auto"
NORMALISED = {"model.norm": "group+ws"}
DATA = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "fashion_mnist": "Fashion-MNIST",
    "digits": "digits",
    "heart-disease": "heart-disease",
}
SKEWS = {"iid": "no skew", "natural": "four hospitals"}
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"


Methods = Mapping[str, MethodResult]


def measured(setting: Setting, changed: Mapping[str, str]) -> Methods:
    """Return the methods with enough seeds on the network with these changed settings."""
    found = [method for each in setting.networks if each.changed == changed for method in each.methods]
    return {each.name: each for each in found if len(each.seeds) >= metrics.FEWEST}


def losses(methods: Methods, server: str = "") -> list[MethodResult]:
    """Return the losses of the papers with a server, the one with the highest accuracy first."""
    found = [methods[f"{loss}{server}"] for loss in LOSSES if f"{loss}{server}" in methods]
    return sorted(found, key=lambda each: -(each.mean("accuracy") or 0.0))


def tables(settings: Sequence[Setting]) -> str:
    """Return both tables: accuracies, then the gains of steady. Settings with tuned methods are left out."""
    rows, gains = [], []
    for setting in (each for each in settings if not each.tuned):
        published, normalised = measured(setting, {}), measured(setting, NORMALISED)
        if "steady" in published:
            rows.append([title(setting), *_accuracies(published, normalised)])
            gains.append([title(setting), *_gains(published, normalised)])
    heads = [
        "setting",
        "seeds",
        "FedAvg",
        "best of the papers' losses, as published",
        "steady",
        "steady, normalised network",
        "best of those losses with that network and steady's server",
        "FedAvg with that network and a mean of its models",
    ]
    gain = [
        "setting",
        "above the best of those losses (goal 5)",
        "the same, normalised network (goal 5)",
        "above them given that network and server (goal 2)",
        "worst class above FedVLS's, papers' network (goal 10)",
        "worst class above FedVLS's given that network and server (goal 10)",
        "above FedAvg on its network",
    ]
    words = "In points, with 95 % intervals; bold where the mean reaches the goal:"
    return f"{table(heads, rows)}\n\n{words}\n\n{table(gain, gains)}"


def title(setting: Setting) -> str:
    """Return a title such as "CIFAR-10, dirichlet:0.05, 10 of 100 clients"."""
    clients, cohort = setting.settings["skew.clients"], setting.settings["budget.cohort"]
    skew = SKEWS.get(setting.skew, setting.skew.split(",")[0])
    part = f"all {clients} clients" if cohort == "all" else f"{cohort} of {clients} clients"
    return f"{DATA[setting.data]}, {skew}, {part}"


def _accuracies(published: Methods, normalised: Methods) -> list[str]:
    return [
        str(len(published["steady"].seeds)),
        _percent(published.get("fedavg")),
        _best(losses(published)),
        _percent(published["steady"]),
        _percent(normalised.get("steady")),
        _best(losses(normalised, SERVER)),
        _percent(normalised.get(MEAN)),
    ]


def _gains(published: Methods, normalised: Methods) -> list[str]:
    plain, better = published["steady"], normalised.get("steady")
    return [
        _gain(plain, *losses(published)[:1], goal=5),
        _gain(better, *losses(published)[:1], goal=5),
        _gain(better, *losses(normalised, SERVER)[:1], goal=2),
        _gain(plain, published.get("fedvls"), measure="worst", goal=10),
        _gain(better, normalised.get(f"fedvls{SERVER}"), measure="worst", goal=10),
        _gain(plain, published.get("fedavg")),
    ]


def _percent(method: MethodResult | None) -> str:
    mean = method and method.mean("accuracy")
    return "-" if mean is None else f"{100 * mean:.1f}"


def _best(methods: Sequence[MethodResult]) -> str:
    if not methods:
        return "-"
    number = f", of {len(methods)}" if len(methods) < len(LOSSES) else ""
    return f"{_percent(methods[0])} ({LOSSES[methods[0].client]}{number})"


def _gain(
    first: MethodResult | None,
    second: MethodResult | None = None,
    *,
    measure: str = "accuracy",
    goal: int | None = None,
) -> str:
    if first is None or second is None:
        return "-"
    values = [{seed: getattr(run, measure) for seed, run in each.seeds.items()} for each in (first, second)]
    found = metrics.compare(*values)
    if found is None or found.interval is None:
        return "-"
    bold = "**" * (goal is not None and 100 * found.difference >= goal)
    return f"{bold}{signed(found.difference)}{bold} ({between(found.interval)})"


def renewed(page: str) -> str:
    """Return the page with new tables."""
    text = f"{BEGIN}\n\n{tables(evidence())}\n\n{END}"
    return re.sub(f"{BEGIN}.*{END}", lambda _: text, page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
    print(f"written: the tables of {PAGE.name}")
