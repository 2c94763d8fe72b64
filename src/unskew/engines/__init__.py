"""Engines run the same round at different speeds. `loop` is the specification: read it first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from unskew.engines.job import Fit, Job
from unskew.engines.loop import Loop
from unskew.errors import unknown
from unskew.method import Method
from unskew.metrics import Assessment
from unskew.trial import Trial
from unskew.types import Tensors, View, Weights


class Engine(Protocol):
    """Trains clients and tests models under one trial."""

    @property
    def initial(self) -> Weights:
        """The trial's initial model, on the engine's device."""

    def fit(self, method: Method, anchor: Weights, shared: Tensors, jobs: Iterable[Job]) -> list[Fit]:
        """One entry per job, in the order of the jobs."""

    def look(
        self, client: int, weights: Weights, /, *, grad: bool = False, batch_size: int | None = None
    ) -> Iterator[View]:
        """A pass of a model over a client's own data: evaluation mode, in order, without augmentation."""

    def assess(self, weights: Weights) -> Assessment:
        """A model on the test set."""


ENGINES: dict[str, Callable[[Trial], Engine]] = {"loop": Loop}


def start(trial: Trial) -> Engine:
    if trial.engine not in ENGINES:
        raise unknown("engine", trial.engine, ENGINES)
    return ENGINES[trial.engine](trial)


__all__ = ["ENGINES", "Engine", "Fit", "Job", "start"]
