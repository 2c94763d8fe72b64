"""Turn dataclasses of numbers, texts, tensors and `ClientTensors` into JSON and tensors, and back."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import torch
from torch import Tensor

from unskew.client_tensors import ClientStore, ClientTensors
from unskew.types import Tensors


def pack(value: Any, tensors: Tensors, store: ClientStore) -> Any:
    """Return a value as JSON, and add copies of its tensors in host memory to `tensors`. A `ClientTensors` of
    a store with a folder stays as it is, since it has files of its own: `file.encode` writes its index."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().to("cpu", copy=True)
        return [name, value.device.type]
    if isinstance(value, np.ndarray):
        name = str(len(tensors))
        tensors[name] = torch.from_numpy(value.copy())
        return [name, "numpy"]
    if isinstance(value, ClientTensors):
        if value.store is store and store.folder is not None:
            if store.device.type == "cuda":  # another thread must not touch it while a graph is captured
                value.copy_to_host()
            return {"index": value}
        return {"clients": {str(client): pack(value[client], tensors, store) for client in value}}
    if is_dataclass(value):
        return {each.name: pack(getattr(value, each.name), tensors, store) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): pack(each, tensors, store) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [pack(each, tensors, store) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a {type(value).__name__} cannot be kept in a checkpoint")


def unpack(kind: Any, value: Any, tensors: Tensors, store: ClientStore, device: torch.device) -> Any:
    """Return the value that `pack` has turned into this JSON and these tensors. Its type is `kind`, and only
    what that type declares is made."""
    origin, arguments = get_origin(kind), get_args(kind)

    def inner(kind: Any, value: Any) -> Any:
        return unpack(kind, value, tensors, store, device)

    if kind is Tensor:
        return tensors[value[0]].to(device if value[1] != "cpu" else "cpu")
    if kind is np.ndarray or origin is np.ndarray:
        return tensors[value[0]].numpy()
    if kind is ClientTensors:
        if "index" in value:
            return store.open(value["index"])
        clients = {int(client): inner(Tensors, each) for client, each in value["clients"].items()}
        return store.empty().updated(clients)
    if isinstance(kind, type) and is_dataclass(kind):
        return kind(**{name: inner(each, value[name]) for name, each in _declared(kind).items()})
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (one,) = (each for each in arguments if each is not type(None))
        return inner(one, value)
    if origin is dict:
        return {arguments[0](key): inner(arguments[1], each) for key, each in value.items()}
    if origin is list:
        return [inner(arguments[0], each) for each in value]
    if origin is tuple:
        return tuple(inner(arguments[0], each) for each in value)
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"there is {value!r} instead of one of {', '.join(map(str, arguments))}")
        return value
    if kind is float:
        return float(value)
    if not isinstance(value, kind):
        raise ValueError(f"there is a {type(value).__name__} instead of a {kind.__name__}")
    return value


@cache
def _declared(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)
