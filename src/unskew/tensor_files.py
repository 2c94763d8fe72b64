"""Turn named tensors into bytes and back, bit for bit: values, types and strides."""

from __future__ import annotations

import json

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor

from unskew.types import Tensors


def dump(tensors: Tensors) -> bytes:
    """Return tensors in the format of safetensors, with values in the order in which they lie in memory. The
    format's metadata holds what the format itself does not: the order of the names, and the shape and strides
    of tensors that do not lie row by row."""
    laid_out = {name: _in_memory_order(value) for name, value in tensors.items()}
    layouts = {
        name: [list(value.shape), list(value.stride())] if _is_permuted(value) else None
        for name, value in tensors.items()
    }
    # One entry for everything, since safetensors writes several entries in no fixed order.
    return save_safetensors(laid_out, metadata={"layouts": json.dumps(layouts)})


def load(content: bytes | memoryview, device: torch.device | str = "cpu") -> Tensors:
    """Return the tensors that `dump` has turned into these bytes, on a device. Other bytes raise a
    ValueError."""
    content = bytes(content)
    try:
        values = load_safetensors(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        layouts = json.loads(header["__metadata__"]["layouts"])
        if layouts.keys() != values.keys():
            raise ValueError("the names of the tensors and of their layouts differ")
        return {name: _restore(values[name], layout).to(device) for name, layout in layouts.items()}
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"these bytes hold no tensors of unskew: {error}") from None


def _in_memory_order(value: Tensor) -> Tensor:
    """Return a copy in host memory whose values lie in the order of memory, or row by row if memory has
    gaps."""
    value = value.detach()
    if _is_permuted(value):
        value = value.as_strided((value.numel(),), (1,))
    return value.to("cpu", copy=True, memory_format=torch.contiguous_format)


def _restore(value: Tensor, layout: list[list[int]] | None) -> Tensor:
    """Return a copy of the tensor with its layout. It is a copy since bytes read in place may lie at any
    address, and the results of kernels depend on that."""
    value = value.clone()
    if layout is None:
        return value
    shape, strides = layout
    if len(shape) != len(strides) or torch.Size(shape).numel() != value.numel():
        raise ValueError("a layout does not fit its values")
    if not _is_dense(shape, strides):
        raise ValueError("a layout leaves its memory")
    return value.as_strided(shape, strides)


def _is_permuted(value: Tensor) -> bool:
    """Say whether a tensor without gaps has other strides than one that lies row by row."""
    by_rows = torch.empty(value.shape, device="meta").stride()
    return value.stride() != by_rows and _is_dense(value.shape, value.stride())


def _is_dense(shape: torch.Size | list[int], strides: tuple[int, ...] | list[int]) -> bool:
    """Say whether the strides place the values in memory without gaps and without overlap."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True)):
        if size == 1:
            continue
        if stride != expected or size < 1:
            return False
        expected *= size
    return True
