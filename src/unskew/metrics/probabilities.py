"""Scores of a model's probabilities for labelled samples.

probabilities: [n, C], a row for each sample; labels: [n], classes by number. Without samples all scores are
NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from unskew.errors import require
from unskew.metrics.classes import Counts, Floats

BINS = 15


def auc(probabilities: Floats, labels: Counts) -> float:
    """Return the area under the ROC curve of each class against the rest, as the mean over classes.

    It is how often a sample of the class has a higher probability for it than a sample of another class, with
    ties counted half. A class without samples and a class with all samples are left out.
    """
    _check(probabilities, labels)
    if not np.isfinite(probabilities).all():
        return float("nan")
    areas = []
    for c in np.unique(labels):
        mine = labels == c
        positive, negative = int(mine.sum()), int((~mine).sum())
        if negative:
            above = _ranks(probabilities[:, c])[mine].sum() - positive * (positive + 1) / 2
            areas.append(above / (positive * negative))
    return float(np.mean(areas)) if areas else float("nan")


def _ranks(values: Floats) -> Floats:
    """Return the ranks of values in ascending order from 1 on; equal values have the mean of their ranks."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    return np.asarray((last - (sizes - 1) / 2)[group], dtype=np.float64)


def calibration_error(probabilities: Floats, labels: Counts, *, bins: int = BINS) -> float:
    """Return the expected calibration error of the answers: Σ_b |B_b|/n |accuracy(B_b) - confidence(B_b)|.

    B_b are the samples whose highest probability lies in the b-th of `bins` equal parts of 0..1, which
    include their upper end (Guo et al. 2017).
    """
    _check(probabilities, labels)
    require(bins >= 1, f"bins is {bins} but should be 1 or more.")
    if not len(labels):
        return float("nan")
    confidence = probabilities.max(axis=1)
    gap = (probabilities.argmax(axis=1) == labels) - confidence
    if not np.isfinite(gap).all():
        return float("nan")
    part = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    return float(np.abs(np.bincount(part, weights=gap, minlength=bins)).sum() / len(labels))


def brier(probabilities: Floats, labels: Counts) -> float:
    """Return the Brier score: the mean over samples of Σ_c (p_c - [y = c])², from 0 to 2.

    With two classes this is twice the score of one of them alone.
    """
    _check(probabilities, labels)
    if not len(labels):
        return float("nan")
    truth = np.eye(probabilities.shape[1])[labels]
    return float(((probabilities - truth) ** 2).sum(axis=1).mean())


def log_loss(probabilities: Floats, labels: Counts) -> float:
    """Return the mean of -log p_y.

    A probability of 0 counts as 2.2e-16, the precision of float64, so that one sample does not make the mean
    infinite.
    """
    _check(probabilities, labels)
    if not len(labels):
        return float("nan")
    given = probabilities[np.arange(len(labels)), labels]
    return float(-np.log(np.clip(given, np.finfo(np.float64).eps, 1.0)).mean())


@dataclass(frozen=True)
class ProbabilityScores:
    """The scores of a model's probabilities."""

    auc: float
    calibration_error: float
    brier: float
    log_loss: float


def probability_scores(probabilities: Floats, labels: Counts) -> ProbabilityScores:
    """Return all scores of these probabilities."""
    return ProbabilityScores(
        auc=auc(probabilities, labels),
        calibration_error=calibration_error(probabilities, labels),
        brier=brier(probabilities, labels),
        log_loss=log_loss(probabilities, labels),
    )


def mean_scores(each: Sequence[ProbabilityScores]) -> ProbabilityScores:
    """Return the mean of several models' scores."""
    names = [field.name for field in fields(ProbabilityScores)]
    return ProbabilityScores(
        **{name: float(np.mean([getattr(scores, name) for scores in each])) for name in names}
    )


def _check(probabilities: Floats, labels: Counts) -> None:
    require(
        probabilities.ndim == 2 and labels.ndim == 1 and len(probabilities) == len(labels),
        f"probabilities of shape {list(probabilities.shape)} and labels of shape {list(labels.shape)} do not "
        "fit: give a row of probabilities and one class number for each sample.",
    )
    C = probabilities.shape[1]
    require(
        not len(labels) or (labels.min() >= 0 and labels.max() < C),
        f"a label lies outside of 0..{C - 1}: give the numbers of the probabilities' columns.",
    )
