"""A federation's training samples on the device that trains on them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from unskew.data.augment import normalise
from unskew.engines.job import Task
from unskew.engines.plan import Epoch, epochs
from unskew.randomness import Purpose, stream
from unskew.transfer import upload
from unskew.trial import Trial


class Samples:
    """The training split, from which every client takes its own rows."""

    def __init__(self, trial: Trial, device: torch.device, *, drop_single: bool) -> None:
        """`drop_single` leaves out a trailing batch of one sample, as models with BatchNorm want it."""
        self.trial, self.device, self.drop_single = trial, device, drop_single
        self.dataset = trial.federation.dataset
        train = self.dataset.train
        self.inputs = train.inputs.to(device)
        self.labels = trial.attack.labels(trial.federation, trial.seed).to(device)

    def plan(self, task: Task) -> Iterator[Epoch]:
        """The passes of a client over its samples in a round."""
        budget = self.trial.budget
        return epochs(
            self.trial.seed,
            task.round,
            task.client,
            samples=len(task.holding),
            times=budget.epochs,
            batch_size=budget.batch_size,
            draws=self.trial.augment.draws,
            drop_single=self.drop_single,
        )

    def batches(self, task: Task) -> Iterator[tuple[Tensor, Tensor]]:
        """The augmented inputs and the labels of every step of a client's round."""
        mine = torch.from_numpy(task.holding.rows)
        for epoch in self.plan(task):
            # An epoch at a time: many small copies and augmentations would keep a device waiting.
            rows = mine[torch.from_numpy(epoch.rows)].to(self.device)
            x, y = self.augmented(rows, torch.from_numpy(epoch.draws))
            yield from zip(torch.split(x, epoch.sizes), torch.split(y, epoch.sizes), strict=True)

    def augmented(self, rows: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Training samples as a step sees them, with the random numbers of their augmentation."""
        x = self.trial.augment.apply(self.inputs[rows], draws, self.dataset.mean, self.dataset.std)
        return x, self.labels[rows]

    def once(self, task: Task, batch_size: int, *, shuffle: bool) -> Iterator[tuple[Tensor, Tensor]]:
        """A client's samples once, normalised and not augmented: in their order, or shuffled."""
        rows = task.holding.rows
        if shuffle:
            order = stream(self.trial.seed, Purpose.LOOK_ORDER, task.round, task.client)
            rows = order.permutation(rows)
        for batch in torch.split(upload(torch.from_numpy(rows), self.device), batch_size):
            yield normalise(self.inputs[batch], self.dataset.mean, self.dataset.std), self.labels[batch]
