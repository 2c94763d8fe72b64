"""The numbers of compare.json: statistics over the seeds of each method's finished runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from unskew import metrics, record
from unskew.experiment import Experiment
from unskew.metrics import SeedsSummary
from unskew.record import Json
from unskew.report.answer import Answer, answer
from unskew.report.measures import MEASURES, series
from unskew.report.read import SavedRun

SummaryMeasure = Callable[[record.Summary], float | None]
"""A function that takes one number from the summary of a run."""

POSITIVE = (0.0, math.inf)
ACCURACY = MEASURES["accuracy"]
PROBABILITIES = {"brier": (0.0, 2.0), "log_loss": POSITIVE}
"""The bounds of the probability scores that are not shares."""


def condition_json(
    experiment: Experiment,
    seeds: Sequence[int],
    finished: Mapping[str, Mapping[int, SavedRun]],
    failed: Sequence[record.FailedRun] = (),
    reference: str | None = None,
) -> tuple[dict[str, Any], Answer | None]:
    """Return what compare.json holds on methods under one condition, and the answer in it (None if no run has
    finished). `experiment` has the condition, and `finished` has the runs of each method by seed."""
    runs = {method: list(each.values()) for method, each in finished.items()}
    found = answer(runs, reference=reference) if any(runs.values()) else None
    whole = {
        "dataset": experiment.data.name,
        "skew": experiment.skew.recipe,
        "clients": experiment.skew.clients,
        "seeds": list(seeds),
        "methods": {method: statistics(list(each.values())) for method, each in finished.items()},
        "answer": found and answer_json(found),
        "speed_up": _speed_up(finished, found.reference) if found and found.reference else {},
        # Ordered by seed, as they ran.
        "runs": [
            summary_of(finished[method][seed])
            for seed in seeds
            for method in finished
            if seed in finished[method]
        ],
        "failed": list(failed),
    }
    return whole, found


def answer_json(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON: measures by their names, differences as fractions."""
    return {
        "sentence": answer.sentence,
        "skew": answer.skew,
        "notes": list(answer.notes),
        "reference": answer.reference,
        "round": answer.round,
        "seeds": list(answer.seeds),
        "best": dict(answer.best),
        "differences": {
            each.name: {
                measure: None if found is None else {**asdict(found), "settled": found.settled}
                for measure, found in each.differences.items()
            }
            for each in answer.others
        },
    }


def summary_of(run: SavedRun) -> record.Summary:
    """Return the summary of a finished run, with the folder in which the run is now."""
    assert run.summary is not None
    return replace(run.summary, run_dir=str(run.path))  # it may have been moved since


def statistics(runs: Sequence[SavedRun]) -> Json:
    """Return the statistics of a method over seeds: for every number of the summaries the mean, the standard
    deviation (n-1) and the 95% confidence interval."""
    summaries = [summary_of(run) for run in runs]

    def over(measure: SummaryMeasure, bounds: tuple[float, float] = metrics.SHARE) -> Json:
        return _summary_json(metrics.over_seeds([measure(summary) for summary in summaries], bounds=bounds))

    return {
        "accuracy": {
            "last": over(lambda summary: summary.accuracy.last),
            "best_by_test": over(lambda summary: summary.accuracy.best_by_test),
            "mean_last_10": over(lambda summary: summary.accuracy.mean_last_10),
            "best_by_validation": over(lambda summary: summary.accuracy.best_by_validation),
        },
        "macro_f1": over(lambda summary: summary.macro_f1),
        "balanced_accuracy": over(lambda summary: summary.balanced_accuracy),
        "probabilities": {
            field.name: over(_probability(field.name), PROBABILITIES.get(field.name, metrics.SHARE))
            for field in fields(record.Probabilities)
        },
        "validation": over(
            lambda summary: summary.validation.value if summary.validation else None,
            POSITIVE
            if any(each.validation and each.validation.metric == "loss" for each in summaries)
            else metrics.SHARE,
        ),
        "worst_class_accuracy": over(lambda summary: summary.worst_class_accuracy),
        "groups": {
            "majority": over(lambda summary: summary.groups.majority),
            "minority": over(lambda summary: summary.groups.minority),
            "vacant": over(lambda summary: summary.groups.vacant),
        },
        "seconds": over(lambda summary: summary.seconds, POSITIVE),
        **({"sites": sites} if (sites := site_statistics(summaries)) else {}),
    }


SPREAD = ("mean", "worst", "best", "std")
"""The numbers on the spread over sites that are averaged over seeds."""


def site_statistics(summaries: Sequence[record.Summary]) -> dict[str, Json] | None:
    """Return the statistics of the accuracies at sites over seeds; None if there are no sites."""
    found = [summary.sites for summary in summaries if summary.sites is not None]
    if not found:
        return None
    by_measure: dict[str, Json] = {
        key: _summary_json(
            metrics.over_seeds([getattr(sites.spread, key) for sites in found], bounds=metrics.SHARE)
        )
        for key in SPREAD
    }
    for key in ("accuracy", "balanced_accuracy"):
        by_site = [
            {site.name: getattr(site, key) for site in sites.each} if sites.spread.accuracy else {}
            for sites in found
        ]
        by_measure[key] = {
            name: _summary_json(
                metrics.over_seeds([values.get(name) for values in by_site], bounds=metrics.SHARE)
            )
            for name in dict.fromkeys(name for values in by_site for name in values)
        }
    return by_measure


def _probability(name: str) -> SummaryMeasure:
    return lambda summary: getattr(summary.probabilities, name, None)


def _speed_up(finished: Mapping[str, Mapping[int, SavedRun]], reference: str) -> dict[str, Json]:
    """Return for every other method, by seed, the reference's best accuracy, the round in which the method
    reaches it, and how many times sooner that is than the reference reaches it."""
    theirs = {seed: series(run, ACCURACY) for seed, run in finished[reference].items()}
    speed_ups: dict[str, Json] = {}
    for method, runs in finished.items():
        both = {
            str(seed): (series(run, ACCURACY), theirs[seed]) for seed, run in runs.items() if seed in theirs
        }
        if method != reference and both:
            speed_ups[method] = {
                "target": {seed: max(other.values()) for seed, (_, other) in both.items()},
                "rounds_to_target": {
                    seed: metrics.rounds_to(max(other.values()), own) for seed, (own, other) in both.items()
                },
                "speed_up": {seed: metrics.speed_up(own, other) for seed, (own, other) in both.items()},
            }
    return speed_ups


def _summary_json(found: SeedsSummary | None) -> Json:
    if found is None:
        return None
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(found).items()}
