"""Groups of classes that a model takes for one another, from a matrix of mean probabilities.

PKD (Gan et al.) shows such groups in a plot and gives no rule for finding them; these rules are this
library's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew.types import Tensors

Floats = NDArray[np.float64]
Group = tuple[int, ...]
Rule = Literal["gap", "zscore", "topm", "explicit"]
Grouping = Literal["cliques", "components", "star"]


def mutual_confusion(probability: Floats) -> Floats:
    """Return, at [i, j], the smaller of the mean probabilities of j on samples of i and of i on samples of j.
    It is NaN on the diagonal and for classes without samples, whose rows are NaN."""
    both: Floats = np.minimum(probability, probability.T)
    np.fill_diagonal(both, np.nan)
    return both


def threshold(
    mutual: Floats, rule: Rule, *, theta: float = 0.06, kappa: float = 2.0, pairs: int = 4
) -> float:
    """Return the value that a pair's mutual confusion must exceed, infinite if no pair stands out.

    - gap: sort the C most confused pairs, C being the number of classes, and take the value just below the
      largest ratio between neighbours.
    - zscore: mean + kappa * standard deviation over all pairs.
    - topm: such that the `pairs` most confused ones exceed it. Pairs that are equal at this limit are all
      left out.
    - explicit: theta.
    """
    values = mutual[np.triu_indices_from(mutual, k=1)]
    values = np.sort(values[~np.isnan(values)])[::-1]
    if rule == "explicit":
        return theta
    if rule == "topm":
        return float(values[pairs]) if pairs < len(values) else 0.0
    if rule == "zscore":
        return float(values.mean() + kappa * values.std()) if len(values) else np.inf
    top = values[: len(mutual)]
    ratios = top[:-1] / np.maximum(top[1:], np.finfo(np.float64).tiny)
    if not len(ratios) or ratios.max() <= 1:
        return np.inf
    return float(top[ratios.argmax() + 1])


def pairs_above(mutual: Floats, theta: float) -> list[tuple[int, int]]:
    """Return the pairs of classes whose mutual confusion is above theta."""
    return [(i, j) for i, j in combinations(range(len(mutual)), 2) if mutual[i, j] > theta]


def cliques(pairs: Iterable[tuple[int, int]]) -> list[Group]:
    """Return the maximal sets of classes in which all are paired with each other (Bron and Kerbosch, 1973,
    with pivots)."""
    near = _neighbours(pairs)
    found: list[Group] = []

    def grow(clique: set[int], candidates: set[int], done: set[int]) -> None:
        if not candidates and not done:
            found.append(tuple(sorted(clique)))
            return
        pivot = max(sorted(candidates | done), key=lambda c: len(near[c] & candidates))
        for c in sorted(candidates - near[pivot]):
            grow(clique | {c}, candidates & near[c], done & near[c])
            candidates, done = candidates - {c}, done | {c}

    if near:
        grow(set(), set(near), set())
    return sorted(found)


def components(pairs: Iterable[tuple[int, int]]) -> list[Group]:
    """Return the maximal sets of classes that are paired, directly or through others."""
    near = _neighbours(pairs)
    found: list[Group] = []
    left = set(near)
    while left:
        reached, frontier = set[int](), {min(left)}
        while frontier:
            reached |= frontier
            frontier = set[int]().union(*(near[c] for c in frontier)) - reached
        found.append(tuple(sorted(reached)))
        left -= reached
    return found


def stars(probability: Floats, accuracy: Floats, theta: float) -> list[Group]:
    """Return, for each class from the worst on, the class and those that it is taken for with a mean
    probability above theta. Groups that are part of an earlier one are left out."""
    known = ~np.isnan(accuracy)
    found: list[Group] = []
    for v in np.argsort(accuracy, kind="stable")[: known.sum()]:
        near = known & (probability[v] > theta)
        near[v] = True
        group = tuple(int(c) for c in np.flatnonzero(near))
        if len(group) > 1 and not any(set(group) <= set(earlier) for earlier in found):
            found.append(group)
    return found


def weak_groups(
    probability: Floats,
    accuracy: Floats,
    *,
    keep: int,
    rule: Rule = "gap",
    grouping: Grouping = "cliques",
    theta: float = 0.06,
    kappa: float = 2.0,
    pairs: int = 4,
) -> list[Group]:
    """Return up to `keep` groups of confused classes: those of lowest mean accuracy, or with grouping="star"
    those around the worst classes. `probability[i, j]` is the mean probability of j on samples of i, NaN if i
    has none."""
    mutual = mutual_confusion(probability)
    cut = threshold(mutual, rule, theta=theta, kappa=kappa, pairs=pairs)
    if grouping == "star":
        return stars(probability, accuracy, cut)[:keep]
    group = cliques if grouping == "cliques" else components
    found = group(pairs_above(mutual, cut))
    return sorted(found, key=lambda g: (float(accuracy[list(g)].mean()), g))[:keep]


def in_one_group(groups: Sequence[Group], classes: int, device: torch.device) -> Tensor:
    """Say for each pair of classes whether some group holds both, bool [C, C]."""
    together = torch.zeros(classes, classes, dtype=torch.bool)
    for group in groups:
        members = torch.zeros(classes, dtype=torch.bool)
        members[list(group)] = True
        together |= members[:, None] & members
    return together.to(device)


def groups_to_tensor(groups: Sequence[Group], classes: int) -> Tensors:
    """Return groups of classes as a tensor, one row per group, which marks its classes."""
    members = torch.zeros(len(groups), classes, dtype=torch.bool)
    for place, group in enumerate(groups):
        members[place, list(group)] = True
    return {"members": members}


def groups_from_tensor(tensors: Tensors) -> list[Group]:
    """Return the groups from the tensor that `groups_to_tensor` makes of them."""
    return [tuple(row.nonzero().flatten().tolist()) for row in tensors["members"]]


def _neighbours(pairs: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    near: dict[int, set[int]] = {}
    for i, j in pairs:
        near.setdefault(i, set()).add(j)
        near.setdefault(j, set()).add(i)
    return near
