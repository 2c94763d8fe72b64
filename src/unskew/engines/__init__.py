"""Engines run the same round at different speeds. `loop` is the specification: read it first.

loop: one client after another, in plain PyTorch.  cpu.pool: a process for each core.
cuda.graphs: clients side by side on a GPU.        ray.engine: on the machines of a Ray cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from unskew.engines.cpu import pool
from unskew.engines.cpu.pool import Pool
from unskew.engines.cuda import graphs
from unskew.engines.cuda.graphs import Graphs
from unskew.engines.evaluate import EvaluationSet
from unskew.engines.job import Failed, Fit, Job, Outcome, Pending, Task
from unskew.engines.loop import Loop
from unskew.engines.ray import engine as ray_engine
from unskew.engines.ray.engine import RayEngine
from unskew.errors import UserError, unknown
from unskew.method import Method
from unskew.metrics import Assessment, ProbabilityScores
from unskew.trial import Trial
from unskew.types import Query, Tensors, View, Weights


class Engine(Protocol):
    """Trains clients and tests models under one trial. Results may still be computing: tensors can be used
    at once, `Pending.result()` waits for the value."""

    @property
    def initial(self) -> Weights:
        """The trial's initial model, on the engine's device."""

    @property
    def frozen(self) -> Tensors:
        """The frozen parameters and statistics of the model, which are not part of `Weights`."""

    @property
    def rounds_ahead(self) -> int:
        """How many rounds may begin before the numbers of the first have arrived."""

    def start_memory(self, method: Method, task: Task) -> Tensors:
        """Return the memory with which a client begins the first round that it takes part in."""

    def fit(
        self,
        method: Method,
        sent: Weights,
        shared: Tensors,
        jobs: Iterable[Job],
        upcoming: Sequence[Task] = (),
    ) -> list[Outcome]:
        """Train clients on the model that is sent to all of them, and return an outcome for each job, in the
        order of the jobs. `upcoming` names the clients that are likely to train next, so that an engine may
        prepare their inputs meanwhile."""

    def look(self, task: Task, weights: Weights) -> Iterator[View]:
        """Yield a view of each batch of a client's samples under a model in evaluation mode, in order and
        without augmentation."""

    def ask(
        self, name: str, query: Query, weights: Weights, shared: Tensors, jobs: Iterable[Job]
    ) -> list[Tensors]:
        """Return the answers of clients to a question about their data, in the order of the jobs. Questions
        of different names draw different random numbers."""

    def evaluate(self, weights: Weights, samples: EvaluationSet = "test") -> Pending[Assessment]:
        """Test a model on the test set, or on the validation set."""

    def probability_scores(self, weights: Weights) -> ProbabilityScores | None:
        """Return how good a model's probabilities are on the test set, or None if they cannot be computed.
        This waits for the device."""

    def fetch(self, tensors: Tensors) -> Pending[Tensors]:
        """Start to copy tensors from the device to the host."""

    def start_timer(self) -> Callable[[], Pending[float]]:
        """Start a timer; the returned function stops it and gives the elapsed seconds of the device."""

    def deterministic(self) -> AbstractContextManager[None]:
        """Return a context in which the same work gives the same bits."""

    def close(self) -> None:
        """End what the engine has started, such as worker processes; later calls start it again."""


def _runs_anywhere(trial: Trial) -> None:
    pass


@dataclass(frozen=True)
class EngineType:
    """How an engine is started."""

    start: Callable[[Trial], Engine]
    check: Callable[[Trial], object] = _runs_anywhere
    """Raises a UserError if a trial cannot run on it."""


FLOWER = "flower"
"""The engine of runs whose clients are on other machines, which only Flower's server starts."""
ON_FLOWER = (
    "engine flower trains clients on other machines, in an app: make one with `unskew flower init`, or start "
    "a stopped one again with `flwr run` and the same federation.out, which resumes where it stopped."
)

ENGINES: dict[str, EngineType] = {
    "loop": EngineType(Loop),
    "pool": EngineType(Pool, pool.check),
    "graphs": EngineType(Graphs, graphs.check),
    "ray": EngineType(RayEngine, ray_engine.check),
}


def choose(trial: Trial) -> str:
    """Return the name of the engine that a trial runs on, or refuse a trial that cannot run on its engine."""
    name = trial.engine
    if name == FLOWER:  # its clients may have a GPU although this machine has none
        return name
    if trial.precision == "tf32" and trial.pick_device().type == "cpu":
        raise UserError("precision tf32 is for a GPU, and this is a CPU: use fp32 or bf16.")
    if name == "auto":
        name = "graphs" if trial.pick_device().type == "cuda" else "pool" if pool.available() else "loop"
    if name not in ENGINES:
        raise unknown("engine", name, ["auto", *ENGINES])
    ENGINES[name].check(trial)
    return name


def compiles(trial: Trial) -> bool:
    """Say whether a trial's steps are compiled: if it asks for it and its engine does so on its device."""
    return trial.fast and trial.pick_device().type == "cuda" and choose(trial) != "loop"


def start(trial: Trial) -> Engine:
    """Return the engine of a trial, ready to train."""
    if trial.engine == FLOWER:
        raise UserError(ON_FLOWER)
    return ENGINES[choose(trial)].start(trial)


__all__ = [
    "ENGINES",
    "FLOWER",
    "ON_FLOWER",
    "Engine",
    "EngineType",
    "EvaluationSet",
    "Failed",
    "Fit",
    "Job",
    "Outcome",
    "Pending",
    "Task",
    "choose",
    "compiles",
    "start",
]
