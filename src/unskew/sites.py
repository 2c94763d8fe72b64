"""The owners of training and test samples. `unskew.metrics` computes how good a model is at each site."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sites:
    """The owners of the training samples that clients hold, and of the test samples."""

    names: tuple[str, ...]
    train: Counts
    """[S, C]: the training samples of each class at each site that clients hold."""
    clients: Counts
    """[S]: the client that holds all training samples of a site; -1 if no client or several clients do."""
    labels: Counts
    """[n]: the class of each test sample."""
    owners: Counts
    """[n]: the site of each test sample."""
    sizes: Counts | None = None
    """[S]: the training samples at each site, if their classes are not known; `train` is 0 then."""

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
        """Return [S, C]: for each site and class the test samples that are predicted correctly. `answers` has
        the predicted class of each test sample."""
        return self._count(answers == self.labels)

    def asked(self, answers: NDArray[np.integer]) -> Counts:
        """Return [S, C]: for each site and class the test samples that have a prediction."""
        return self._count(answers < self.train.shape[1])

    def confusion(self, answers: NDArray[np.integer], site: int) -> Counts:
        """Return [C, C]: entry i, j counts the test samples of class i at a site that are predicted as j."""
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
