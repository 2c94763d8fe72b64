"""Clients side by side on the cores of one machine: the reference engine in worker processes, bit for bit.

Workers are forked from this process when the first cohort trains, because methods are functions that no
message could carry. They keep the dataset they were forked with and stay until the engine is gone or another
method comes. Tensors reach them and come back through shared memory; only where they lie is sent.
"""

from __future__ import annotations

import copy
import math
import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from unskew.engines.cpu.shared_tensors import Groups
from unskew.engines.cpu.traced_step import StepTracer
from unskew.engines.cpu.workers import Workers
from unskew.engines.job import Fit, Job
from unskew.engines.loop import Loop, plain_steps
from unskew.engines.numerics import steady
from unskew.errors import UserError
from unskew.method import Method
from unskew.metrics import Assessment
from unskew.trial import Trial
from unskew.types import Tensors, View, Weights


def available() -> bool:
    """Whether this system has what the engine is made of, and this process may still be forked: PyTorch
    trains in no process whose parent has used a GPU, and Python forbids the daemons of `multiprocessing` to
    have processes of their own."""
    used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    system = hasattr(os, "fork") and hasattr(os, "memfd_create")
    return system and not used and not multiprocessing.current_process().daemon


def check(trial: Trial) -> None:
    """Raise a UserError where a trial cannot run on this engine."""
    if trial.pick_device().type != "cpu":
        raise UserError("engine 'pool' runs on CPUs: use --device cpu with it, or --engine loop.")
    if not available():
        raise UserError(
            "engine 'pool' needs Linux and a process that has used no GPU and may start others: "
            "use --engine loop."
        )


@dataclass(frozen=True)
class Train:
    """The task of training a client."""

    client: int
    round: int


@dataclass(frozen=True)
class Test:
    """The task of testing a model on one batch."""

    batch: int


Task = Train | Test


@dataclass(frozen=True)
class Answer:
    """The numbers of a worker's answer, beside its tensors."""

    samples: int = 0
    steps: int = 0
    replayed: int = 0
    """How many of the steps were replayed from a trace."""
    problem: str = ""
    """Why the worker traces no steps, where that is so."""


