"""Tests of models that do not hold up the training."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from unskew.engines.base import Local
from unskew.engines.cuda.compile import WORTH_COMPILING, compile_step, decompose_convolutions
from unskew.engines.cuda.packed import load_model, packed_model
from unskew.engines.cuda.streams import Replay, Stream, current_event
from unskew.engines.job import Pending
from unskew.metrics import Assessment
from unskew.transfer import download
from unskew.types import Tensors, Weights


class StreamEvaluator:
    """The test of a model, captured once, on a stream of its own beside the next round's clients."""

    def __init__(self, local: Local, stream: Stream) -> None:
        self.local, self.evaluator, self.stream = local, local.evaluator, stream
        self.weights = packed_model(local.initial, local.device)
        self._totals: Tensors = {}
        self._replay: Replay | None = None

    def evaluate(self, weights: Weights) -> Pending[Assessment]:
        """A model on the test set. Nothing but this stream waits."""
        self.stream.wait_event(current_event(self.local.device))
        with self.stream.activate():
            load_model(self.weights, weights)
            if self._replay is None:
                self._replay = self._capture()
            self._replay()
            totals = {name: download(value) for name, value in self._totals.items()}
        done = self.stream.record_event()

        def wait(_: Weights = weights) -> Assessment:  # the weights must stay where they are until then
            done.synchronize()
            return self.evaluator.assessment([totals])

        return Pending(wait)

    def _capture(self) -> Replay:
        groups, batches, fast = self.weights.groups, self.evaluator.batches, self.local.trial.fast
        totals_of, add = self.evaluator.batch_totals, self._add
        if fast:
            totals_of, add = decompose_convolutions(totals_of), decompose_convolutions(add)
        first = totals_of(Weights(groups["params"], groups["buffers"]), 0)
        self._totals = {name: torch.zeros_like(value) for name, value in first.items()}
        held = groups, self._totals, self.evaluator.test
        pays = fast and self._share_of_work() >= WORTH_COMPILING
        with self.local.fastest() if pays else nullcontext():
            compiled = compile_step(self._add, *held, batches[0]) if pays else add

            def run() -> None:
                torch._foreach_zero_(list(self._totals.values()))
                for rows in batches:
                    (compiled if len(rows) == len(batches[0]) else add)(*held, rows)

            return self.stream.capture(run)

    def _add(self, weights: dict[str, Tensors], totals: Tensors, test: Tensors, rows: Tensor) -> None:
        """Add to the totals of a model what some rows of the test set add."""
        added = self.evaluator.totals(Weights(weights["params"], weights["buffers"]), test, rows)
        for name, value in added.items():
            totals[name].add_(value)

    def _share_of_work(self) -> float:
        """How much of all work tests are, where a training step is three passes."""
        trial = self.local.trial
        trained = trial.budget.epochs * trial.cohort * float(trial.federation.sizes.double().mean())
        return len(self.evaluator.test["labels"]) / (3 * trained * trial.evaluation.every)
