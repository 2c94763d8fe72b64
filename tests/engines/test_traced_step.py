"""Traced steps: what a trace may reorder, what it must not miss, and that it changes no bit."""

from __future__ import annotations

import array
import copy
import ctypes
import datetime
import functools
import itertools
import logging
import random
import threading
import time
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unskew.engines.cpu.trace import Trace, self_check


class Skipping(nn.Module):
    """A network that uses a ReLU's output both in a max pooling and elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        active = x.relu()
        return nn.functional.max_pool2d(active, 2) + nn.functional.avg_pool2d(active, 2)


def network(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), *middle, nn.Flatten(), nn.LazyLinear(3))


def traced(model: nn.Module) -> Trace:
    """Return a trace that has been compared with ordinary steps."""
    x, y = torch.randn(6, 1, 10, 10), torch.tensor([0, 1, 2, 0, 1, 2])
    x[0], x[1] = -1e3, 0.0  # windows without anything positive, and windows of one value
    x = x.to(memory_format=torch.channels_last)
    model(x)  # makes the lazy layer
    values = list(model.parameters())

    def step(values: list[Tensor]) -> Tensor:
        leaves = [value.detach().requires_grad_() for value in values]
        named = dict(zip((name for name, _ in model.named_parameters()), leaves, strict=True))
        torch.manual_seed(1)  # of dropout
        loss = nn.functional.cross_entropy(torch.func.functional_call(model, named, x), y)
        grads = torch.autograd.grad(loss, leaves)
        with torch.no_grad():
            torch._foreach_add_(values, list(grads), alpha=-0.5)
        return loss.detach()

    held = [value.detach().clone() for value in values]
    with Trace(-0.5, [x, y, *held]) as trace:
        loss = step(held)
    replay = trace.program(loss)
    assert replay is not None
    ours, theirs = ([value.clone() for value in held] for _ in range(2))
    for _ in range(3):
        expected = step(ours)
        torch.manual_seed(1)
        assert torch.equal(replay(-0.5, x, y, *theirs), expected)
    assert all(map(torch.equal, ours, theirs))
    return trace


def order(trace: Trace) -> list[str]:
    kinds = [node.kind().removeprefix("aten::") for node in trace.graph.nodes()]
    return [
        kind
        for kind in kinds
        if kind in ("relu", "threshold_backward") or kind.startswith("max_pool2d_with_indices")
    ]


@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, stride=2, padding=1), nn.MaxPool2d(3, stride=2, ceil_mode=True)]
)
def test_pooling_goes_before_a_relu(pool):
    assert order(traced(network(nn.ReLU(), pool))) == [
        "max_pool2d_with_indices",
        "relu",
        "threshold_backward",
        "max_pool2d_with_indices_backward",
    ]


def test_twice_in_one_network():
    model = network(
        nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5)
    )
    assert order(traced(model)) == [
        *["max_pool2d_with_indices", "relu"] * 2,
        *["threshold_backward", "max_pool2d_with_indices_backward"] * 2,
    ]


@pytest.mark.parametrize(
    "middle",
    [
        [Skipping()],
        [nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5, inplace=True)],
        [nn.ReLU(), nn.MaxPool2d(2), nn.Hardtanh(-1, 0.1, inplace=True)],
    ],
    ids=["looked at", "dropped in place", "cut in place"],
)
def test_a_relu_that_others_depend_on_stays(middle):
    assert order(traced(network(*middle)))[:2] == ["relu", "max_pool2d_with_indices"]


# What a trace would miss


def program(extra, *roots: object):
    """Return the program of a step whose loss is multiplied by what a function of it returns."""
    x, weight = torch.linspace(-1, 1, 12).reshape(4, 3), torch.ones(3, 1)

    def step() -> Tensor:
        leaf = weight.detach().requires_grad_()
        loss = (x @ leaf).square().mean()
        loss = loss * extra(loss.detach())
        torch._foreach_add_([weight], list(torch.autograd.grad(loss, [leaf])), alpha=-0.5)
        return loss.detach()

    step()
    with Trace(-0.5, [x, weight], extra, *roots) as trace:
        loss = step()
    return trace.program(loss)


class ReadsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (2.0 if x.sum().tolist() > 0 else 1.0)


def read_in_backward(t: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = t[None].clone().requires_grad_()
        return torch.autograd.grad(ReadsInBackward.apply(leaf).sum(), leaf)[0][0]


def by_pointer(t: Tensor) -> float:
    return ctypes.c_float.from_address(t.data_ptr()).value


def by_extension(t: Tensor) -> float:
    """Return a number from a function that is overridden as PyTorch's own functions are."""
    if torch.overrides.has_torch_function((t,)):
        return torch.overrides.handle_torch_function(by_extension, (t,), t)
    return 1.0


