"""Augmented inputs for clients that train side by side on a device, made before they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew.engines.base import Local
from unskew.engines.cuda.streams import Event, Stream, current_event
from unskew.engines.job import Task

MOST_BYTES = 2**33  # of augmented inputs at once
MOST_SHARE = 0.1  # of the free memory, if that is less
PIECE_BYTES = 2**26  # augmented at a time, which takes many times the memory of the result


@dataclass(frozen=True, eq=False)
class ClientInputs:
    """Where one client's inputs are among those of the round."""

    sizes: list[int]
    """The sizes of its batches, epoch after epoch."""
    start: int
    """The position of its first sample."""


@dataclass(frozen=True, eq=False)
class RoundInputs:
    """The inputs of all clients of a round."""

    tasks: Sequence[Task]
    clients: list[ClientInputs]
    rows: Tensor
    """The rows of the training split, one for each sample: on the device, or on the host if samples are drawn
    there."""
    draws: Tensor
    """The random numbers for the augmentation of the samples, on the host."""
    half: int
    """The half of the memory that has the inputs, if all of them fit."""
    whole: bool
    """Whether all inputs of the round fit."""
    ready: Event

    def are_for(self, tasks: Sequence[Task]) -> bool:
        """Say whether these are the inputs of the same clients in the same round."""
        return len(tasks) == len(self.tasks) and all(map(Task.same_as, self.tasks, tasks))


class Prefetcher:
    """The inputs of a round, augmented and ready, at addresses that every captured step knows.

    If the memory suffices, all inputs of a round are made in one half of it while the round in the other half
    trains. Otherwise every slot has a part of the memory, which is filled piece by piece.
    """

    def __init__(self, local: Local, stream: Stream, slots: int) -> None:
        """`slots` is the largest number of clients that train side by side."""
        self.local, self.samples, self.device, self.stream = local, local.samples, local.device, stream
        trial = local.trial
        first = self.samples.place(torch.zeros(1, dtype=torch.int64))
        x, y = self._augmented(first, torch.zeros((1, trial.augment.draws)))
        held, place = torch.unique(trial.federation.sizes, return_inverse=True)
        drop = self.samples.drop_single
        passed = torch.tensor([trial.budget.passed(size, drop_single=drop) for size in held.tolist()])
        most = int(passed[place].topk(trial.cohort).values.sum())
        limit = MOST_BYTES
        if self.device.type == "cuda":
            limit = min(limit, int(MOST_SHARE * torch.cuda.mem_get_info(self.device)[0]))
        each = x.numel() * x.element_size()
        capacity = limit // (2 * each)
        self.piece = max(1, PIECE_BYTES // each)
        self.fits = most <= capacity
        # A power of two if not all fits: PyTorch caches a compiled step by the shapes in it, which must not
        # depend on every byte that is free.
        self.half = max(
            most if self.fits else 1 << capacity.bit_length() >> 1, slots * trial.budget.batch_size
        )
        """How many samples fit into a half."""
        self.x = x.new_zeros((2 * self.half, *x.shape[1:]))
        if local.network.early:
            self.x = self.x.to(memory_format=torch.channels_last)
        self.y = torch.zeros(2 * self.half, dtype=y.dtype, device=self.device)
        self.stream.wait_event(current_event(self.device))
        ready = self.stream.record_event()
        self.current = self._next = RoundInputs([], [], first, torch.empty(0), 0, self.fits, ready)
        self._released = [ready, ready]
        """For each half, an event after the last step that uses it."""

    def prefetch(self, tasks: Sequence[Task]) -> Iterator[None]:
        """Make the inputs of a round, a part at each step of this iterator, on the prefetcher's stream."""
        if self._next.are_for(tasks):
            return
        rows, draws, clients, end = list[NDArray[Any]](), list[NDArray[Any]](), list[ClientInputs](), 0
        for task in tasks:
            start, sizes = end, list[int]()
            for epoch in self.samples.plan(task):
                rows.append(task.holding.rows[epoch.rows])
                draws.append(epoch.draws)
                sizes += epoch.sizes
                end += len(epoch.rows)
            clients.append(ClientInputs(sizes, start))
            yield
        self._next = self.current  # inputs that were made for another round are overwritten
        # A round that is made piece by piece uses both halves, so nothing is written there while it trains.
        half, whole = 1 - self.current.half, self.fits and self.current.whole and end <= self.half
        self.stream.wait_event(self._released[half])
        here, numbers = (torch.from_numpy(np.concatenate(parts)) for parts in (rows, draws))
        there = self.samples.place(here)
        if whole:
            yield from self._fill(half * self.half, there, numbers)
        ready = self.stream.record_event()
        self._next = RoundInputs(list(tasks), clients, there, numbers, half, whole, ready)

    def load(self, tasks: Sequence[Task]) -> list[ClientInputs]:
        """Return the inputs of a round, in the order of its tasks. They are made now if they were not
        before."""
        if not self.current.are_for(tasks):  # it is if a round is repeated
            if not self._next.are_for(tasks):
                with self.stream.activate():
                    for _ in self.prefetch(tasks):
                        pass
            self.current = self._next
        if not self.current.whole:
            self._next = self.current  # inputs that were made for another round are overwritten
        return self.current.clients

    def release(self) -> None:
        """Note that all steps of the current round were given to the device, so that later work may use its
        memory."""
        now = current_event(self.device)
        for half in range(2):
            if half == self.current.half or not self.current.whole:
                self._released[half] = now

    def pieces(self, client: ClientInputs, slot: int, slots: int) -> Iterator[tuple[int, list[int]]]:
        """Yield where a client's next inputs begin in the memory, and the sizes of their batches. Pieces are
        made when they are asked for."""
        if self.current.whole:
            yield self.current.half * self.half + client.start, client.sizes
            return
        part = 2 * self.half // slots
        place, at = slot * part, client.start
        piece, held = list[int](), 0
        for size in [*client.sizes, part]:  # the last one only makes the loop yield the rest
            if held + size > part:
                end = at + held
                for _ in self._fill(place, self.current.rows[at:end], self.current.draws[at:end]):
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
        x, y = self.samples.augmented(rows, draws)
        return x.bfloat16() if self.local.network.early else x, y
