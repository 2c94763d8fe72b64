"""A federation's training samples on the device that trains on them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from unskew.data.augment import normalise
from unskew.data.dataset import Split
from unskew.engines.job import Task
from unskew.engines.plan import Epoch, epochs
from unskew.randomness import Purpose, stream
from unskew.transfer import upload
from unskew.trial import Trial


class Samples:
    """The training split, from which every client takes its own rows. It lies on the device; samples that are
    drawn only when they are needed are drawn on the host and copied to the device."""

    def __init__(self, trial: Trial, device: torch.device, *, drop_single: bool) -> None:
        """`drop_single` leaves out a trailing batch of one sample, on which BatchNorm cannot train."""
        self.trial, self.device, self.drop_single = trial, device, drop_single
        self.dataset = trial.federation.dataset
        train = self.dataset.train
        if train.drawn:
            self.split = train
        else:
            labels = trial.attack.labels(trial.federation, trial.seed)
            self.split = Split(train.inputs.to(device), labels.to(device))

    def plan(self, task: Task) -> Iterator[Epoch]:
        """Yield the passes of a client over its samples in a round."""
        return epochs(
            self.trial.seed,
            task.round,
            task.client,
            len(task.holding),
            self.trial.budget,
            draws=self.trial.augment.draws,
            drop_single=self.drop_single,
        )

    def steps(self, task: Task) -> int:
        """Return how many steps a client takes in a round."""
        budget = self.trial.budget
        return budget.steps_in(len(budget.batch_sizes(len(task.holding), drop_single=self.drop_single)))

    def passed(self, task: Task) -> int:
        """Return how many samples a client passes through in a round, counted once per epoch."""
        return self.trial.budget.passed(len(task.holding), drop_single=self.drop_single)

    def batches(self, task: Task) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the augmented inputs and the labels of every step of a client's round."""
        mine = torch.from_numpy(task.holding.rows)
        for epoch in self.plan(task):
            # A whole epoch at a time: a device would wait for many small copies and augmentations.
            rows = mine[torch.from_numpy(epoch.rows)]
            x, y = self.augmented(self.place(rows), torch.from_numpy(epoch.draws))
            yield from zip(torch.split(x, epoch.sizes), torch.split(y, epoch.sizes), strict=True)

    def place(self, rows: Tensor) -> Tensor:
        """Copy rows of the split from the host to where they are looked up."""
        return rows if self.split.drawn else upload(rows, self.device)

    def augmented(self, rows: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels of training samples, augmented by these random numbers."""
        x, y = self._take(rows)
        return self.trial.augment.apply(x, draws, self.dataset.mean, self.dataset.std), y

    def once(self, task: Task, batch_size: int, *, shuffle: bool) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield a client's samples once, normalised and not augmented, in their order or shuffled."""
        rows = task.holding.rows
        if shuffle:
            order = stream(self.trial.seed, Purpose.LOOK_ORDER, task.round, task.client)
            rows = order.permutation(rows)
        for batch in torch.split(self.place(torch.from_numpy(rows)), batch_size):
            x, y = self._take(batch)
            yield normalise(x, self.dataset.mean, self.dataset.std), y

    def _take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.split.take(rows)
        return (upload(x, self.device), upload(y, self.device)) if self.split.drawn else (x, y)
