"""Tests of models that do not delay the training."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
from torch import Tensor

from unskew.engines.base import Local
from unskew.engines.cuda.compile import compile_step, decompose_convolutions, worth_compiling
from unskew.engines.cuda.packed import load_model, packed_model
from unskew.engines.cuda.streams import Replay, Stream, current_event, seconds_between
from unskew.engines.evaluate import ANSWERS, Evaluator
from unskew.engines.job import Pending
from unskew.errors import UserError
from unskew.metrics import Assessment
from unskew.transfer import download
from unskew.types import Tensors, Weights

COMPILING_TAKES = 5.0  # seconds, for the test of a small network on an H200 when nothing is cached


class StreamEvaluator:
    """The test of a model, captured once, on a stream of its own, so that the next round's clients train
    meanwhile."""

    def __init__(self, local: Local, evaluator: Evaluator, stream: Stream) -> None:
        self.local, self.evaluator, self.stream = local, evaluator, stream
        # Frozen tensors are loaded too, because a program may test a model with other ones than the trial's.
        self.frozen = local.network.frozen_tensors
        self.weights = packed_model(local.initial.with_frozen(self.frozen), local.device)
        self._totals: Tensors = {}
        self._replay: Replay | None = None
        self._left = math.ceil(local.trial.budget.rounds / local.trial.evaluation.every)
        """How many tests will probably follow."""
        self._decided = not local.trial.fast
        """Whether it was decided if the test is compiled."""
        self._seconds: float | None = None
        """How many seconds a test took; None if not known yet."""

    def evaluate(self, weights: Weights) -> Pending[Assessment]:
        """Test a model on the evaluator's samples. Only this stream waits for the model."""
        device = self.local.device
        self.stream.wait_event(current_event(device))
        with self.stream.activate():
            load_model(self.weights, weights.with_frozen(self.frozen))
            if self._replay is None:
                self._replay = self._capture(compiled=False)
            if not self._decided and self._seconds is not None:
                self._decided = True
                if worth_compiling(self._left * self._seconds, COMPILING_TAKES):
                    current_event(device).synchronize()  # the graph that is replaced must not be running
                    self._replay = self._capture(compiled=True)
            self._left -= 1
            began = current_event(device, timed=True)
            self._replay()
            done = current_event(device, timed=True)
            totals = {name: download(value) for name, value in self._totals.items()}
            arrived = current_event(device)

        def wait(_: Weights = weights) -> Assessment:  # the weights must not be freed before
            arrived.synchronize()
            self._seconds = seconds_between(began, done)
            return self.evaluator.assessment(totals)

        return Pending(wait)

    def _capture(self, *, compiled: bool) -> Replay:
        groups, batches = self.weights.groups, self.evaluator.batches
        totals_of, add = self.evaluator.batch_totals, self._add
        if self.local.trial.fast and self.local.network.depthwise:
            totals_of, add = decompose_convolutions(totals_of), decompose_convolutions(add)
        if not self._totals:
            first = totals_of(Weights(groups["params"], groups["buffers"]), 0)
            self._totals = {
                name: value.new_zeros(len(self.evaluator.test["labels"]))
                if name == ANSWERS
                else torch.zeros_like(value)
                for name, value in first.items()
            }
        held = groups, self._totals, self.evaluator.test
        with self.local.fastest() if compiled else nullcontext():
            full = compile_step(self._add, *held, batches[0]) if compiled else add

            def run() -> None:
                torch._foreach_zero_(list(self._totals.values()))
                for rows in batches:
                    (full if len(rows) == len(batches[0]) else add)(*held, rows)

            try:
                return self.stream.capture(run)
            except torch.OutOfMemoryError as error:
                raise UserError(
                    "the GPU has too little memory to test the model: lower evaluation.batch_size."
                ) from error

    def _add(self, weights: dict[str, Tensors], totals: Tensors, test: Tensors, rows: Tensor) -> None:
        """Add to the totals of a model what some rows of the test set add."""
        added = self.evaluator.totals(Weights(weights["params"], weights["buffers"]), test, rows)
        for name, value in added.items():
            if name == ANSWERS:
                totals[name].index_copy_(0, rows, value)
            else:
                totals[name].add_(value)
