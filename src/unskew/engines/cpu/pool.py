"""Clients side by side on the cores of one machine: the reference engine in worker processes, bit for bit.

Workers are forked from this process when the first cohort trains, because methods are functions that no
message could carry. They keep the dataset they were forked with and stay until the engine is gone or another
method comes. Tensors reach them and come back through shared memory; only where they lie is sent.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from unskew.data.federation import Holding
from unskew.engines.cpu.shared_tensors import Groups
from unskew.engines.cpu.traced_step import Recorder
from unskew.engines.cpu.workers import Crew, portable
from unskew.engines.job import Failed, Fit, Job, Outcome, Pending, Task
from unskew.engines.loop import Loop
from unskew.engines.numerics import deterministic
from unskew.errors import UserError
from unskew.method import Method
from unskew.metrics import Assessment
from unskew.trial import Trial
from unskew.types import Tensors, Weights


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
    """Train one client; its samples and what it remembers come as tensors."""

    client: int
    round: int


@dataclass(frozen=True)
class Test:
    """Add up one batch of the test set."""

    batch: int


Request = Train | Test

Answer = tuple[int, ...] | Failed
"""What comes back beside tensors: samples and steps of a client, or why it failed; nothing of a test
batch."""


class Pool(Loop):
    """Clients on the cores of this machine. Where there is nothing to do side by side, as with one worker or
    a cohort of one client, it is done in this process, and none is forked."""

    def __init__(self, trial: Trial) -> None:
        super().__init__(trial)
        self.workers = trial.workers or max(1, cores() // trial.threads)
        self._crew: Crew[Request, Answer] | None = None
        self._method: Method | None = None
        """The method that the workers were forked with."""

    def fit(
        self,
        method: Method,
        anchor: Weights,
        shared: Tensors,
        jobs: Iterable[Job],
        upcoming: Sequence[Task] = (),
    ) -> list[Outcome]:
        jobs = list(jobs)
        samples = [len(job.task.holding) for job in jobs]
        # Longest first: what ends last is then short, and no worker waits long for another.
        order = sorted((n for n in range(len(jobs)) if samples[n]), key=lambda n: -samples[n])
        if min(self.workers, len(order)) < 2:
            return super().fit(method, anchor, shared, jobs)
        crew = self._crew_for(method, len(order))
        board = _weights(anchor) | {"shared": shared}
        answers = self._answers(crew, board, [_request(jobs[n]) for n in order])
        outcomes = {n: _outcome(*answer) for n, answer in zip(order, answers, strict=True)}
        idle = iter(
            super().fit(method, anchor, shared, [job for n, job in enumerate(jobs) if n not in outcomes])
        )
        return [outcomes[n] if n in outcomes else next(idle) for n in range(len(jobs))]

    def evaluate(self, weights: Weights) -> Pending[Assessment]:
        if self._crew is None or self._crew.gone or len(self.local.evaluator) < 2:
            return super().evaluate(weights)
        requests: list[tuple[Request, Groups]] = [
            (Test(batch), {}) for batch in range(len(self.local.evaluator))
        ]
        answers = self._answers(self._crew, _weights(weights), requests)
        return Pending.done(self.local.evaluator.assessment(groups["totals"] for _, groups in answers))

    def _answers(
        self, crew: Crew[Request, Answer], board: Groups, requests: Sequence[tuple[Request, Groups]]
    ) -> list[tuple[Answer, Groups]]:
        # One thread copies: others would wait for the next copy in a loop, on the cores of the workers.
        with deterministic(self.device, 1):
            return crew.do(board, requests)

    def _crew_for(self, method: Method, clients: int) -> Crew[Request, Answer]:
        if self._crew is None or self._crew.gone or self._method is not method:
            self._crew = None  # its workers end before others begin
            size = min(self.workers, max(clients, len(self.local.evaluator)))
            loop = copy.copy(self)
            loop.make_steps = Recorder()
            self._crew, self._method = Crew(partial(_work, loop, method), size), method
        return self._crew


def _work(
    loop: Pool, method: Method, board: Groups, request: Request, tensors: Groups
) -> tuple[Answer, Groups]:
    """What a worker does: what the loop would do in one process."""
    weights = Weights(board["params"], board["buffers"])
    if isinstance(request, Test):
        with loop.deterministic():
            return (), {"totals": loop.local.evaluator.batch_totals(weights, request.batch)}
    held = tensors["holding"]
    task = Task(request.client, request.round, Holding(held["rows"].numpy(), held["counts"]))
    job = Job(task, tensors["memory"], tensors.get("buffers"), tensors["optimizer"])
    [fit] = Loop.fit(loop, method, weights, board["shared"], [job])
    if isinstance(fit, Failed):
        return replace(fit, error=portable(fit.error)), {}
    return (fit.samples, fit.steps), {
        **_weights(fit.weights),
        "loss": {"loss": fit.loss},
        "memory": fit.memory,
        "reported": fit.reported,
        "optimizer": fit.optimizer,
        "tallies": fit.tallies,
    }


def _request(job: Job) -> tuple[Request, Groups]:
    holding = {"rows": torch.from_numpy(job.task.holding.rows), "counts": job.task.holding.counts}
    own = {} if job.buffers is None else {"buffers": job.buffers}
    return Train(job.task.client, job.task.round), {
        "holding": holding,
        "memory": job.memory,
        "optimizer": job.optimizer,
        **own,
    }


def _outcome(answer: Answer, tensors: Groups) -> Outcome:
    if isinstance(answer, Failed):
        return answer
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
