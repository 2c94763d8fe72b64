"""Steps that are traced once and replayed, as a CUDA graph is: the same kernels in the same order on the same
bits, without Python and autograd in between, which take most of the time of a small model's step.

A trace holds the operations of one ordinary step. It is not used if that step did anything that the trace
does not hold (`unskew.engines.cpu.unseen`), nor before it has agreed, bit for bit, with ordinary steps of
several clients. After that it is compared again from time to time. If it differs then, it may have been wrong
before, so the run ends with an error that says so.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unskew.engines.cpu.trace import Trace, TraceReplay, place_of, same_bits, self_check
from unskew.engines.loop import Step, Training
from unskew.errors import UserError

SIGNATURES_KEPT = 32
"""How many kinds of clients are remembered. There can be many if shapes change from round to round."""

Signature = tuple[object, ...]
"""The names, shapes and layouts of the tensors that a step works on."""


@dataclass
class TracedStep:
    """What is known of one kind of step: a step of one method on tensors of certain names and shapes."""

    ordinary: int = 0
    """How many steps ran before it was traced."""
    seconds: float = 0.0
    """How many seconds the ordinary steps took."""
    replay: TraceReplay | None = None
    counts: Tensor | None = None
    """The label counts of the client with which the step was traced."""
    agreed: float = 0.0
    """The comparisons with ordinary steps so far; those of clients with the same labels count a quarter."""
    replayed: int = 0
    next_check: int = 1
    """The number of the replay that is compared with an ordinary step next."""
    refused: bool = False
    """Whether this kind of step runs in Python for good."""


@dataclass
class StepTracer:
    """A replacement of `plain_steps` that traces and replays steps, for a process that only trains by one
    method."""

    after: int = 30
    """The number of ordinary steps of a kind before one is traced; tracing takes about as long as these."""
    comparisons: float = 3
    """How many clients have to agree with a trace before it is used, if their labels differ from those of the
    client with which it was traced; four times as many with the same labels."""
    quick: float = 0.05
    """The seconds of a step above which it is not traced: Python is a small part of it then, and a trace
    needs memory for all that it computes."""
    check_every: int = 1009
    """The number of replays between two comparisons. The first ones come sooner: after 1, 2, 4 and so on."""
    replayed: int = 0
    """How many steps were replayed."""
    problem: str = ""
    """Why nothing can be traced in this process; empty if it can."""
    steps: dict[Signature, dict[Signature, TracedStep]] = field(default_factory=dict)
    """The known steps, by the names and shapes of a client's tensors, and by the shape of its batch."""
    _checked: bool = False

    def __call__(self, training: Training) -> Step:
        """Return the step of one client's round."""
        scope, weights = training.scope, training.weights
        groups = (
            weights.params,
            weights.buffers,
            training.optimizer_state,
            training.tallies,
            scope.anchor.params,
            scope.anchor.buffers,
            {"counts": scope.counts},
            scope.memory,
            scope.shared,
            training.correction or {},
        )
        held = [value for group in groups for value in group.values()]
        places = [place_of(value) for value in held]
        kind = (
            tuple(tuple(group) for group in groups),
            tuple(place[1:] for place in places),
            tuple(places.index(place) for place in places),  # which of them are the same tensor
        )
        steps = self.steps.setdefault(kind, {})
        if len(self.steps) > SIGNATURES_KEPT:
            del self.steps[next(iter(self.steps))]
        used: set[int] = set()
        """The steps that this client was traced for or compared with."""

        def step(x: Tensor, y: Tensor, lr: float) -> Tensor:
            known = steps.get((x.shape, x.stride()))
            if known is None:
                known = steps[x.shape, x.stride()] = TracedStep()
            if known.replay is None or known.refused:
                return ordinary(known, x, y, lr)
            if known.agreed < self.comparisons:
                return compared(known, known.replay, x, y, lr)
            known.replayed += 1
            if known.replayed == known.next_check:
                return checked(known, known.replay, x, y, lr)
            self.replayed += 1
            return known.replay(-lr, x, y, *held)

        def ordinary(known: TracedStep, x: Tensor, y: Tensor, lr: float) -> Tensor:
            if known.refused or id(known) in used:
                return training.step(x, y, lr)
            if known.ordinary < self.after:
                began = time.perf_counter()
                loss = training.step(x, y, lr)
                known.ordinary += 1
                known.seconds += time.perf_counter() - began
                known.refused = known.ordinary == self.after and known.seconds / self.after > self.quick
                return loss
            used.add(id(known))
            if not self._works():
                known.refused = True
                return training.step(x, y, lr)
            with Trace(-lr, [x, y, *held], training.method, training.network) as trace:
                loss = training.step(x, y, lr)
            known.replay = trace.program(loss)
            known.refused, known.counts = known.replay is None, scope.counts.clone()
            return loss

        def compared(known: TracedStep, replay: TraceReplay, x: Tensor, y: Tensor, lr: float) -> Tensor:
            if id(known) in used:
                return training.step(x, y, lr)
            used.add(id(known))
            loss, agrees = both(replay, x, y, lr)
            known.refused = not agrees
            assert known.counts is not None  # it was traced
            known.agreed += 0.25 if torch.equal(scope.counts, known.counts) else 1
            return loss

        def checked(known: TracedStep, replay: TraceReplay, x: Tensor, y: Tensor, lr: float) -> Tensor:
            known.next_check = min(2 * known.next_check, known.next_check + self.check_every)
            loss, agrees = both(replay, x, y, lr)
            if not agrees:
                raise UserError(
                    "a step replayed from its trace differs from the same step run in Python, because the "
                    "method depends on something other than its tensors, so rounds before this one may be "
                    "wrong too: run it again with --set trace=false."
                )
            return loss

        def both(replay: TraceReplay, x: Tensor, y: Tensor, lr: float) -> tuple[Tensor, bool]:
            """Take an ordinary step; return its loss, and whether a replay of it gives the same bits."""
            copies = [value.clone() for value in held]
            random_state = torch.get_rng_state()
            try:
                replayed: Tensor | None = replay(-lr, x, y, *copies)
            except RuntimeError:
                replayed = None
            random_after = torch.get_rng_state()
            torch.set_rng_state(random_state)
            loss = training.step(x, y, lr)
            agrees = (
                replayed is not None
                and torch.equal(random_after, torch.get_rng_state())
                and all(map(same_bits, (replayed, *copies), (loss, *held)))
            )
            return loss, agrees

        return step

    def _works(self) -> bool:
        if not self._checked:
            self.problem, self._checked = self_check(), True
        return not self.problem
