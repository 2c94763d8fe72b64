"""Read pickled files of plain data without running any of their code."""

from __future__ import annotations

import io
import math
import pickle
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
import numpy.typing as npt

from unskew.data.bounded import check_shape
from unskew.errors import UserError

MOST = 256 << 20
"""Bytes that the arrays, sets and ranges of one file may take together. A limit is needed since a file can
refer to one piece of itself any number of times. CIFAR-100's training images take 154 million."""


def unpickle(file: IO[bytes], path: Path) -> object:
    """Read the pickled containers, numbers, text and NumPy arrays of these in `file`; refuse anything else.
    Errors name the file `path`. Text that Python 2 wrote becomes bytes."""
    try:
        content: object = _RestrictedUnpickler(io.BytesIO(file.read())).load()
    except UserError as error:
        raise UserError(f"{path} is refused: {error}") from None
    except Exception as error:  # the pickle module's documentation leaves open what damaged input raises
        raise UserError(f"{path} is not a readable pickle: fetch, copy or make it again.") from error
    return content


class _DType:
    """Takes the place of numpy.dtype, which would accept any inner state from a file. Only numbers, booleans
    and objects are allowed."""

    def __init__(self, code: bytes | str, *_: object) -> None:
        self.code = code.decode() if isinstance(code, bytes) else code
        if not re.fullmatch(r"[<>|=]?([biuf][1248]|[?bBhHiIlLqQefdO]|b1|O8)", self.code):
            raise ValueError(f"arrays of {self.code} are not plain data")
        self.order = "="

    def take_state(self, state: Any) -> int:
        """Set the state that a file gives; return how many bytes this takes."""
        order = state[1].decode() if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "=") or any(part is not None for part in state[2:5]):
            raise ValueError("arrays of records are not plain data")
        self.order = order
        return 0

    @property
    def real(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.code.lstrip("<>|="))


class _Array(np.ndarray[Any, Any]):
    """An array that checks a state from a file before it is set."""

    def take_state(self, state: Any) -> int:
        """Check and set the state that a file gives; return how many bytes this takes."""
        _, shape, kind, fortran, raw = state
        real, count = kind.real, math.prod(shape)
        check_shape(shape)
        whole = count if isinstance(raw, list) else count * real.itemsize
        if isinstance(raw, list) != real.hasobject or len(raw) != whole:
            raise ValueError("an array's state does not fit together")
        if isinstance(raw, list) and any(
            isinstance(each, np.ndarray) and each.dtype.hasobject for each in raw
        ):
            raise ValueError("an array of arrays of objects is not plain data")  # any depth could follow
        checked: Any = (1, tuple(shape), real, bool(fortran), raw)
        self.__setstate__(checked)
        return int(count * real.itemsize)


def _reconstruct(*_: object) -> _Array:
    return _Array((0,), np.uint8)


def _frombuffer(raw: bytes, kind: _DType, shape: tuple[int, ...], order: Any, *_: object) -> npt.NDArray[Any]:
    if kind.real.hasobject:
        raise ValueError("a buffer holds no objects")
    check_shape(shape)
    return np.frombuffer(raw, kind.real).reshape(shape, order=order)


def _scalar(kind: _DType, raw: bytes) -> object:
    if kind.real.hasobject:
        raise ValueError("a buffer holds no objects")
    (value,) = np.frombuffer(raw, kind.real)
    return value


def _empty(*_: object) -> object:
    """Return a plain dictionary in place of a defaultdict, without the function that makes defaults."""
    return {}


def _check_key(key: object) -> None:
    """Refuse keys that are neither small numbers nor text. Hashing deeply nested tuples ends the process, and
    among huge numbers a file could choose some with equal hashes, which make a dictionary slow."""
    if not isinstance(key, str | bytes | int | np.integer | None) or (
        isinstance(key, int) and abs(key) >= 1 << 60
    ):
        raise ValueError("a key is neither a number nor text")


