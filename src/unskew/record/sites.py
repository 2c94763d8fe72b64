"""How a model does at each of the sites that hold data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unskew.record.base import DECLARED, ByClass, Number

MOST_SITES = 100
"""Sites whose numbers stand one by one in a round's record and in summary.json. Of more, a round has the
spread alone, summary.json the lowest ones, and sites.jsonl all of them."""


@DECLARED
@dataclass(frozen=True, kw_only=True)
class SiteSpread:
    """How equally a model serves the sites that it was trained on, each on its own test samples."""

    sites: int
    """How many there are."""
    mean: Number
    """Over sites, each counted once."""
    worst: Number
    worst_site: str
    best: Number
    std: Number
    """Over sites."""
    q10: Number
    median: Number
    q90: Number
    unseen: Number = None
    """Mean over sites that no client trained on; None if there are none."""
    accuracy: dict[str, Number] | None = None
    """The accuracy on every site; None if there are more than `MOST_SITES`."""


@DECLARED
@dataclass(frozen=True, kw_only=True)
class SiteRecord:
    """A model on the test samples of one site."""

    name: str
    client: int | None
    """The client that holds its training samples; None if none or several do."""
    train: list[int]
    """Training samples of each class."""
    test: list[int]
    """Test samples of each class."""
    accuracy: Number
    balanced_accuracy: Number
    class_accuracy: ByClass
    worst_class: int | None
    """By its number."""
    held: Number
    """Mean accuracy of the classes that it has in training."""
    vacant: Number
    """Mean accuracy of those that it lacks in training, if it has test samples of them."""
    answered: list[list[int]]
    """The confusion matrix of the site without the zeros: [class, answer, number of test samples]."""
    samples: int | None = None
    """All training samples, if the site does not report their classes: `train` is then 0."""

    @property
    def trained_on(self) -> int:
        """How many training samples it has."""
        return sum(self.train) if self.samples is None else self.samples

    def lacks(self, classes: Sequence[str]) -> list[str]:
        """Return the classes of which the site has no training sample; none if the site does not
        report its counts."""
        if self.samples is not None:
            return []
        return [name for name, n in zip(classes, self.train, strict=True) if not n]


@DECLARED
@dataclass(frozen=True, kw_only=True)
class SitesRecord:
    """The final model at the sites."""

    spread: SiteSpread
    each: list[SiteRecord]
    """If there are more than `MOST_SITES`: those with the lowest accuracy."""
