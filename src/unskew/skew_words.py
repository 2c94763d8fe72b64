"""How skewed a federation is, in one sentence for people."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
ALIKE = 1.2
"""Up to this ratio of the largest client to the smallest, all are said to hold about the same number of
samples."""
CLOSE = 3
"""Up to this ratio, only the smallest and the largest number of samples are named."""
LONG_TAIL = 5
"""From this ratio of the largest class to the smallest on, the ratio is named."""


def describe_skew(
    counts: Counts,
    *,
    clients: int | None = None,
    cohort: int | None = None,
    samples: str = "samples",
    names: Sequence[str] = (),
) -> str:
    """Describe the skew of label counts [N, C] in words, such as "a client lacks 7.3 of 10 classes; half the
    clients hold under 60 images".

    `clients` is the number of all clients, if the counts are those of the first ones only. `cohort` is the
    number of clients in a round, if not all take part. `samples` is the word for samples. `names` are the
    names of the clients, if these are sites.
    """
    counts = np.asarray(counts, dtype=np.int64)
    known = len(counts)
    total = known if clients is None else clients
    who = "site" if names else "client"
    if not known:
        return f"label counts stay with the {total:,} {who}s"
    if total == 1:
        return f"one {who} holds all {_number(int(counts.sum()))} {samples} of {counts.shape[1]} classes"
    even, labels = _labels(counts, who, samples)
    each, sizes = _sizes(counts, who, samples, names)
    joined = {
        "a": f"{labels} and holds {each}",
        "each": f"{labels} and {each}",
        "every": f"{labels}, {each} each",
    }
    labels = joined.get(labels.split()[0], f"{labels}; each holds {each}") if each else labels
    parts = [labels, *sizes, *_tail(counts, samples)]
    if cohort is not None and cohort < total == known and (lacked := lacked_in_round(counts, cohort)) >= 0.05:
        them = "one client of a round lacks" if cohort == 1 else f"{cohort} clients of a round together lack"
        parts.append(f"the {them} {_decimal(lacked)}")
    text = ("no skew: " if even and each and " to " not in each and len(parts) == 1 else "") + "; ".join(
        parts
    )
    return text if known == total else f"of the first {known:,} of {total:,} {who}s: {text}"


def _labels(counts: Counts, who: str, samples: str) -> tuple[bool, str]:
    """Return whether all clients hold the classes in much the same shares, and a text on how their classes
    differ."""
    N, C = counts.shape
    vacant = (counts == 0).sum(axis=1)
    held = C - vacant
    if held.min() == held.max() and 0 < held[0] < C:
        return False, f"each {who} holds {'one' if held[0] == 1 else held[0]} of {C} classes"
    if vacant.mean() >= 1:
        return False, f"a {who} lacks {_decimal(float(vacant.mean()))} of {C} classes"
    if vacant.any():
        lacking = int((vacant > 0).sum())
        what = "one" if vacant.max() == 1 else "some"
        return False, f"{lacking} of {N} {who}s lack{'s' * (lacking == 1)} {what} of {C} classes"
    every = f"every {who} holds {'both classes' if C == 2 else f'all {C} classes'}"
    shares = counts / counts.sum(axis=1, keepdims=True)
    whole = counts.sum(axis=0) / counts.sum()
    # How far the shares would be from those of all samples if each client had drawn its samples at random.
    chance = np.sqrt(2 / np.pi * whole * (1 - whole) / counts.sum(axis=1, keepdims=True)).sum(axis=1)
    apart = np.abs(shares - whole).sum(axis=1)
    if apart.mean() <= max(1.5 * chance.mean(), 0.02):
        return True, f"{every} in much the same shares"
    largest = shares.max(axis=1)
    low, high = (f"{100 * end:.0f}" for end in (largest.min(), largest.max()))
    share = low if low == high else f"{low} to {high}"
    return False, f"{every}, its largest is {share} % of its {samples}"


def _sizes(counts: Counts, who: str, samples: str, names: Sequence[str]) -> tuple[str, list[str]]:
    """Return a text on how many samples each client holds, empty if the numbers differ much, and further
    texts on how they differ."""
    sizes = counts.sum(axis=1)
    holding = sizes[sizes > 0]
    empty = int((sizes == 0).sum())
    none = [f"{empty} {who}{'s hold' if empty > 1 else ' holds'} nothing"] * bool(empty)
    if not len(holding):
        return "", none
    low, high = int(holding.min()), int(holding.max())
    if high <= ALIKE * low:
        about = f"about {_number(_two_digits(float(np.median(holding))))}"
        return f"{_number(low) if low == high else about} {samples}", none
    if names:
        small, large = names[sizes.tolist().index(low)], names[int(sizes.argmax())]
        return "", [f"{_number(low)} {samples} ({small}) to {_number(high)} ({large})", *none]
    if high <= CLOSE * low:
        return f"{_number(low)} to {_number(high)} {samples}", none
    # A little more than the largest client of the smaller half holds, so at least half hold less.
    bound = _two_digits(int(np.sort(sizes)[(len(sizes) + 1) // 2 - 1]) + 1, up=True)
    half = f"half the {who}s hold under {_number(bound)} {samples}"
    return "", [half if high <= bound else f"{half}, the largest {_number(high)}", *none]


def _tail(counts: Counts, samples: str) -> list[str]:
    """Return texts on the class counts of all clients together: classes without samples, and a long tail."""
    whole = counts.sum(axis=0)
    nobody = int((whole == 0).sum())
    parts = [f"nobody holds {'one' if nobody == 1 else nobody} of them"] * bool(nobody)
    there = whole[whole > 0]
    if len(there) > 1 and there.max() >= LONG_TAIL * there.min():
        ratio = _number(int(_two_digits(there.max() / there.min())))
        parts.append(f"the largest class has {ratio} times the {samples} of the smallest")
    return parts


def lacked_in_round(counts: Counts, cohort: int) -> float:
    """Return how many classes are missing from a random cohort, on average: none of its clients has a
    sample."""
    N, holders = len(counts), (counts > 0).sum(axis=0).tolist()
    return sum(math.comb(N - each, cohort) / math.comb(N, cohort) for each in holders)


def _two_digits(value: float, *, up: bool = False) -> int:
    """Round to two significant digits, upwards if `up`."""
    step = 10 ** max(0, math.floor(math.log10(max(value, 1))) - 1)
    return int((math.ceil if up else round)(value / step) * step)


def _decimal(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _number(value: int) -> str:
    return f"{value:,}"
