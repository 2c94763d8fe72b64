"""summary.json: the result of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unskew.record.base import DECLARED, ByClass, Groups, Number, TrafficRecord
from unskew.record.rounds import Validated
from unskew.record.sites import SitesRecord


@DECLARED
@dataclass(frozen=True)
class TallyRecord:
    """Something that a method counted in the steps of its clients."""

    of: str
    """What was counted, in words."""
    share: list[Number]
    """By round: of the samples that clients passed through; None in rounds that did not count."""


@DECLARED
@dataclass(frozen=True)
class Accuracy:
    """Accuracy on the test set, over the rounds that were tested."""

    last: Number
    best_by_test: Number
    """The accuracy in the round that was best on the test set itself."""
    mean_last_10: Number
    best_by_validation: Number = None
    """The accuracy in the round that validation chose; None without a validation set."""

    @property
    def final(self) -> Number:
        """The accuracy of the run's model: the one that validation chose, or else the last."""
        return self.last if self.best_by_validation is None else self.best_by_validation


@DECLARED
@dataclass(frozen=True)
class Probabilities:
    """How good a model's probabilities are on the test set."""

    auc: Number
    calibration_error: Number
    brier: Number
    log_loss: Number


@DECLARED
@dataclass(frozen=True, kw_only=True)
class ValidationRecord(Validated):
    """Which round was chosen on the validation samples, and how good the run's model is on them."""

    metric: str
    """The metric by which the round was chosen."""
    value: Number
    """The value of the metric for the run's model."""
    round: int
    """The number of the chosen round."""
    line: int
    """The round whose line in rounds.jsonl is of the run's model: the chosen one, or the last of a method
    that changes the model after it."""
    stopped: int | None
    """The round after which training stopped early; None if all rounds were done."""
    samples: int
    """The number of validation samples."""


@DECLARED
@dataclass(frozen=True)
class PassesRecord:
    """Forward passes for each of a client's samples."""

    trained: float
    frozen: float
    once: float


@DECLARED
@dataclass(frozen=True)
class Time:
    """Where the seconds of a run went. The parts add up to the total."""

    total: float
    start: dict[str, float]
    """Before training, by part: imports, data, partition and the rest. Runs of one compare share theirs,
    which stands in compare.json."""
    first_round: float
    """With the start of the engine and all that is done once."""
    rounds: float
    """All others."""
    end: float
    """After the last round."""


@DECLARED
@dataclass(frozen=True)
class SweepTime:
    """Where the seconds of a compare went. The parts add up to the total."""

    total: float
    start: dict[str, float]
    """Before the first run, by part."""
    runs: float
    """The runs, from the beginning of the first to the end of the last."""
    end: float
    """After it."""


@DECLARED
@dataclass(frozen=True, kw_only=True)
class Summary:
    """summary.json, and what `--json` prints."""

    identity: str
    """The hash of the experiment: see `Experiment.identity`."""
    method: str
    hyperparameters: dict[str, Any]
    dataset: str
    skew: str
    clients: int
    seed: int
    partition_seed: int
    rounds: int
    accuracy: Accuracy
    balanced_accuracy: Number
    loss: Number
    classes: list[str]
    class_accuracy: ByClass
    groups: Groups
    worst_class: int
    worst_class_accuracy: Number
    discrepancy: Number
    forgetting: Number
    confusion: list[list[int]]
    misclassification_share: list[ByClass]
    mean_probability: list[ByClass]
    feature_distances: list[ByClass]
    notes: list[str]
    seconds: float
    probe_seconds: Number
    traffic: TrafficRecord
    passes: PassesRecord | None
    cost: Number
    tallies: dict[str, TallyRecord]
    weights_sha256: str
    time: Time
    run_dir: str
    domains: dict[str, Number] | None = None
    sites: SitesRecord | None = None
    macro_f1: Number = None
    probabilities: Probabilities | None = None
    """None if they could not be computed, such as of a model that is not of the trial's form."""
    validation: ValidationRecord | None = None
    """Only if there is a validation set: the run's model is then that of the round they chose."""