OWN_GENERATOR, OWN_DICE, OWN_TORCH = np.random.default_rng(0), random.Random(0), torch.Generator()
NUMBERS, CALLS = itertools.count(), [0]


def drawn_by_own_generator(_: Tensor) -> float:
    return OWN_GENERATOR.random()


def counted(_: Tensor) -> float:
    CALLS[0] += 1
    return 1.0


def counted_in_a_closure():
    calls = 0

    def count(_: Tensor) -> float:
        nonlocal calls
        calls += 1
        return 1.0

    return count


def counted_by_an_object():
    class Counter:
        calls = 0

        def __call__(self, _: Tensor) -> float:
            self.calls += 1
            return 1.0

    return Counter()


class Unwilling:
    __slots__ = ("left",)

    def __call__(self, _: Tensor) -> float:
        return 1.0

    def __getattribute__(self, name: str) -> object:
        if name == "left":
            raise RuntimeError("not for you")
        return super().__getattribute__(name)


def in_a_thread(t: Tensor) -> float:
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(t.tolist()))
    thread.start()
    thread.join()
    return found[0]


def generated():
    def numbers():
        number = 0.0
        while True:
            number += 1.0
            yield number

    produced = numbers()
    return lambda _: next(produced)


NEXT, PAIRS = iter([1.0, 2.0, 3.0, 4.0]), enumerate([1.0, 2.0, 3.0, 4.0])
BYTES, CELLS = bytearray(1), array.array("d", [1.0])


def counted_in_bytes(_: Tensor) -> float:
    BYTES[0] += 1
    return float(BYTES[0])


def counted_in_an_array(_: Tensor) -> float:
    CELLS[0] += 1
    return CELLS[0]


OBJECTS = np.array([[1.0]], dtype=object)


def counted_in_an_array_of_objects(_: Tensor) -> float:
    OBJECTS[0, 0] += 1
    return OBJECTS[0, 0]


class Slotted:
    __slots__ = ("__count",)

    def add(self) -> float:
        self.__count = getattr(self, "_Slotted__count", 0) + 1
        return float(self.__count)


class Inheriting(Slotted):
    __slots__ = ()


SLOTTED = Inheriting()


def counted_in_an_inherited_slot(_: Tensor) -> float:
    return SLOTTED.add()


@functools.lru_cache
def box() -> list[int]:
    return [0]


def counted_in_a_cache(_: Tensor) -> float:
    box()[0] += 1
    return float(box()[0])


VARIABLE, LISTED = ContextVar("VARIABLE", default=0), ContextVar("LISTED", default=[0])  # noqa: B039


def counted_in_a_context_variable(_: Tensor) -> float:
    VARIABLE.set(VARIABLE.get() + 1)
    return float(VARIABLE.get())


def counted_in_a_default(_: Tensor) -> float:
    LISTED.get()[0] += 1
    return float(LISTED.get()[0])


class Boxed:
    @functools.cache  # noqa: B019
    def box(self) -> list[int]:
        return [0]

    def __call__(self, _: Tensor) -> float:
        self.box()[0] += 1
        return float(self.box()[0])


def by_lengths(t: Tensor) -> float:
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        torch.ones(1, 3, 1), t.long()[None] + 1, batch_first=True
    )
    return float(len(packed.data))


def printed(t: Tensor) -> float:
    print("a step")
    return 1.0


def logged(t: Tensor) -> float:
    logging.getLogger("unskew").warning("a step")
    return 1.0


elsewhere = ModuleType("elsewhere")
elsewhere.__file__, elsewhere.count = str(Path(__file__).with_name("elsewhere.py")), 0


def counted_elsewhere(_: Tensor) -> float:
    elsewhere.count += 1
    return float(elsewhere.count)


READS = {
    "tolist": lambda t: t.tolist(),
    "tolist by map": lambda t: next(map(Tensor.tolist, [t])),
    "apply_": lambda t: t.detach().clone().apply_(lambda value: 2.0 if value > 0.5 else 1.0),
    "map_": lambda t: t.detach().clone().map_(t.detach(), lambda mine, value: 2.0 if value > 0.5 else 1.0),
    "numpy": lambda t: float(t.numpy()),
    "asarray": lambda t: float(np.asarray(t)),
    "a function of NumPy": lambda t: float(np.linalg.norm(t[None])),
    "item": lambda t: t.item(),
    "float": lambda t: float(t),
    "bool": lambda t: 2.0 if t > 0.5 else 1.0,
    "is_nonzero": lambda t: 2.0 if t.is_nonzero() else 1.0,
    "equal": lambda t: 2.0 if torch.equal(t, t + 1) else 1.0,
    "a format": lambda t: float(f"{t:.3f}"),
    "repr": lambda t: float(len(repr(t))),
    "in": lambda t: 2.0 if 0.25 in t[None] else 1.0,
    "dlpack": lambda t: float(np.from_dlpack(t)),
    "to_dlpack": lambda t: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(t)),
    "storage": lambda t: float(t.untyped_storage()[0]),
    "data_ptr": by_pointer,
    "a tensor of a list": lambda t: torch.tensor([t, 0.0])[0],
    "a tensor of a list in a list": lambda t: torch.as_tensor([[t > 0.5]]).sum(),
    "a tensor of a list, like another": lambda t: t.new_tensor([t > 0.5]).sum(),
    "an array of a list": lambda t: torch.asarray([t, t]).sum(),
    "deepcopy": copy.deepcopy,
    "a split at places in a tensor": lambda t: len(torch.arange(4.0).tensor_split(t.long()[None] + 1)[0]),
    "a split by map": lambda t: len(next(map(torch.tensor_split, [t[None]], [t.long()[None]]))[0]),
    "a mask of bytes": lambda t: len(torch.ones(1)[(t[None] > 0.5).to(torch.uint8)]),
    "lengths of sequences": by_lengths,
    "lengths in a loss": lambda t: torch.nn.functional.ctc_loss(
        torch.zeros(9, 1, 3), torch.ones(1, 2).long(), torch.tensor([9]), (t[None] > 0.5).long() + 1
    ),
    "an extension of PyTorch": by_extension,
    "in a backward pass": read_in_backward,
    "the date": lambda t: datetime.datetime.now().timestamp(),
    "a part of the date": lambda t: float(datetime.datetime.now().second),
    "today": lambda t: float(datetime.date.today().day),
    "random": lambda t: random.random(),
    "own random": lambda t: OWN_DICE.random(),
    "NumPy's random": lambda t: np.random.rand(),
    "own generator": drawn_by_own_generator,
    "own generator of PyTorch": lambda t: torch.rand((), generator=OWN_TORCH),
    "time": lambda t: time.time(),
    "print": printed,
    "log": logged,
    "a global": counted,
    "a global of another module": counted_elsewhere,
    "a closure": counted_in_a_closure(),
    "an object": counted_by_an_object(),
    "an object that cannot be looked at": Unwilling(),
    "itertools": lambda t: float(next(NUMBERS)),
    "an iterator": lambda t: next(NEXT),
    "a position": lambda t: next(PAIRS)[1],
    "a generator": generated(),
    "bytes": counted_in_bytes,
    "an array": counted_in_an_array,
    "an array of objects": counted_in_an_array_of_objects,
    "an inherited slot": counted_in_an_inherited_slot,
    "a cached object": counted_in_a_cache,
    "a context variable": counted_in_a_context_variable,
    "the default of a context variable": counted_in_a_default,
    "a cached method": Boxed(),
    "a thread": in_a_thread,
    "a file": lambda t: float(Path("/proc/uptime").read_text().split()[0]),
}


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("name", READS)
def test_what_a_trace_does_not_hold_is_not_replayed(name):
    assert program(READS[name]) is None


HARMLESS = {
    "a split at numbers": lambda t: torch.stack([t, t]).tensor_split([1])[0].sum(),
    "shape": lambda t: float(
        t[None].shape[0] + len(t[None]) + t.numel() + t.dim() + t.stride()[0:0].__len__()
    ),
    "types": lambda t: (
        1.0 if t.is_floating_point() and t.dtype == torch.float32 and not t.is_complex() else 2.0
    ),
    "iteration": lambda t: sum(torch.stack([t, t])),
    "a choice by mask": lambda t: torch.where(t > 0.5, t, -t),
    "random numbers of PyTorch": lambda t: torch.rand(()),
    "a constant": lambda t: torch.tensor([1.0, 2.0]).sum(),
    "a tensor of a tensor": lambda t: t.new_tensor(2.0) * torch.as_tensor(t),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_depends_on_shapes_alone_is_traced(name):
    assert program(HARMLESS[name]) is not None


# PyTorch's internals


def test_the_self_check_passes_and_leaves_random_numbers_alone():
    before = torch.get_rng_state()
    assert self_check() == ""
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", ["Graph", "_create_function_from_graph", "_set_graph_executor_optimize"])
def test_the_self_check_notices_internals_that_are_gone(name, monkeypatch):
    monkeypatch.delattr(torch._C, name)
    assert name in self_check()


def test_the_self_check_notices_internals_that_compute_something_else(monkeypatch):
    make = torch._C._create_function_from_graph
    monkeypatch.setattr(
        torch._C, "_create_function_from_graph", lambda *given: lambda *inputs: make(*given)(*inputs) + 1
    )
    assert self_check() == "a traced step returned another loss"
