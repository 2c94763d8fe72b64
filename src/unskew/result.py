"""The state of training, its rounds and its result: values, which can be stored and sent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unskew import metrics, notebook
from unskew.client_tensors import ClientTensors
from unskew.method import OWN, Tally, Work
from unskew.metrics import Assessment, ProbabilityScores, SiteResult, Spread, Traffic
from unskew.notation import write_parts
from unskew.probe import Findings
from unskew.record import Fault, NetworkRecord
from unskew.sites import Sites
from unskew.trial import Stop, StopMetric, Trial
from unskew.types import ServerState, Tensors, Weights

NOTHING_SENT = Traffic(up=0, down=0)


@dataclass(frozen=True, eq=False)
class State:
    """The state of training between two rounds."""

    server: ServerState
    memories: ClientTensors = field(default_factory=ClientTensors)
    """What each client that ever took part has kept."""
    buffers: ClientTensors = field(default_factory=ClientTensors)
    """Each client's own BatchNorm statistics, if the policy keeps them local."""
    optimizers: ClientTensors = field(default_factory=ClientTensors)
    """The state of each client's optimiser, if the budget keeps it."""

    @property
    def round(self) -> int:
        """How many rounds were done."""
        return self.server.round


@dataclass(frozen=True, eq=False)
class Round:
    """The results of one round."""

    number: int
    """Counted from 1."""
    lr: float
    cohort: list[int]
    trained: list[int]
    """The clients of the cohort that took at least one step, and whose updates were used."""
    train_loss: float
    """Mean over the clients that trained, weighted as they were averaged; NaN when none did."""
    seconds: float
    test: Assessment | None
    """None in rounds that were not tested."""
    traffic: Traffic = NOTHING_SENT
    samples: int = 0
    """How many samples the clients passed through in training, counted once per epoch."""
    tallies: dict[str, int] = field(default_factory=dict)
    """What the method counted in its steps, by the names of `Method.tallies`."""
    probe: Findings | None = None
    """None in rounds that were not probed."""
    faults: tuple[Fault, ...] = ()
    """The clients of the cohort that were left out, and why."""
    validation: Assessment | None = None
    """The same model's test on the validation set; None if there is none, or if `test` is None."""


@dataclass(frozen=True, eq=False)
class Stage:
    """The results of a stage of a run: values only, so that they can be stored."""

    states: tuple[State, ...] = ()
    """The state after the last round of training; several where several models train side by side."""
    rounds: tuple[Round, ...] = ()
    values: tuple[Tensors, ...] = ()
    """What was computed, or what clients answered, in the order of their numbers."""
    traffic: Traffic = NOTHING_SENT
    """What was sent outside of the rounds of the main model."""
    cost: float | None = 0.0
    """Computation in rounds of FedAvg; None if it is unknown."""
    best: Weights | None = None
    """The model of the round that validation chooses, so far; None without a validation set."""


class BestRound:
    """Tracks the best round on validation data, and early stopping."""

    def __init__(self, stop: Stop, rounds: Iterable[Round] = ()) -> None:
        self.stop = stop
        self.round: int | None = None
        """The number of the best round so far, the first of several that are equally good; None before any
        was validated with a finite score."""
        self.over = False
        """Whether training is to stop, since no round was better for `Stop.patience` rounds."""
        self._best = self._mark = -math.inf
        self._since: int | None = None
        """The number of the last round that was better by `Stop.min_delta`, from which patience counts; its
        score is `_mark`."""
        for each in rounds:
            self.add(each)

    def add(self, round: Round) -> bool:
        """Add a round, and return whether it was validated and is better than all before."""
        if round.validation is None:
            return False
        score = self.stop.score(round.validation.confusion, round.validation.loss)
        if self._since is None or score > self._mark + self.stop.min_delta:
            self._since, self._mark = round.number, score if math.isfinite(score) else -math.inf
        self.over = self.stop.patience is not None and round.number - self._since >= self.stop.patience
        better = score > self._best
        if better:
            self.round, self._best = round.number, score
        return better


