"""Operations of a step, recorded while they run and made into a program of TorchScript's interpreter.

The operations that PyTorch runs on a CPU are recorded, including the backward pass and random draws. The
program runs unoptimised, because TorchScript's optimiser changes the order of sums.

TorchScript's graphs are not a public interface: `self_check` finds out whether they work in this version of
PyTorch as they are used here.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from unskew.engines.cpu.unseen import Unseen

aten = torch.ops.aten

MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}
"""The numbers that TorchScript has for memory formats: c10/core/MemoryFormat.h."""

MASKS = (torch.bool, torch.uint8)
"""The types of an index that takes the places where it is not 0."""

USERS_OF_A_POOLED_RELU = (
    ("aten::max_pool2d_with_indices", 0),
    ("aten::max_pool2d_with_indices_backward", 1),
    ("aten::threshold_backward", 1),
)
"""The operations that take the output of a ReLU when max pooling follows it, and as which argument."""

MemoryPlace = tuple[object, ...]
"""The address, type, shape and strides of a tensor."""

TraceReplay = Callable[..., Tensor]
"""A traced step: from the factor and the inputs of the trace to the loss. It changes the inputs in place."""


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that records every operation that runs inside it as a TorchScript program."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise PyTorch imports its compiler, which takes a second, only to exclude this

    def __init__(self, factor: float, inputs: list[Tensor], *roots: object) -> None:
        """`factor` is what gradients are multiplied by in the step, the only number that may differ in a
        replay. `roots` are the objects whose Python state the step may read but not change."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.unseen = Unseen(*roots)
        self.reason = ""
        """Why the trace does not hold all that the step depends on; empty if it does."""
        self.graph: Any = torch._C.Graph()
        self.factor, self.factors = factor, 0
        self.factor_input = self.graph.addInput()
        self.factor_input.setType(torch._C.FloatType.get())
        self.views: list[Any] = []
        """The nodes that only take views. Unused ones are removed at the end."""
        self.values: dict[MemoryPlace, Any] = {}
        """The value of the graph for each place in memory, whichever tensor object refers to it."""
        self.alive: list[object] = []
        """All tensors of the step, which are kept so that no memory is used twice."""
        for value in inputs:
            self.values.setdefault(place_of(value), self.graph.addInput())

    def __enter__(self) -> Trace:
        self.unseen.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self.unseen.__exit__(kind, error, trace)
        self.reason = self.reason or self.unseen.reason

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.alive.append((args, kwargs, out))
        self.unseen.paused = True
        try:
            if not self.reason:
                self._note(func, args, kwargs, out)
        except Exception as error:  # an argument that TorchScript does not know, or unexpected internals
            self.reason = f"{type(error).__name__}: {error}"
        finally:
            self.unseen.paused = False
        return out

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if func is aten.promote_types.default:  # it depends on types alone
            return
        if func.is_view and isinstance(out, Tensor) and place_of(out) in self.values:
            return
        if _depends_on_values(func, args):
            self.reason = f"it depends on values by {func}"
            return
        schema = func._schema
        values = [
            self._value(args[n] if n < len(args) else kwargs.get(each.name, each.default_value), each.type)
            for n, each in enumerate(schema.arguments)
        ]
        if func is aten._foreach_add_.List and kwargs.get("alpha") == self.factor:
            values[-1], self.factors = self.factor_input, self.factors + 1
        node = self._insert(schema.name, values, len(schema.returns))
        if func.is_view:
            self.views.append(node)
        results = out if len(schema.returns) > 1 else [out][: len(schema.returns)]
        for result, value in zip(results, node.outputs(), strict=True):
            if isinstance(result, Tensor):
                self.values[place_of(result)] = value
            elif isinstance(result, list):
                value.setType(torch._C.ListType.ofTensors())
                parts = self._insert("prim::ListUnpack", [value], len(result))
                self.values.update(zip(map(place_of, result), parts.outputs(), strict=True))
            elif result is not None:
                self.reason = f"{func} returns something else than tensors"

    def _value(self, given: Any, kind: Any) -> Any:
        """Return an argument of an operation as a value of the graph."""
        if isinstance(given, Tensor):
            place = place_of(given)
            if place not in self.values:
                self.values[place] = self.graph.insertConstant(given.detach())
            return self.values[place]
        if isinstance(given, list | tuple) and (not given or any(isinstance(v, Tensor) for v in given)):
            kind = kind.getElementType() if kind.kind() == "OptionalType" else kind
            element = kind.getElementType()
            node = self._insert("prim::ListConstruct", [self._value(each, element) for each in given], 1)
            node.output().setType(kind)
            return node.output()
        return self.graph.insertConstant(
            MEMORY_FORMATS[given] if isinstance(given, torch.memory_format) else given
        )

    def _insert(self, name: str, inputs: list[Any], outputs: int) -> Any:
        return self.graph.insertNode(self.graph.create(name, inputs, outputs))

    def program(self, loss: Tensor) -> TraceReplay | None:
        """Return the program, or None if there is a `reason` against it. This turns TorchScript's optimiser
        off in this process."""
        if self.factors != 1:
            self.reason = self.reason or "gradients are not added to the weights once"
        if self.reason:
            return None
        try:
            return self._build(loss)
        except Exception as error:  # TorchScript does not accept the graph
            self.reason = f"{type(error).__name__}: {error}"
            return None

    def _build(self, loss: Tensor) -> TraceReplay:
        self.graph.registerOutput(self._value(loss, None))
        for node in reversed(self.views):
            if not node.hasUses():
                node.destroy()
        for relu in self.graph.findAllNodes("aten::relu"):
            _pool_before(relu)
        torch._C._set_graph_executor_optimize(False)
        replay: TraceReplay = torch._C._create_function_from_graph("step", self.graph)
        return replay


def _pool_before(relu: Any) -> None:
    """Change the order if max pooling follows a ReLU: pool first, then take the ReLU of what is left, which
    is usually a quarter.

    The order changes no bit of either pass: if the largest value of a window is positive it is the same one,
    and if not, the result is 0 and has no gradient."""
    before, after = relu.inputsAt(0), relu.output()
    users = {(use.user.kind(), use.offset): use.user for use in after.uses()}
    if len(after.uses()) != 3 or users.keys() != set(USERS_OF_A_POOLED_RELU):
        return
    pool, pool_backward, relu_backward = (users[each] for each in USERS_OF_A_POOLED_RELU)
    pooled, gradient = pool.outputsAt(0), pool_backward.output()
    if [use.user for use in gradient.uses()] != [relu_backward] or relu_backward.inputsAt(2).toIValue() != 0:
        return
    if any(use.user.kind().endswith("_") for value in (before, pooled) for use in value.uses()):
        return  # changed in place before the backward pass reads it
    relu.moveAfter(pool)
    pooled.replaceAllUsesWith(after)
    relu.replaceInput(0, pooled)
    pool.replaceInput(0, before)
    pool_backward.moveAfter(relu_backward)
    relu_backward.output().replaceAllUsesWith(gradient)
    relu_backward.replaceInput(0, pool_backward.inputsAt(0))
    pool_backward.replaceInput(0, relu_backward.output())
    pool_backward.replaceInput(1, before)


def place_of(value: Tensor) -> MemoryPlace:
    """Return the address, type, shape and strides of a tensor."""
    return value.data_ptr(), value.dtype, tuple(value.shape), tuple(value.stride())


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Say whether two tensors of the same shape and type hold the same numbers, NaN being equal to NaN."""
    return torch.equal(one, other) or (
        one.is_floating_point() and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    )


def _depends_on_values(func: Any, args: tuple[Any, ...]) -> bool:
    """Say whether what Python sees of an operation's result, such as a shape, depends on values of
    tensors."""
    if func in (aten.index.Tensor, aten.index_put.default, aten.index_put_.default):
        return any(index is not None and index.dtype in MASKS for index in args[1])
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


def self_check() -> str:
    """Trace a small step and replay it on other numbers; return what went wrong, or an empty text."""
    try:
        x, weight = _ramp(2, 1, 6, 6), _ramp(3, 1, 3, 3)
        with Trace(-0.5, [x, weight]) as trace:
            loss = _small_step(-0.5, x, weight)
        replay = trace.program(loss)
        if replay is None:
            return trace.reason
        x, (ours, theirs) = x.flip(0) * 2, (weight.clone() for _ in range(2))
        for factor in (-0.25, -0.125):
            if not same_bits(replay(factor, x, ours), _small_step(factor, x, theirs)):
                return "a traced step returned another loss"
        return "" if same_bits(ours, theirs) else "a traced step led to other weights"
    except Exception as error:  # another version of PyTorch may raise anything
        return f"{type(error).__name__}: {error}"


def _small_step(factor: float, x: Tensor, weight: Tensor) -> Tensor:
    leaf = weight.detach().requires_grad_()
    with torch.enable_grad():
        pooled = F.max_pool2d(F.conv2d(x, leaf).relu(), 2).flatten(1)
        loss = F.cross_entropy(pooled, torch.tensor([0, 1]))
    torch._foreach_add_([weight], list(torch.autograd.grad(loss, [leaf])), alpha=factor)
    return loss.detach()


def _ramp(*shape: int) -> Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).sin().reshape(shape)
