"""The numbers by which federations are alike: how their labels are skewed, and how many clients take part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from unskew.skew_words import Counts, describe_skew, lacked_in_round


@dataclass(frozen=True, kw_only=True)
class SkewFacts:
    """The facts of a federation that advice depends on. Shares of classes are between 0 and 1."""

    words: str
    """The skew in one sentence."""
    samples: str
    """The word for samples: images, texts, rows or samples."""
    clients: int
    cohort: int
    """The number of clients that take part in a round."""
    vacant: float
    """The share of classes that a client lacks, on average."""
    effective: float
    """The effective share of classes that a client holds, on average: e to the entropy of its labels, over
    C."""
    lacked: float
    """The share of classes that no client of a round has, on average."""
    per_client: float
    """The number of samples of the median client."""
    largest: float
    """The samples of the largest client over those of the median client."""
    tail: float
    """The samples of the largest class over those of the smallest."""
    class_sizes: list[int]
    """The number of training samples of each class."""

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_sizes)

    @property
    def participation(self) -> float:
        """The share of clients that take part in a round."""
        return self.cohort / self.clients


def measure(
    counts: Counts, *, cohort: int | None = None, clients: int | None = None, samples: str = "samples"
) -> SkewFacts:
    """Return the facts of a federation with label counts [N, C].

    `cohort` is the number of clients in a round, None for all. `clients` is the number of all clients, if the
    counts have only the first ones.
    """
    counts = np.asarray(counts, dtype=np.int64)
    known, classes = counts.shape
    clients = known if clients is None else clients
    cohort = clients if cohort is None else cohort
    sizes, by_class = counts.sum(axis=1), counts.sum(axis=0)
    holding = counts[sizes > 0]
    shares = holding / holding.sum(axis=1, keepdims=True)
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(axis=1)
    there = by_class[by_class > 0]
    median = float(np.median(sizes[sizes > 0]))
    return SkewFacts(
        words=describe_skew(
            counts, clients=clients, cohort=None if cohort == clients else cohort, samples=samples
        ),
        samples=samples,
        clients=clients,
        cohort=cohort,
        vacant=float((holding == 0).mean()),
        effective=float(np.exp(entropy).mean()) / classes,
        lacked=lacked_in_round(counts, min(cohort, known)) / classes,
        per_client=median,
        largest=float(sizes.max()) / median,
        tail=float(there.max() / there.min()),
        class_sizes=by_class.tolist(),
    )


def mean_of(each: Sequence[SkewFacts]) -> SkewFacts:
    """Return the mean facts of partitions by one recipe with several seeds, in the words of the first."""

    def mean(name: str) -> float:
        return round(fmean(getattr(facts, name) for facts in each), 6)

    first = each[0]
    return SkewFacts(
        words=first.words,
        samples=first.samples,
        clients=first.clients,
        cohort=first.cohort,
        vacant=mean("vacant"),
        effective=mean("effective"),
        lacked=mean("lacked"),
        per_client=mean("per_client"),
        largest=mean("largest"),
        tail=mean("tail"),
        class_sizes=first.class_sizes,
    )


@dataclass(frozen=True)
class Contrast:
    """A difference between two federations in one fact."""

    distance: float
    """How large the difference is; up to 1 the two count as alike."""
    words: str
    """The difference in words, such as "a client lacks 73 % of the classes, here 20 %"."""


ALIKE_SHARE = 0.15
"""The largest difference between shares of classes that count as alike."""
ALIKE_TIMES = {
    "classes": 2.0,
    "clients": 4.0,
    "participation": 3.0,
    "per_client": 5.0,
    "largest": 5.0,
    "tail": 5.0,
}
"""The largest ratio between the other facts with which they count as alike."""


def contrasts(there: SkewFacts, here: SkewFacts) -> list[Contrast]:
    """Return the differences between a measured federation and the one asked about, the largest first."""
    found = [_shares(name, there, here) for name in ("vacant", "effective", "lacked")]
    found += [_times(name, there, here) for name in ALIKE_TIMES]
    return sorted(found, key=lambda each: -each.distance)


def _shares(name: str, there: SkewFacts, here: SkewFacts) -> Contrast:
    theirs, ours = getattr(there, name), getattr(here, name)
    words = {
        "vacant": "a client lacks {} of the classes",
        "effective": "a client's samples are spread as over {} of the classes in equal shares",
        "lacked": "the clients of a round together lack {} of the classes",
    }[name]
    return Contrast(
        abs(theirs - ours) / ALIKE_SHARE, _both(words, f"{100 * theirs:.0f} %", f"{100 * ours:.0f} %")
    )


def _times(name: str, there: SkewFacts, here: SkewFacts) -> Contrast:
    theirs, ours = float(getattr(there, name)), float(getattr(here, name))
    words, shown = {
        "classes": ("there are {} classes", "{:,.0f}"),
        "clients": ("there are {} clients", "{:,.0f}"),
        "participation": ("{} of the clients take part in a round", "{:.2g}"),
        "per_client": ("half the clients hold under {} samples", "{:,.0f}"),
        "largest": ("the largest client has {} times the samples of the median one", "{:,.1f}"),
        "tail": ("the largest class has {} times the samples of the smallest", "{:,.1f}"),
    }[name]
    if name == "participation":
        sentence = _both(words, *("all" if each == 1 else f"{100 * each:.2g} %" for each in (theirs, ours)))
    else:
        sentence = _both(words, shown.format(theirs), shown.format(ours))
    return Contrast(abs(math.log(theirs / ours)) / math.log(ALIKE_TIMES[name]), sentence)


def _both(words: str, theirs: str, ours: str) -> str:
    return f"{words.format(theirs)}, here {ours}"
