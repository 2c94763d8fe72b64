"""Inputs for clients that train side by side on a device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew.engines.job import Job
from unskew.engines.lines import Line, Mark, main_mark
from unskew.engines.loop import Loop
from unskew.transfer import upload

FEED = 2**33  # bytes of augmented inputs that may lie ready
FEED_SHARE = 0.1  # of the free memory, where that is less
PIECE = 2**26  # bytes augmented at a time, which needs many times the memory


@dataclass(frozen=True, eq=False)
class Portion:
    """A client's inputs of one round."""

    sizes: list[int]
    """Of the batches, epoch after epoch."""
    start: int
    """Of the samples, among those of the round."""


@dataclass(frozen=True, eq=False)
class Delivery:
    """The inputs of a round."""

    to: list[tuple[int, int]]
    """Clients and their round."""
    portions: list[Portion]
    rows: Tensor
    """Of the dataset, one sample after the other."""
    draws: Tensor
    """For their augmentation, on the host."""
    ready: Mark


class Feed:
    """The inputs of a round, augmented and ready, where every recorded step finds them.

    All of a round at once where there is room, in one half of the memory, while the other half's round
    trains. Otherwise each lane has a part of it, filled piece by piece.
    """

    def __init__(self, loop: Loop, line: Line, lanes: int) -> None:
        """For `lanes` lanes at most."""
        self.loop, self.trial, self.device = loop, loop.trial, loop.device
        federation, budget = self.trial.federation, self.trial.budget
        first = torch.zeros(1, dtype=torch.int64, device=self.device)
        x, y = self._augmented(first, torch.zeros((1, self.trial.augment.draws)))
        largest = federation.sizes.sort(descending=True).values[: self.trial.cohort]
        most = budget.epochs * int(largest.sum())
        limit = FEED
        if self.device.type == "cuda":
            limit = min(limit, int(FEED_SHARE * torch.cuda.mem_get_info(self.device)[0]))
        each = x.numel() * x.element_size()
        room = limit // (2 * each)
        self.piece = max(1, PIECE // each)
        self.whole = most <= room
        # A power of two where not all fits: PyTorch keeps a compiled step by the shapes that it sees, which
        # must not hang on every byte that is free.
        self.half = max(most if self.whole else 1 << room.bit_length() >> 1, lanes * budget.batch_size)
        """Samples that a half holds."""
        self.x = x.new_zeros((2 * self.half, *x.shape[1:]))
        if self.loop.network.early:
            self.x = self.x.to(memory_format=torch.channels_last)
        self.y = torch.zeros(2 * self.half, dtype=y.dtype, device=self.device)
        self.line = line
        self.line.wait(main_mark(self.device))
        ready = self.line.mark()
        self.now = self._next = Delivery([], [], first, torch.empty(0), ready)
        self._turn, self._left = 0, [ready, ready]

    def bring(self, jobs: list[Job]) -> Iterator[None]:
        """Plan the next round and augment its inputs, bit by bit, on the feed's line."""
        federation = self.trial.federation
        rows, draws, portions, end = list[NDArray[Any]](), list[NDArray[Any]](), list[Portion](), 0
        for job in jobs:
            mine = federation.partition.indices[job.client]
            start, sizes = end, list[int]()
            for epoch in self.loop.plan(job):
                rows.append(mine[epoch.rows])
                draws.append(epoch.draws)
                sizes += epoch.sizes
                end += len(epoch.rows)
            portions.append(Portion(sizes, start))
            yield
        half = 1 - self._turn
        self.line.wait(self._left[half])
        here, numbers = (torch.from_numpy(np.concatenate(parts)) for parts in (rows, draws))
        there = upload(here, self.device)
        if self.whole:
            yield from self._fill(half * self.half, there, numbers)
        self._next = Delivery(_who(jobs), portions, there, numbers, self.line.mark())

    def load(self, jobs: list[Job]) -> list[Portion]:
        """The jobs' portions of this round, in order; brought now, where they have not been before."""
        if self._next.to != _who(jobs):
            with self.line.work():
                for _ in self.bring(jobs):
                    pass
        self.now, self._turn = self._next, 1 - self._turn
        return self.now.portions

    def left(self) -> None:
        """The round's steps are all given out: what comes after them may use their memory."""
        self._left[self._turn] = main_mark(self.device)

    def pieces(self, portion: Portion, lane: int, lanes: int) -> Iterator[tuple[int, list[int]]]:
        """Where a client's next inputs lie in the feed, and the sizes of their batches."""
        if self.whole:
            yield self._turn * self.half + portion.start, portion.sizes
            return
        room = 2 * self.half // lanes
        place, at = lane * room, portion.start
        piece, held = list[int](), 0
        for size in [*portion.sizes, room]:  # the last one is never reached: it sends the rest on its way
            if held + size > room:
                end = at + held
                for _ in self._fill(place, self.now.rows[at:end], self.now.draws[at:end]):
                    pass
                yield place, piece
                at, piece, held = end, [], 0
            piece.append(size)
            held += size

    def _fill(self, place: int, rows: Tensor, draws: Tensor) -> Iterator[None]:
        for at in range(0, len(rows), self.piece):
            x, y = self._augmented(rows[at : at + self.piece], draws[at : at + self.piece])
            here = place + at
            self.x[here : here + len(x)].copy_(x)
            self.y[here : here + len(y)].copy_(y)
            yield

    def _augmented(self, rows: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        loop, dataset = self.loop, self.trial.federation.dataset
        x = self.trial.augment.apply(loop.inputs[rows], draws, dataset.mean, dataset.std)
        return x.bfloat16() if loop.network.early else x, loop.labels[rows]


def _who(jobs: list[Job]) -> list[tuple[int, int]]:
    return [(job.client, job.round) for job in jobs]
