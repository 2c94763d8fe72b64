"""Clients side by side on the cores of one machine: the reference engine in worker processes, bit for bit.

Workers are forked from this process when the first cohort trains, because methods are functions that cannot
be pickled. They keep the dataset they were forked with, and live until the engine is gone or another method
trains. Tensors reach them and come back through shared memory; messages only say where the tensors lie.
"""

from __future__ import annotations

import copy
import math
import multiprocessing
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from unskew.data.federation import Holding
from unskew.engines.cpu.shared_tensors import TensorGroups
from unskew.engines.cpu.traced_step import StepTracer
from unskew.engines.cpu.workers import Workers
from unskew.engines.evaluate import EvaluationSet
from unskew.engines.job import Failed, Fit, Job, LostError, Outcome, Pending, Task
from unskew.engines.loop import Loop, plain_steps
from unskew.engines.numerics import deterministic
from unskew.engines.plan import longest_first
from unskew.errors import UserError
from unskew.method import Method
from unskew.metrics import Assessment
from unskew.trial import Trial
from unskew.types import Tensors, Weights


def available() -> bool:
    """Say whether this system has what the engine needs, and whether this process may still be forked:
    PyTorch cannot train in a process whose parent has used a GPU, and Python forbids the daemons of
    `multiprocessing` to start processes."""
    used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    system = hasattr(os, "fork") and hasattr(os, "memfd_create")
    return system and not used and not multiprocessing.current_process().daemon


def check(trial: Trial) -> None:
    """Refuse a trial that cannot run on this engine."""
    if trial.pick_device().type != "cpu":
        raise UserError("engine 'pool' runs on CPUs: use --device cpu with it, or --engine loop.")
    if not available():
        raise UserError(
            "engine 'pool' needs Linux and a process that has used no GPU and may start others: "
            "use --engine loop."
        )


@dataclass(frozen=True)
class TrainRequest:
    """The request to train a client; its samples and what it remembers come as tensors."""

    client: int
    round: int


@dataclass(frozen=True)
class TestRequest:
    """The request to test a model on one batch of some samples."""

    samples: EvaluationSet
    batch: int


Request = TrainRequest | TestRequest


@dataclass(frozen=True)
class WorkerAnswer:
    """What a worker answers in addition to tensors."""

    samples: int = 0
    steps: int = 0
    passed: int = 0
    """How many samples the steps were on."""
    replayed: int = 0
    """How many of the steps were replayed from a trace."""
    problem: str = ""
    """Why the worker traces no steps; empty if it does."""
    failed: Failed | None = None
    """The failure of the client, if its training failed."""


Reply = tuple[WorkerAnswer, TensorGroups] | LostError
"""An answer with its tensors, or the error if the worker processes that should give it have died."""


class Pool(Loop):
    """The engine that runs clients in worker processes. A cohort of one client trains in this process,
    without any worker."""

    def __init__(self, trial: Trial, tracer: StepTracer | None = None) -> None:
        """`tracer` says when steps are traced and compared; every worker has its own copy of it."""
        super().__init__(trial)
        self.workers = workers_for(trial)
        self.tracer = tracer or StepTracer()
        self.replayed = 0
        """How many steps the workers have replayed from traces."""
        self._processes: Workers[Request, WorkerAnswer] | None = None
        self._method: Method | None = None
        """The method that the processes were forked with."""
        self._warned = False

    def fit(
        self,
        method: Method,
        sent: Weights,
        shared: Tensors,
        jobs: Iterable[Job],
        upcoming: Sequence[Task] = (),
    ) -> list[Outcome]:
        jobs = list(jobs)
        samples = [len(job.task.holding) for job in jobs]
        order = longest_first(samples)
        if len(order) < 2:
            return super().fit(method, sent, shared, jobs)
        processes = self._processes_for(method, len(order))
        common = _weights(sent) | {"shared": shared}
        replies = self._replies(processes, common, [_request(jobs[n]) for n in order])
        outcomes = {n: _outcome(jobs[n], reply) for n, reply in zip(order, replies, strict=True)}
        rest = [job for n, job in enumerate(jobs) if n not in outcomes]
        idle = iter(super().fit(method, sent, shared, rest))
        return [outcomes[n] if n in outcomes else next(idle) for n in range(len(jobs))]

    def evaluate(self, weights: Weights, samples: EvaluationSet = "test") -> Pending[Assessment]:
        test = self.local.evaluators[samples]
        if self._processes is None or self._processes.ended or len(test) < 2:
            return super().evaluate(weights, samples)
        requests: list[tuple[Request, TensorGroups]] = [
            (TestRequest(samples, batch), {}) for batch in range(len(test))
        ]
        totals = []
        for reply in self._replies(self._processes, _weights(weights), requests):
            if isinstance(reply, LostError):
                raise reply
            totals.append(reply[1]["totals"])
        return Pending.done(test.assessment(test.sum(totals)))

    def close(self) -> None:
        if self._processes is not None:
            self._processes.end()

    def _replies(
        self,
        processes: Workers[Request, WorkerAnswer],
        common: TensorGroups,
        requests: Sequence[tuple[Request, TensorGroups]],
    ) -> list[Reply]:
        # Only one thread copies: others would wait for the next copy in a busy loop, on the workers' cores.
        with deterministic(self.device, 1):
            replies = processes.run(common, requests)
        known: list[Reply] = []
        for reply in replies:
            if isinstance(reply, LostError):
                known.append(reply)
            elif isinstance(reply, BaseException):
                raise reply
            else:
                known.append(reply)
                self.replayed += reply[0].replayed
                self._warn(reply[0].problem)
        return known

    def _warn(self, problem: str) -> None:
        if problem and not self._warned:
            self._warned = True
            warnings.warn(
                f"steps are not traced, so training is slower, because this PyTorch has other internals than "
                f"expected ({problem}).",
                RuntimeWarning,
                stacklevel=2,
            )

    def _processes_for(self, method: Method, clients: int) -> Workers[Request, WorkerAnswer]:
        if self._processes is None or self._processes.ended or self._method is not method:
            self._processes = None  # its workers end before new ones start
            size = min(self.workers, max(clients, *map(len, self.local.evaluators.values())))
            loop = copy.copy(self)  # a reference to the engine itself would keep it alive
            tracer = self.tracer if self.trial.trace else None
            loop.make_steps = tracer or plain_steps
            self._processes, self._method = Workers(partial(_work, loop, method, tracer), size), method
        return self._processes


