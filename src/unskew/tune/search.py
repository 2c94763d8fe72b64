"""A search for hyperparameters by validation: what is tried, how the next trial is chosen, who wins.

Every method is searched by itself with the same number of trials. A trial's values follow from the seed, its
number and the trials before it alone, so that a search that was stopped continues with the same ones.
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
    """A method and what is searched of it, as they were typed."""

    method: str
    over: list[str]
    table: dict[str, Any]
    """The method as an experiment has it."""


@dataclass(frozen=True)
class Search:
    """search.json: all that a search depends on."""

    methods: list[Searched]
    trials: int
    """How many trials each method has."""
    seeds: list[int]
    """The seeds of each trial; its score is the mean over them."""
    sampler: str
    at_once: int
    """How many trials of a method are chosen before the first of them is known."""
    experiment: dict[str, Any]
    """The settings that all trials share."""
    data_sha256: str = ""
    """The hash of the dataset and of the validation set; filled in."""
    version: int = 1

    @property
    def metric(self) -> str:
        """The metric by which trials are compared, and by which their rounds are chosen."""
        return Stop.parse(str(self.experiment.get("stop", "none"))).metric

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is."""
        return -1 if self.metric == "loss" else 1


@dataclass(frozen=True)
class TrialLine:
    """A line of trials.jsonl: what one trial was and came to."""

    method: str
    number: int
    """The number of the trial, counted from 0."""
    values: dict[str, Value]
    """The values by setting."""
    score: float | None
    """The search's metric on validation data, the mean over seeds; None where a run has failed."""
    by_seed: list[float | None]
    folders: list[str]
    """The folders of its runs, in the search's folder."""
    errors: list[str] = field(default_factory=list)


SEARCH: Format[Search] = Format(Search)
TRIAL: Format[TrialLine] = Format(TrialLine)


def trials_of(search: Search, space: Sequence[Dimension]) -> int:
    """How many trials a method is given: a grid has as many as it has points."""
    return len(grid(space)) if search.sampler == "grid" else search.trials


def choose(
    search: Search, space: Sequence[Dimension], done: Sequence[TrialLine], count: int
) -> Iterator[dict[str, Value]]:
    """The values of the next `count` trials of a method, whose trials so far are `done`. The first has the
    values that the method has without a search, where they lie in the ranges."""
    first = len(done)
    if search.sampler == "grid":
        yield from grid(space)[first : first + count]
        return
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    number = draw_seed(search.seeds[0], Purpose.SEARCH, first) % (1 << 32)
    kinds = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    study = optuna.create_study(
        direction="maximize" if search.sign > 0 else "minimize",
        sampler=kinds[search.sampler](seed=number),
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
    """The trial with the best score, the first of several; None where all have failed."""
    known = [line for line in lines if line.score is not None]
    return max(known, key=lambda line: search.sign * (line.score or 0.0), default=None)
