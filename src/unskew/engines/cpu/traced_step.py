"""Steps recorded once and replayed, as a CUDA graph is: the same kernels in the same order on the same
bits, without Python and autograd between them, which take most of a small model's step.

What is recorded are the operations that PyTorch runs on a CPU during an ordinary step, backward pass and
random draws included. They become a program of TorchScript's interpreter, unoptimised, because its optimiser
changes the order of sums. A step that looks at the values of tensors is not recorded. A recording is compared
with ordinary steps, of several clients, before it is used alone, and dropped where a single bit differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from unskew.engines.loop import Step, Training

AFTER = 30
"""Ordinary steps of a kind before one is recorded: recording takes the time of about that many."""
QUICK = 0.05
"""Seconds. Of slower steps Python is a small part, and a recording needs memory for all they compute."""
PROOFS = 3
"""Clients with other labels than the one it was recorded with that have to agree with a recording before it
is used; of clients with the same labels, four times as many."""
KINDS = 32
"""Of clients, to be remembered; more there are where shapes change from round to round."""

aten = torch.ops.aten

FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}
"""As TorchScript numbers them: c10/core/MemoryFormat.h."""

POOLED = (
    ("aten::max_pool2d_with_indices", 0),
    ("aten::max_pool2d_with_indices_backward", 1),
    ("aten::threshold_backward", 1),
)
"""Who looks at the output of a ReLU, as which argument, when max pooling follows it."""

Kind = tuple[object, ...]
Replay = Callable[..., Tensor]


@dataclass
class Tape:
    """What is known of one kind of step: one method, on tensors of the same names and shapes."""

    steps: int = 0
    seconds: float = 0.0
    """That the ordinary ones took."""
    replay: Replay | None = None
    counts: Tensor | None = None
    """Of the client it was recorded with."""
    proofs: float = 0.0
    refused: bool = False


@dataclass
class Recorder:
    """Stands in for `plain_steps` in a process that trains by one method and does nothing else: it turns the
    optimiser of TorchScript off."""

    tapes: dict[Kind, dict[Kind, Tape]] = field(default_factory=dict)
    """By what a client has, and by its batch."""

    def __call__(self, training: Training) -> Step:
        scope, now = training.scope, training.now
        groups = (
            now.params,
            now.buffers,
            training.state,
            training.tallies,
            scope.anchor.params,
            scope.anchor.buffers,
            {"counts": scope.counts},
            scope.memory,
            scope.shared,
            training.correction or {},
        )
        held = [value for group in groups for value in group.values()]
        places = [_place(value) for value in held]
        kind = (
            tuple(tuple(group) for group in groups),
            tuple(place[1:] for place in places),
            tuple(places.index(place) for place in places),  # which of them are one and the same
        )
        tapes = self.tapes.setdefault(kind, {})
        if len(self.tapes) > KINDS:
            del self.tapes[next(iter(self.tapes))]
        seen: set[int] = set()
        """The tapes that this client has recorded or compared."""
        move = -training.lr

        def step(x: Tensor, y: Tensor) -> Tensor:
            tape = tapes.get((x.shape, x.stride()))
            if tape is None:
                tape = tapes[x.shape, x.stride()] = Tape()
            if tape.replay is None or tape.refused:
                return ordinary(tape, x, y)
            if tape.proofs < PROOFS:
                return compared(tape, tape.replay, x, y)
            return tape.replay(move, x, y, *held)

        def ordinary(tape: Tape, x: Tensor, y: Tensor) -> Tensor:
            if tape.refused or id(tape) in seen:
                return training.step(x, y)
            if tape.steps < AFTER:
                began = time.perf_counter()
                loss = training.step(x, y)
                tape.steps += 1
                tape.seconds += time.perf_counter() - began
                tape.refused = tape.steps == AFTER and tape.seconds / AFTER > QUICK
                return loss
            seen.add(id(tape))
            with Recording(move, [x, y, *held]) as recording:
                loss = training.step(x, y)
            tape.replay = recording.program(loss)
            tape.refused, tape.counts = tape.replay is None, scope.counts
            return loss

        def compared(tape: Tape, replay: Replay, x: Tensor, y: Tensor) -> Tensor:
            if id(tape) in seen:
                return training.step(x, y)
            seen.add(id(tape))
            copies = [value.clone() for value in held]
            chance = torch.get_rng_state()
            try:
                answer = replay(move, x, y, *copies)
            except RuntimeError:
                tape.refused = True
                answer = x
            torch.set_rng_state(chance)
            loss = training.step(x, y)
            tape.refused |= not all(map(torch.equal, (answer, *copies), (loss, *held)))
            assert tape.counts is not None  # it was recorded
            tape.proofs += 0.25 if torch.equal(scope.counts, tape.counts) else 1
            return loss

        return step


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation that runs inside it, as a TorchScript program."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or PyTorch imports its compiler, a second's work, to keep it from compiling this

    def __init__(self, move: float, inputs: list[Tensor]) -> None:
        """`move` is the factor of the step, the one number that may be another at a replay."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.sound = True
        self.graph: Any = torch._C.Graph()
        self.move, self.moves = move, 0
        self.factor = self.graph.addInput()
        self.factor.setType(torch._C.FloatType.get())
        self.views: list[Any] = []
        """Those of which no one made use need not be taken again."""
        self.values: dict[Kind, Any] = {}
        """What lies at a place in memory, whichever tensor it is seen through."""
        self.alive: list[object] = []
        """So that no place is used twice."""
        for value in inputs:
            self.values.setdefault(_place(value), self.graph.addInput())

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.alive.append((args, kwargs, out))
        if func is aten.promote_types.default:  # of types alone
            return out
        if _depends_on_values(func, args):
            self.sound = False
        elif self.sound and not (func.is_view and isinstance(out, Tensor) and _place(out) in self.values):
            try:
                self._note(func, args, kwargs, out)
            except (RuntimeError, TypeError):  # a kind of argument that TorchScript does not have
                self.sound = False
        return out

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        schema = func._schema
        values = [
            self._value(args[n] if n < len(args) else kwargs.get(each.name, each.default_value), each.type)
            for n, each in enumerate(schema.arguments)
        ]
        if func is aten._foreach_add_.List and kwargs.get("alpha") == self.move:
            values[-1], self.moves = self.factor, self.moves + 1
        node = self._insert(schema.name, values, len(schema.returns))
        if func.is_view:
            self.views.append(node)
        results = out if len(schema.returns) > 1 else [out][: len(schema.returns)]
        for result, value in zip(results, node.outputs(), strict=True):
            if isinstance(result, Tensor):
                self.values[_place(result)] = value
            elif isinstance(result, list):
                value.setType(torch._C.ListType.ofTensors())
                parts = self._insert("prim::ListUnpack", [value], len(result))
                self.values.update(zip(map(_place, result), parts.outputs(), strict=True))
            elif result is not None:
                self.sound = False

    def _value(self, given: Any, kind: Any) -> Any:
        """An argument, as the program writes it."""
        if isinstance(given, Tensor):
            place = _place(given)
            if place not in self.values:
                self.values[place] = self.graph.insertConstant(given.detach())
            return self.values[place]
        if isinstance(given, list | tuple) and (not given or any(isinstance(v, Tensor) for v in given)):
            kind = kind.getElementType() if kind.kind() == "OptionalType" else kind
            element = kind.getElementType()
            node = self._insert("prim::ListConstruct", [self._value(each, element) for each in given], 1)
            node.output().setType(kind)
            return node.output()
        return self.graph.insertConstant(FORMATS[given] if isinstance(given, torch.memory_format) else given)

    def _insert(self, name: str, inputs: list[Any], outputs: int) -> Any:
        return self.graph.insertNode(self.graph.create(name, inputs, outputs))

    def program(self, loss: Tensor) -> Replay | None:
        """None where what was recorded holds for these values alone."""
        if not self.sound or self.moves != 1:
            return None
        self.graph.registerOutput(self._value(loss, None))
        for node in reversed(self.views):
            if not node.hasUses():
                node.destroy()
        for relu in self.graph.findAllNodes("aten::relu"):
            _pool_first(relu)
        torch._C._set_graph_executor_optimize(False)
        replay: Replay = torch._C._create_function_from_graph("step", self.graph)
        return replay


