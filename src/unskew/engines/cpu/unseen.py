"""What a step may do that a trace of its operations does not hold: read values of tensors in Python, draw
random numbers other than PyTorch's, write output, and change Python state. A step that does any of it has to
run in Python."""

from __future__ import annotations

import gc
import pickle
import random
import sys
import zlib
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, partial
from types import (
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

SHAPES_AND_TYPES = {
    "__get__", "__iter__", "__len__", "__set__", "broadcast_shapes", "can_cast", "dim", "element_size",
    "get_device", "has_names", "is_complex", "is_conj", "is_contiguous", "is_floating_point", "is_inference",
    "is_neg", "is_same_size", "is_signed", "ndimension", "nelement", "numel", "promote_types", "result_type",
    "size", "storage_offset", "stride", "type",
}  # fmt: skip
"""Functions of tensors that return something else than tensors, which does not depend on their values.
`__get__` stands for all properties, such as `shape`."""

READS = {
    "_to_dlpack", "_to_dlpack_unversioned", "_to_dlpack_versioned", "apply_", "data_ptr", "item", "map2_",
    "map_", "numpy", "tolist", "untyped_storage",
}  # fmt: skip
"""Functions in C that pass the values of tensors to Python. They are noticed by their names if PyTorch's own
overrides do not show them, as inside a backward pass."""

SIZED_BY_TENSORS = {"_pack_padded_sequence", "_pad_packed_sequence", "ctc_loss", "tensor_split"}
"""Functions that take sizes or places from the values of tensors that follow their first argument."""

COPIES_OF_LISTS = {"as_tensor", "asarray", "new_tensor", "tensor"}
"""Functions that make a tensor of a list. They read tensors in the list without PyTorch's operators."""

EFFECTS = {
    "open", "print", "putenv", "read", "readline", "start_joinable_thread", "start_new_thread", "urandom",
    "write", "writelines",
}  # fmt: skip
"""Functions in C that do more than compute: they use files, draw random numbers, or start a thread, in which
nothing is noticed."""

CLOCKS_AND_DICE = {"_random", "datetime", "random", "time"}
"""Modules whose functions in C return another value each time."""

LIBRARIES = {*sys.stdlib_module_names, "numpy", "pydantic", "torch"}
"""Packages whose functions and classes are assumed to have no state that a step depends on."""

MOST = 200_000
"""How many values are compared, at most, in search of state that changes."""


class Unseen(TorchFunctionMode):
    """A context that records in `reason` the first thing that a trace of what runs inside it would miss.

    It watches what functions of PyTorch return, which functions in C are called, and whether Python's and
    NumPy's random state, or anything that `roots` refer to, has changed at the end. It does not see into
    extensions written in C.
    """

    def __init__(self, *roots: object) -> None:
        super().__init__()
        self.reason = ""
        self.paused = False
        """Whether the tracer itself is reading tensors."""
        self._roots = (random.getstate, np.random.get_state, *roots)

    def __enter__(self) -> Unseen:
        self._before = self._state()
        self._collecting = gc.isenabled()
        gc.disable()  # a collection may call code that is not part of the step
        self._profile = sys.getprofile()
        super().__enter__()  # type: ignore[no-untyped-call]
        sys.setprofile(self._called)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.setprofile(self._profile)
        if self._collecting:
            gc.enable()
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if not same_state(self._before, self._state()):
            self._notice("it changes Python objects that the next step sees")
        self._before = []

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", str(func))
        if self.paused:
            return out
        named = (kwargs or {}).values()
        reads_list = name in COPIES_OF_LISTS and any(map(_lists_tensors, [*args, *named]))
        sized = name in SIZED_BY_TENSORS and any(isinstance(each, Tensor) for each in [*args[1:], *named])
        if sized or reads_list or (name not in SHAPES_AND_TYPES and not _is_tensors(out)):
            self._notice(f"it reads values of tensors by {name}")
        return out

    def _state(self) -> PythonState:
        try:
            return python_state(*self._roots)
        except Exception as error:  # raised by a user's object when it is inspected
            self._notice(f"its Python objects cannot be compared: {error}")
            return []

    def _called(self, frame: FrameType, event: str, function: Any) -> None:
        if event != "c_call" or self.paused:
            return
        owner = getattr(function, "__self__", None)
        owner = owner if isinstance(owner, type) else type(owner)
        module = getattr(function, "__module__", None) or owner.__module__
        if function.__name__ in READS:
            self._notice(f"it reads values of tensors by {function.__name__}")
        elif function.__name__ in EFFECTS or module in CLOCKS_AND_DICE:
            self._notice(f"it calls {function.__name__}")

    def _notice(self, reason: str) -> None:
        self.reason = self.reason or reason


def _is_tensors(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_tensors, value))
    if isinstance(value, dict):
        return all(map(_is_tensors, value.values()))
    return value is None or isinstance(value, Tensor)


