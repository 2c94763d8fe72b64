"""The summary of a finished run, and what its model file holds."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from unskew import metrics, record
from unskew.experiment import Resolved
from unskew.notation import write_method
from unskew.result import Result, Validation
from unskew.runs.lines import domain_accuracy, spread_record, traffic_record, validated_fields
from unskew.types import Params


def model_file(resolved: Resolved, result: Result) -> record.ModelFile:
    """Describe the model of a run: all it takes to use it, in addition to its weights."""
    experiment, dataset = resolved.experiment, resolved.trial.federation.dataset
    inputs = dataset.inputs
    return record.ModelFile(
        version=1,
        network=result.network,
        inputs=record.ModelInputs(kind=inputs.kind, shape=list(inputs.shape), vocabulary=inputs.vocabulary),
        classes=list(dataset.classes),
        mean=list(dataset.mean),
        std=list(dataset.std),
        columns=None if dataset.columns is None else dataset.columns.to_json(),
        words=None if dataset.words is None else dataset.words.to_json(),
        method=write_method(experiment.method.model_dump()),
        dataset=experiment.data.name,
        seed=None if result.hides_seed else experiment.seed,
        round=result.rounds[-1].number if result.validation is None else result.validation.round,
        identity=None if result.hides_seed else experiment.identity(),
    )


def summarise(resolved: Resolved, result: Result, time: record.Time, path: Path) -> record.Summary:
    """Make the summary of a run, which `--json` prints and summary.json holds."""
    experiment, trial = resolved.experiment, resolved.trial
    final = result.final
    by_class = metrics.class_accuracy(final.confusion)
    worst = metrics.worst_class(by_class)
    assert isinstance(experiment.skew.clients, int)  # resolved, as the seed is
    assert experiment.skew.seed is not None
    summary = record.Summary(
        identity=experiment.identity(),
        method=experiment.method.name,
        hyperparameters=dict(experiment.method.model_extra or {}),
        dataset=experiment.data.name,
        skew=experiment.skew.recipe,
        clients=experiment.skew.clients,
        seed=experiment.seed,
        partition_seed=experiment.skew.seed,
        rounds=len(result.rounds),
        accuracy=record.Accuracy(**result.accuracy),
        balanced_accuracy=metrics.balanced_accuracy(final.confusion),
        loss=final.loss,
        classes=list(result.classes),
        class_accuracy=by_class.tolist(),
        groups=record.Groups(**result.groups),
        worst_class=worst,
        worst_class_accuracy=float(by_class[worst]),
        discrepancy=metrics.discrepancy(by_class),
        forgetting=result.forgetting,
        confusion=final.confusion.tolist(),
        misclassification_share=metrics.misclassification_share(final.confusion).tolist(),
        mean_probability=final.mean_probability.tolist(),
        feature_distances=metrics.feature_distances(final.mean_features).tolist(),
        notes=list(result.notes),
        seconds=result.seconds,
        probe_seconds=result.probe_seconds,
        traffic=traffic_record(result.traffic),
        passes=None
        if result.work is None
        else record.PassesRecord(**asdict(result.work.passes(trial.epochs))),
        cost=result.cost,
        tallies={
            tally.name: record.TallyRecord(tally.label, _shares(result, tally.name))
            for tally in result.tallies
        },
        weights_sha256=weights_sha256(result.weights.params),
        time=time,
        run_dir=str(path),
        sites=sites_record(result),
        macro_f1=result.macro_f1,
        probabilities=None if result.scores is None else record.Probabilities(**asdict(result.scores)),
        validation=None if result.validation is None else _validation(result.validation),
    )
    if final.domains is None:
        return summary
    return replace(summary, domains=domain_accuracy(trial.federation.dataset.domains, final.domains))


def _validation(found: Validation) -> record.ValidationRecord:
    return record.ValidationRecord(
        metric=found.metric,
        value=found.value,
        round=found.round,
        line=found.line,
        stopped=found.stopped,
        samples=found.samples,
        **validated_fields(found.assessment),
    )


def _shares(result: Result, tally: str) -> list[float | None]:
    """Return a tally by round, as a share of the samples that the clients trained on; None for rounds without
    it."""
    return [
        round.tallies[tally] / round.samples if tally in round.tallies and round.samples else None
        for round in result.rounds
    ]


def sites_record(result: Result) -> record.SitesRecord | None:
    """Describe the final model at the sites; if there are more than `MOST_SITES`, at those with the lowest
    accuracy."""
    spread = spread_record(result.owners, result.final.answers)
    if spread is None:
        return None
    shown = result.sites
    if len(shown) > record.MOST_SITES:
        tested = [site for site in shown if site.confusion.any()]
        shown = sorted(tested, key=lambda site: site.accuracy)[: record.MOST_SITES]
    return record.SitesRecord(spread=spread, each=[site_record(site) for site in shown])


def site_record(site: metrics.SiteResult) -> record.SiteRecord:
    """Turn the result at one site into its record."""
    cells = np.argwhere(site.confusion).tolist()
    return record.SiteRecord(
        name=site.name,
        client=site.client,
        train=site.train.tolist(),
        test=site.test.tolist(),
        accuracy=site.accuracy,
        balanced_accuracy=site.balanced_accuracy,
        class_accuracy=site.class_accuracy.tolist(),
        worst_class=site.worst_class,
        held=site.held,
        vacant=site.vacant,
        answered=[[i, j, int(site.confusion[i, j])] for i, j in cells],
        samples=site.samples,
    )


def weights_sha256(params: Params) -> str:
    """Compute the SHA-256 of the parameters' bytes (little-endian, row-major), in the order of their
    names."""
    digest = hashlib.sha256()
    for name in sorted(params):
        digest.update(params[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
