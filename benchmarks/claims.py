"""The rate of false claims: python -m benchmarks.claims [--draws 20000]

Draws accuracies of equally good methods, or of two equally good ones above the others, and counts how often
`unskew.metrics` claims a difference or a best method. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from unskew import metrics

Draws = NDArray[np.float64]
Shape = Callable[[np.random.Generator, tuple[int, int, int]], Draws]


def bounded(rng: np.random.Generator, size: tuple[int, int, int]) -> Draws:
    """Draw accuracies of a class that is often forgotten: a third of them are 0."""
    values = rng.beta(2, 5, size)
    return np.asarray(np.where(rng.random(size) < 1 / 3, 0.0, values))


SHAPES: dict[str, Shape] = {
    "normal": lambda rng, size: rng.normal(0.5, 0.02, size),
    "heavy tails (t with 3 degrees of freedom)": lambda rng, size: 0.5 + 0.02 * rng.standard_t(3, size),
    "of unequal spread (1 : 5)": lambda rng, size: (
        0.5 + rng.normal(0, 0.01, size) * np.linspace(1, 5, size[1])[None, :, None]
    ),
    "a class that is often forgotten": bounded,
}


def p_values(values: Draws, others: Draws) -> Draws:
    """Return p values of two-sided paired t-tests over the last axis; 1 if all differences are equal."""
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # all differences may be equal
        p = stats.ttest_rel(values, others, axis=-1).pvalue
    return np.asarray(np.nan_to_num(p, nan=1.0))


def false_claims(values: Draws) -> tuple[float, float, float]:
    """Return how often draws [times, methods, seeds] give a false claim.

    The three shares are of draws with a sign claimed after Holm's correction, with one claimed without a
    correction, and with a best method named. The first method is the reference.
    """
    reference, others = values[:, :1], values[:, 1:]
    p = p_values(others, np.broadcast_to(reference, others.shape))
    k = others.shape[1]
    claimed = p.min(axis=1) * k <= metrics.LEVEL  # Holm's correction claims a sign whenever Bonferroni's does
    best = np.zeros(len(values), dtype=bool)
    for method in range(values.shape[1]):
        rest = np.delete(values, method, axis=1)
        mine = np.broadcast_to(values[:, method : method + 1], rest.shape)
        above = (p_values(mine, rest) <= metrics.LEVEL) & (mine.mean(-1) > rest.mean(-1))
        best |= above.all(axis=1)
    return float(claimed.mean()), float((p.min(axis=1) <= metrics.LEVEL).mean()), float(best.mean())


def agree(values: Draws) -> None:
    """Check that the library makes the same claims about the first draws as `false_claims`."""
    for draw in values[:50]:
        table = {str(m): {"accuracy": dict(enumerate(row.tolist()))} for m, row in enumerate(draw)}
        found = metrics.against_reference(table, "0")
        claims = [each["accuracy"].settled for each in found.values() if each["accuracy"]]
        best = metrics.best_of({name: each["accuracy"] for name, each in table.items()})
        assert (any(claims), best is not None) == tuple(bool(n) for n in false_claims(draw[None])[::2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20_000)
    draws = parser.parse_args().draws
    rng = np.random.default_rng(0)
    print("| accuracies | seeds | methods | a sign is claimed | without correction | a best one is named |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, shape in SHAPES.items():
        for seeds in (3, 5, 10):
            for methods in (2, 5, 10):
                values = shape(rng, (draws, methods, seeds))
                agree(values)
                claimed, plain, best = false_claims(values)
                print(f"| {name} | {seeds} | {methods} | {claimed:.1%} | {plain:.1%} | {best:.1%} |")
    print("\nTwo methods equally good, above the others: how often one of them is called the best.\n")
    print("| accuracies | seeds | methods | a best one is named |")
    print("|---|---:|---:|---:|")
    for name, shape in SHAPES.items():
        for seeds in (3, 10):
            values = shape(rng, (draws, 5, seeds))
            values[:, 3:] += 1
            print(f"| {name} | {seeds} | 5 | {false_claims(values)[2]:.1%} |")


if __name__ == "__main__":
    main()
