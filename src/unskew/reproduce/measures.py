"""What a finished run reached, by the measures of published tables."""

from __future__ import annotations

import math
import statistics

from unskew import metrics, record
from unskew.methods import METHODS
from unskew.methods.card import RoundCosts
from unskew.report.measures import MEASURES, series
from unskew.report.read import SavedRun


def measure(name: str, run: SavedRun, statistic: str, baseline: SavedRun | None = None) -> float | None:
    """Return a measure of a finished run in the published unit.

    The table's statistic chooses the accuracy, and the round whose classes and domains are measured.
    `baseline` is the run that a speed-up is relative to. The value is None if it is not known, and infinite
    if the run never reached the target.
    """
    assert run.summary is not None
    kind, _, which = name.partition(":")
    value: float | None
    if kind == "accuracy":
        value = getattr(run.summary.accuracy, statistic)
    elif kind == "speed_up":
        if baseline is None:
            return None
        times = metrics.speed_up(series(run, MEASURES["accuracy"]), series(baseline, MEASURES["accuracy"]))
        return math.inf if times is None else times
    elif kind == "drift":
        return run.probes[-1].drift.aggregated if run.probes else None
    elif kind == "cost":
        return _cost(float(which) / 100, run)
    else:
        line = _chosen_round(run, statistic)
        if line is None:
            return None
        value = _domain(line, which) if kind == "domain" else getattr(line, kind)
    return None if value is None else 100 * value


def _chosen_round(run: SavedRun, statistic: str) -> record.TestedRound | None:
    """Return the tested round that a statistic chooses: the best one or the last."""
    tested = list(run.tested)
    if not tested:
        return None
    return max(tested, key=lambda line: line.accuracy or 0.0) if statistic == "best_by_test" else tested[-1]


def _domain(line: record.TestedRound, which: str) -> float | None:
    """Return the accuracy on a domain, or the mean over all domains."""
    if line.domains is None:
        return None
    if which != "mean":
        return line.domains.get(which)
    known = [value for value in line.domains.values() if value is not None]
    return statistics.fmean(known) if known else None


def _cost(target: float, run: SavedRun) -> float | None:
    """Return the cost until the worst class reached a target, infinite if it never did; None if unknown."""
    costs = costs_by_round(run)
    if costs is None:
        return None
    spent = metrics.cost_to(target, series(run, MEASURES["worst"]), costs)
    return math.inf if spent is None else spent


def costs_by_round(run: SavedRun) -> dict[int, float] | None:
    """Return the cost of each round in rounds of FedAvg, or None if it is not known.

    Each round counts as 1, unless the method's paper counts otherwise.
    """
    assert run.summary is not None
    count = own_round_costs(run)
    if count is None:
        return dict.fromkeys(range(1, run.done + 1), 1.0)
    return count(
        run.experiment["method"],
        rounds=run.done,
        epochs=run.experiment["budget"].get("epochs"),
        class_sizes=run.counts.sum(axis=0).tolist(),
        shares={name: tally.share for name, tally in run.summary.tallies.items()},
    )


def own_round_costs(run: SavedRun) -> RoundCosts | None:
    """Return what counts the cost of rounds for the run's method; None if each of its rounds counts as 1."""
    card = METHODS.get(run.experiment["method"]["name"])
    return None if card is None else card.round_costs
