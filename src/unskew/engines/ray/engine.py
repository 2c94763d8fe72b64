"""Clients on the machines of a Ray cluster, for federations that outgrow one of them.

Workers, one for each CPU or GPU of the cluster, train one client after another. A dataset, a trial and a
method are sent to a machine once, a model once a round, and a client's memory with its job. A job's result
depends only on what is sent: if its worker dies, the job is given to another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from unskew.data.federation import Federation, Holding
from unskew.engines.cuda.graphs import Graphs
from unskew.engines.evaluate import EvaluationSet
from unskew.engines.job import Failed, Job, LostError, Outcome, Pending, Task
from unskew.engines.loop import Loop
from unskew.engines.plan import divide, longest_first
from unskew.engines.ray.connect import connect
from unskew.engines.ray.fleet import RemoteCall, fleet_for
from unskew.engines.ray.payload import Payload, pack, pack_code, unpack
from unskew.method import Method
from unskew.metrics import Assessment
from unskew.trial import Trial
from unskew.types import Tensors, Weights


def check(trial: Trial) -> None:
    """Refuse a trial if there is no Ray cluster to run it."""
    connect()


def for_worker(trial: Trial) -> Trial:
    """Return the trial as one worker of a cluster runs it: on its one CPU, or its one GPU."""
    device = trial.pick_device().type
    return replace(trial, engine="graphs" if device == "cuda" else "loop", device=device, workers=0)


class RayEngine(Loop):
    """Clients on the workers of a Ray cluster. Clients without data, and tests that are not divided, stay in
    this process."""

    def __init__(self, trial: Trial) -> None:
        self._ray = connect()
        super().__init__(trial)
        self._cuda = self.device.type == "cuda"
        self._fleet = fleet_for(cuda=self._cuda, threads=trial.threads)
        self._trial = self._ray.put(pack_code((for_worker(trial), self.frozen), "trial"))
        self._sent_method: tuple[Method, Any] | None = None

    def fit(
        self,
        method: Method,
        sent: Weights,
        shared: Tensors,
        jobs: Iterable[Job],
        upcoming: Sequence[Task] = (),
    ) -> list[Outcome]:
        jobs = list(jobs)
        sizes = [len(job.task.holding) for job in jobs]
        here = [place for place, size in enumerate(sizes) if not size]  # without data
        outcomes = dict(
            zip(here, super().fit(method, sent, shared, [jobs[place] for place in here]), strict=True)
        )
        ordered = longest_first(sizes)
        if ordered:
            # A GPU trains its clients side by side, so it gets its share in one call.
            workers = self._grow(len(ordered))
            groups = divide(sizes, workers) if self._cuda else [[place] for place in ordered]
            references = [self._trial, self._method(method), self._ray.put(pack((sent, shared)))]
            while groups:
                outcomes |= (answered := self._fit_groups(references, jobs, groups, workers))
                # Each client of a group whose worker died now trains alone, which shows the one at fault.
                groups = [[place] for group in groups for place in group if place not in answered]
        return [outcomes[place] for place in range(len(jobs))]

    def _grow(self, wanted: int) -> int:
        """Start workers for this many calls, within the limit of the trial; return how many there are."""
        return self._fleet.grow(min(wanted, self.trial.workers or wanted))

    def _fit_groups(
        self, references: list[Any], jobs: list[Job], groups: list[list[int]], workers: int
    ) -> dict[int, Outcome]:
        """Train groups of clients, one call for each group, and return the outcomes by the places of the
        jobs. A group of several clients whose workers died is left out."""
        federation, outcomes = self.trial.federation, dict[int, Outcome]()
        calls = [
            RemoteCall(_fit, references, [RemoteJob.of(jobs[place], federation) for place in group])
            for group in groups
        ]
        for number, answer in self._fleet.run(calls, workers):
            group = groups[number]
            if not isinstance(answer, LostError):
                outcomes.update(zip(group, unpack(answer), strict=True))
            elif len(group) == 1:
                outcomes[group[0]] = Failed.of(jobs[group[0]].task, "train", answer)
        return outcomes

    def evaluate(self, weights: Weights, samples: EvaluationSet = "test") -> Pending[Assessment]:
        evaluator = self.local.evaluators[samples]
        size = self._grow(len(evaluator))
        if self._cuda or min(size, len(evaluator)) == 1:
            return super().evaluate(weights, samples)
        references = [self._trial, self._ray.put(pack(weights))]
        parts = [range(len(evaluator) * n // size, len(evaluator) * (n + 1) // size) for n in range(size)]
        answers = dict[int, Payload]()
        calls = [RemoteCall(_batch_totals, references, (samples, part)) for part in parts]
        for number, answer in self._fleet.run(calls, size):
            if isinstance(answer, LostError):
                raise answer
            answers[number] = answer
        totals = evaluator.sum(total for n in range(size) for total in unpack(answers[n]))
        return Pending.done(evaluator.assessment(totals))

    def _method(self, method: Method) -> Any:
        """Return Ray's reference to a method, which is sent once."""
        if self._sent_method is None or self._sent_method[0] is not method:
            self._sent_method = method, self._ray.put(pack_code(method, "method"))
        return self._sent_method[1]


class RemoteJob(NamedTuple):
    """A job as it is sent. Workers have the trial's federation: a client's samples are sent only if they
    differ from those that it holds there."""

    job: Job
    with_samples: bool
    """Whether the job comes with its samples; if not, they are those of the federation."""

    @classmethod
    def of(cls, job: Job, federation: Federation) -> RemoteJob:
        """Return a job without its samples if its worker has them already."""
        client, mine = job.task.client, job.task.holding
        if client >= federation.clients or not mine.same_as(federation.holding(client)):
            return cls(job, with_samples=True)
        none = Holding(mine.rows[:0], mine.counts[:0])
        return cls(replace(job, task=replace(job.task, holding=none)), with_samples=False)

    def restored(self, federation: Federation) -> Job:
        """Return the job with its samples."""
        if self.with_samples:
            return self.job
        task = self.job.task
        return replace(self.job, task=replace(task, holding=federation.holding(task.client)))


# What runs in a worker


def _fit(references: list[Any], value: Payload) -> Payload:
    """Train clients in a worker, and return an outcome for each."""
    trial, method, round = references
    (sent, shared), engine = _open_round(round), _open_engine(trial)
    jobs = [job.restored(engine.trial.federation) for job in unpack(value)]
    outcomes = engine.fit(_open_method(method), sent, shared, jobs)
    return pack([outcome.portable() if isinstance(outcome, Failed) else outcome for outcome in outcomes])


def _batch_totals(references: list[Any], value: Payload) -> Payload:
    """Test a model on some batches of the test or validation set in a worker; return the totals of each."""
    trial, weights = references
    engine, model = _open_engine(trial), _open_round(weights)
    samples, batches = unpack(value)
    with engine.deterministic():
        return pack([engine.local.evaluators[samples].batch_totals(model, batch) for batch in batches])


@lru_cache(maxsize=4)  # programs train several models in turn
def _open_engine(reference: Any) -> Loop | Graphs:
    trial, frozen = _open(reference)
    engine = Graphs(trial) if trial.engine == "graphs" else Loop(trial)
    engine.local.network.load_frozen(frozen)
    return engine


@lru_cache(maxsize=4)
def _open_method(reference: Any) -> Any:
    return _open(reference)


@lru_cache(maxsize=1)
def _open_round(reference: Any) -> Any:
    return _open(reference)


def _open(reference: Any) -> Any:
    import ray

    return unpack(ray.get(reference))
