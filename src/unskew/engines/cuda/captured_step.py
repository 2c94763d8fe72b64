"""A client's step as it is captured: on full batches, on partial ones, and compiled if `fast` asks for it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from unskew.engines.cuda.compile import (
    AnyBatchStep,
    compile_step,
    compile_step_for_any_batch,
    decompose_convolutions,
    worth_compiling,
)
from unskew.engines.cuda.packed import PackedTensors
from unskew.engines.cuda.slot import ClientSlot, Held, PartialSlot, Shared, Slot
from unskew.engines.cuda.streams import Replay
from unskew.engines.loop import Training
from unskew.method import Method
from unskew.trial import Trial
from unskew.types import Optimizer, Scope, Tensors, Weights

UNCOMPILED = 4.0  # time of an uncompiled step over that of a compiled one (FedLMD's network, H200, bf16)
MEASURED_ROUNDS = 5  # after so many rounds it is estimated how long the others will take


class CapturedStep:
    """The step of one method, to be captured in slots."""

    def __init__(self, shared: Shared, method: Method, broadcast: PackedTensors) -> None:
        """`broadcast` has what the server sends to all clients in addition to the model."""
        self.shared, self.method, self.broadcast = shared, method, broadcast
        self.local, self.trial = shared.local, shared.local.trial
        self._offsets = torch.arange(self.trial.budget.batch_size, device=self.local.device)
        self._compiled: Callable[[Held, Tensors], None] | None = None
        self._any_size: AnyBatchStep | None = None
        """The compiled step for batches of any size, once compiling it is known to be worth the time."""
        self._compiling_took = 0.0
        self._rounds_begun: list[float] = []

    def capture(self, slot: ClientSlot, steps: int) -> Replay:
        """Capture this many steps on full batches as one graph."""
        inputs = {"position": slot.position, "x": self.shared.prefetcher.x, "y": self.shared.prefetcher.y}
        held = self._held(slot), inputs
        # cuDNN measures its kernels only for full batches: partial ones are too rare to be worth that time.
        with slot.stream.activate(), self.local.fastest() if self.trial.fast else nullcontext():
            if self.trial.fast and self._compiled is None:
                began = time.perf_counter()
                self._compiled = compile_step(self._fetch_and_step, *held)
                self._compiling_took = time.perf_counter() - began
            step = self._compiled or self._fetch_and_step

            def several() -> None:
                for _ in range(steps):
                    step(*held)

            slot.position.zero_()  # capturing changes it
            return slot.stream.capture(several)

    def _fetch_and_step(self, held: Held, inputs: Tensors) -> None:
        """Take a step on the batch at the position, and move the position to the next."""
        rows = self._offsets + inputs["position"]
        x, y = inputs["x"].index_select(0, rows), inputs["y"].index_select(0, rows)
        self._step(held, x, y, compiled=self.trial.fast)
        inputs["position"].add_(len(rows))

    def capture_partial(self, slot: PartialSlot, x: Tensor, y: Tensor) -> None:
        """Capture a step on batches of this one's size."""
        size = len(x)
        with slot.stream.activate():
            inputs, labels = torch.zeros_like(x), torch.zeros_like(y)
            slot.batches[size] = inputs, labels
            step = partial(self._partial_step(size), self._held(slot), inputs, labels)
        slot.replays[size] = slot.stream.capture(step)

    def _partial_step(self, size: int) -> Callable[[Held, Tensor, Tensor], None]:
        if self._any_size and self._any_size.fits(size):
            return self._any_size.run
        step = partial(self._step, compiled=False)
        return decompose_convolutions(step) if self.trial.fast and self.local.network.depthwise else step

    def compile_partial_batches(self, round: int, slots: list[ClientSlot]) -> bool:
        """Compile a step for batches of any size, once, if that saves more time in the remaining rounds than
        it takes. Return True if it was compiled now, so that steps on partial batches have to be captured
        again."""
        self._rounds_begun.append(time.perf_counter())
        if not self.trial.fast or len(self._rounds_begun) != MEASURED_ROUNDS + 1:
            return False
        # The shortest one: in others steps were still being captured.
        each = min((after - before for before, after in pairwise(self._rounds_begun)), default=0.0)
        left = each * (self.trial.budget.rounds - round) * _share_of_partial_batches(self.trial)
        if not worth_compiling(left, self._compiling_took):
            return False
        prefetcher, usual = self.shared.prefetcher, max(2, self.trial.budget.batch_size // 2)
        x, y = prefetcher.x[:usual], prefetcher.y[:usual]
        step = partial(self._step, compiled=True)
        self._any_size = compile_step_for_any_batch(step, self._held(slots[0]), x, y, batch=(x, y))
        return True

    def _held(self, slot: Slot) -> Held:
        anchor, scope = dict(self.shared.sent.groups), dict(slot.scope.groups)
        if own := scope.pop("buffers"):  # clients keep their own
            anchor["buffers"] = own
        lr = scope.pop("lr").get("lr", self.shared.lr)
        return Held(slot.changing.groups, scope, anchor, self.broadcast["shared"], lr)

    def _step(self, held: Held, x: Tensor, y: Tensor, *, compiled: bool) -> None:
        """Take one step of the client in a slot, as the loop would; this is what is captured. `compiled` says
        that the step is traced for a compiler."""
        changing, scope = held.changing, held.scope
        anchor = Weights(held.anchor["params"], held.anchor["buffers"])
        training = Training(
            self.local.network,
            self.method,
            Scope(anchor, scope["counts"]["counts"], scope["memory"], held.shared),
            scope["correction"] or None,
            Weights(changing["params"], changing["buffers"]),
            partial(self.make_optimizer, compiled=compiled),
            changing["state"],
            changing["tallies"],
        )
        changing["loss"]["sum"].add_(training.step(x, y, held.lr))

    def make_optimizer(self, lr: float | Tensor, *, compiled: bool = False) -> Optimizer:
        """Return the optimiser of a step: the plain one for a compiler, else a fused one on a GPU."""
        budget = self.trial.budget
        if compiled:
            return budget.local_optimizer(lr)
        on_gpu = isinstance(lr, Tensor) and lr.is_cuda
        return budget.local_optimizer(lr, fused=True) if on_gpu else budget.local_optimizer(float(lr))


def _share_of_partial_batches(trial: Trial) -> float:
    """Return the share of the time that steps on partial batches take while they are not compiled."""
    others, whole = 0.0, 0.0
    for samples, times in Counter[int](trial.federation.sizes.tolist()).items():
        sizes = trial.budget.batch_sizes(samples)
        full = sizes.count(trial.budget.batch_size)
        passes = times * trial.budget.steps_in(len(sizes)) / max(1, len(sizes))
        others, whole = others + passes * UNCOMPILED * (len(sizes) - full), whole + passes * full
    return others / max(1.0, others + whole)
