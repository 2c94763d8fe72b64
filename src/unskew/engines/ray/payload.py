"""Python objects packed for another machine: functions with their code, tensors as arrays."""

from __future__ import annotations

import io
import pickle
import sys
import sysconfig
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew.data.dataset import Dataset
from unskew.engines.cpu.shared_tensors import CACHE_LINE, packed_stride
from unskew.errors import UserError

STANDARD_LIBRARY = sysconfig.get_path("stdlib")

Bytes = NDArray[np.uint8]


class Payload(NamedTuple):
    """A packed object. Ray keeps its arrays in memory that a machine's processes share, and copies none."""

    body: bytes
    """The object, without its tensors and datasets."""
    arrays: list[Bytes]
    """The tensors' bytes."""
    datasets: list[Any]
    """Ray's references to the datasets, which are sent to a machine only once."""


class TensorLayout(NamedTuple):
    """The description of a tensor, without its bytes."""

    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    """The address of the tensor modulo CACHE_LINE, on which the order of a kernel's sums may depend."""
    device: str


def pack(value: object) -> Payload:
    """Pack data without functions: tensors in dictionaries and in the types of this package."""
    file = io.BytesIO()
    pickler = _Pickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.dump(value)
    return pickler.attachments.payload(file)


def pack_code(value: object, what: str) -> Payload:
    """Pack an object that contains functions; the error calls it `what` if that fails. Code that is not
    installed, such as a method in a user's file, is packed too."""
    file = io.BytesIO()
    pickler = _code_pickler()(file, pickle.HIGHEST_PROTOCOL)
    try:
        with _own_modules_by_value():
            pickler.dump(value)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise UserError(
            f"the {what} cannot be sent to another machine ({error}): let its functions refer to data, and "
            "not to open files, locks or the like."
        ) from error
    return cast(Payload, pickler.attachments.payload(file))


def unpack(payload: Payload, *, share: bool = False) -> Any:
    """Return what was packed, with tensors of its own. With `share` the tensors lie in memory that all
    processes of the machine share, and must not be written to."""
    return _Unpickler(payload, share).load()


class _Attachments:
    """Tensors and datasets that are sent apart from a payload's body, in which keys stand for them."""

    def __init__(self) -> None:
        self._arrays: list[Bytes] = []
        self._datasets: list[Any] = []
        self._keys: dict[int, tuple[object, tuple[object, ...]]] = {}

    def key(self, value: object) -> tuple[object, ...] | None:
        """Return the key that stands for a value in the body, or None if the value itself belongs there."""
        tensor = type(value) is Tensor and value.layout is torch.strided and not value.requires_grad
        if not tensor and not isinstance(value, Dataset):
            return None
        if id(value) not in self._keys:  # the value is kept, so that no other object gets its id
            self._keys[id(value)] = value, self._add(value)
        return self._keys[id(value)][1]

    def _add(self, value: object) -> tuple[object, ...]:
        if isinstance(value, Dataset):
            self._datasets.append(_reference(value))
            return "dataset", len(self._datasets) - 1
        array, layout = _bytes_of(cast(Tensor, value))
        self._arrays.append(array)
        return "tensor", len(self._arrays) - 1, layout

    def payload(self, body: io.BytesIO) -> Payload:
        """Return a body with all that its keys stand for."""
        return Payload(body.getvalue(), self._arrays, self._datasets)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.attachments = _Attachments()

    def persistent_id(self, value: object) -> object:
        return self.attachments.key(value)


@cache
def _code_pickler() -> type[Any]:
    from ray.cloudpickle import CloudPickler

    class CodePickler(CloudPickler):  # type: ignore[misc]
        def __init__(self, file: io.BytesIO, protocol: int) -> None:
            super().__init__(file, protocol)
            self.attachments = _Attachments()

        def persistent_id(self, value: object) -> object:
            return self.attachments.key(value)

    return CodePickler


class _Unpickler(pickle.Unpickler):
    def __init__(self, payload: Payload, share: bool) -> None:
        super().__init__(io.BytesIO(payload.body))
        self._payload, self._share = payload, share
        self._tensors: dict[int, Tensor] = {}

    def persistent_load(self, key: Any) -> object:
        kind, n, *layout = key
        if kind == "dataset":
            return _dataset_of(self._payload.datasets[n])
        if n not in self._tensors:
            self._tensors[n] = _tensor_of(self._payload.arrays[n], layout[0], self._share)
        return self._tensors[n]


def _bytes_of(value: Tensor) -> tuple[Bytes, TensorLayout]:
    device, value = value.device.type, value.detach().cpu()
    offset = value.data_ptr() % CACHE_LINE
    stride = packed_stride(value)
    if value.stride() != stride:
        value = torch.empty_strided(value.shape, stride, dtype=value.dtype).copy_(value)
    flat = value.as_strided((value.numel(),), (1,)).view(torch.uint8).numpy()
    return flat, TensorLayout(value.dtype, value.shape, stride, offset, device)


def _tensor_of(array: Bytes, layout: TensorLayout, share: bool) -> Tensor:
    if share:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the array cannot be written to
            flat = torch.from_numpy(array)
    else:
        flat = torch.empty(layout.offset + len(array), dtype=torch.uint8)[layout.offset :]
        flat.numpy()[:] = array
    return flat.view(layout.dtype).as_strided(layout.size, layout.stride).to(layout.device)


_sent: weakref.WeakKeyDictionary[Dataset, tuple[str, Any]] = weakref.WeakKeyDictionary()
_received: weakref.WeakValueDictionary[str, Dataset] = weakref.WeakValueDictionary()


def _reference(dataset: Dataset) -> Any:
    import ray

    connection = ray.get_runtime_context().get_worker_id()
    if dataset not in _sent or _sent[dataset][0] != connection:
        _sent[dataset] = connection, ray.put(pack(vars(dataset)))
    return _sent[dataset][1]


def _dataset_of(reference: Any) -> Dataset:
    import ray

    dataset = _received.get(reference.hex())
    if dataset is None:
        dataset = object.__new__(Dataset)  # it was checked when it was made
        vars(dataset).update(unpack(ray.get(reference), share=True))
        _received[reference.hex()] = dataset
    return dataset


@contextmanager
def _own_modules_by_value() -> Iterator[None]:
    """Pickle functions and classes of modules that are not installed as code instead of by name."""
    from ray import cloudpickle

    known, installed = cloudpickle.list_registry_pickle_by_value(), _installed()
    own = [
        module
        for name, module in list(sys.modules.items())
        if name not in known and _is_own(name, module, installed)
    ]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def _installed() -> tuple[str, ...]:
    """Return parts of paths by which an installed module is recognised, which another machine has too."""
    folders = (folder for folder in sys.path if folder and any(Path(folder).glob("*.dist-info")))
    return "site-packages", "dist-packages", STANDARD_LIBRARY, *folders


def _is_own(name: str, module: ModuleType, installed: tuple[str, ...]) -> bool:
    file = getattr(module, "__file__", None)
    if not file or module.__name__ != name or name.partition(".")[0] in ("unskew", "__main__"):
        return False  # unskew is there already, and what is in __main__ is sent as code anyway
    return Path(file).is_absolute() and not any(place in file for place in installed)
