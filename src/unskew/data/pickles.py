"""Pickled files of plain data, read without running any code of theirs."""

from __future__ import annotations

import math
import pickle
import re
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from unskew.errors import UserError


def unpickle(file: IO[bytes], path: Path) -> object:
    """What is pickled in `file`, of which errors speak as `path`: containers, numbers, text and NumPy arrays
    of these. Text that Python 2 wrote comes as bytes."""
    try:
        content: object = _Unpickler(file, encoding="bytes").load()
    except UserError as error:
        raise UserError(f"{path} is refused: {error}") from None
    except Exception as error:  # the pickle module's documentation leaves open what damaged input raises
        raise UserError(f"{path} is not a readable pickle: fetch, copy or make it again.") from error
    return content


class _DType:
    """Stands for numpy.dtype, which would take over whatever inner state a file claims: numbers, truth
    values and objects alone."""

    def __init__(self, code: bytes | str, *_: object) -> None:
        self.code = code.decode() if isinstance(code, bytes) else code
        if not re.fullmatch(r"[<>|=]?([biuf][1248]|[?bBhHiIlLqQefdO]|b1|O8)", self.code):
            raise ValueError(f"arrays of {self.code} are not plain data")
        self.order = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1].decode() if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "=") or any(part is not None for part in state[2:5]):
            raise ValueError("arrays of records are not plain data")
        self.order = order

    @property
    def real(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.code.lstrip("<>|="))


class _ArrayType:
    """Stands for numpy.ndarray where `_reconstruct` is told what to make."""


class _Array(np.ndarray[Any, Any]):
    """An array that checks the state that a file gives it before it takes it over."""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        real, count = kind.real, math.prod(shape)
        whole = count if isinstance(raw, list) else count * real.itemsize
        if min(shape, default=0) < 0 or isinstance(raw, list) != real.hasobject or len(raw) != whole:
            raise ValueError("an array's state does not fit together")
        checked: Any = (1, tuple(shape), real, bool(fortran), raw)
        super().__setstate__(checked)


def _reconstruct(*_: object) -> _Array:
    return _Array((0,), np.uint8)


def _frombuffer(raw: bytes, kind: _DType, shape: tuple[int, ...], order: Any, *_: object) -> npt.NDArray[Any]:
    if kind.real.hasobject:
        raise ValueError("a buffer holds no objects")
    return np.frombuffer(raw, kind.real).reshape(shape, order=order)


def _scalar(kind: _DType, raw: bytes) -> object:
    if kind.real.hasobject:
        raise ValueError("a buffer holds no objects")
    (value,) = np.frombuffer(raw, kind.real)
    return value


_KNOWN: Mapping[tuple[str, str], object] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): defaultdict,
    ("collections", "Counter"): Counter,
    ("builtins", "list"): list,
    ("builtins", "dict"): dict,
    ("builtins", "set"): set,
    ("builtins", "range"): range,
    ("numpy", "ndarray"): _ArrayType,
    ("numpy", "dtype"): _DType,
    # How bytes are written for Python 2: as text, and where there are none as a call.
    ("_codecs", "encode"): lambda text, _: text.encode("latin1"),
    ("builtins", "bytes"): lambda: b"",
}
_NUMPY: Mapping[str, object] = {"_reconstruct": _reconstruct, "_frombuffer": _frombuffer, "scalar": _scalar}
"""What rebuilds arrays and numbers, by its names in all versions of NumPy."""


class _Unpickler(pickle.Unpickler):
    """A pickle may name any function to call: all but those above are refused."""

    def find_class(self, module: str, name: str) -> object:
        if module == "__builtin__":  # Python 2, and the protocols it knew
            module = "builtins"
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        if re.fullmatch(r"numpy\._?core\.(multiarray|numeric)", module) and name in _NUMPY:
            return _NUMPY[name]
        raise UserError(
            f"it asks for '{module}.{name}', which plain data do not need; get it from its publisher."
        )