def _work(
    loop: Loop,
    method: Method,
    tracer: StepTracer | None,
    common: TensorGroups,
    request: Request,
    tensors: TensorGroups,
) -> tuple[WorkerAnswer, TensorGroups]:
    """Train a client or test a model on a batch in a worker, as the loop does in one process."""
    weights = Weights(common["params"], common["buffers"])
    if isinstance(request, TestRequest):
        with loop.deterministic():
            evaluator = loop.local.evaluators[request.samples]
            return WorkerAnswer(), {"totals": evaluator.batch_totals(weights, request.batch)}
    before = tracer.replayed if tracer else 0
    held = tensors["holding"]
    task = Task(request.client, request.round, Holding(held["rows"].numpy(), held["counts"]))
    job = Job(task, tensors["memory"], tensors.get("buffers"), tensors["optimizer"])
    [fit] = Loop.fit(loop, method, weights, common["shared"], [job])
    if isinstance(fit, Failed):
        return WorkerAnswer(failed=fit.portable()), {}
    replayed, problem = (tracer.replayed - before, tracer.problem) if tracer else (0, "")
    return WorkerAnswer(fit.samples, fit.steps, fit.passed, replayed, problem), {
        **_weights(fit.weights),
        "loss": {"loss": fit.loss},
        "memory": fit.memory,
        "reported": fit.reported,
        "optimizer": fit.optimizer,
        "tallies": fit.tallies,
    }


def _request(job: Job) -> tuple[Request, TensorGroups]:
    task = job.task
    groups = {
        "holding": {"rows": torch.from_numpy(task.holding.rows), "counts": task.holding.counts},
        "memory": job.memory,
        "optimizer": job.optimizer,
    }
    own = {} if job.buffers is None else {"buffers": job.buffers}
    return TrainRequest(task.client, task.round), groups | own


def _outcome(job: Job, reply: Reply) -> Outcome:
    if isinstance(reply, LostError):
        return Failed.of(job.task, "train", reply)
    answer, tensors = reply
    if answer.failed is not None:
        return answer.failed
    return Fit(
        weights=Weights(tensors["params"], tensors["buffers"]),
        samples=answer.samples,
        steps=answer.steps,
        loss=tensors["loss"]["loss"],
        memory=tensors["memory"],
        reported=tensors["reported"],
        optimizer=tensors["optimizer"],
        tallies=tensors["tallies"],
        passed=answer.passed,
    )


def _weights(weights: Weights) -> TensorGroups:
    return {"params": weights.params, "buffers": weights.buffers}


def workers_for(trial: Trial) -> int:
    """Return how many clients of a trial may train at once."""
    return trial.workers or max(1, cores() // trial.threads)


def cores() -> int:
    """Return how many cores this process may use, of the machine and of a container's share."""
    found = len(os.sched_getaffinity(0))
    try:  # cpu.max: so much time per period, https://docs.kernel.org/admin-guide/cgroup-v2.html
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return found
    return found if quota == "max" else min(found, max(1, math.ceil(int(quota) / int(period))))
