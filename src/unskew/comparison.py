"""What runs of several methods and seeds come to, from their folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from unskew import metrics, record
from unskew.experiment import Experiment
from unskew.metrics import Comparison, Summary
from unskew.record import Json
from unskew.report.read import Run

Measure = Callable[[record.Summary], float | None]

COMPARED: dict[str, Measure] = {
    "accuracy": lambda summary: summary.accuracy.final,
    "worst_class_accuracy": lambda summary: summary.worst_class_accuracy,
    "vacant": lambda summary: summary.groups.vacant,
}
"""What is compared between methods, of their final models."""


def comparison(
    experiment: Experiment,
    seeds: Sequence[int],
    finished: Mapping[str, Mapping[int, Run]],
    failed: Sequence[record.FailedRun] = (),
) -> dict[str, Any]:
    """What `compare.json` holds, of methods under the conditions of an experiment: of each, finished runs by
    seed, as far as there are any. The first one is what the others are compared with."""
    first = next(iter(finished))
    return {
        "dataset": experiment.data.name,
        "skew": experiment.skew.recipe,
        "clients": experiment.skew.clients,
        "seeds": list(seeds),
        "methods": {method: statistics(list(each.values())) for method, each in finished.items()},
        "baseline": first,
        "comparisons": {
            method: against(each, finished[first])
            for method, each in finished.items()
            if method != first and each.keys() & finished[first].keys()
        },
        # By seed, as they ran.
        "runs": [
            summary_of(finished[method][seed])
            for seed in seeds
            for method in finished
            if seed in finished[method]
        ],
        "failed": list(failed),
    }


def summary_of(run: Run) -> record.Summary:
    """The summary of a run that is finished."""
    assert run.summary is not None
    return run.summary


def statistics(runs: Sequence[Run]) -> Json:
    """Mean, standard deviation (n-1) and 95% confidence interval over the runs of several seeds."""
    summaries = [summary_of(run) for run in runs]

    def over(measure: Measure) -> Json:
        return _told(metrics.over_seeds([measure(summary) for summary in summaries]))

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
            field.name: over(_probability(field.name)) for field in fields(record.Probabilities)
        },
        "validation": over(lambda summary: summary.validation.value if summary.validation else None),
        "worst_class_accuracy": over(lambda summary: summary.worst_class_accuracy),
        "groups": {
            "majority": over(lambda summary: summary.groups.majority),
            "minority": over(lambda summary: summary.groups.minority),
            "vacant": over(lambda summary: summary.groups.vacant),
        },
        "seconds": over(lambda summary: summary.seconds),
        **({"sites": sites} if (sites := site_statistics(summaries)) else {}),
    }


SPREAD = ("mean", "worst", "best", "std")
"""What of the spread over sites is told over seeds."""


def site_statistics(summaries: Sequence[record.Summary]) -> dict[str, Json] | None:
    """The accuracies at sites over the runs of several seeds; None where there are no sites."""
    found = [summary.sites for summary in summaries if summary.sites is not None]
    if not found:
        return None
    told: dict[str, Json] = {
        key: _told(metrics.over_seeds([getattr(sites.spread, key) for sites in found])) for key in SPREAD
    }
    for key in ("accuracy", "balanced_accuracy"):
        by_site = [
            {site.name: getattr(site, key) for site in sites.each} if sites.spread.accuracy else {}
            for sites in found
        ]
        told[key] = {
            name: _told(metrics.over_seeds([values.get(name) for values in by_site]))
            for name in dict.fromkeys(name for values in by_site for name in values)
        }
    return told


def _probability(name: str) -> Measure:
    return lambda summary: getattr(summary.probabilities, name, None)


def against(runs: Mapping[int, Run], baseline: Mapping[int, Run]) -> dict[str, Json]:
    """A method against another on the seeds that both have: by each measure the difference, and when it was
    as good as the other ever got."""
    told: dict[str, Json] = {}
    for name, measure in COMPARED.items():
        own, other = (
            {seed: measure(summary_of(run)) for seed, run in each.items()} for each in (runs, baseline)
        )
        told[name] = _told(metrics.compare(own, other))
    both = [seed for seed in runs if seed in baseline]
    curves = [(_curve(runs[seed]), _curve(baseline[seed])) for seed in both]
    targets = [max(other.values()) for _, other in curves]
    told["target"] = list(targets)
    told["rounds_to_target"] = [
        metrics.rounds_to(target, own) for (own, _), target in zip(curves, targets, strict=True)
    ]
    told["speed_up"] = [metrics.speed_up(own, other) for own, other in curves]
    return told


def _curve(run: Run) -> dict[int, float]:
    """Accuracy by round."""
    return {line.round: line.accuracy for line in run.tested if line.accuracy is not None}


def _told(found: Summary | Comparison | None) -> Json:
    if found is None:
        return None
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(found).items()}
