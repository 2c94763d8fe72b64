"""What a model does at each site: on the part of the test set that the site owns.

A site is whoever owns samples: a hospital, a writer, a generated client. Where every site has a model of its
own, each is asked on its own samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unskew.metrics.classes import Counts, Floats, accuracy, balanced_accuracy, class_accuracy, worst_class
from unskew.sites import Sites


def site_accuracy(sites: Sites, answers: NDArray[np.integer]) -> Floats:
    """[S]: share of right answers on each site's own test samples; NaN where it has none."""
    right, asked = sites.right(answers).sum(axis=1), sites.asked(answers).sum(axis=1)
    return np.where(asked > 0, right / np.maximum(asked, 1), np.nan)


@dataclass(frozen=True)
class Spread:
    """How equally sites are served: their accuracies, every site counted once."""

    sites: int
    """How many have test samples and took part in the training."""
    mean: float
    worst: float
    worst_site: str
    best: float
    std: float
    """Standard deviation over the sites."""
    q10: float
    median: float
    q90: float
    unseen: float | None
    """Mean over the sites that no client trained on; None where there are none."""


def spread(sites: Sites, by_site: Floats) -> Spread | None:
    """How accuracies [S] differ between the sites that took part in the training; between all of them where
    none did. None where no site has test samples."""
    known = ~np.isnan(by_site)
    part = known & sites.trained
    others = known & ~sites.trained
    if not part.any():
        part, others = known, np.zeros_like(known)
    if not part.any():
        return None
    values = by_site[part]
    q10, median, q90 = (float(value) for value in np.quantile(values, (0.1, 0.5, 0.9)))
    return Spread(
        sites=len(values),
        mean=float(values.mean()),
        worst=float(values.min()),
        worst_site=sites.names[int(np.flatnonzero(part)[values.argmin()])],
        best=float(values.max()),
        std=float(values.std()),
        q10=q10,
        median=median,
        q90=q90,
        unseen=float(by_site[others].mean()) if others.any() else None,
    )


@dataclass(frozen=True, eq=False)
class SiteResult:
    """A model at one site."""

    name: str
    client: int | None
    """The client that holds the site's training samples; None where none or several do."""
    train: Counts
    """[C]: training samples of each class."""
    test: Counts
    """[C]: test samples of each class."""
    confusion: Counts
    """[i, j]: test samples of class i answered j."""
    samples: int | None = None
    """Training samples in all, where the site does not tell of which classes they are: `train` is 0 then."""

    @property
    def accuracy(self) -> float:
        """Share of right answers; NaN without test samples."""
        return accuracy(self.confusion)

    @property
    def class_accuracy(self) -> Floats:
        """[C]: NaN for a class without test samples at this site."""
        return class_accuracy(self.confusion)

    @property
    def balanced_accuracy(self) -> float:
        """Mean of the class accuracies."""
        return balanced_accuracy(self.confusion)

    @property
    def worst_class(self) -> int | None:
        """The class with the lowest accuracy here; None without test samples."""
        return worst_class(self.class_accuracy) if self.confusion.any() else None

    @property
    def held(self) -> float | None:
        """Mean accuracy of the classes that the site has in training; None where none of them is tested."""
        return self._mean(self.train > 0)

    @property
    def vacant(self) -> float | None:
        """Mean accuracy of the classes that the site lacks in training; None where none is tested here."""
        return self._mean(self.train == 0)

    def _mean(self, which: NDArray[np.bool_]) -> float | None:
        if self.samples is not None:
            return None
        values = self.class_accuracy[which]
        values = values[~np.isnan(values)]
        return float(values.mean()) if len(values) else None


def site_results(sites: Sites, answers: NDArray[np.integer]) -> list[SiteResult]:
    """A model at every site, in the order of `sites`."""
    return [
        SiteResult(
            name=name,
            client=None if client < 0 else client,
            train=sites.train[number],
            test=sites.test[number],
            confusion=sites.confusion(answers, number),
            samples=None if sites.sizes is None else int(sites.sizes[number]),
        )
        for number, (name, client) in enumerate(zip(sites.names, sites.clients.tolist(), strict=True))
    ]
