"""Measures of clients' updates, by the classes of which a client holds many, few or no samples.

All accuracies are on the global test set, not on the client's own data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unskew.errors import require
from unskew.metrics.classes import Counts, Floats

GROUPS = ("majority", "minority", "vacant")
"""The groups of a client's classes by how many samples it has of them; see `groups`."""


def groups(counts: Counts) -> dict[str, NDArray[np.bool_]]:
    """Return each client's majority, minority and vacant classes, as masks [N, C].

    If a client has n samples and there are C classes, a class is vacant if the client has no sample of it,
    majority if it has n/C samples or more, and minority otherwise. For a client without samples every class
    is vacant.
    """
    held = counts > 0
    majority = held & (counts * counts.shape[1] >= counts.sum(axis=1, keepdims=True))
    return {"majority": majority, "minority": held & ~majority, "vacant": ~held}


def group_shares(counts: Counts, tested: NDArray[np.bool_]) -> dict[str, Floats | None]:
    """Return the weight of each class in the accuracy of the majority, minority and vacant classes, [C] each.

    Weights sum to 1; None if no client has a tested class in the group. Since they are computed from all
    clients once, the cost of a round does not grow with the number of clients.
    """
    shares: dict[str, Floats | None] = {}
    for name, mask in groups(counts).items():
        members = mask & tested
        sizes = members.sum(axis=1)
        some = sizes > 0
        shares[name] = (members[some] / sizes[some, None]).mean(axis=0) if some.any() else None
    return shares


def weigh(by_class: Floats, shares: Mapping[str, Floats | None]) -> dict[str, float | None]:
    """Return the accuracy of each group, from the accuracies of classes and their weights in the group."""
    known = np.nan_to_num(by_class)
    return {name: None if share is None else float(share @ known) for name, share in shares.items()}


def group_accuracy(by_class: Floats, counts: Counts) -> dict[str, float | None]:
    """Return the accuracy of the clients' majority, minority and vacant classes.

    It is the mean over a client's classes in the group, and of these the mean over the clients that have such
    classes. None if no client has.
    """
    return weigh(by_class, group_shares(counts, ~np.isnan(by_class)))


@dataclass(frozen=True)
class Stages:
    """The accuracy of a group of a client's classes before and after a round (FedVLS, Fig. 1 and 9)."""

    before: float
    """The accuracy of the global model that the client received, w^t."""
    after: float
    """The accuracy of the client's model after its local update, w_k."""
    aggregated: float
    """The accuracy of the next global model, w^{t+1}."""

    @property
    def drop(self) -> float:
        """The loss of accuracy in the local update: before - after."""
        return self.before - self.after


def update_effect(
    before: Floats, after: Floats, aggregated: Floats, counts: Counts
) -> dict[str, Stages | None]:
    """Return the accuracies around one client's update for its majority, minority and vacant classes.

    The accuracy of a group G is the mean over c in G of a_c. The arguments are the class accuracies [C] of
    the three models and the client's label counts [C]. None if the client has no tested class in the group.
    """
    require(
        before.shape == after.shape == aggregated.shape == counts.shape,
        "update_effect takes class accuracies and label counts of one client: give each one value per class.",
    )
    tested = ~np.isnan(before)
    effect: dict[str, Stages | None] = {}
    for name, mask in groups(counts[None]).items():
        members = mask[0] & tested
        models = (before[members], after[members], aggregated[members])
        effect[name] = Stages(*(float(model.mean()) for model in models)) if members.any() else None
    return effect


def mean_effect(effects: Iterable[Mapping[str, Stages | None]]) -> dict[str, Stages | None]:
    """Return the mean of `update_effect` over clients; None for a group in which no client has classes."""
    cohort = list(effects)
    means: dict[str, Stages | None] = {}
    for name in GROUPS:
        some = [stages for effect in cohort if (stages := effect[name]) is not None]
        rows = [(stages.before, stages.after, stages.aggregated) for stages in some]
        means[name] = Stages(*np.mean(rows, axis=0).tolist()) if rows else None
    return means


def mean_class_accuracy(local: Sequence[Floats]) -> Floats | None:
    """Return the mean class accuracies of the clients' models: mean_k a_c(w_k), [C] (FedLC, Fig. 6).

    None for an empty cohort.
    """
    return np.asarray(np.mean(np.stack(local), axis=0)) if len(local) else None


def in_local_accuracy(by_class: Floats, counts: Counts) -> float | None:
    """Return a model's accuracy on its client's label distribution: Σ_c π_c a_c with π_c = n_c / n.

    It is defined as in FedNTD's released code. Classes without test samples are left out, and the weights of
    the others are scaled to sum to 1. None if no weight is left, as for a client without samples.
    """
    return _weighted(by_class, counts.astype(np.float64))


