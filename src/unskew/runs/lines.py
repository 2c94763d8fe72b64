"""Rounds and probes as the lines of their files."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from unskew import metrics, record
from unskew.data.federation import Federation
from unskew.metrics import Assessment, Stages, Traffic
from unskew.probe import Findings
from unskew.result import Round
from unskew.sites import Sites


class RoundLines:
    """Makes the lines of rounds.jsonl for a run on a federation."""

    def __init__(self, federation: Federation) -> None:
        dataset = federation.dataset
        tested = np.bincount(dataset.test.labels.numpy(), minlength=len(dataset.classes)) > 0
        self._shares = metrics.group_shares(federation.counts.numpy(), tested)
        self._domains, self._sites = dataset.domains, federation.sites

    def of_round(self, round: Round) -> record.RoundRecord:
        """Make the line of a round: a `TestedRound` if the model was tested after it."""
        line = record.RoundRecord(
            round=round.number,
            lr=round.lr,
            cohort=list(round.cohort),
            trained=list(round.trained),
            samples=round.samples,
            train_loss=round.train_loss,
            seconds=round.seconds,
            traffic=traffic_record(round.traffic),
            tallies=dict(round.tallies),
            faults=list(round.faults) or None,
        )
        if round.test is None:
            return line
        confusion, domains = round.test.confusion, round.test.domains
        by_class = metrics.class_accuracy(confusion)
        share = metrics.prediction_share(confusion)
        extremes = metrics.max_mean_min(by_class)
        return record.TestedRound(
            **vars(line),
            accuracy=metrics.accuracy(confusion),
            loss=round.test.loss,
            class_accuracy=by_class.tolist(),
            balanced_accuracy=metrics.balanced_accuracy(confusion),
            max_class=extremes["max"],
            min_class=extremes["min"],
            discrepancy=metrics.discrepancy(by_class),
            worst_class=metrics.worst_class(by_class),
            groups=record.Groups(**metrics.weigh(by_class, self._shares)),
            prediction_share=share.tolist(),
            distance_to_uniform=metrics.distance_to_uniform(share),
            domains=None if domains is None else domain_accuracy(self._domains, domains),
            sites=spread_record(self._sites, round.test.answers),
            macro_f1=metrics.macro_f1(confusion),
            validation=None
            if round.validation is None
            else record.Validated(**validated_fields(round.validation)),
        )


def validated_fields(found: Assessment) -> dict[str, float]:
    """Compute the fields of `record.Validated` from a test on the validation set."""
    confusion = found.confusion
    return {
        "accuracy": metrics.accuracy(confusion),
        "macro_f1": metrics.macro_f1(confusion),
        "balanced_accuracy": metrics.balanced_accuracy(confusion),
        "worst_class_accuracy": metrics.max_mean_min(metrics.class_accuracy(confusion))["min"],
        "loss": found.loss,
    }


def probe_record(round: int, found: Findings) -> record.ProbeRecord:
    """Make the line of probes.jsonl for a probed round."""
    return record.ProbeRecord(
        round=round,
        seconds=found.seconds,
        clients=[
            record.Client(
                client=effect.client,
                before=effect.before.tolist(),
                after=effect.after.tolist(),
                aggregated=effect.aggregated.tolist(),
                groups=_effect(effect.groups),
                in_local=effect.in_local,
                out_local=effect.out_local,
                deviation=effect.deviation,
            )
            for effect in found.clients
        ],
        groups=_effect(found.groups),
        local_class_accuracy=found.local_class_accuracy.tolist(),
        drift=record.Drift(**found.drift),
    )


def _effect(groups: dict[str, Stages | None]) -> record.EffectRecord:
    return record.EffectRecord(
        **{
            name: None if stages is None else record.StagesRecord(**asdict(stages), drop=stages.drop)
            for name, stages in groups.items()
        }
    )


def traffic_record(sent: Traffic) -> record.TrafficRecord:
    return record.TrafficRecord(sent.up, sent.down)


def domain_accuracy(names: tuple[str, ...], confusions: np.ndarray) -> dict[str, float | None]:
    return {
        name: metrics.accuracy(confusion) if confusion.sum() else None
        for name, confusion in zip(names, confusions, strict=True)
    }


def spread_record(sites: Sites | None, answers: NDArray[np.integer] | None) -> record.SiteSpread | None:
    """Summarise a model's accuracy over the sites, with each site's own if there are at most `MOST_SITES`.
    Return None if the test samples have no owners."""
    if sites is None or answers is None:
        return None
    by_site = metrics.site_accuracy(sites, answers)
    found = metrics.spread(sites, by_site)
    if found is None:
        return None
    each = dict(zip(sites.names, by_site.tolist(), strict=True)) if len(sites) <= record.MOST_SITES else None
    return record.SiteSpread(**asdict(found), accuracy=each)
