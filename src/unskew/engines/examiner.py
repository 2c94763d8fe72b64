"""Tests of models that do not hold up the training."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from unskew.engines.arena import load_model, model_arena
from unskew.engines.cuda.compile import WORTH_COMPILING, compile_step, decompose_convolutions
from unskew.engines.lines import Line, Step, main_mark
from unskew.engines.loop import Loop
from unskew.metrics import Assessment
from unskew.transfer import download
from unskew.types import Tensors, Weights


class Examiner:
    """A model's test, recorded, on a line of its own: beside the next round's clients."""

    def __init__(self, loop: Loop, line: Line) -> None:
        self.loop, self.exam, self.line, self.device = loop, loop.exam, line, loop.device
        self.weights = model_arena(loop.initial, self.device)
        self._totals: Tensors = {}
        self._replay: Step | None = None

    def ask(self, weights: Weights) -> Callable[[], Assessment]:
        """How a model does, when the answer is called. Nothing but this line waits."""
        self.line.wait(main_mark(self.device))
        with self.line.work():
            load_model(self.weights, weights)
            totals = {name: download(value) for name, value in self._tested().items()}
        done = self.line.mark()

        def answer(_: Weights = weights) -> Assessment:  # which must stay where they are until then
            done.synchronize()
            return self.exam.assessment([totals])

        return answer

    def _tested(self) -> Tensors:
        """The totals of the model in `weights`; overwritten by the next."""
        if self._replay is None:
            self._replay = self._record()
        self._replay()
        return self._totals

    def _record(self) -> Step:
        groups, batches, fast = self.weights.groups, self.exam.batches, self.loop.trial.fast
        tally, add = self.exam.tally, self._add
        if fast:
            tally, add = decompose_convolutions(tally), decompose_convolutions(add)
        first = tally(Weights(groups["params"], groups["buffers"]), 0)
        self._totals = {name: torch.zeros_like(value) for name, value in first.items()}
        held = groups, self._totals, self.exam.asked
        pays = fast and self._share() >= WORTH_COMPILING
        with self.loop.raced() if pays else nullcontext():
            fused = compile_step(self._add, *held, batches[0]) if pays else add

            def run() -> None:
                torch._foreach_zero_(list(self._totals.values()))
                for rows in batches:
                    (fused if len(rows) == len(batches[0]) else add)(*held, rows)

            return self.line.record(run)

    def _add(self, weights: dict[str, Tensors], totals: Tensors, asked: Tensors, rows: Tensor) -> None:
        counted = self.exam.count(Weights(weights["params"], weights["buffers"]), asked, rows)
        for name, value in counted.items():
            totals[name].add_(value)

    def _share(self) -> float:
        """Of the tests in all the work, where a step is three passes."""
        trial = self.loop.trial
        trained = trial.budget.epochs * trial.cohort * float(trial.federation.sizes.double().mean())
        return len(self.exam.asked["labels"]) / (3 * trained * trial.evaluation.every)
