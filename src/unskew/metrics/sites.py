"""Measures of a model at each site, on the test samples that the site owns.

A site is an owner of samples: a hospital, a writer, a generated client. If every site has a model of its own,
each model answers its site's samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unskew.metrics.classes import Counts, Floats, accuracy, balanced_accuracy, class_accuracy, worst_class
from unskew.sites import Sites


def site_accuracy(sites: Sites, answers: NDArray[np.integer]) -> Floats:
    """Return the share of right answers on each site's test samples, [S]; NaN for a site without any."""
    right, asked = sites.right(answers).sum(axis=1), sites.asked(answers).sum(axis=1)
    return np.where(asked > 0, right / np.maximum(asked, 1), np.nan)


@dataclass(frozen=True)
class Spread:
    """The spread of accuracies over sites, in which every site counts once."""

    sites: int
    """The number of sites that have test samples and took part in the training."""
    mean: float
    worst: float
    worst_site: str
    best: float
    std: float
    """The standard deviation over these sites."""
    q10: float
    median: float
    q90: float
    unseen: float | None
    """The mean over the sites that no client trained on; None if there are none."""


def spread(sites: Sites, by_site: Floats) -> Spread | None:
    """Return the spread of accuracies [S] over the sites that were trained on, or over all if none was.

    None if no site has test samples.
    """
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
    """The results of a model at one site."""

    name: str
    client: int | None
    """The client that holds the site's training samples; None if no client or several clients do."""
    train: Counts
    """[C]: training samples of each class."""
    test: Counts
    """[C]: test samples of each class."""
    confusion: Counts
    """[i, j]: test samples of class i answered j."""
    samples: int | None = None
    """The number of training samples, if the site does not reveal their classes; `train` is 0 then."""

    @property
    def accuracy(self) -> float:
        """The share of right answers; NaN without test samples."""
        return accuracy(self.confusion)

    @property
    def class_accuracy(self) -> Floats:
        """[C]: NaN for a class without test samples at this site."""
        return class_accuracy(self.confusion)

    @property
    def balanced_accuracy(self) -> float:
        """The mean of the class accuracies."""
        return balanced_accuracy(self.confusion)

    @property
    def worst_class(self) -> int | None:
        """The class with the lowest accuracy here; None without test samples."""
        return worst_class(self.class_accuracy) if self.confusion.any() else None

    @property
    def held(self) -> float | None:
        """The mean accuracy of the classes that the site trains on; None if none of them is tested here."""
        return self._mean(self.train > 0)

    @property
    def vacant(self) -> float | None:
        """The mean accuracy of the classes that the site does not train on; None if none is tested here."""
        return self._mean(self.train == 0)

    def _mean(self, which: NDArray[np.bool_]) -> float | None:
        if self.samples is not None:
            return None
        values = self.class_accuracy[which]
        values = values[~np.isnan(values)]
        return float(values.mean()) if len(values) else None


def site_results(sites: Sites, answers: NDArray[np.integer]) -> list[SiteResult]:
    """Return a model's results at every site, in the order of `sites`."""
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