def out_local_accuracy(by_class: Floats, counts: Counts) -> float | None:
    """Return a model's accuracy outside of its client's label distribution: Σ_c (1 - π_c) / (C - 1) a_c.

    It is defined as in FedNTD's released code. Classes without test samples are left out as in
    `in_local_accuracy`. None for a client without samples, whose π is undefined, and if there is only one
    class.
    """
    return _weighted(by_class, (counts.sum() - counts).astype(np.float64)) if counts.any() else None


def _weighted(by_class: Floats, weights: Floats) -> float | None:
    tested = ~np.isnan(by_class)
    total = float(weights[tested].sum())
    return float(weights[tested] @ by_class[tested]) / total if total > 0 else None


def drift_diversity(
    delta: Mapping[str, NDArray[np.floating]], step: Mapping[str, NDArray[np.floating]] | None = None
) -> float | None:
    """Return how much the updates of a round's clients diverge: Σ_k ‖m_k‖² / ‖Σ_k m_k‖² (FedVLS Eq. 7).

    `delta` has w_k - w^t by parameter, with clients on axis 0 and without buffers. By default m_k is this
    update; the value is 1/m for m equal updates, and 1 for orthogonal ones. With `step`, which is
    w^{t+1} - w^t by parameter, m_k = w_k - w^{t+1} as the paper prints it. If all clients have equal weights,
    these sum up to 0, and the quotient is infinite, or large because of rounding.

    None for an empty cohort or if nothing was updated; infinity if updates cancel to within their precision;
    NaN if training diverged.
    """
    squares, summed, rounding = 0.0, 0.0, 0.0
    with np.errstate(invalid="ignore", over="ignore"):  # diverged weights
        for name, moves in delta.items():
            exact = moves.astype(np.float64)
            own = exact if step is None else exact - step[name]
            squares += float((own**2).sum())
            summed += float((own.sum(axis=0) ** 2).sum())
            # Each of the m terms of the sum is known to about eps times what it was computed from.
            rounding += float(((len(moves) * np.finfo(moves.dtype).eps * exact) ** 2).sum())
    return diversity(squares, summed, rounding)


def diversity(squares: float, summed: float, rounding: float) -> float | None:
    """Return `drift_diversity` from its sums, for updates that are on another device.

    The sums are Σ_k ‖m_k‖², ‖Σ_k m_k‖², and the value that the latter would have from rounding alone.
    """
    if squares == 0:
        return None
    if not np.isfinite(squares):
        return float("nan")
    return squares / summed if summed > rounding else float("inf")


@dataclass(frozen=True, eq=False)
class Deviation:
    """FedLC's deviation bound of a client, for classes j (rows) that may dominate classes r (columns)."""

    bound: Floats
    """[j, r]: D_jr; NaN if the client holds no j or no r, and for j = r; infinite if it is not `defined`, and
    if samples of j have no probability for r."""
    defined: NDArray[np.bool_]
    """[j, r]: whether the client holds both classes and ⟨h_r, h_j⟩ > 0 for their mean features."""
    deviates: NDArray[np.bool_]
    """[j, r]: whether n_j / n_r > D_jr, so that a step moves class r away from its own samples."""


def deviation(mean_probability: Floats, mean_features: Floats, counts: Counts) -> Deviation:
    """Compute FedLC's deviation bound (Definition 3) over the client's own samples:

        D_jr = (1 - p_r^(r)) ‖h^(r)‖² / (p_r^(j) ⟨h^(r), h^(j)⟩)

    where p_c^(i) = mean_probability[i, c] and h^(i) = mean_features[i] are means over the samples of class i.
    The paper uses majority classes j and minority classes r; here every pair has a bound. For the bound after
    calibration (Theorem 3), give the means of softmax(z - τ n^{-1/4}). The factor Δ that the paper prints
    would make the bound 0 at τ = 0, where it must equal Definition 3.
    """
    held = counts > 0
    pair = held[:, None] & held & ~np.eye(len(counts), dtype=bool)
    features = np.where(held[:, None], mean_features, 0)
    probability = np.where(held[:, None], mean_probability, 0)
    gram = features @ features.T
    pull = (1 - np.diag(probability)) * np.diag(gram)  # [r]
    push = probability * gram  # [j, r]
    bound = np.where(pair, np.inf, np.nan)
    defined = pair & (gram > 0)
    np.divide(pull[None, :], push, out=bound, where=defined & (push > 0))
    return Deviation(bound, defined, defined & (counts[:, None] * push > counts * pull))
