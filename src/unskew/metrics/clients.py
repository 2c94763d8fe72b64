"""What a client's update does to the classes it holds much, little or nothing of.

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
"""A client's classes by how many samples of them it has: see `groups`."""


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


@dataclass(frozen=True)
class Stages:
    """The accuracy of some of a client's classes around one round (FedVLS, Fig. 1 and 9)."""

    before: float
    """Of the global model as received, w^t."""
    after: float
    """Of the client's model after its local update, w_k."""
    aggregated: float
    """Of the next global model, w^{t+1}."""

    @property
    def drop(self) -> float:
        """What the local update cost: before - after."""
        return self.before - self.after


def update_effect(
    before: Floats, after: Floats, aggregated: Floats, counts: Counts
) -> dict[str, Stages | None]:
    """One client's round, for its majority, minority and vacant classes: A_G = mean over c in G of a_c, by
    the class accuracies [C] of three models and the client's label counts [C]. None where the client has no
    tested class of the kind."""
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
    """The mean of `update_effect` over the clients that have classes of the kind; None where none has."""
    cohort = list(effects)
    means: dict[str, Stages | None] = {}
    for name in GROUPS:
        some = [stages for effect in cohort if (stages := effect[name]) is not None]
        rows = [(stages.before, stages.after, stages.aggregated) for stages in some]
        means[name] = Stages(*np.mean(rows, axis=0).tolist()) if rows else None
    return means


def mean_class_accuracy(local: Sequence[Floats]) -> Floats | None:
    """The clients' models class by class: mean_k a_c(w_k), [C] (FedLC, Fig. 6). None for an empty cohort."""
    return np.asarray(np.mean(np.stack(local), axis=0)) if len(local) else None


def in_local_accuracy(by_class: Floats, counts: Counts) -> float | None:
    """A client's model on what the client holds: Σ_c π_c a_c with π_c = n_c / n (FedNTD's released code).

    Classes without test samples are left out and the others' weights scaled to sum to 1. None where no weight
    is left, as for a client without samples.
    """
    return _weighted(by_class, counts.astype(np.float64))


def out_local_accuracy(by_class: Floats, counts: Counts) -> float | None:
    """A client's model on what the client does not hold: Σ_c (1 - π_c) / (C - 1) a_c (FedNTD's released
    code).

    Untested classes as in `in_local_accuracy`. None for a client without samples, whose π is undefined, and
    where one class is all there is.
    """
    return _weighted(by_class, (counts.sum() - counts).astype(np.float64)) if counts.any() else None


def _weighted(by_class: Floats, weights: Floats) -> float | None:
    tested = ~np.isnan(by_class)
    total = float(weights[tested].sum())
    return float(weights[tested] @ by_class[tested]) / total if total > 0 else None


def drift_diversity(
    delta: Mapping[str, NDArray[np.floating]], step: Mapping[str, NDArray[np.floating]] | None = None
) -> float | None:
    """How far the clients of a round pull apart: Σ_k ‖m_k‖² / ‖Σ_k m_k‖² (FedVLS Eq. 7).

    `delta` holds w_k - w^t by parameter, clients on axis 0; buffers do not belong in it. By default m_k is
    that, the move from the model received: 1/m for m equal moves, 1 for orthogonal ones. With `step`, which
    is w^{t+1} - w^t by parameter, m_k = w_k - w^{t+1}: what the paper prints. Under equal weights these add
    up to nothing, and the quotient is infinite, or large and made of rounding.

    None for an empty cohort and where nothing moved; infinity where moves cancel to within their precision;
    NaN where training diverged.
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
    """`drift_diversity` from its sums: Σ_k ‖m_k‖², ‖Σ_k m_k‖², and what the latter would be of rounding
    alone. For moves that lie on another device."""
    if squares == 0:
        return None
    if not np.isfinite(squares):
        return float("nan")
    return squares / summed if summed > rounding else float("inf")


@dataclass(frozen=True, eq=False)
class Deviation:
    """FedLC's deviation bound of a client, for classes j (rows) that may overwhelm classes r (columns)."""

    bound: Floats
    """[j, r]: D_jr; NaN where the client holds no j or no r, and for j = r; infinite where not `defined`,
    and where samples of j are never taken for r."""
    defined: NDArray[np.bool_]
    """[j, r]: the client holds both and their mean features point the same way, ⟨h_r, h_j⟩ > 0."""
    deviates: NDArray[np.bool_]
    """[j, r]: n_j / n_r > D_jr: a step moves class r away from its own samples."""


def deviation(mean_probability: Floats, mean_features: Floats, counts: Counts) -> Deviation:
    """FedLC's deviation bound (Definition 3), over the client's own samples:

        D_jr = (1 - p_r^(r)) ‖h^(r)‖² / (p_r^(j) ⟨h^(r), h^(j)⟩)

    where p_c^(i) = mean_probability[i, c] and h^(i) = mean_features[i] are means over the samples of class i.
    The paper asks it of majority classes j and minority classes r; every pair is given.
    For the bound after calibration (Theorem 3), give the means of softmax(z - τ n^{-1/4}): the printed factor
    Δ would make the bound 0 at τ = 0, where it must be that of Definition 3.
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
