"""The reference engine: one client after another in plain PyTorch. `pool` gives the same bits, and so does
`ray` on CPUs of one kind; `graphs` agrees within rtol 1e-5."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unskew.engines.base import Base
from unskew.engines.job import CLIENT_ERRORS, Failed, Job, Outcome, Task
from unskew.engines.network import Network
from unskew.errors import UserError
from unskew.method import Method
from unskew.parts.optimizers import corrected
from unskew.randomness import seed_torch
from unskew.record import ClientStage
from unskew.trial import Trial
from unskew.types import Gradient, Optimizer, Params, Scope, Tensors, View, Weights


class Loop(Base):
    """Clients one after another, in this process."""

    def __init__(self, trial: Trial) -> None:
        super().__init__(trial)
        self.make_steps: Callable[[Training], Step] = plain_steps

    def fit(
        self,
        method: Method,
        sent: Weights,
        shared: Tensors,
        jobs: Iterable[Job],
        upcoming: Sequence[Task] = (),
    ) -> list[Outcome]:
        with self.deterministic():
            return [self._fit_one(method, sent, shared, job) for job in jobs]

    def _fit_one(self, method: Method, sent: Weights, shared: Tensors, job: Job) -> Outcome:
        if not len(job.task.holding):
            return self.local.clients.without_data(job, sent)
        budget, task = self.trial.budget, job.task
        stage: ClientStage = "prepare"
        try:
            seed_torch(self.local.clients.seed(task), self.device)
            start = self.local.clients.prepare(method, sent, shared, job)
            lrs = self.local.clients.lrs(method, task, self.local.samples.steps(task))
            weights = start.scope.anchor.clone()
            kept_optimizer_state = {name: value.clone() for name, value in job.optimizer.items()}
            optimizer_state = kept_optimizer_state or budget.local_optimizer(lrs[0]).init(weights.params)
            tallies = method.start_tallies(self.device)
            stage = "train"
            step = self.make_steps(
                Training(
                    self.local.network,
                    method,
                    start.scope,
                    start.correction,
                    weights,
                    budget.local_optimizer,
                    optimizer_state,
                    tallies,
                )
            )
            loss, steps = torch.zeros((), device=self.device), 0
            for (x, y), lr in zip(self.local.samples.batches(task), lrs, strict=True):
                loss += step(x, y, lr)
                steps += 1
            stage = "update"
            return self.local.clients.finish(
                method, start, weights, steps, loss / steps, optimizer_state, tallies
            )
        except CLIENT_ERRORS as error:
            return Failed.of(task, stage, error)


@dataclass(frozen=True)
class Training:
    """All that the steps of a client's round work on. They change `weights`, `optimizer_state` and
    `tallies` in place."""

    network: Network
    method: Method
    scope: Scope
    correction: Params | None
    weights: Weights
    make_optimizer: Callable[[float | Tensor], Optimizer]
    """Makes the client's optimiser for a learning rate."""
    optimizer_state: Tensors
    tallies: Tensors = field(default_factory=dict)

    def step(self, x: Tensor, y: Tensor, lr: float | Tensor) -> Tensor:
        """Take a step on a batch, in place, and return the loss before it."""
        gradient = gradient_of(self.network, self.method, self.scope, self.weights, x, y, self.tallies)
        transformed = self.method.transform(gradient, self.scope)
        if not callable(transformed):
            raise UserError("the method's transform returns no function: let it return a gradient function.")
        gradient = corrected(transformed, self.correction)
        return self.make_optimizer(lr).step(gradient, self.weights.params, self.optimizer_state)


Step = Callable[[Tensor, Tensor, float], Tensor]
"""Takes a step on a batch's inputs and labels with a learning rate, in place, and returns the loss."""


def plain_steps(training: Training) -> Step:
    """Return the step of a client, in plain PyTorch."""
    return training.step


def gradient_of(
    network: Network,
    method: Method,
    scope: Scope,
    weights: Weights,
    x: Tensor,
    y: Tensor,
    tallies: Tensors | None = None,
) -> Gradient:
    """Return the function from parameters to loss and gradient of the method's objective on one batch."""

    def gradient(params: Params, /, *, track: bool = True) -> tuple[Tensor, Params]:
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        tracked = Weights(leaves, weights.buffers)
        with network.holding_weights():
            with torch.enable_grad():
                here = tracked if track else tracked.scratch()
                out, levels = (
                    network.train_with_levels(here, x) if method.levels else (network.train(here, x), ())
                )
                counted = tallies if track else None
                value = method.objective(View(scope, x, y, leaves, out, network, counted, levels))
            if not value.requires_grad:
                raise UserError("the method's loss does not depend on the model: compute it from view.out.")
            grads = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        # A parameter that does not enter the method's loss has gradient zero.
        return value.detach(), {
            name: torch.zeros_like(leaf) if grad is None else grad
            for (name, leaf), grad in zip(leaves.items(), grads, strict=True)
        }

    return gradient
