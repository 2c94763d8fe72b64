"""Server rules under attack: accuracy on digits, by rule and attack, with and without label skew.

python -m benchmarks.robust [SKEW ...] > table.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import product
from statistics import mean

from unskew import Budget, Evaluation, Trial, federate, load, train
from unskew.attacks import Attack
from unskew.experiment import MethodSpec
from unskew.methods.assemble import assemble

SEEDS = (1, 2, 3)
SKEWS = ("iid", "dirichlet:0.5", "dirichlet:0.05")
ATTACKS = (
    "none",
    "sign-flip:fraction=0.2,scale=10",
    "noise:fraction=0.2,scale=1",
    "label-flip:fraction=0.2",
    "alie:fraction=0.2,scale=1",
)
RULES = (
    "fedavg",
    "clip",
    "median",
    "trimmed-mean",
    "krum",
    "krum m=8",
    "geometric-median",
    "nnm+trimmed-mean",
)


def measured(rule: str, skew: str, attack: str, seed: int) -> list[float | None]:
    """Return the accuracy after the last round: over all classes, of the worst class, and of the clients'
    minority and vacant classes, None if there are none."""
    name, _, option = rule.partition(" ")
    options = {"m": int(option.removeprefix("m="))} if option else {}
    method, _ = assemble(MethodSpec(name=name, **options).parts())
    trial = Trial(
        federate(load("digits"), skew, clients=10, seed=seed),
        "mlp-small",
        Budget(rounds=20),
        Evaluation(every=20),
        seed=seed,
        attack=Attack.parse(attack),
        engine="loop",
    )
    result = train(trial, method)
    groups = result.groups
    return [result.accuracy["last"], result.worst_accuracy, groups["minority"], groups["vacant"]]


def shown(values: Iterable[float | None]) -> str:
    """Return the mean over seeds in percent, as text."""
    known = [value for value in values if value is not None]
    return f"{100 * mean(known):.1f}" if known else "-"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(skews: Iterable[str]) -> None:
    for skew in skews:
        seen = {
            (attack, rule): [
                shown(of) for of in zip(*(measured(rule, skew, attack, s) for s in SEEDS), strict=True)
            ]
            for attack, rule in product(ATTACKS, RULES)
        }
        print(f"\n{skew}, accuracy in %:\n")
        attacks = [attack.partition(":")[0] for attack in ATTACKS]
        print(
            table(["rule", *attacks], ([rule, *(seen[each, rule][0] for each in ATTACKS)] for rule in RULES))
        )
        print(f"\n{skew}, without an attack, by class:\n")
        classes = ["all", "worst", "minority", "vacant"]
        print(table(["rule", *classes], ([rule, *seen["none", rule]] for rule in RULES)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or SKEWS)
