"""What can be followed over the rounds of a run, by the name a person gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from unskew.errors import UserError, unknown
from unskew.report.read import Run, same_classes

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Measure:
    title: str
    of: Callable[[Line], float | None]
    """From a line of rounds.jsonl, or of probes.jsonl where `probed`."""
    percent: bool = True
    lower: bool = False
    """Whether less is better."""
    probed: bool = False

    @property
    def axis(self) -> str:
        return f"{self.title} (%)" if self.percent else self.title

    @property
    def scale(self) -> float:
        return 100.0 if self.percent else 1.0


def _get(key: str, line: Line) -> float | None:
    value: float | None = line.get(key)
    return value


def _group(name: str, line: Line) -> float | None:
    value: float | None = line["groups"][name] if "groups" in line else None
    return value


def _class(index: int, line: Line) -> float | None:
    value: float | None = line["class_accuracy"][index] if "class_accuracy" in line else None
    return value


def _drop(name: str, line: Line) -> float | None:
    value: float | None = (line["groups"][name] or {}).get("drop")
    return value


def _drift(line: Line) -> float | None:
    value: float | None = line["drift"]["received"]
    return value


def _over_clients(key: str, line: Line) -> float | None:
    values = [each[key] for each in line["clients"] if each[key] is not None]
    return float(np.mean(values)) if values else None


MEASURES: dict[str, Measure] = {
    "accuracy": Measure("accuracy", partial(_get, "accuracy")),
    "macro": Measure("mean class accuracy", partial(_get, "macro_accuracy")),
    "worst": Measure("accuracy of the worst class", partial(_get, "min_class")),
    "best": Measure("accuracy of the best class", partial(_get, "max_class")),
    "discrepancy": Measure("best minus worst class", partial(_get, "discrepancy"), lower=True),
    "majority": Measure("accuracy of majority classes", partial(_group, "majority")),
    "minority": Measure("accuracy of minority classes", partial(_group, "minority")),
    "vacant": Measure("accuracy of vacant classes", partial(_group, "vacant")),
    "loss": Measure("test loss", partial(_get, "loss"), percent=False, lower=True),
    "train-loss": Measure("training loss", partial(_get, "train_loss"), percent=False, lower=True),
    "bias": Measure(
        "distance of predictions to uniform", partial(_get, "distance_to_uniform"), percent=False, lower=True
    ),
    "drift": Measure("drift diversity", _drift, percent=False, lower=True, probed=True),
    "vacant-drop": Measure(
        "drop of vacant classes in local updates", partial(_drop, "vacant"), lower=True, probed=True
    ),
    "in-local": Measure("in-local accuracy", partial(_over_clients, "in_local"), probed=True),
    "out-local": Measure("out-local accuracy", partial(_over_clients, "out_local"), probed=True),
    "deviation": Measure(
        "pairs of classes beyond the deviation bound",
        partial(_over_clients, "deviation"),
        lower=True,
        probed=True,
    ),
}


def find(name: str, runs: Sequence[Run]) -> Measure:
    """A measure of MEASURES, or class:NAME, the accuracy of one class."""
    if name.startswith("class:"):
        wanted = name.removeprefix("class:")
        for run in runs:
            if wanted not in run.classes:
                raise unknown(f"class of {run.path}", wanted, run.classes)
        return Measure(f"accuracy of {wanted}", partial(_class, same_classes(runs).index(wanted)))
    if name not in MEASURES:
        raise unknown("metric", name, [*MEASURES, "class:NAME"])
    return MEASURES[name]


def series(run: Run, measure: Measure) -> dict[int, float]:
    """The measure by round, where it is known; at least one value, or a UserError says why there is none."""
    if measure.probed and not run.probes:
        raise no_probe(run, measure.title)
    lines = run.probes if measure.probed else run.rounds
    values = {line["round"]: measure.of(line) for line in lines}
    known = {round: value for round, value in values.items() if value is not None}
    if known:
        return known
    if not run.tested:
        raise UserError(f"{run.path} has no tested round yet: wait for the first, or leave the run out.")
    raise UserError(
        f"{run.path} has no {measure.title}, as where no client or test sample is of the kind: choose "
        "another metric."
    )


def no_probe(run: Run, what: str) -> UserError:
    every = run.experiment.get("probe", {}).get("every", 0)
    if every and not run.finished:
        return UserError(f"{run.path} has not come to a probed round yet: wait for round {every}.")
    return UserError(f"{run.path} has no probes, which tell the {what}: run it again with --probe every=10.")


def shared_rounds(runs: Sequence[Run], measure: Measure) -> dict[int, list[float]]:
    """The measure of several seeds by round, in the rounds where all of them have it."""
    each = [series(run, measure) for run in runs]
    rounds = sorted(set.intersection(*(set(values) for values in each)))
    if not rounds:
        raise UserError(
            f"{runs[0].path} and the other seeds of {runs[0].label} have no round with {measure.title} in "
            "common: test all seeds in the same rounds, or give fewer."
        )
    return {round: [values[round] for values in each] for round in rounds}
