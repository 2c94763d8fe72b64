"""The owners of training and test samples. How a model does at each site follows in `unskew.metrics`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sites:
    """The owners of samples: of the training samples that clients hold, and the test samples."""

    names: tuple[str, ...]
    train: Counts
    """[S, C]: training samples of each class at each site, as far as clients hold them."""
    clients: Counts
    """[S]: the client that holds all of a site's training samples; -1 where none or several do."""
    labels: Counts
    """[n]: the class of each test sample."""
    owners: Counts
    """[n]: the site of each test sample."""
    sizes: Counts | None = None
    """[S]: training samples at each site, where nobody tells of which class they are; `train` is 0 then."""

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def test(self) -> Counts:
        """[S, C]: test samples of each class at each site."""
        return self._count(np.ones(len(self.labels), np.bool_))

    @cached_property
    def trained(self) -> NDArray[np.bool_]:
        """[S]: whether any client trained on samples of the site."""
        return np.asarray(self.train.any(axis=1) if self.sizes is None else self.sizes > 0)

    def right(self, answers: NDArray[np.integer]) -> Counts:
        """[S, C]: test samples of each class that are answered with it, by site."""
        return self._count(answers == self.labels)

    def asked(self, answers: NDArray[np.integer]) -> Counts:
        """[S, C]: test samples of each class on which a model was asked, by site."""
        return self._count(answers < self.train.shape[1])

    def confusion(self, answers: NDArray[np.integer], site: int) -> Counts:
        """[i, j]: test samples of a site of class i that are answered j."""
        C = self.train.shape[1]
        mine = self._rows[self._starts[site] : self._starts[site + 1]]
        mine = mine[answers[mine] < C]
        cells = self.labels[mine] * C + answers[mine].astype(np.int64)
        return np.bincount(cells, minlength=C * C).reshape(C, C)

    def _count(self, which: NDArray[np.bool_]) -> Counts:
        shape = self.train.shape
        cells = self.owners[which] * shape[1] + self.labels[which]
        return np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)

    @cached_property
    def _rows(self) -> NDArray[np.intp]:
        """The test samples, site by site."""
        return np.argsort(self.owners, kind="stable")

    @cached_property
    def _starts(self) -> Counts:
        return np.concatenate([[0], np.cumsum(np.bincount(self.owners, minlength=len(self)))])
