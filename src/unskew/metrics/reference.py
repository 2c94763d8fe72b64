"""Several methods compared with one of them over seeds, and which of these differences can be claimed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from unskew.metrics.seeds import DIFFERENCE, LEVEL, Bounds, Comparison, compare

POWER = 0.8
"""How often a test should find a difference that exists."""
MOST_SEEDS = 1000

Seeds = Mapping[int, float | None]
"""A number for each seed."""
Key = TypeVar("Key")


@dataclass(frozen=True)
class Difference:
    """A method minus the reference by one measure, seed by seed."""

    seeds: tuple[int, ...]
    """The seeds that both have."""
    difference: float
    """The mean difference over these seeds."""
    std: float | None
    """The standard deviation of the differences, with n - 1; None for one seed."""
    interval: tuple[float, float] | None
    """The 95 % confidence interval of this difference alone; None for fewer than three seeds."""
    p: float | None
    """The p-value of the two-sided paired t-test; None for fewer than three seeds, or if all differences are
    equal."""
    adjusted: float | None
    """The p-value after Holm's correction for all methods and measures of its family."""
    needed: int | None
    """The number of seeds with which it would be significant four times out of five, if the true difference
    and spread are the ones found here. None if it is significant already, if no number can be given, and
    beyond a thousand."""

    @property
    def settled(self) -> bool:
        """Whether it is significant, so that its sign can be claimed."""
        return self.adjusted is not None and self.adjusted <= LEVEL


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for the number of tests (Holm, 1979).

    If differences with corrected values up to 0.05 are claimed, a false claim is among them at most once in
    twenty times. None stands for no test; it stays and does not count.
    """
    order = sorted((value, place) for place, value in enumerate(p) if value is not None)
    adjusted: list[float | None] = [None] * len(p)
    highest = 0.0
    for rank, (value, place) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * value))
        adjusted[place] = highest
    return adjusted


def seeds_needed(difference: float, std: float, *, level: float = LEVEL, power: float = POWER) -> int | None:
    """Return the least number of seeds with which a paired t-test finds a difference; None beyond a thousand.

    The test is two-sided at this level and finds the difference with this power, if the differences of single
    seeds have the standard deviation `std`.
    """
    if not difference or not std:
        return None
    # Search from below, since SciPy's noncentral t has errors when the power is almost 1.
    low, high = 2, 3
    while _power(high, abs(difference) / std, level) < power:
        if high == MOST_SEEDS:
            return None
        low, high = high, min(2 * high, MOST_SEEDS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _power(middle, abs(difference) / std, level) >= power else (middle, high)
    return high


def _power(n: int, effect: float, level: float) -> float:
    """Return how often a test with n seeds finds the right sign of a difference of `effect` deviations."""
    from scipy.special import nctdtr, stdtrit

    return 1.0 - float(nctdtr(n - 1, effect * math.sqrt(n), stdtrit(n - 1, 1 - level / 2)))


def against_reference(
    values: Mapping[str, Mapping[str, Seeds]],
    reference: str,
    *,
    families: Sequence[Sequence[str]] | None = None,
    bounds: Bounds = DIFFERENCE,
) -> dict[str, dict[str, Difference | None]]:
    """Compare every other method with the reference by every measure, from `values[method][measure][seed]`.

    A difference is None if the two have no seed in common. The differences of all methods by the measures of
    a family are corrected together by Holm's procedure; without families, every measure is a family.
    """
    others = [method for method in values if method != reference]
    found = {
        (method, measure): compare(values[method][measure], values[reference][measure], bounds=bounds)
        for method in others
        for measure in values[reference]
    }
    differences_of: dict[str, dict[str, Difference | None]] = {method: {} for method in others}
    for family in families or [[measure] for measure in values[reference]]:
        keys = [(method, measure) for method in others for measure in family]
        differences = corrected({key: one for key in keys if (one := found[key]) is not None})
        for method, measure in keys:
            differences_of[method][measure] = differences.get((method, measure))
    return differences_of


def corrected(family: Mapping[Key, Comparison]) -> dict[Key, Difference]:
    """Return the comparisons of a family, with p-values corrected for all of them by Holm's procedure."""
    p = [one.t_test for one in family.values()]
    tested = sorted(value for value in p if value is not None)
    differences = {}
    for (key, one), value, adjusted in zip(family.items(), p, holm(p), strict=True):
        needed = None
        if one.std and value is not None and adjusted is not None and adjusted > LEVEL:
            left = len(tested) - tested.index(value)  # Holm's procedure multiplies this p-value by it
            needed = seeds_needed(one.difference, one.std, level=LEVEL / left)
            needed = needed and max(needed, len(one.seeds) + 1)  # the present seeds were not enough
        differences[key] = Difference(
            one.seeds, one.difference, one.std, one.interval, value, adjusted, needed
        )
    return differences


def best_of(values: Mapping[str, Seeds]) -> str | None:
    """Return the method that is higher than each other one by a paired t-test at 5 % on their common seeds.

    None if there is no such method, and always with fewer than three seeds. Since all tests must agree,
    choosing the highest afterwards needs no correction: if several methods are equally good, one of them is
    called the best at most once in twenty times.
    """
    names = list(values)
    if len(names) < 2:
        return None
    best = names[0]
    for name in names[1:]:  # if one is higher than each other one, it remains at the end
        pair = compare(values[name], values[best])
        if pair is not None and pair.difference > 0:
            best = name
    others = [name for name in names if name != best]
    return best if all(_is_above(values[best], values[name]) for name in others) else None


def _is_above(first: Seeds, second: Seeds) -> bool:
    """Say whether one method is higher than another by a paired t-test at 5 %, with three seeds or more."""
    pair = compare(first, second)
    if pair is None or pair.t_test is None:
        return False
    return pair.difference > 0 and pair.t_test <= LEVEL
