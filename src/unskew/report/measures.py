"""The measures of a run that can be drawn by round, by their names on the command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from unskew.errors import UserError, unknown
from unskew.record import Client, ProbeRecord, RoundRecord, TestedRound
from unskew.report.grouping import same_classes
from unskew.report.read import SavedRun

Of = Callable[[RoundRecord | ProbeRecord], float | None]


@dataclass(frozen=True)
class Measure:
    title: str
    of: Of
    """Takes the value from a line of rounds.jsonl, or of probes.jsonl if `probed`; None if it has none."""
    percent: bool = True
    lower: bool = False
    """Whether less is better."""
    probed: bool = False
    signed: bool = False
    """Whether it may be negative."""

    @property
    def axis(self) -> str:
        return f"{self.title} (%)" if self.percent else self.title

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the greatest value that it can have, in the unit of the axis."""
        most = 100.0 if self.percent else math.inf
        return -most if self.signed else 0.0, most

    @property
    def scale(self) -> float:
        return 100.0 if self.percent else 1.0


def _tested(of: Callable[[TestedRound], float | None]) -> Of:
    return lambda line: of(line) if isinstance(line, TestedRound) else None


def _probed(of: Callable[[ProbeRecord], float | None]) -> Of:
    return lambda line: of(line) if isinstance(line, ProbeRecord) else None


def _class(index: int) -> Of:
    return _tested(lambda line: line.class_accuracy[index])


def _train_loss(line: RoundRecord | ProbeRecord) -> float | None:
    return line.train_loss if isinstance(line, RoundRecord) else None


def _over_clients(of: Callable[[Client], float | None]) -> Of:
    def mean(probe: ProbeRecord) -> float | None:
        values = [value for client in probe.clients if (value := of(client)) is not None]
        return float(np.mean(values)) if values else None

    return _probed(mean)


MEASURES: dict[str, Measure] = {
    "accuracy": Measure("accuracy", _tested(lambda line: line.accuracy)),
    "balanced-accuracy": Measure("balanced accuracy", _tested(lambda line: line.balanced_accuracy)),
    "macro-f1": Measure("macro-F1", _tested(lambda line: line.macro_f1)),
    "worst": Measure("accuracy of the worst class", _tested(lambda line: line.min_class)),
    "best": Measure("accuracy of the best class", _tested(lambda line: line.max_class)),
    "discrepancy": Measure("best minus worst class", _tested(lambda line: line.discrepancy), lower=True),
    "majority": Measure("accuracy of majority classes", _tested(lambda line: line.groups.majority)),
    "minority": Measure("accuracy of minority classes", _tested(lambda line: line.groups.minority)),
    "vacant": Measure("accuracy of vacant classes", _tested(lambda line: line.groups.vacant)),
    "worst-site": Measure(
        "accuracy of the worst site", _tested(lambda line: line.sites.worst if line.sites else None)
    ),
    "site-mean": Measure("mean over sites", _tested(lambda line: line.sites.mean if line.sites else None)),
    "site-spread": Measure(
        "standard deviation over sites",
        _tested(lambda line: line.sites.std if line.sites else None),
        lower=True,
    ),
    "loss": Measure("test loss", _tested(lambda line: line.loss), percent=False, lower=True),
    "validation": Measure(
        "accuracy on validation", _tested(lambda line: line.validation.accuracy if line.validation else None)
    ),
    "validation-f1": Measure(
        "macro-F1 on validation", _tested(lambda line: line.validation.macro_f1 if line.validation else None)
    ),
    "validation-loss": Measure(
        "loss on validation",
        _tested(lambda line: line.validation.loss if line.validation else None),
        percent=False,
        lower=True,
    ),
    "train-loss": Measure("training loss", _train_loss, percent=False, lower=True),
    "bias": Measure(
        "distance of predictions to uniform",
        _tested(lambda line: line.distance_to_uniform),
        percent=False,
        lower=True,
    ),
    "drift": Measure(
        "drift diversity", _probed(lambda probe: probe.drift.received), percent=False, lower=True, probed=True
    ),
    "vacant-drop": Measure(
        "drop of vacant classes in local updates",
        _probed(lambda probe: probe.groups.vacant.drop if probe.groups.vacant else None),
        lower=True,
        probed=True,
        signed=True,
    ),
    "in-local": Measure("in-local accuracy", _over_clients(lambda client: client.in_local), probed=True),
    "out-local": Measure("out-local accuracy", _over_clients(lambda client: client.out_local), probed=True),
    "deviation": Measure(
        "pairs of classes beyond the deviation bound",
        _over_clients(lambda client: client.deviation),
        lower=True,
        probed=True,
    ),
}


def find(name: str, runs: Sequence[SavedRun]) -> Measure:
    """Return a measure by its name in MEASURES, or by class:NAME the accuracy of one class."""
    if name.startswith("class:"):
        wanted = name.removeprefix("class:")
        for run in runs:
            if wanted not in run.classes:
                raise unknown(f"class of {run.path}", wanted, run.classes)
        return Measure(f"accuracy of {wanted}", _class(same_classes(runs).index(wanted)))
    if name not in MEASURES:
        raise unknown("metric", name, [*MEASURES, "class:NAME"])
    return MEASURES[name]


def series(run: SavedRun, measure: Measure) -> dict[int, float]:
    """Return the known values of a measure by round; if there is none, a UserError says why."""
    if measure.probed and not run.probes:
        raise no_probe(run, measure.title)
    lines: Sequence[RoundRecord | ProbeRecord] = run.probes if measure.probed else run.rounds
    values = {line.round: measure.of(line) for line in lines}
    known = {round: value for round, value in values.items() if value is not None}
    if known:
        return known
    if not run.tested:
        raise UserError(f"{run.path} has no tested round yet: wait for the first, or leave the run out.")
    raise UserError(
        f"{run.path} has no {measure.title}, as where no client or test sample is of the kind: choose "
        "another metric."
    )


def final_value(run: SavedRun, measure: Measure) -> float | None:
    """Return a measure of a run's model: in the last round, or in the round that validation chose."""
    if measure.probed or measure.of is _train_loss:
        return list(series(run, measure).values())[-1]
    return None if run.final is None else measure.of(run.final)


def mean_title(runs: Sequence[SavedRun]) -> str:
    """Return the title of the mean over the last ten tested rounds, or over fewer if there are not ten."""
    return mean_of([len(run.tested) for run in runs])


def mean_of(rounds: Sequence[int]) -> str:
    """Return the same title for runs with these numbers of tested rounds."""
    lengths = {min(each, 10) for each in rounds} or {10}
    return f"mean last {lengths.pop()}" if len(lengths) == 1 else "mean last ≤ 10"


def no_probe(run: SavedRun, what: str) -> UserError:
    every = run.experiment.get("probe", {}).get("every", 0)
    if every and not run.finished:
        return UserError(f"{run.path} has not come to a probed round yet: wait for round {every}.")
    return UserError(f"{run.path} has no probes, which tell the {what}: run it again with --probe every=10.")


def shared_rounds(runs: Sequence[SavedRun], measure: Measure) -> dict[int, list[float]]:
    """Return a measure by round, with a value for each run, in the rounds where all of them have one."""
    each = [series(run, measure) for run in runs]
    rounds = sorted(set.intersection(*(set(values) for values in each)))
    if not rounds:
        raise UserError(
            f"{runs[0].path} and the other seeds of {runs[0].label} have no round with {measure.title} in "
            "common: test all seeds in the same rounds, or give fewer."
        )
    return {round: [values[round] for values in each] for round in rounds}
