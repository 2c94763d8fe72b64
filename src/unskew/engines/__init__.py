"""Engines run the same round at different speeds. `loop` is the specification: read it first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from unskew.engines import cluster, graphs
from unskew.engines.cluster import Cluster
from unskew.engines.cpu import pool
from unskew.engines.cpu.pool import Pool
from unskew.engines.graphs import Graphs
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

    def assess_later(self, weights: Weights) -> Callable[[], Assessment]:
        """The same, when the answer is called: an engine may work on it meanwhile."""

    @property
    def ahead(self) -> int:
        """How many rounds may begin before the first one's numbers have arrived."""


def _anywhere(trial: Trial) -> None:
    pass


@dataclass(frozen=True)
class Kind:
    """Of engines."""

    start: Callable[[Trial], Engine]
    check: Callable[[Trial], object] = _anywhere
    """Raises a UserError where a trial cannot run on it."""


ENGINES: dict[str, Kind] = {
    "loop": Kind(Loop),
    "pool": Kind(Pool, pool.check),
    "graphs": Kind(Graphs, graphs.check),
    "ray": Kind(Cluster, cluster.check),
}


def choose(trial: Trial) -> str:
    """The name of the engine a trial runs on; a UserError where it cannot."""
    name = trial.engine
    if name == "auto":
        name = "graphs" if trial.pick_device().type == "cuda" else "pool" if pool.available() else "loop"
    if name not in ENGINES:
        raise unknown("engine", name, ["auto", *ENGINES])
    ENGINES[name].check(trial)
    return name


def compiles(trial: Trial) -> bool:
    """Whether a trial's steps are compiled: it asks for it, and its engine does so on its device."""
    return trial.fast and trial.pick_device().type == "cuda" and choose(trial) != "loop"


def start(trial: Trial) -> Engine:
    return ENGINES[choose(trial)].start(trial)


__all__ = ["ENGINES", "Engine", "Fit", "Job", "Kind", "choose", "compiles", "start"]