def _pool_first(relu: Any) -> None:
    """Where max pooling follows a ReLU: pool first, and take the ReLU of what is left, as a rule a quarter.
    No bit of either pass depends on which is first: where the largest of a window is positive it is the same
    one, and where it is not, the result is 0 and no gradient goes through."""
    before, after = relu.inputsAt(0), relu.output()
    users = {(use.user.kind(), use.offset): use.user for use in after.uses()}
    if len(after.uses()) != 3 or users.keys() != set(POOLED):
        return
    pool, pool_backward, relu_backward = (users[each] for each in POOLED)
    pooled, slope = pool.outputsAt(0), pool_backward.output()
    if [use.user for use in slope.uses()] != [relu_backward] or relu_backward.inputsAt(2).toIValue() != 0:
        return
    if any(use.user.kind().endswith("_") for value in (before, pooled) for use in value.uses()):
        return  # changed in place, while the backward pass is still to look at it
    relu.moveAfter(pool)
    pooled.replaceAllUsesWith(after)
    relu.replaceInput(0, pooled)
    pool.replaceInput(0, before)
    pool_backward.moveAfter(relu_backward)
    relu_backward.output().replaceAllUsesWith(slope)
    relu_backward.replaceInput(0, pool_backward.inputsAt(0))
    pool_backward.replaceInput(0, relu_backward.output())
    pool_backward.replaceInput(1, before)


def _place(value: Tensor) -> tuple[object, ...]:
    return value.data_ptr(), value.dtype, tuple(value.shape), tuple(value.stride())


def _depends_on_values(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether what Python sees of an operation's result depends on the values in its tensors."""
    if func in (aten.index.Tensor, aten.index_put.default, aten.index_put_.default):
        return any(index is not None and index.dtype == torch.bool for index in args[1])
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags
