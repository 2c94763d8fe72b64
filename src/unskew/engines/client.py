"""How every client's round begins and ends, whichever engine takes the steps in between.

A site that holds only its own data runs a client with the same pieces: a trial on its data, a task with its
number and all its samples.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from unskew.engines.job import Fit, Job, Task
from unskew.engines.network import Network
from unskew.engines.samples import Samples
from unskew.method import Method
from unskew.method_checks import check_named_tensors, checked_factor, kept_and_reported
from unskew.randomness import Purpose, draw_seed, seed_torch
from unskew.transfer import upload
from unskew.trial import Trial
from unskew.types import End, Params, Query, Scope, Tensors, View, Weights


@dataclass(frozen=True, eq=False)
class Start:
    """A client that is ready to take its first step."""

    job: Job
    scope: Scope
    correction: Params | None
    """What is added to every gradient; None if the method corrects none."""


class Clients:
    """What the clients of a trial do on one device before they train and after."""

    def __init__(self, trial: Trial, network: Network, samples: Samples) -> None:
        self.trial, self.network, self.samples = trial, network, samples
        self.device = samples.device

    def seed(self, task: Task) -> int:
        """Return the seed of the random numbers that a client's round draws, such as those of dropout."""
        return draw_seed(self.trial.seed, Purpose.CLIENT, task.round, task.client)

    def without_data(self, job: Job, sent: Weights) -> Fit:
        """Return the result of a client that has no samples: the model as it was, after 0 steps."""
        return Fit(job.anchor(sent), 0, 0, torch.zeros((), device=self.device), job.memory, {})

    def prepare(self, method: Method, sent: Weights, shared: Tensors, job: Job) -> Start:
        """Compute what a client needs before it trains, and return it. This draws from the current random
        state."""
        scope = self._scope(job, sent, shared)
        prepared = check_named_tensors(
            "memory.prepare", method.memory.prepare(scope, partial(self.look, job.task))
        )
        scope = replace(scope, memory={**scope.memory, **prepared})
        return Start(job, scope, method.correction(scope))

    def lrs(self, method: Method, task: Task, steps: int) -> list[float]:
        """Return the learning rate of each of a client's steps."""
        lr, factor = self.trial.budget.lr_at(task.round), method.lr_factor
        return [lr * checked_factor(factor(step / steps)) if factor else lr for step in range(steps)]

    def finish(
        self,
        method: Method,
        start: Start,
        weights: Weights,
        steps: int,
        loss: Tensor,
        optimizer: Tensors,
        tallies: Tensors,
    ) -> Fit:
        """Return the result of a client that has trained, with what the method keeps and reports of it."""
        budget, task = self.trial.budget, start.job.task
        lr, momentum = budget.lr_at(task.round), budget.momentum or 0.0
        end = End(weights, steps, lr, momentum, partial(self.look, task))
        kept, reported = kept_and_reported(method.memory.update(start.scope, end), start.job.memory)
        optimizer = optimizer if budget.optimizer_state == "kept" else {}
        passed = self.samples.passed(task)
        return Fit(weights, len(task.holding), steps, loss, kept, reported, optimizer, tallies, passed)

    def ask(self, name: str, query: Query, sent: Weights, shared: Tensors, job: Job) -> Tensors:
        """Return a client's answer to a question about its data. Its random numbers are not those of its
        training, nor of a question of another name: no noise that protects an answer is used twice."""
        task, question = job.task, zlib.crc32(name.encode())
        seed = draw_seed(self.trial.seed, Purpose.QUERY, task.round, task.client, question)
        seed_torch(seed, self.device)
        with torch.no_grad():
            return query(self._scope(job, sent, shared), partial(self.look, task))

    def look(
        self,
        task: Task,
        weights: Weights,
        /,
        *,
        grad: bool = False,
        batch_size: int | None = None,
        shuffle: bool = False,
    ) -> Iterator[View]:
        """Yield a view of each batch of a client's samples under a model, as `Look` describes it."""
        scope = Scope(weights, self._counts(task), {}, {})
        params = {name: value.detach().requires_grad_(grad) for name, value in weights.params.items()}
        size = batch_size or self.trial.evaluation.batch_size
        for x, y in self.samples.once(task, size, shuffle=shuffle):
            with self.network.holding_weights() if grad else nullcontext():
                with torch.set_grad_enabled(grad):
                    out = self.network.evaluate(Weights(params, weights.buffers), x)
                yield View(scope, x, y, params, out, self.network)

    def _scope(self, job: Job, sent: Weights, shared: Tensors) -> Scope:
        return Scope(job.anchor(sent), self._counts(job.task), job.memory, shared)

    def _counts(self, task: Task) -> Tensor:
        return upload(self.trial.counts_of(task.client, task.holding.counts), self.device)
