"""The tables and figures of docs/results/tuned-study.md, where validation data chose the settings of every
method.

docs/results/study.py writes them. The trials of the searches are lines in
docs/results/validation/*-tuned.jsonl, which docs/results/collect.py writes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from grouping import Line, family, is_tuned, raw_lines
from steady import DATA
from tables import differences, star, table

from unskew import metrics
from unskew.advice import evidence, verdict
from unskew.advice.evidence import NetworkResult, Setting
from unskew.experiment import MethodSpec, brief_skew
from unskew.experiment.overrides import method_table
from unskew.models import MODELS
from unskew.record import TrialRecord, Tuned
from unskew.report.differences import points
from unskew.report.figures.search import search

TRIALS = Path(__file__).with_name("validation")
RATE = "budget.lr"
SHOWN = ("fedavg", "fedavg+fedavgm+ema", "fedacg", "fedvls", "steady")
"""The families of methods in the figures."""
DRAWN = {
    "tuned-rates.png": ("digits", "dirichlet:0.05", 10, 3),
    "tuned-rates-fashion-mnist.png": ("fashion_mnist", "dirichlet:0.1", 100, 10),
    "tuned-rates-cifar10.png": ("cifar10", "dirichlet:0.05", 100, 10),
}
"""The figures, each with its data, skew, clients and cohort."""

Key = tuple[Any, ...]
"""What identifies a network in a setting: data, skew, clients, cohort, network and norm."""


@cache
def searches() -> dict[Key, dict[str, Line]]:
    """Read the searches: by setting and network, then by the method as it was searched. The trials of
    several searches of a method are joined."""
    found: dict[Key, dict[str, Line]] = {}
    for path in sorted(TRIALS.glob("*-tuned.jsonl")):
        for line in map(json.loads, path.read_text().splitlines()):
            known = found.setdefault(_key(line["experiment"]), {}).setdefault(line["method"], line)
            if known is not line:
                known["trials"] += line["trials"]
    return found


@cache
def last_rounds() -> dict[Key, dict[str, dict[int, float]]]:
    """Read the mean accuracy in the last tenth of the rounds of tuned methods: by setting and network, then
    by family and seed."""
    found: dict[Key, dict[str, dict[int, float]]] = {}
    for line in filter(is_tuned, raw_lines()):
        methods = found.setdefault(_key(line["experiment"]), {})
        name = family(MethodSpec(**line["experiment"]["method"]).parts())
        curve = line["curve"]
        methods.setdefault(name, {})[line["experiment"]["seed"]] = fmean(curve[-math.ceil(len(curve) / 10) :])
    return found


def _key(experiment: Mapping[str, Any]) -> Key:
    skew, model = experiment["skew"], experiment["model"]
    return (
        experiment["data"]["name"],
        brief_skew(skew["recipe"]),
        skew["clients"],
        experiment["budget"]["cohort"],
        model["name"],
        model["norm"],
    )


def _key_of(setting: Setting, network: NetworkResult) -> Key:
    names = ("data.name", "skew.recipe", "skew.clients", "budget.cohort")
    norm = network.changed.get("model.norm", MODELS[network.name].norms[0])
    return (*(setting.settings[name] for name in names), network.name, norm)


def _find(title: str, network: str, *, tuned: bool) -> tuple[Setting, NetworkResult] | None:
    found = [
        (setting, each)
        for setting in evidence.evidence()
        for each in setting.networks
        if setting.tuned is tuned
        and setting.title == title + evidence.TUNED_TITLE * tuned
        and each.title == network
    ]
    return found[0] if found else None


def results(title: str, network: str) -> str:
    """Return a table of all methods, each with the values that validation chose, the highest first."""
    pair = _find(title, network, tuned=True)
    assert pair is not None, f"no tuned runs of {title} on {network}"
    key, there = _key_of(*pair), verdict.on_network(pair[1])
    usual = _find(title, network, tuned=False)
    names = sorted(
        there.candidates, key=lambda name: -(there.candidates[name].method.mean("accuracy") or 0.0)
    )
    rows = []
    for name in names:
        method = there.candidates[name].method
        values, chosen_on = _best(key, method.family)
        gain = there.difference(name, "accuracy")
        rows.append(
            [
                f"`{method.family}`",
                values,
                chosen_on,
                _over_seeds({seed: run.accuracy for seed, run in method.seeds.items()}),
                "" if gain is None else f"{points(gain)}{star(gain)}",
                _over_seeds({seed: run.worst for seed, run in method.seeds.items()}),
                _over_seeds({seed: run.vacant for seed, run in method.seeds.items()}),
                _over_seeds(last_rounds()[key][method.family]),
                *([] if usual is None else [_untuned(usual[1], key, method.family)]),
            ]
        )
    heads = ["method", "chosen", "validation", "accuracy", "against FedAvg", "worst class", "vacant classes"]
    heads += ["last rounds", *(["untuned"] if usual else [])]
    return table(heads, rows)


def _best(key: Key, name: str) -> tuple[str, str]:
    """Return the values that were chosen for a family of methods, with an arrow at the highest or lowest that
    was tried, and their score in the search."""
    line = _searched(key, name)
    values, by_seed = max(line["trials"], key=lambda trial: _score(trial[1]))
    words = []
    for setting, value in values.items():
        tried = {trial[0][setting] for trial in line["trials"]}
        edge = " \N{UPWARDS ARROW}" * (value == max(tried)) or " \N{DOWNWARDS ARROW}" * (value == min(tried))
        words.append(f"{setting.rpartition('.')[2]} {value:g}{edge if len(tried) > 1 else ''}")
    return ", ".join(words), f"{100 * _score(by_seed):.1f}"


def _searched(key: Key, name: str) -> Line:
    (found,) = (line for method, line in searches()[key].items() if _family(method) == name)
    return found


def _family(method: str) -> str:
    return family(MethodSpec(**method_table(method)).parts())


def _score(by_seed: Sequence[float | None]) -> float:
    """Return the mean score of a trial; minus infinity if a run of it failed."""
    known = [each for each in by_seed if each is not None]
    return fmean(known) if len(known) == len(by_seed) else -math.inf


def _over_seeds(values: Mapping[int, float | None]) -> str:
    found = metrics.over_seeds(values.values())
    return "-" if found is None else metrics.plus_minus(found, scale=100)


def _untuned(network: NetworkResult, key: Key, name: str) -> str:
    """Return the accuracy of a method with its defaults and the learning rate that all methods shared."""
    known = {each.name: each for each in network.methods}
    method = known.get(_searched(key, name)["method"])
    return "-" if method is None else _over_seeds({seed: run.accuracy for seed, run in method.seeds.items()})


def rates(title: str, network: str) -> str:
    """Return a table of the accuracy on validation data by learning rate, the highest of each method bold."""
    pair = _find(title, network, tuned=True)
    assert pair is not None, f"no tuned runs of {title} on {network}"
    best: dict[str, dict[float, float]] = {}
    for method, line in searches()[_key_of(*pair)].items():
        for values, by_seed in line["trials"]:
            mine = best.setdefault(_family(method), {})
            mine[values[RATE]] = max(mine.get(values[RATE], -math.inf), _score(by_seed))
    shown = sorted({rate for mine in best.values() for rate in mine})
    rows = [
        [f"`{name}`", *(_bold(mine.get(rate), max(mine.values())) for rate in shown)]
        for name, mine in sorted(best.items(), key=lambda item: -max(item[1].values()))
    ]
    return table(["method", *(f"{rate:g}" for rate in shown)], rows)


def _bold(value: float | None, highest: float) -> str:
    if value is None:
        return "-"
    return f"{'**' * (value == highest)}{100 * value:.1f}{'**' * (value == highest)}"


def against(name: str, others: str, *, last: bool = False) -> str:
    """Return a table of the differences between a family of methods and others, for each tuned setting and
    network: in accuracy, or with `last` in the mean of the last rounds.

    Stars are as in docs/results/study.py: corrected for all differences of the table.
    """
    rows, every = {}, {}
    for setting in (each for each in evidence.evidence() if each.tuned):
        for network in setting.networks:
            parts = (setting.title.removesuffix(evidence.TUNED_TITLE), evidence.in_words(network.changed))
            title = ", ".join(filter(None, parts))
            found = last_rounds()[_key_of(setting, network)] if last else _accuracies(network)
            every |= {(title, family): found.get(family, {}) for family in (name, *others.split(", "))}
            rows[title] = [((title, name), (title, other)) for other in others.split(", ")]
    return differences(every, [f"`{name}` against", *(f"`{other}`" for other in others.split(", "))], rows)


def _accuracies(network: NetworkResult) -> Mapping[str, Mapping[int, float]]:
    return {each.family: {seed: run.accuracy for seed, run in each.seeds.items()} for each in network.methods}


def draw() -> None:
    """Draw the scores of some methods by learning rate, as `unskew figure search` does."""
    for name, setting in DRAWN.items():
        (key,) = (key for key in searches() if key[:4] == setting and key[-1] == "none")
        trials = [_trials(family, _searched(key, family)) for family in SHOWN]
        tuned: Tuned = {
            "metric": "accuracy",
            "sampler": "grid",
            "all": [each for found in trials for each in found],
            "winners": [max(found, key=lambda trial: trial["score"] or 0.0) for found in trials],
        }
        title = f"{DATA[setting[0]]}, {setting[1]}"
        search(tuned, (), over=[RATE], title=title).savefig(Path(__file__).with_name(name), dpi=200)


def _trials(name: str, line: Line) -> list[TrialRecord]:
    return [
        {
            "method": name,
            "trial": number,
            "values": values,
            "score": _score(scores),
            "by_seed": scores,
            "folders": [],
        }
        for number, (values, scores) in enumerate(line["trials"], start=1)
    ]


KINDS = {"tuned": results, "rates": rates, "against": against, "last": partial(against, last=True)}
