"""Measures of a model by class, from its answers on the test set.

A class without test samples has accuracy NaN and is left out of every mean. Without any test sample, means
are NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unskew.errors import require

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Assessment:
    """The results of a model on the test set."""

    confusion: Counts
    """[i, j]: test samples of class i answered j."""
    loss: float
    """Mean cross-entropy."""
    mean_probability: Floats
    """[i, j]: mean probability given to class j on samples of class i."""
    mean_features: Floats
    """[C, d]: mean feature of each class."""
    domains: Counts | None = None
    """[D, C, C]: one confusion matrix per joined dataset, if there are several."""
    answers: NDArray[np.integer] | None = None
    """[n]: the class answered on each test sample, if samples have owners; the number of classes for a sample
    that no model answered."""


def accuracy(confusion: Counts) -> float:
    """Return the share of right answers over all samples: Σ_c M_cc / Σ_ij M_ij."""
    total = int(confusion.sum())
    return float(np.trace(confusion)) / total if total else float("nan")


def class_accuracy(confusion: Counts) -> Floats:
    """Return the share of right answers within each class: a_c = M_cc / Σ_j M_cj."""
    return np.diag(confusion_share(confusion)).copy()


def confusion_share(confusion: Counts) -> Floats:
    """Return the share of class i's samples answered j: M_ij / Σ_j M_ij; NaN in rows without samples."""
    seen = confusion.sum(axis=1, keepdims=True)
    return np.where(seen > 0, confusion / np.maximum(seen, 1), np.nan)


def balanced_accuracy(confusion: Counts) -> float:
    """Return the mean of the class accuracies."""
    return max_mean_min(class_accuracy(confusion))["mean"]


def macro_f1(confusion: Counts) -> float:
    """Return the mean over classes of F1_c = 2 M_cc / (Σ_j M_cj + Σ_j M_jc).

    A class without samples that was answered has 0, as in scikit-learn; if it was not answered either, it is
    left out.
    """
    total = confusion.sum(axis=1) + confusion.sum(axis=0)
    some = total > 0
    return float((2 * np.diag(confusion)[some] / total[some]).mean()) if some.any() else float("nan")


def max_mean_min(by_class: Floats) -> dict[str, float]:
    """Return the accuracy of the best class, the mean over classes and the worst class (PKD, Table 1)."""
    known = by_class[~np.isnan(by_class)]
    if not known.size:
        return {"max": float("nan"), "mean": float("nan"), "min": float("nan")}
    return {"max": float(known.max()), "mean": float(known.mean()), "min": float(known.min())}


def discrepancy(by_class: Floats) -> float:
    """Return the inter-class discrepancy: max_c a_c - min_c a_c (PKD, Δ_max)."""
    ends = max_mean_min(by_class)
    return ends["max"] - ends["min"]


def worst_class(by_class: Floats) -> int:
    """Return argmin_c a_c, the class with the lowest accuracy; if there are several, the first."""
    require(
        not np.isnan(by_class).all(), "no class has a test sample, so none is the worst: test on some data."
    )
    return int(np.nanargmin(by_class))


def misclassification_share(confusion: Counts) -> Floats:
    """Return the share of class i's wrong answers that are j, [i, j]: M_ij / Σ_{j≠i} M_ij (PKD, Fig. 4).

    Rows without errors are 0.
    """
    wrong = confusion * (1 - np.eye(len(confusion), dtype=np.int64))
    total = wrong.sum(axis=1, keepdims=True)
    return np.asarray(wrong / np.maximum(total, 1))


def prediction_share(confusion: Counts) -> Floats:
    """Return the share of test samples answered with each class, right or wrong: Σ_i M_ij / Σ_ij M_ij.

    FedLMD shows it in its Fig. 2.
    """
    total = int(confusion.sum())
    return np.asarray(confusion.sum(axis=0) / total) if total else np.full(len(confusion), np.nan)


def distance_to_uniform(share: Floats) -> float:
    """Return the total variation distance of shares of classes to equal shares: ½ Σ_c |s_c - 1/C|."""
    return float(0.5 * np.abs(share - 1 / len(share)).sum())


def feature_distances(mean_features: Floats) -> Floats:
    """Return the Euclidean distances between classes' mean features, [i, j]: ‖h_i - h_j‖ (PKD, Fig. 7b)."""
    # Row by row, since all differences at once take C times the memory of the features.
    return np.stack([np.sqrt(((mean_features - row) ** 2).sum(axis=1)) for row in mean_features])


def forgetting(history: Sequence[Floats], *, clamp: bool = False) -> float:
    """Return the mean over classes of how much the accuracy dropped from its best earlier round to the last.

    It is 1/C Σ_c max_{t<T} (a_c^t - a_c^T) (FedNTD). The drop of a class is negative only if the last round
    is its best; `clamp` counts that as 0.
    """
    if len(history) < 2:
        return 0.0
    drop = np.fmax.reduce(np.stack(history[:-1])) - history[-1]  # NaN for a class that was never tested
    return max_mean_min(np.maximum(drop, 0) if clamp else drop)["mean"]
