"""A line of rounds.jsonl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from unskew.record.base import DECLARED, ByClass, Groups, Number, TrafficRecord
from unskew.record.faults import Fault
from unskew.record.sites import SiteSpread


@DECLARED
@dataclass(frozen=True, kw_only=True)
class Validated:
    """A model on the validation set."""

    accuracy: Number
    macro_f1: Number
    balanced_accuracy: Number
    worst_class_accuracy: Number
    loss: Number


@DECLARED
@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """A line of rounds.jsonl, of a round that was not tested."""

    round: Annotated[int, Field(ge=1)]
    """Counted from 1."""
    lr: float
    cohort: list[int]
    trained: list[int]
    """The clients of the cohort that took at least one step and whose updates were used."""
    samples: int
    """How many samples those passed through in training, counted once per epoch."""
    train_loss: Number
    seconds: float
    traffic: TrafficRecord
    tallies: dict[str, int]
    """What the method counted, by name."""
    faults: list[Fault] | None = None
    """The clients of the cohort that were left out; None if there are none."""


@DECLARED
@dataclass(frozen=True, kw_only=True)
class TestedRound(RoundRecord):
    """A line of rounds.jsonl, of a round that was tested."""

    __test__ = False  # no test of pytest's

    accuracy: Number
    loss: Number
    class_accuracy: ByClass
    balanced_accuracy: Number
    max_class: Number
    min_class: Number
    discrepancy: Number
    worst_class: int
    """By its number."""
    groups: Groups
    prediction_share: ByClass
    distance_to_uniform: Number
    domains: dict[str, Number] | None = None
    """Accuracy on each dataset, if several were joined."""
    sites: SiteSpread | None = None
    """Accuracy at the sites, if test samples have owners."""
    macro_f1: Number = None
    validation: Validated | None = None
    """Only if there is a validation set."""
