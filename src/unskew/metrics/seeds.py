"""Statistics over several seeds. SciPy is loaded when a quantile or a test needs it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from unskew.errors import require
from unskew.metrics.classes import Floats

FEWEST = 3
"""The fewest seeds for an interval or a test. With two, an interval would have 12.7 standard errors to each
side, which is of no use."""
LEVEL = 0.05
"""How often a difference may be claimed that does not exist."""
SAME = 1e-12
"""Values that differ by less than this, relative to the largest, are equal. It is more than errors of
rounding (1e-16 a step), and less than one test sample in a billion."""


Bounds = tuple[float, float]
FREE: Bounds = (-math.inf, math.inf)
SHARE: Bounds = (0.0, 1.0)
"""The bounds of accuracies."""
DIFFERENCE: Bounds = (-1.0, 1.0)
"""The bounds of differences between accuracies."""


@dataclass(frozen=True)
class SeedsSummary:
    """A value over several seeds."""

    mean: float
    std: float | None
    """The standard deviation with n - 1; None for one seed."""
    interval: tuple[float, float] | None
    """The confidence interval of the mean; None for fewer than three seeds."""
    n: int


def over_seeds(
    values: Iterable[float | None], *, confidence: float = 0.95, bounds: Bounds = FREE
) -> SeedsSummary | None:
    """Return mean, standard deviation with n - 1, and Student's confidence interval mean ± t_{n-1} std / √n.

    None and NaN are left out, and `n` is the number of the other values; None if there are none. The interval
    assumes that the seeds' values are independent and nearly normal; with 3 seeds t is 4.3, with fewer there
    is no interval. It is cut at the `bounds` of the mean, such as (0, 1) for accuracies, which does not
    change its confidence.
    """
    require(0 < confidence < 1, "a confidence level lies between 0 and 1: give, for example, 0.95.")
    known = np.array([value for value in values if value is not None and math.isfinite(value)])
    return _summary(known, confidence, bounds) if known.size else None


def plus_minus(summary: SeedsSummary, *, scale: float = 1.0, digits: int = 1) -> str:
    """Write mean ± standard deviation over seeds as tables print them, times `scale`."""
    return mean_and_std(summary.mean, summary.std, scale=scale, digits=digits)


def mean_and_std(mean: float, std: float | None, *, scale: float = 1.0, digits: int = 1) -> str:
    """Write mean ± standard deviation as tables print them, times `scale`; only the mean if `std` is None."""
    shown = [mean] if std is None else [mean, std]
    # + 0.0 avoids a minus before a zero.
    return " ± ".join(f"{round(scale * value, digits) + 0.0:.{digits}f}" for value in shown)


def _summary(values: Floats, confidence: float, bounds: Bounds, scale: float | None = None) -> SeedsSummary:
    mean, n = float(values.mean()), len(values)
    if n == 1:
        return SeedsSummary(mean, None, None, 1)
    std = 0.0 if _same(values, scale) else float(values.std(ddof=1))
    if n < FEWEST:
        return SeedsSummary(mean, std, None, n)
    if not std:
        return SeedsSummary(mean, 0.0, (mean, mean), n)
    from scipy.special import stdtrit  # Student's quantile; scipy.stats takes far longer to load

    margin = float(stdtrit(n - 1, (1 + confidence) / 2)) * std / math.sqrt(n)
    return SeedsSummary(mean, std, (max(mean - margin, bounds[0]), min(mean + margin, bounds[1])), n)


def _same(values: Floats, scale: float | None = None) -> bool:
    return float(np.ptp(values)) <= SAME * (float(np.abs(values).max()) if scale is None else scale)


@dataclass(frozen=True)
class Comparison:
    """Two methods on the same seeds: first minus second."""

    seeds: tuple[int, ...]
    """The seeds that both have."""
    difference: float
    """The mean difference over these seeds."""
    std: float | None
    """The standard deviation of the differences, with n - 1; None for one seed."""
    interval: tuple[float, float] | None
    """Student's confidence interval of the difference; None for fewer than three seeds."""
    t_test: float | None
    """The two-sided p-value of the paired t-test. None for fewer than three seeds, or if all differences are
    equal, since t is then 0/0 or infinite."""
    sign_test: float | None
    """The two-sided p-value of the sign test without ties; 1 if all are ties. None for one seed."""


def compare(
    first: Mapping[int, float | None],
    second: Mapping[int, float | None],
    *,
    confidence: float = 0.95,
    bounds: Bounds = FREE,
) -> Comparison | None:
    """Compare two methods seed by seed, each given as seed -> value.

    From the differences d_s = first_s - second_s follow their mean, its interval
    mean(d) ± t_{n-1} std(d) / √n, the paired t-test (`scipy.stats.ttest_rel`) and the sign test
    (`scipy.stats.binomtest` with p = ½ on the number of positive d).

    A seed is left out if one method lacks it, or if a value is None or NaN; None if no seed is left. The sign
    test has the weakest assumptions, and its p-value cannot be below 2^(1-n), which is 0.0625 with 5 seeds.
    The interval is cut at the `bounds` of the difference, such as (-1, 1) for accuracies.
    """
    require(0 < confidence < 1, "a confidence level lies between 0 and 1: give, for example, 0.95.")
    pairs = {
        seed: (a, b)
        for seed in sorted(first.keys() & second.keys())
        if (a := first[seed]) is not None
        and (b := second[seed]) is not None
        and math.isfinite(a)
        and math.isfinite(b)
    }
    if not pairs:
        return None
    values = np.array(list(pairs.values()))
    scale = float(np.abs(values).max())
    differences = values[:, 0] - values[:, 1]
    summary = _summary(differences, confidence, bounds, scale)
    seeds = tuple(pairs)
    if summary.n == 1:
        return Comparison(seeds, summary.mean, None, None, None, None)
    from scipy.special import bdtr, stdtr

    t_test = None
    if summary.std and summary.n >= FEWEST:
        t = summary.mean / summary.std * math.sqrt(summary.n)
        t_test = 2 * float(stdtr(summary.n - 1, -abs(t)))
    untied = differences[np.abs(differences) > SAME * scale]
    fewer = min(int((untied > 0).sum()), int((untied < 0).sum()))
    sign_test = min(1.0, 2 * float(bdtr(fewer, len(untied), 0.5))) if len(untied) else 1.0
    return Comparison(seeds, summary.mean, summary.std, summary.interval, t_test, sign_test)