def _lists_tensors(value: object) -> bool:
    """Say whether a value is a list with tensors in it, or with such lists."""
    return isinstance(value, tuple | list) and any(
        isinstance(each, Tensor) or _lists_tensors(each) for each in value
    )


CACHE = type(cache(len))
"""What functools.cache and lru_cache return."""

PLAIN = int | float | complex | str | bytes | None
"""Values that have no parts and never change."""

PythonState = list[tuple[object, object]]
"""Values in the order in which they were found, each with what can change about it."""


def python_state(*roots: object) -> PythonState:
    """Return everything that these refer to: what functions close over and name, what objects and containers
    contain. A tensor's state is how often it was written to."""
    found: PythonState = []
    known: set[int] = set()
    stack = list(roots)
    while stack and len(found) < MOST:
        value = stack.pop()
        if isinstance(value, PLAIN) or _is_library(value) or id(value) in known:
            found.append((value, None))
            continue
        known.add(id(value))
        parts = list(_parts(value))
        found.append((value, _detail(value, len(parts))))
        stack += parts
    return found


def same_state(one: PythonState, other: PythonState) -> bool:
    """Say whether two results of `python_state` have the same values, none of which has changed."""
    return len(one) == len(other) and all(
        (a is b or (isinstance(a, PLAIN) and type(a) is type(b) and a == b)) and before == after
        for (a, before), (b, after) in zip(one, other, strict=True)
    )


def _detail(value: object, parts: int) -> object:
    """Return what can change about a value, other than its parts, while it stays the same object."""
    if isinstance(value, Tensor):
        return None if value.is_inference() else value._version
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return zlib.crc32(value.tobytes())
    if isinstance(value, bytearray | array):
        return zlib.crc32(value)
    if isinstance(value, GeneratorType):
        return value.gi_frame and value.gi_frame.f_lasti
    if isinstance(value, np.random.Generator):
        return pickle.dumps(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return pickle.dumps(value.get_state())
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if type(value).__module__ == "itertools":
        return repr(value)
    return parts


def _parts(value: object) -> Iterator[object]:
    """Yield the values that a value consists of or refers to."""
    if isinstance(value, Tensor | random.Random):
        return
    if isinstance(value, np.ndarray):
        yield from value.flat if value.dtype.hasobject else ()
        return
    if isinstance(value, dict):
        yield from value
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from value
    elif isinstance(value, MethodType):
        yield value.__self__
        yield value.__func__
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, FunctionType):
        yield from _of_function(value)
    elif isinstance(value, ModuleType):
        yield from vars(value).values()
        return
    elif isinstance(value, GeneratorType):
        yield from value.gi_frame.f_locals.values() if value.gi_frame else ()
    elif isinstance(value, Iterator) and type(value).__module__ == "builtins":
        _, left, *position = cast("tuple[Any, ...]", value.__reduce__())
        yield from (*left, *position)
    elif isinstance(value, type):
        if not _of_library(value):
            yield from vars(value).values()
        return
    elif isinstance(value, CACHE):
        yield from gc.get_referents(value)
    elif isinstance(value, ContextVar):
        with suppress(LookupError):
            yield value.get()
    elif not _of_library(type(value)):
        yield type(value)
    for name in _slots(type(value)):
        yield getattr(value, name, None)
    yield from getattr(value, "__dict__", {}).values()


def _slots(kind: type) -> Iterator[str]:
    """Yield the names of the slots of a class and its bases, as attributes of its objects."""
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            private = slot.startswith("__") and not slot.endswith("__")
            yield f"_{base.__name__.lstrip('_')}{slot}" if private else slot


def _of_function(function: FunctionType) -> Iterator[object]:
    if _of_library(function):
        return
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not yet assigned
            yield None
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_library(value: object) -> bool:
    """Say whether a value is an installed module and not one of the user's own."""
    if not isinstance(value, ModuleType):
        return False
    package, file = value.__name__.partition(".")[0], getattr(value, "__file__", None)
    return package in LIBRARIES or package == "unskew" or not file or "site-packages" in file


def _of_library(value: FunctionType | type) -> bool:
    return (value.__module__ or "").partition(".")[0] in LIBRARIES
