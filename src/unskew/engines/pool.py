"""Clients side by side on the cores of one machine: the reference engine in worker processes, bit for bit.

Workers are forked from this process when the first cohort trains, because methods are functions that no
message could carry. They keep the dataset they were forked with and stay until the engine is gone or another
method comes. Tensors reach them and come back through shared memory; only where they lie is sent.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from unskew.engines.crew import Crew
from unskew.engines.job import Fit, Job
from unskew.engines.loop import Loop
from unskew.engines.numerics import steady
from unskew.engines.shelf import Groups
from unskew.engines.tape import Recorder
from unskew.errors import UserError
from unskew.method import Method
from unskew.metrics import Assessment
from unskew.trial import Trial
from unskew.types import Tensors, View, Weights


def available() -> bool:
    """Whether this system has what the engine is made of, and this process may still be forked: PyTorch
    trains in no process whose parent has used a GPU."""
    used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return hasattr(os, "fork") and hasattr(os, "memfd_create") and not used


def check(trial: Trial) -> None:
    if trial.pick_device().type != "cpu":
        raise UserError("engine 'pool' runs on CPUs: use --device cpu with it, or --engine loop.")
    if not available():
        raise UserError("engine 'pool' needs Linux and a process that has used no GPU: use --engine loop.")


@dataclass(frozen=True)
class Train:
    client: int
    round: int


@dataclass(frozen=True)
class Test:
    batch: int


Task = Train | Test

Answer = tuple[int, ...]
"""The numbers of an answer, beside its tensors: samples and steps of a client, none of a test batch."""


class Pool:
    """Where there is nothing to do side by side, as with one worker or a cohort of one client, it is done in
    this process, and none is forked."""

    ahead = 0

    def __init__(self, trial: Trial) -> None:
        self.loop = Loop(trial)
        self.trial = trial
        self.initial = self.loop.initial
        self.workers = trial.workers or max(1, cores() // trial.threads)
        self._crew: Crew[Task, Answer] | None = None
        self._method: Method | None = None
        """Which the crew was forked with."""

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
        crew = self._crew_for(method, len(order))
        board = _weights(anchor) | {"shared": shared}
        answers = self._answers(crew, board, [_task(jobs[n]) for n in order])
        fits = {n: _fit(*answer) for n, answer in zip(order, answers, strict=True)}
        idle = self.loop.fit(method, anchor, shared, [job for n, job in enumerate(jobs) if n not in fits])
        rest = iter(idle)
        return [fits[n] if n in fits else next(rest) for n in range(len(jobs))]

    def assess(self, weights: Weights) -> Assessment:
        exam = self.loop.exam
        if self._crew is None or self._crew.gone or len(exam) < 2:
            return self.loop.assess(weights)
        tasks: list[tuple[Task, Groups]] = [(Test(batch), {}) for batch in range(len(exam))]
        answers = self._answers(self._crew, _weights(weights), tasks)
        return exam.assessment(groups["tally"] for _, groups in answers)

    def assess_later(self, weights: Weights) -> Callable[[], Assessment]:
        return partial(self.assess, weights)

    def _answers(
        self, crew: Crew[Task, Answer], board: Groups, tasks: Sequence[tuple[Task, Groups]]
    ) -> list[tuple[Answer, Groups]]:
        # One thread copies: others would wait for the next copy in a loop, on the cores of the workers.
        with steady(self.loop.device, 1):
            return crew.do(board, tasks)

    def _crew_for(self, method: Method, clients: int) -> Crew[Task, Answer]:
        if self._crew is None or self._crew.gone or self._method is not method:
            self._crew = None  # its workers end before others begin
            size = min(self.workers, max(clients, len(self.loop.exam)))
            loop = copy.copy(self.loop)
            loop.stepping = Recorder()
            self._crew, self._method = Crew(partial(_work, loop, method), size), method
        return self._crew


def _work(loop: Loop, method: Method, board: Groups, task: Task, tensors: Groups) -> tuple[Answer, Groups]:
    """In a worker."""
    weights = Weights(board["params"], board["buffers"])
    if isinstance(task, Test):
        return (), {"tally": loop.tally(weights, task.batch)}
    job = Job(task.client, task.round, tensors["memory"], tensors.get("buffers"), tensors["optimizer"])
    [fit] = loop.fit(method, weights, board["shared"], [job])
    return (fit.samples, fit.steps), {
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
    samples, steps = answer
    return Fit(
        weights=Weights(tensors["params"], tensors["buffers"]),
        samples=samples,
        steps=steps,
        loss=tensors["loss"]["loss"],
        memory=tensors["memory"],
        reported=tensors["reported"],
        optimizer=tensors["optimizer"],
        tallies=tensors["tallies"],
    )


def _weights(weights: Weights) -> Groups:
    return {"params": weights.params, "buffers": weights.buffers}


def cores() -> int:
    """How many this process may use: of the machine's, and of the time a container is granted."""
    found = len(os.sched_getaffinity(0))
    try:  # cpu.max of https://docs.kernel.org/admin-guide/cgroup-v2.html: so much of every so much time
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return found
    return found if quota == "max" else min(found, max(1, math.ceil(int(quota) / int(period))))