@dataclass(frozen=True, eq=False)
class Validation:
    """Which round was chosen on the validation samples, and how good the run's model is on them."""

    metric: StopMetric
    """The metric by which the round was chosen."""
    round: int
    """The number of the chosen round."""
    line: int
    """The round whose numbers are those of the run's model: the chosen one, or the last of a method that
    changes the model after it."""
    stopped: int | None
    """The round after which training stopped, because none was better; None if all rounds were done."""
    samples: int
    """The number of validation samples."""
    assessment: Assessment
    """The test of the run's model on them."""

    @property
    def value(self) -> float:
        """The value of the metric for the run's model. Trials of a search are compared by it, since the test
        set must not choose among them."""
        score = Stop(metric=self.metric).score(self.assessment.confusion, self.assessment.loss)
        return -score if self.metric == "loss" else score


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """A finished run."""

    weights: Weights
    """The served model of the round that validation chose, or of the last one without a validation set; its
    buffers have the frozen parameters too."""
    network: NetworkRecord
    """The description of the model, from which it can be built again."""
    rounds: list[Round]
    classes: tuple[str, ...]
    counts: NDArray[np.int64]
    """Label counts, [N, C]."""
    seconds: float
    state: State
    """The state from which training can continue."""
    final: Assessment
    """The test of `weights` on the test set."""
    scores: ProbabilityScores | None = None
    """How good the model's probabilities are on the test set; None if they could not be computed, such as of
    a model that is not of the trial's form."""
    validation: Validation | None = None
    """How its round was chosen; None without a validation set."""
    notes: tuple[str, ...] = ()
    """What a reader of the numbers should know."""
    extra_traffic: Traffic = NOTHING_SENT
    """Bytes that were sent outside of the rounds."""
    cost: float | None = None
    """Computation of the whole run in rounds of FedAvg; None if it is unknown for the method."""
    tallies: tuple[Tally, ...] = ()
    """What the tallies of the rounds count."""
    owners: Sites | None = None
    """The owners of the test samples, if the data name them."""
    trial: Trial | None = None
    """The conditions; None if the result has come from another machine."""
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The methods that it combines, as in `Method.parts`."""
    work: Work | None = None
    """What a client computed in every round; None if rounds differ or it is unknown."""
    hides_seed: bool = False
    """Whether the saved model must not contain the seed, with which its noise could be removed."""

    def __repr__(self) -> str:
        """Describe in two lines what was trained and how good it is."""
        numbers = ", ".join(f"{name} {value}" for name, value in self._headline_numbers().items())
        return f"Result({self._about()})\n{numbers}"

    def _repr_html_(self) -> str:
        """Describe what was trained and how good it is as HTML for a notebook, with every class if they
        fit."""
        numbers = {**self._headline_numbers(), "notes": " ".join(self.notes)}
        if len(self.classes) > notebook.MOST_COLUMNS:
            return notebook.facts(f"Result: {self._about()}", numbers)
        by_class = self.class_accuracy.values()
        row = [
            notebook.HtmlCell(notebook.percent(value).removesuffix(" %"), np.nan_to_num(value))
            for value in by_class
        ]
        classes = notebook.table(["class", *self.classes], [["accuracy in %", *row]])
        return notebook.facts(f"Result: {self._about()}", numbers, classes)

    def _about(self) -> str:
        """Return the method, the conditions and the number of rounds in one line."""
        done = f"{len(self.rounds)} round{'s' * (len(self.rounds) > 1)}"
        method = write_parts(self.parts) or OWN
        if self.trial is None:
            return f"{method}, {done}"
        federation = self.trial.federation
        where = f"{federation.dataset.short_name}, {federation.skew}, {federation.clients:,} clients"
        return f"{method}, {where}, seed {self.trial.seed}, {done}"

    def _headline_numbers(self) -> dict[str, str]:
        """Return the numbers to show first: accuracy, worst class and the three groups of classes."""
        by_class = metrics.class_accuracy(self.final.confusion)
        worst = self.classes[metrics.worst_class(by_class)]
        accuracy = self.accuracy
        numbers = {
            "accuracy": notebook.percent(accuracy.get("best_by_validation", accuracy["last"])),
            "worst class": f"{notebook.percent(self.worst_accuracy)} ({worst})",
        }
        return numbers | {
            f"{name} classes": notebook.percent(value)
            for name, value in self.groups.items()
            if value is not None
        }

    def save(self, folder: Path | str, *, method: str = "") -> Path:
        """Write a run folder, as `unskew run` does: for `unskew table`, `figure`, `report`, `predict` and
        `export`, and for `unskew.load_model`. `method` is what the method is called there, if it is not
        one of unskew's own. Returns the folder."""
        from unskew.save_result import save

        return save(self, Path(folder), method)

    @property
    def accuracy(self) -> dict[str, float]:
        """last, best_by_test and mean_last_10, over the rounds that were tested; where a round was chosen by
        validation, also best_by_validation, which is of `weights`."""
        found = metrics.best_last_mean([metrics.accuracy(test.confusion) for test in self._tests])
        accuracy = {
            "last": found["last"],
            "best_by_test": found["best"],
            "mean_last_10": found["mean_last_10"],
        }
        if self.validation is not None:
            accuracy["best_by_validation"] = metrics.accuracy(self.final.confusion)
        return accuracy

    @property
    def macro_f1(self) -> float:
        """The macro F1 of the final model on the test set."""
        return metrics.macro_f1(self.final.confusion)

    @property
    def balanced_accuracy(self) -> float:
        """The balanced accuracy of the final model on the test set."""
        return metrics.balanced_accuracy(self.final.confusion)

    @property
    def class_accuracy(self) -> dict[str, float]:
        """The final model's accuracy on each class, by its name."""
        return dict(zip(self.classes, metrics.class_accuracy(self.final.confusion).tolist(), strict=True))

    @property
    def worst_accuracy(self) -> float:
        """The final model's accuracy on its worst class."""
        return float(np.nanmin(metrics.class_accuracy(self.final.confusion)))

    @property
    def groups(self) -> dict[str, float | None]:
        """The final model's accuracy on the clients' majority, minority and vacant classes."""
        return metrics.group_accuracy(metrics.class_accuracy(self.final.confusion), self.counts)

    @cached_property
    def sites(self) -> list[SiteResult]:
        """The final model on each site's own test samples; where every client has a model of its own, that
        one. Empty if the test samples have no owners."""
        if self.owners is None or self.final.answers is None:
            return []
        return metrics.site_results(self.owners, self.final.answers)

    @cached_property
    def site_spread(self) -> Spread | None:
        """How equally the final model serves the sites; None if there are none."""
        if self.owners is None or self.final.answers is None:
            return None
        return metrics.spread(self.owners, metrics.site_accuracy(self.owners, self.final.answers))

    @property
    def forgetting(self) -> float:
        """How much accuracy the classes have lost until the final model: see `unskew.metrics.forgetting`."""
        last = self.validation.round if self.validation else self.rounds[-1].number
        tests = [round.test for round in self.rounds if round.test is not None and round.number < last]
        return metrics.forgetting([metrics.class_accuracy(test.confusion) for test in (*tests, self.final)])

    @property
    def traffic(self) -> Traffic:
        """Bytes of the whole run."""
        return sum((round.traffic for round in self.rounds), self.extra_traffic)

    @property
    def probe_seconds(self) -> float | None:
        """How many seconds the run waited for its probes; None if there were none."""
        probes = [round.probe.seconds for round in self.rounds if round.probe is not None]
        return sum(probes) if probes else None

    @property
    def _tests(self) -> list[Assessment]:
        return [round.test for round in self.rounds if round.test is not None]
