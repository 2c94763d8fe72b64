"""Clients side by side on one GPU: a client's step is captured once as a CUDA graph and replayed.

The clients of a round are given to slots (`slots`), longest first. The host never waits for the device within
a round. What a method does before and after a client's training (`Memory.prepare`, corrections,
`Memory.update`) runs in ordinary PyTorch, as in the loop.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property

import torch

from unskew.engines.base import Base
from unskew.engines.cuda.evaluation import StreamEvaluator
from unskew.engines.cuda.packed import load_model, packed_model
from unskew.engines.cuda.prefetch import Prefetcher
from unskew.engines.cuda.slot import Ready, Shared
from unskew.engines.cuda.slots import MOST_SLOTS, Slots
from unskew.engines.cuda.streams import random_state, stream_on
from unskew.engines.evaluate import EvaluationSet
from unskew.engines.job import CLIENT_ERRORS, Failed, Fit, Job, Outcome, Pending, Task
from unskew.errors import UserError
from unskew.method import Method
from unskew.metrics import Assessment
from unskew.randomness import seed_torch
from unskew.trial import Trial
from unskew.types import NO_MEMORY, Tensors, Weights

SHAPES_KEPT = 4
"""The number of combinations of a method and tensor shapes for which slots are kept."""

Shapes = tuple[object, ...]


def check(trial: Trial) -> None:
    """Refuse a trial that does not run on a GPU."""
    if trial.pick_device().type != "cuda":
        raise UserError("engine 'graphs' needs a CUDA GPU: use --engine pool or --engine loop.")


class Graphs(Base):
    """Clients in slots of a GPU. On a CPU this engine does the same one step at a time, which is only for
    tests."""

    rounds_ahead = 1

    def __init__(self, trial: Trial) -> None:
        # How many streams run side by side, which CUDA reads when it starts; 8 by default.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        super().__init__(trial)
        self._slots: dict[Shapes, Slots] = {}
        if self.device.type == "cuda":  # its memory must not be freed while it is in use
            weakref.finalize(self, torch.cuda.synchronize, self.device)

    @cached_property
    def _shared(self) -> Shared:
        model = packed_model(self.initial, self.device)
        lr = torch.zeros((), device=self.device)
        prefetcher = Prefetcher(self.local, stream_on(self.device, 0, 0), MOST_SLOTS)
        return Shared(self.local, model, lr, prefetcher)

    @cached_property
    def _evaluators(self) -> dict[EvaluationSet, StreamEvaluator]:
        stream = stream_on(self.device, 1, 0)  # one for all tests: they run one by one
        each = self.local.evaluators
        return {samples: StreamEvaluator(self.local, each[samples], stream) for samples in each}

    def evaluate(self, weights: Weights, samples: EvaluationSet = "test") -> Pending[Assessment]:
        with self.deterministic():
            return self._evaluators[samples].evaluate(weights)

    def fit(
        self,
        method: Method,
        sent: Weights,
        shared: Tensors,
        jobs: Iterable[Job],
        upcoming: Sequence[Task] = (),
    ) -> list[Outcome]:
        jobs = list(jobs)
        if not jobs:
            return []
        with self.deterministic():
            load_model(self._shared.sent, sent)
            outcomes: dict[int, Outcome] = {}
            by_slots: dict[Slots, list[Ready]] = {}
            for client in self._prepare(method, sent, shared, jobs, outcomes):
                by_slots.setdefault(self._slots_of(method, client), []).append(client)
            prefetching = self._shared.prefetcher.prefetch(upcoming) if upcoming else iter(())
            for slots, clients in by_slots.items():
                outcomes |= slots.run(clients, prefetching)
            self._shared.prefetcher.release()
            if any(isinstance(outcome, Failed) and outcome.kind == "memory" for outcome in outcomes.values()):
                trained = any(isinstance(outcome, Fit) and outcome.steps for outcome in outcomes.values())
                self._free_memory(keep=by_slots if trained else ())
            return [outcomes[place] for place in range(len(jobs))]

    def _prepare(
        self, method: Method, sent: Weights, shared: Tensors, jobs: list[Job], outcomes: dict[int, Outcome]
    ) -> Iterator[Ready]:
        """Yield the clients that are ready to train. The outcomes of clients without data, and of those that
        fail, are added to `outcomes`."""
        inputs = self._shared.prefetcher.load([job.task for job in jobs])
        for place, (job, mine) in enumerate(zip(jobs, inputs, strict=True)):
            if not mine.sizes:
                outcomes[place] = self.local.clients.without_data(job, sent)
                continue
            drawn = self.local.clients.seed(job.task)
            draws = method.memory.prepare is not NO_MEMORY.prepare or bool(method.corrections)
            try:
                if draws:
                    seed_torch(drawn, self.device)
                start = self.local.clients.prepare(method, sent, shared, job)
                lrs = self.local.clients.lrs(method, job.task, len(mine.sizes)) if method.lr_factor else ()
            except CLIENT_ERRORS as error:
                outcomes[place] = Failed.of(job.task, "prepare", error)
                continue
            yield Ready(place, start, random_state(self.device) if draws else drawn, mine, lrs)

    def _free_memory(self, keep: Collection[Slots]) -> None:
        """Free memory that is not needed now: all slots but those in `keep`, and what PyTorch caches."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the graphs that are dropped may still be running
        self._slots = {shapes: slots for shapes, slots in self._slots.items() if slots in keep}
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _slots_of(self, method: Method, client: Ready) -> Slots:
        scope = client.start.scope
        shapes = (
            id(method),
            _shapes(scope.memory),
            _shapes(scope.shared),
            _shapes(client.start.correction or {}),
        )
        slots = self._slots.pop(shapes, None) or Slots(self._shared, method, client)
        self._slots[shapes] = slots  # at the end: the least recently used ones are dropped first
        while len(self._slots) > SHAPES_KEPT:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # its graphs may still be running
            del self._slots[next(iter(self._slots))]
        return slots


def _shapes(tensors: Tensors) -> tuple[object, ...]:
    return tuple((name, value.shape, value.dtype, value.stride()) for name, value in tensors.items())
