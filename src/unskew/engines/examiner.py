"""Tests of models that do not hold up the training."""

from __future__ import annotations

from collections.abc import Callable

from unskew.engines.arena import load_model, model_arena
from unskew.engines.lines import Line, Step, download, main_mark
from unskew.engines.loop import Loop
from unskew.metrics import Assessment
from unskew.types import Tensors, Weights


class Examiner:
    """A model's test, recorded, on a line of its own: beside the next round's clients."""

    def __init__(self, loop: Loop, line: Line) -> None:
        self.exam, self.line, self.device = loop.exam, line, loop.device
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
            self._totals = {name: value.clone() for name, value in self._count().items()}
            self._replay = self.line.record(self._run)
        self._replay()
        return self._totals

    def _count(self) -> Tensors:
        weights = Weights(self.weights["params"], self.weights["buffers"])
        return self.exam.total(self.exam.tally(weights, batch) for batch in range(len(self.exam)))

    def _run(self) -> None:
        for name, value in self._count().items():
            self._totals[name].copy_(value)
