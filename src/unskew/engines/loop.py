"""The reference engine: one client after another in plain PyTorch. Every other engine must equal it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from unskew.data.augment import normalise
from unskew.engines.assess import Exam
from unskew.engines.job import Fit, Job
from unskew.engines.network import Network
from unskew.engines.numerics import keep_freed_memory, kernels, seed, steady
from unskew.engines.plan import Epoch, epochs
from unskew.errors import UserError
from unskew.method import Method
from unskew.metrics import Assessment
from unskew.parts.optimizers import corrected, sgd
from unskew.randomness import Purpose, draw_seed
from unskew.transfer import upload
from unskew.trial import Trial, weights_of
from unskew.types import End, Gradient, Optimizer, Params, Scope, Tensors, View, Weights


class Loop:
    ahead = 0

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.stepping: Callable[[Training], Step] = plain_steps
        self.device = trial.pick_device()
        if self.device.type == "cpu":
            keep_freed_memory()
        self.network = Network(trial, self.device)
        self.initial = weights_of(self.network.student).clone()
        dataset = trial.federation.dataset
        self.inputs, self.labels = dataset.train.inputs.to(self.device), dataset.train.labels.to(self.device)
        self.exam = Exam(dataset, self.network, self.device, trial.evaluation.batch_size)

    def assess(self, weights: Weights) -> Assessment:
        with self.steady():
            return self.exam.assessment(self.exam.tally(weights, batch) for batch in range(len(self.exam)))

    def tally(self, weights: Weights, batch: int) -> Tensors:
        """What one batch adds to the assessment."""
        with self.steady():
            return self.exam.tally(weights, batch)

    def assess_later(self, weights: Weights) -> Callable[[], Assessment]:
        return partial(self.assess, weights)

    def fit(self, method: Method, anchor: Weights, shared: Tensors, jobs: Iterable[Job]) -> list[Fit]:
        with self.steady():
            return [self._fit_one(method, anchor, shared, job) for job in jobs]

    def steady(self) -> AbstractContextManager[None]:
        return steady(self.device, self.trial.threads, tf32=self._tf32)

    def raced(self) -> AbstractContextManager[None]:
        """The fastest kernels, within `steady`."""
        return kernels(tf32=self._tf32, taken="fastest")

    @property
    def _tf32(self) -> bool:
        return self.trial.precision == "tf32"

    def look(
        self, client: int, weights: Weights, /, *, grad: bool = False, batch_size: int | None = None
    ) -> Iterator[View]:
        dataset = self.trial.federation.dataset
        scope = Scope(weights, upload(self.trial.federation.counts[client], self.device), {}, {})
        mine = upload(self.trial.federation.indices(client), self.device)
        params = {name: value.detach().requires_grad_(grad) for name, value in weights.params.items()}
        for rows in torch.split(mine, batch_size or self.trial.evaluation.batch_size):
            x = normalise(self.inputs[rows], dataset.mean, dataset.std)
            with self.steady(), torch.set_grad_enabled(grad):
                out = self.network.evaluate(Weights(params, weights.buffers), x)
            yield View(scope, x, self.labels[rows], params, out, self.network)

    def _fit_one(self, method: Method, anchor: Weights, shared: Tensors, job: Job) -> Fit:
        trial, budget = self.trial, self.trial.budget
        mine = trial.federation.indices(job.client).to(self.device)
        if job.buffers is not None:
            anchor = Weights(anchor.params, job.buffers)
        if not len(mine):
            return Fit(anchor, 0, 0, torch.zeros((), device=self.device), job.memory, {})
        # For dropout and methods that draw.
        seed(draw_seed(trial.seed, Purpose.CLIENT, job.round, job.client), self.device)
        scope = Scope(anchor, trial.federation.counts[job.client].to(self.device), job.memory, shared)
        look = partial(self.look, job.client)
        scope = replace(scope, memory={**scope.memory, **method.memory.prepare(scope, look)})
        correction = method.correction(scope)
        lr = budget.lr_at(job.round)
        optimizer = sgd(lr, momentum=budget.momentum, weight_decay=budget.weight_decay)

        now = anchor.clone()
        state = {name: value.clone() for name, value in job.optimizer.items()} or optimizer.init(now.params)
        tallies = method.start_tallies(self.device)
        training = Training(self.network, method, scope, correction, now, optimizer, state, lr, tallies)
        step = self.stepping(training)
        loss, steps = torch.zeros((), device=self.device), 0
        for x, y in self.batches(job):
            loss += step(x, y)
            steps += 1
        end = End(now, steps, lr, budget.momentum, look)
        kept, reported = method.memory.update(scope, end)
        state = state if budget.optimizer == "kept" else {}
        return Fit(now, len(mine), steps, loss / steps, kept, reported, state, tallies)

    def plan(self, job: Job) -> Iterator[Epoch]:
        """A client's passes over its data."""
        trial = self.trial
        return epochs(
            trial.seed,
            job.round,
            job.client,
            samples=len(trial.federation.partition.indices[job.client]),
            times=trial.budget.epochs,
            batch_size=trial.budget.batch_size,
            draws=trial.augment.draws,
            drop_single=self.network.normed,
        )

    def batches(self, job: Job) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and labels of every step of a client's round."""
        trial, dataset = self.trial, self.trial.federation.dataset
        mine = trial.federation.indices(job.client).to(self.device)
        for epoch in self.plan(job):
            # An epoch at a time: many small copies and augmentations would keep a device waiting.
            rows = mine[torch.from_numpy(epoch.rows).to(self.device)]
            draws = torch.from_numpy(epoch.draws)
            x = trial.augment.apply(self.inputs[rows], draws, dataset.mean, dataset.std)
            y = self.labels[rows]
            yield from zip(torch.split(x, epoch.sizes), torch.split(y, epoch.sizes), strict=True)


@dataclass(frozen=True)
class Training:
    """A client's round, as its steps see it. They move `now`, `state` and `tallies` in place."""

    network: Network
    method: Method
    scope: Scope
    correction: Params | None
    now: Weights
    optimizer: Optimizer
    state: Tensors
    lr: float
    tallies: Tensors = field(default_factory=dict)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss on a batch, before the step on it."""
        gradient = gradient_of(self.network, self.method, self.scope, self.now, x, y, self.tallies)
        gradient = corrected(self.method.ascent(gradient, self.scope), self.correction)
        return self.optimizer.step(gradient, self.now.params, self.state)


Step = Callable[[Tensor, Tensor], Tensor]


def plain_steps(training: Training) -> Step:
    return training.step


def gradient_of(
    network: Network,
    method: Method,
    scope: Scope,
    now: Weights,
    x: Tensor,
    y: Tensor,
    tallies: Tensors | None = None,
) -> Gradient:
    """Of the method's objective on one batch, as a function of the parameters."""

    def gradient(params: Params, /, *, track: bool = True) -> tuple[Tensor, Params]:
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        at = Weights(leaves, now.buffers)
        with torch.enable_grad():
            out = network.train(at if track else at.scratch(), x)
            counted = tallies if track else None
            value = method.objective(View(scope, x, y, leaves, out, network, counted))
        if value.ndim:
            raise UserError(f"the method's loss has shape {list(value.shape)}: let it return one number.")
        grads = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        # A method may leave a parameter out of its loss: that one's gradient is zero.
        return value.detach(), {
            name: torch.zeros_like(leaf) if grad is None else grad
            for (name, leaf), grad in zip(leaves.items(), grads, strict=True)
        }

    return gradient
