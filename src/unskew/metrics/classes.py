"""What a model does to each class, from what it answered on the test set.

A class without test samples has accuracy NaN and is left out of every mean; with no test sample at all,
means are NaN.
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
    """A model on the test set."""

    confusion: Counts
    """[i, j]: test samples of class i answered j."""
    loss: float
    """Mean cross-entropy."""
    mean_probability: Floats
    """[i, j]: mean probability given to class j on samples of class i."""
    mean_features: Floats
    """[C, d]: mean feature of each class."""
    domains: Counts | None = None
    """[D, C, C]: one confusion matrix per joined dataset, where there are several."""
    answers: NDArray[np.integer] | None = None
    """[n]: the class answered on each test sample, where samples have owners; the number of classes where no
    model was asked."""


def accuracy(confusion: Counts) -> float:
    """Share of right answers over all samples: Σ_c M_cc / Σ_ij M_ij."""
    total = int(confusion.sum())
    return float(np.trace(confusion)) / total if total else float("nan")


def class_accuracy(confusion: Counts) -> Floats:
    """Share of right answers within each class: a_c = M_cc / Σ_j M_cj."""
    return np.diag(confusion_share(confusion)).copy()


def confusion_share(confusion: Counts) -> Floats:
    """[i, j]: share of the samples of class i answered j, M_ij / Σ_j M_ij. Rows without samples are NaN."""
    seen = confusion.sum(axis=1, keepdims=True)
    return np.where(seen > 0, confusion / np.maximum(seen, 1), np.nan)


def balanced_accuracy(confusion: Counts) -> float:
    """Mean of the class accuracies."""
    return max_mean_min(class_accuracy(confusion))["mean"]


def macro_f1(confusion: Counts) -> float:
    """Mean over classes of F1_c = 2 M_cc / (Σ_j M_cj + Σ_j M_jc). A class that no sample is of and that was
    answered has 0, as in scikit-learn; one that was not answered either is left out."""
    total = confusion.sum(axis=1) + confusion.sum(axis=0)
    some = total > 0
    return float((2 * np.diag(confusion)[some] / total[some]).mean()) if some.any() else float("nan")


def max_mean_min(by_class: Floats) -> dict[str, float]:
    """The best class's accuracy, the mean over classes and the worst class's (PKD, Table 1)."""
    known = by_class[~np.isnan(by_class)]
    if not known.size:
        return {"max": float("nan"), "mean": float("nan"), "min": float("nan")}
    return {"max": float(known.max()), "mean": float(known.mean()), "min": float(known.min())}


def discrepancy(by_class: Floats) -> float:
    """Inter-class discrepancy: max_c a_c - min_c a_c (PKD, Δ_max)."""
    ends = max_mean_min(by_class)
    return ends["max"] - ends["min"]


def worst_class(by_class: Floats) -> int:
    """argmin_c a_c; of several, the first."""
    require(
        not np.isnan(by_class).all(), "no class has a test sample, so none is the worst: test on some data."
    )
    return int(np.nanargmin(by_class))


def misclassification_share(confusion: Counts) -> Floats:
    """[i, j]: of the samples of class i answered wrongly, the share answered j, M_ij / Σ_{j≠i} M_ij (PKD,
    Fig. 4). Rows without errors are 0."""
    wrong = confusion * (1 - np.eye(len(confusion), dtype=np.int64))
    total = wrong.sum(axis=1, keepdims=True)
    return np.asarray(wrong / np.maximum(total, 1))


def prediction_share(confusion: Counts) -> Floats:
    """Share of all test samples answered with each class, right or wrong: Σ_i M_ij / Σ_ij M_ij (FedLMD,
    Fig. 2)."""
    total = int(confusion.sum())
    return np.asarray(confusion.sum(axis=0) / total) if total else np.full(len(confusion), np.nan)


def distance_to_uniform(share: Floats) -> float:
    """Total variation distance between a distribution over classes and the uniform one: ½ Σ_c |s_c - 1/C|."""
    return float(0.5 * np.abs(share - 1 / len(share)).sum())


def feature_distances(mean_features: Floats) -> Floats:
    """[i, j]: ‖h_i - h_j‖, the Euclidean distance between the mean features of two classes (PKD, Fig. 7b)."""
    # Row by row: all differences at once are C times the features, 2.6 GB for 200 classes of 1280.
    return np.stack([np.sqrt(((mean_features - row) ** 2).sum(axis=1)) for row in mean_features])


def forgetting(history: Sequence[Floats], *, clamp: bool = False) -> float:
    """Mean over classes of the most accuracy a class had in an earlier round minus what it has in the last:
    1/C Σ_c max_{t<T} (a_c^t - a_c^T) (FedNTD). Negative only where the last round is a class's best; `clamp`
    counts that as 0."""
    if len(history) < 2:
        return 0.0
    drop = np.fmax.reduce(np.stack(history[:-1])) - history[-1]  # NaN where never tested
    return max_mean_min(np.maximum(drop, 0) if clamp else drop)["mean"]
