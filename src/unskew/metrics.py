"""What label skew does to a model, as pure functions of what it answered on the test set.

Accuracies are fractions. A class without test samples has accuracy NaN and is left out of every mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


def accuracy(confusion: Counts) -> float:
    """Share of right answers over all samples."""
    return float(np.trace(confusion) / confusion.sum())


def class_accuracy(confusion: Counts) -> Floats:
    """Share of right answers within each class."""
    seen = confusion.sum(axis=1)
    return np.where(seen > 0, np.diag(confusion) / np.maximum(seen, 1), np.nan)


def macro_accuracy(confusion: Counts) -> float:
    """Mean of the class accuracies."""
    return float(np.nanmean(class_accuracy(confusion)))


def discrepancy(by_class: Floats) -> float:
    """Inter-class discrepancy: the best class's accuracy minus the worst's."""
    return float(np.nanmax(by_class) - np.nanmin(by_class))


def worst_class(by_class: Floats) -> int:
    return int(np.nanargmin(by_class))


def misclassification_share(confusion: Counts) -> Floats:
    """[i, j]: of the samples of class i answered wrongly, the share answered j. Rows without errors are 0."""
    wrong = confusion * (1 - np.eye(len(confusion), dtype=np.int64))
    total = wrong.sum(axis=1, keepdims=True)
    return np.asarray(wrong / np.maximum(total, 1))


def prediction_share(confusion: Counts) -> Floats:
    """Share of all test samples answered with each class, right or wrong."""
    return np.asarray(confusion.sum(axis=0) / confusion.sum())


def distance_to_uniform(share: Floats) -> float:
    """Total variation distance between a distribution over classes and the uniform one."""
    return float(0.5 * np.abs(share - 1 / len(share)).sum())


def feature_distances(mean_features: Floats) -> Floats:
    """[i, j]: Euclidean distance between the mean features of classes i and j."""
    gap = mean_features[:, None, :] - mean_features[None, :, :]
    return np.asarray(np.sqrt((gap**2).sum(axis=2)))


def groups(counts: Counts) -> dict[str, NDArray[np.bool_]]:
    """Each client's majority, minority and vacant classes, as masks [N, C].

    With n samples at a client and C classes in all, a class is vacant where the client has none of it,
    majority from n/C samples on, minority between. A client without samples has every class vacant.
    """
    held = counts > 0
    majority = held & (counts * counts.shape[1] >= counts.sum(axis=1, keepdims=True))
    return {"majority": majority, "minority": held & ~majority, "vacant": ~held}


def group_shares(counts: Counts, tested: NDArray[np.bool_]) -> dict[str, Floats | None]:
    """How much each class weighs in the accuracy of the clients' majority, minority and vacant classes, [C],
    summing to 1; None where no client has a tested class of the kind. It goes over all clients: made once, it
    keeps a round's cost from growing with their number."""
    shares: dict[str, Floats | None] = {}
    for name, mask in groups(counts).items():
        members = mask & tested
        sizes = members.sum(axis=1)
        some = sizes > 0
        shares[name] = (members[some] / sizes[some, None]).mean(axis=0) if some.any() else None
    return shares


def weigh(by_class: Floats, shares: Mapping[str, Floats | None]) -> dict[str, float | None]:
    """The accuracy of each group, from the classes' accuracies and their weights in it."""
    known = np.nan_to_num(by_class)
    return {name: None if share is None else float(share @ known) for name, share in shares.items()}


def group_accuracy(by_class: Floats, counts: Counts) -> dict[str, float | None]:
    """The accuracy of the clients' majority, minority and vacant classes: for each client the mean over its
    classes of that kind, then the mean over the clients that have any. None where no client has."""
    return weigh(by_class, group_shares(counts, ~np.isnan(by_class)))


def forgetting(history: Sequence[Floats], *, clamp: bool = False) -> float:
    """Mean over classes of the most accuracy a class had in an earlier round minus what it has in the last.
    Negative only where the last round is a class's best; `clamp` counts that as 0."""
    if len(history) < 2:
        return 0.0
    past = np.stack(history[:-1])
    drop = np.where(np.isnan(past), -np.inf, past).max(axis=0) - history[-1]  # NaN where never tested
    return float(np.nanmean(np.maximum(drop, 0) if clamp else drop))


def rounds_to(target: float, accuracies: Mapping[int, float]) -> int | None:
    """The first round whose accuracy reaches the target; None when none does."""
    return next((round for round, value in sorted(accuracies.items()) if value >= target), None)


def best_last_mean(accuracies: Sequence[float]) -> dict[str, float]:
    """Never the best alone: it was chosen on the test set."""
    return {
        "best": float(max(accuracies)),
        "last": float(accuracies[-1]),
        "mean_last_10": float(np.mean(accuracies[-10:])),
    }
