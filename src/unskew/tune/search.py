"""A hyperparameter search as values: what is searched, how the next trial is chosen, and which trial is best.

Every method is searched by itself, with the same number of trials. The values of a trial follow from the
seed, its number and the trials before it alone, so that a search that was stopped continues with the same
values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from unskew.randomness import Purpose, draw_seed
from unskew.record import Format
from unskew.trial import Stop
from unskew.tune.space import Dimension, Value, default_values, grid

SAMPLERS = ("tpe", "random", "grid")


@dataclass(frozen=True)
class Searched:
    """A method and its settings to search, as they were typed."""

    method: str
    over: list[str]
    table: dict[str, Any]
    """The table of the method in an experiment."""


@dataclass(frozen=True)
class Search:
    """search.json: everything that the results of a search depend on."""

    methods: list[Searched]
    trials: int
    """How many trials each method has."""
    seeds: list[int]
    """The seeds of each trial; its score is the mean over them."""
    sampler: str
    at_once: int
    """How many trials of a method are chosen together, before any of them has run."""
    experiment: dict[str, Any]
    """The settings that all trials share."""
    data_sha256: str = ""
    """The hash of the dataset and of the validation set; set when the data is known."""
    version: int = 1

    @property
    def metric(self) -> str:
        """The metric that chooses the best round of a run, and by which trials are compared."""
        return Stop.parse(str(self.experiment.get("stop", "none"))).metric

    @property
    def sign(self) -> int:
        """1 if a higher metric is better, -1 if a lower one is."""
        return -1 if self.metric == "loss" else 1


@dataclass(frozen=True)
class TrialLine:
    """A line of trials.jsonl: one trial with its values and its score."""

    method: str
    number: int
    """The number of the trial among those of its method, counted from 0."""
    values: dict[str, Value]
    """The value of each searched setting."""
    score: float | None
    """The search's metric on validation data, the mean over seeds; None if it is not known for every seed."""
    by_seed: list[float | None]
    """The metric of each seed's run."""
    folders: list[str]
    """The folder of each seed's run, relative to the search's folder."""
    errors: list[str] = field(default_factory=list)
    """A sentence for each run that failed."""


SEARCH: Format[Search] = Format(Search)
TRIAL: Format[TrialLine] = Format(TrialLine)


def trials_of(search: Search, space: Sequence[Dimension]) -> int:
    """Return how many trials a method gets: the number of points of a grid, else the number that the search
    sets."""
    return len(grid(space)) if search.sampler == "grid" else search.trials


def choose(
    search: Search, space: Sequence[Dimension], done: Sequence[TrialLine], count: int
) -> Iterator[dict[str, Value]]:
    """Yield the values of the next `count` trials of a method, given its trials so far. Except for a
    grid, its first trial has the values that the settings have without a search, if these may be tried."""
    first = len(done)
    if search.sampler == "grid":
        yield from grid(space)[first : first + count]
        return
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    seed = draw_seed(search.seeds[0], Purpose.SEARCH, first) % (1 << 32)
    samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    study = optuna.create_study(
        direction="maximize" if search.sign > 0 else "minimize",
        sampler=samplers[search.sampler](seed=seed),
    )
    distributions = {each.setting: each.distribution() for each in space}
    for line in done:
        failed = line.score is None
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.FAIL if failed else optuna.trial.TrialState.COMPLETE,
                value=line.score,
                params=line.values,
                distributions=distributions,
            )
        )
    default = default_values(space)
    if not first and default is not None:
        study.enqueue_trial(default)
    for _ in range(count):
        yield dict(study.ask(distributions).params)


def best(search: Search, lines: Sequence[TrialLine]) -> TrialLine | None:
    """Return the trial with the best score, the first of equal ones; None if no trial has a score."""
    known = [line for line in lines if line.score is not None]
    return max(known, key=lambda line: search.sign * (line.score or 0.0), default=None)