_NAMES: Mapping[tuple[str, str], object] = {
    # What a defaultdict would make its defaults by; nothing calls them.
    ("builtins", "list"): None,
    ("builtins", "dict"): None,
    ("collections", "defaultdict"): _empty,
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): _DType,
    # How empty bytes are written for Python 2.
    ("builtins", "bytes"): lambda: b"",
}
_NUMPY: Mapping[str, object] = {"_reconstruct": _reconstruct, "_frombuffer": _frombuffer, "scalar": _scalar}
"""The functions that rebuild arrays and numbers, under their names in all versions of NumPy."""

_REFUSED = (
    *(pickle.PERSID, pickle.BINPERSID, pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.INST, pickle.OBJ),
    *(pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.FROZENSET),
    *(pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
)
"""Pickle instructions that plain data do not need."""


class _RestrictedUnpickler(pickle._Unpickler):
    """An unpickler that refuses all functions but `_NAMES` and `_NUMPY`, since a pickle may call any by its
    name.

    It extends the one of Python's two unpicklers that is written in Python: its instructions can be replaced,
    and it does not allocate memory that a file only claims to need."""

    # Attributes of pickle._Unpickler.
    stack: list[Any]
    append: Callable[[Any], None]
    read: Callable[[int], bytes]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, encoding="bytes")
        self._left = MOST
        self._makers: Mapping[tuple[str, str], object] = {
            ("collections", "OrderedDict"): self._mapping,
            ("collections", "Counter"): self._mapping,
            ("builtins", "set"): self._set,
            ("builtins", "range"): self._range,
            ("_codecs", "encode"): self._encode,  # how bytes are written for Python 2
        }

    def find_class(self, module: str, name: str) -> object:
        if module == "__builtin__":  # its name in Python 2 and its protocols
            module = "builtins"
        for known in (_NAMES, self._makers):
            if (module, name) in known:
                return known[module, name]
        if re.fullmatch(r"numpy\._?core\.(multiarray|numeric)", module) and name in _NUMPY:
            return _NUMPY[name]
        raise UserError(
            f"it asks for '{module}.{name}', which plain data do not need; get it from its publisher."
        )

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ValueError("it makes more of itself than plain data do")

    def _mapping(self, items: Any = ()) -> dict[Any, Any]:
        self._spend(16 * len(items))
        self.append({})
        self._put([part for pair in (items.items() if isinstance(items, dict) else items) for part in pair])
        made: dict[Any, Any] = self.stack.pop()
        return made

    def _set(self, items: list[Any]) -> set[Any]:
        self._spend(16 * len(items))
        for each in items:
            _check_key(each)
        return set(items)

    def _range(self, *ends: int) -> range:
        made = range(*ends)
        self._spend(64 * len(made))  # the memory of its numbers, should they be listed
        return made

    def _encode(self, text: str, _: object) -> bytes:
        self._spend(len(text))
        return text.encode("latin1")

    def _bytes(self) -> None:
        (size,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(size)))  # read() returns no more than the file has

    # Replacements for the instructions that set a state, or put a value under a key.

    def _build(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if not isinstance(made, _DType | _Array):
            raise ValueError("plain data have no state")
        self._spend(made.take_state(state))

    def _dict(self) -> None:
        pairs = self.pop_mark()
        self.append({})
        self._put(pairs)

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._put([key, value])

    def _set_items(self) -> None:
        self._put(self.pop_mark())

    def _put(self, pairs: list[Any]) -> None:
        table = self.stack[-1]
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            _check_key(key)
            table[key] = value

    def _add_items(self) -> None:
        for each in self.pop_mark():
            _check_key(each)
            self.stack[-1].add(each)

    dispatch: ClassVar[dict[int, Any]] = {
        **{code: load for code, load in pickle._Unpickler.dispatch.items() if bytes([code]) not in _REFUSED},
        pickle.BYTEARRAY8[0]: _bytes,
        pickle.BUILD[0]: _build,
        pickle.DICT[0]: _dict,
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _set_items,
        pickle.ADDITEMS[0]: _add_items,
    }
