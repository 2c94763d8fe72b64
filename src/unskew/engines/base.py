"""What all engines share: a trial's model, data and clients on one device, and the methods of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

from unskew.engines import numerics
from unskew.engines.client import Clients
from unskew.engines.cuda.streams import current_event, seconds_between
from unskew.engines.evaluate import EvaluationSet, evaluators
from unskew.engines.job import CLIENT_ERRORS, Failed, Job, Pending, Task
from unskew.engines.network import Network
from unskew.engines.samples import Samples
from unskew.errors import UserError
from unskew.method import Method
from unskew.method_checks import check_named_tensors
from unskew.metrics import Assessment, ProbabilityScores
from unskew.transfer import download, upload
from unskew.trial import Trial, weights_of
from unskew.types import NO_MEMORY, Query, Tensors, View, Weights


class Local:
    """The model, the training samples, the clients, the test set and the validation set of a trial, on one
    device."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.device = trial.pick_device()
        self._tf32 = trial.pick_precision() == "tf32"
        if self.device.type == "cpu":
            numerics.keep_freed_memory()
        self.network = Network(trial, self.device)
        self.initial = weights_of(self.network.train_module).clone()
        self.samples = Samples(trial, self.device, drop_single=self.network.normed)
        self.clients = Clients(trial, self.network, self.samples)
        self.evaluators = evaluators(trial, self.network, self.device)

    def deterministic(self) -> AbstractContextManager[None]:
        """Return a context in which the same work gives the same bits."""
        return numerics.deterministic(self.device, self.trial.threads, tf32=self._tf32)

    def fastest(self) -> AbstractContextManager[None]:
        """Return a context with the fastest kernels, to be used within `deterministic`."""
        return numerics.kernels(tf32=self._tf32, choice="fastest")


class Base:
    """What all engines do alike. They differ in how they train clients, and some in how they test models."""

    rounds_ahead = 0
    """How many rounds may begin before the numbers of the first of them have arrived."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self.local = trial, Local(trial)
        self.device, self.initial = self.local.device, self.local.initial
        self.frozen = self.local.network.frozen_tensors

    def deterministic(self) -> AbstractContextManager[None]:
        """Return a context in which the same work gives the same bits."""
        return self.local.deterministic()

    def start_memory(self, method: Method, task: Task) -> Tensors:
        """Return the memory with which a client begins the first round that it takes part in."""
        if method.memory.init is NO_MEMORY.init:
            return {}
        counts = upload(self.trial.counts_of(task.client, task.holding.counts), self.device)
        return check_named_tensors("memory.init", method.memory.init(self.initial, counts))

    def evaluate(self, weights: Weights, samples: EvaluationSet = "test") -> Pending[Assessment]:
        """Test a model on the test set, or on the validation set."""
        with self.deterministic():
            test = self.local.evaluators[samples]
            totals = test.sum(test.batch_totals(weights, n) for n in range(len(test)))
            return Pending.done(test.assessment(totals))

    def probability_scores(self, weights: Weights) -> ProbabilityScores | None:
        """Return how good a model's probabilities are on the test set."""
        with self.deterministic():
            return self.local.evaluators["test"].probability_scores(weights)

    def look(self, task: Task, weights: Weights) -> Iterator[View]:
        """Yield a view of each batch of a client's samples under a model in evaluation mode, in order and
        without augmentation."""
        views = self.local.clients.look(task, weights)
        while True:
            with self.deterministic():  # only while it computes, not while the caller does
                view = next(views, None)
            if view is None:
                return
            yield view

    def ask(
        self, name: str, query: Query, weights: Weights, shared: Tensors, jobs: Iterable[Job]
    ) -> list[Tensors]:
        """Return the answers of clients to a question about their data, in the order of the jobs. Questions
        of different names draw different random numbers."""
        with self.deterministic():
            return [self._ask_one(name, query, weights, shared, job) for job in jobs]

    def _ask_one(self, name: str, query: Query, weights: Weights, shared: Tensors, job: Job) -> Tensors:
        try:
            return self.local.clients.ask(name, query, weights, shared, job)
        except CLIENT_ERRORS as error:
            failed = Failed.of(job.task, "update", error)
        where = f"client {job.task.client} failed after round {job.task.round}, stage 'ask'"
        if failed.kind == "memory":
            raise UserError(f"{where}: {failed.reason()}.")
        failed.error.add_note(f"{where.capitalize()}.")
        raise failed.error

    def fetch(self, tensors: Tensors) -> Pending[Tensors]:
        """Start to copy tensors from the device to the host."""
        copies = {name: download(value) for name, value in tensors.items()}
        arrived = current_event(self.device)

        def wait() -> Tensors:
            arrived.synchronize()
            return copies

        return Pending(wait)

    def start_timer(self) -> Callable[[], Pending[float]]:
        """Start a timer; the returned function stops it and gives the elapsed seconds of the device."""
        began = current_event(self.device, timed=True)

        def stop() -> Pending[float]:
            ended = current_event(self.device, timed=True)

            def seconds() -> float:
                ended.synchronize()
                return seconds_between(began, ended)

            return Pending(seconds)

        return stop

    def close(self) -> None:
        """End what the engine has started, such as worker processes."""
