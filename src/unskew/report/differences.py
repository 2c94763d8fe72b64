"""The words for one difference between a method and the reference, wherever it is shown."""

from __future__ import annotations

from unskew.metrics import Comparison, Difference

SHOWN = 5e-4
"""A smaller difference is printed as 0.0 points."""
MANY = 100
"""More seeds than this are not given as a number, since no user would run them."""


def signed(value: float, digits: int = 1) -> str:
    """Write a difference between accuracies in points, with its sign."""
    shown = f"{round(100 * value, digits) + 0.0:+.{digits}f}"
    return (f"{0:.{digits}f}" if float(shown) == 0 else shown).replace("-", "−")


def between(interval: tuple[float, float]) -> str:
    """Write the two ends of an interval of differences, in points."""
    return f"{signed(interval[0])} to {signed(interval[1])}"


def points(found: Comparison | Difference) -> str:
    """Write a difference in points, followed by its interval if it has one."""
    return signed(found.difference) + (f" ({between(found.interval)})" if found.interval else "")


def is_same(found: Difference | None) -> bool:
    """Say whether the two methods have the same value in every seed, as far as values are printed."""
    return found is not None and found.std == 0 and abs(found.difference) < SHOWN


def verdict(found: Difference | None) -> str:
    """Say whether a difference is significant, and if it is not, how many seeds it would probably take."""
    if found is None:
        return "not compared, as a value is missing"
    number = len(found.seeds)
    if found.interval is None:
        return f"not tested with {'one seed' if number == 1 else f'{number} seeds'}; give three or more"
    if found.p is None:
        return "the same in every seed" if is_same(found) else "no spread over seeds to judge it by"
    if found.settled:
        return "significant"
    more = "more are not likely to change that"
    if found.needed is not None:
        more = (
            f"about {found.needed} would probably show it"
            if found.needed <= MANY
            else f"it would probably take over {MANY}"
        )
    alone = found.interval[0] > 0 or found.interval[1] < 0
    corrected = " after correction" if alone else ""
    return f"not significant{corrected} with {number} seeds; {more}"