class Pool:
    """The engine that runs clients in worker processes. Where there is nothing to do side by side, as with
    one worker or a cohort of one client, it is done in this process, and none is forked."""

    ahead = 0

    def __init__(self, trial: Trial, tracer: StepTracer | None = None) -> None:
        """`tracer` says when steps are traced and compared; every worker has its own copy of it."""
        self.loop = Loop(trial)
        self.trial = trial
        self.initial = self.loop.initial
        self.workers = trial.workers or max(1, cores() // trial.threads)
        self.tracer = tracer or StepTracer()
        self.replayed = 0
        """How many steps the workers have replayed from traces."""
        self._processes: Workers[Task, Answer] | None = None
        self._method: Method | None = None
        """The method that the processes were forked with."""
        self._warned = False

    def look(
        self, client: int, weights: Weights, /, *, grad: bool = False, batch_size: int | None = None
    ) -> Iterator[View]:
        return self.loop.look(client, weights, grad=grad, batch_size=batch_size)

    def fit(self, method: Method, anchor: Weights, shared: Tensors, jobs: Iterable[Job]) -> list[Fit]:
        jobs = list(jobs)
        samples = self.trial.federation.sizes[[job.client for job in jobs]].tolist()
        # Longest first: what ends last is then short, and no worker waits long for another.
        order = sorted((n for n in range(len(jobs)) if samples[n]), key=lambda n: -samples[n])
        if min(self.workers, len(order)) < 2:
            return self.loop.fit(method, anchor, shared, jobs)
        processes = self._processes_for(method, len(order))
        common = _weights(anchor) | {"shared": shared}
        answers = self._answers(processes, common, [_task(jobs[n]) for n in order])
        fits = {n: _fit(*answer) for n, answer in zip(order, answers, strict=True)}
        idle = self.loop.fit(method, anchor, shared, [job for n, job in enumerate(jobs) if n not in fits])
        rest = iter(idle)
        return [fits[n] if n in fits else next(rest) for n in range(len(jobs))]

    def assess(self, weights: Weights) -> Assessment:
        exam = self.loop.exam
        if self._processes is None or self._processes.ended or len(exam) < 2:
            return self.loop.assess(weights)
        tasks: list[tuple[Task, Groups]] = [(Test(batch), {}) for batch in range(len(exam))]
        answers = self._answers(self._processes, _weights(weights), tasks)
        return exam.assessment(groups["tally"] for _, groups in answers)

    def assess_later(self, weights: Weights) -> Callable[[], Assessment]:
        return partial(self.assess, weights)

    def _answers(
        self, processes: Workers[Task, Answer], common: Groups, tasks: Sequence[tuple[Task, Groups]]
    ) -> list[tuple[Answer, Groups]]:
        # One thread copies: others would wait for the next copy in a loop, on the cores of the workers.
        with steady(self.loop.device, 1):
            replies = processes.run(common, tasks)
        answers = []
        for reply in replies:
            if isinstance(reply, BaseException):
                processes.end()  # or they would live as long as somebody keeps the traceback
                raise reply
            answers.append(reply)
            self.replayed += reply[0].replayed
            self._warn(reply[0].problem)
        return answers

    def _warn(self, problem: str) -> None:
        if problem and not self._warned:
            self._warned = True
            warnings.warn(
                f"steps are not traced, so training is slower, because this PyTorch has other internals than "
                f"expected ({problem}).",
                RuntimeWarning,
                stacklevel=2,
            )

    def _processes_for(self, method: Method, clients: int) -> Workers[Task, Answer]:
        if self._processes is None or self._processes.ended or self._method is not method:
            self._processes = None  # its workers end before others begin
            size = min(self.workers, max(clients, len(self.loop.exam)))
            work = partial(_work, self.loop, method, self.tracer if self.trial.trace else None)
            self._processes, self._method = Workers(work, size), method
        return self._processes


def _work(
    loop: Loop, method: Method, tracer: StepTracer | None, common: Groups, task: Task, tensors: Groups
) -> tuple[Answer, Groups]:
    """Do a task in a worker."""
    weights = Weights(common["params"], common["buffers"])
    if isinstance(task, Test):
        return Answer(), {"tally": loop.tally(weights, task.batch)}
    loop = copy.copy(loop)
    loop.stepping = tracer or plain_steps
    before = tracer.replayed if tracer else 0
    job = Job(task.client, task.round, tensors["memory"], tensors.get("buffers"), tensors["optimizer"])
    [fit] = loop.fit(method, weights, common["shared"], [job])
    replayed, problem = (tracer.replayed - before, tracer.problem) if tracer else (0, "")
    return Answer(fit.samples, fit.steps, replayed, problem), {
        **_weights(fit.weights),
        "loss": {"loss": fit.loss},
        "memory": fit.memory,
        "reported": fit.reported,
        "optimizer": fit.optimizer,
        "tallies": fit.tallies,
    }


def _task(job: Job) -> tuple[Task, Groups]:
    own = {} if job.buffers is None else {"buffers": job.buffers}
    return Train(job.client, job.round), {"memory": job.memory, "optimizer": job.optimizer, **own}


def _fit(answer: Answer, tensors: Groups) -> Fit:
    return Fit(
        weights=Weights(tensors["params"], tensors["buffers"]),
        samples=answer.samples,
        steps=answer.steps,
        loss=tensors["loss"]["loss"],
        memory=tensors["memory"],
        reported=tensors["reported"],
        optimizer=tensors["optimizer"],
        tallies=tensors["tallies"],
    )


def _weights(weights: Weights) -> Groups:
    return {"params": weights.params, "buffers": weights.buffers}


def cores() -> int:
    """Return how many cores this process may use: of the machine's, and of a container's share."""
    found = len(os.sched_getaffinity(0))
    try:  # cpu.max of https://docs.kernel.org/admin-guide/cgroup-v2.html: so much of every so much time
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return found
    return found if quota == "max" else min(found, max(1, math.ceil(int(quota) / int(period))))
