"""Several methods against one of them, over seeds: what can be claimed of so many differences at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from unskew.metrics.seeds import DIFFERENCE, LEVEL, Bounds, Comparison, compare

POWER = 0.8
"""How often a difference that is there should be found."""
MOST_SEEDS = 1000

Seeds = Mapping[int, float | None]
"""A number for each seed."""
Key = TypeVar("Key")


@dataclass(frozen=True)
class Difference:
    """A method minus the reference by one measure, seed by seed."""

    seeds: tuple[int, ...]
    """Those that both have."""
    difference: float
    """The mean over them."""
    std: float | None
    """Of the differences, with n - 1; None for one seed."""
    interval: tuple[float, float] | None
    """The 95 % confidence interval of this difference alone; None for fewer than three seeds."""
    p: float | None
    """Of the two-sided paired t-test; None for fewer than three seeds and where all differences are equal."""
    adjusted: float | None
    """The same after Holm's correction for all methods and measures of its family."""
    needed: int | None
    """Seeds that would settle it four times out of five, if difference and spread are what they seem here;
    None where it is settled, where no number can be told, and beyond a thousand."""

    @property
    def settled(self) -> bool:
        """Whether the sign can be claimed."""
        return self.adjusted is not None and self.adjusted <= LEVEL


def holm(p: Sequence[float | None]) -> list[float | None]:
    """p-values adjusted for being so many (Holm, 1979): where those up to 0.05 are claimed, a false claim is
    among them at most once in twenty times. None, where there was no test, stays and does not count."""
    order = sorted((value, place) for place, value in enumerate(p) if value is not None)
    adjusted: list[float | None] = [None] * len(p)
    highest = 0.0
    for rank, (value, place) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * value))
        adjusted[place] = highest
    return adjusted


def seeds_needed(difference: float, std: float, *, level: float = LEVEL, power: float = POWER) -> int | None:
    """The fewest seeds with which a two-sided paired t-test at this level finds the difference with this
    power, where the differences of single seeds spread by `std`; None beyond a thousand."""
    if not difference or not std:
        return None
    # From below: SciPy's noncentral t goes wrong here and there where power is almost 1.
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
    """How often the test finds the right sign of a difference of so many standard deviations."""
    from scipy.special import nctdtr, stdtrit

    return 1.0 - float(nctdtr(n - 1, effect * math.sqrt(n), stdtrit(n - 1, 1 - level / 2)))


def against_reference(
    values: Mapping[str, Mapping[str, Seeds]],
    reference: str,
    *,
    families: Sequence[Sequence[str]] | None = None,
    bounds: Bounds = DIFFERENCE,
) -> dict[str, dict[str, Difference | None]]:
    """Every method against the reference by every measure, from `values[method][measure][seed]`; None where
    they have no seed in common.

    The differences of a family of measures, over all methods, are corrected together by Holm's procedure;
    without families, every measure is one.
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
    """The comparisons of a family, with p corrected for all of them by Holm's procedure."""
    p = [one.t_test for one in family.values()]
    tested = sorted(value for value in p if value is not None)
    differences = {}
    for (key, one), value, adjusted in zip(family.items(), p, holm(p), strict=True):
        needed = None
        if one.std and value is not None and adjusted is not None and adjusted > LEVEL:
            left = len(tested) - tested.index(value)  # of the family, at its turn
            needed = seeds_needed(one.difference, one.std, level=LEVEL / left)
            needed = needed and max(needed, len(one.seeds) + 1)  # those at hand do not settle it
        differences[key] = Difference(
            one.seeds, one.difference, one.std, one.interval, value, adjusted, needed
        )
    return differences


def best_of(values: Mapping[str, Seeds]) -> str | None:
    """The method that is higher than each of the others, by paired t-tests at 5 % on the seeds that both
    have; None where there is none, which with fewer than three seeds is always so.

    That all of them have to agree makes up for choosing the highest afterwards: where several are equally
    good, one is called the best at most once in twenty times.
    """
    names = list(values)
    if len(names) < 2:
        return None
    best = names[0]
    for name in names[1:]:  # one that is higher than each of the others is left at the end
        pair = compare(values[name], values[best])
        if pair is not None and pair.difference > 0:
            best = name
    others = [name for name in names if name != best]
    return best if all(_is_above(values[best], values[name]) for name in others) else None


def _is_above(first: Seeds, second: Seeds) -> bool:
    """Whether one method is higher than another by a paired t-test at 5 % on the seeds that both have; never
    with fewer than three."""
    pair = compare(first, second)
    if pair is None or pair.t_test is None:
        return False
    return pair.difference > 0 and pair.t_test <= LEVEL
