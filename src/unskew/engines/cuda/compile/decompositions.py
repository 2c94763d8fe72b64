"""The operators of a step that are decomposed, for a compiler or without one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from unskew.engines.cuda.compile import matmul
from unskew.engines.cuda.compile.batch_norm import BatchNorm
from unskew.engines.cuda.compile.context import Context
from unskew.engines.cuda.compile.convolution import Convolution
from unskew.errors import unknown

P = ParamSpec("P")
T = TypeVar("T")
DecompositionTable = dict[Any, Callable[..., Any]]
aten = torch.ops.aten

VARIABLE = "UNSKEW_FAST_WITHOUT"
"""The environment variable that names what is left out, separated by commas."""
PARTS = {
    "depthwise": "depthwise convolutions as sums of shifted images",
    "pointwise": "1×1 convolutions as matrix products",
    "stem": "convolutions of few input channels by im2col",
    "batch_norm": "batch normalisation as a factor and a summand for each channel",
    "small_matmul": "products of small matrices as sums",
    "triton": "both Triton kernels of depthwise convolutions",
    "triton_forward": "the Triton kernel of the convolution, and of its input's gradient at stride 1",
    "triton_weight_gradient": "the Triton kernel of the weights' gradient",
    "any_batch": "partial batches compiled as one program for any size",
    "uncompiled": "the same convolutions in steps that are not compiled",
    "combo_kernels": "TorchInductor's one kernel for small things that do not depend on each other",
}
"""What can be left out, by name. docs/decisions/0005-captured-steps.md says what each one gains in a whole
round."""


def left_out() -> frozenset[str]:
    """Return the names in `UNSKEW_FAST_WITHOUT`, which serves to measure what each part gains."""
    names = frozenset(filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))))
    for name in sorted(names):
        if name not in PARTS:
            raise unknown(f"part of fast=true in {VARIABLE}", name, PARTS)
    return names


class Decompositions:
    """The decompositions of one step. Each returns NotImplemented if PyTorch's own operator is better."""

    def __init__(self, *, compiled: bool = True, without: frozenset[str] = frozenset()) -> None:
        context = Context(compiled=compiled, without=without)
        convolution, norm = Convolution(context), BatchNorm(context)
        self.convolutions: DecompositionTable = {
            aten.convolution.default: convolution.forward,
            aten.convolution_backward.default: convolution.backward,
        }
        others: dict[str, DecompositionTable] = {
            "batch_norm": {
                aten.native_batch_norm.default: norm.forward,
                aten.native_batch_norm_backward.default: norm.backward,
            },
            "small_matmul": {aten.mm.default: matmul.mm, aten.addmm.default: matmul.addmm},
        }
        self.all = dict(self.convolutions)
        for name, table in others.items():
            if name not in without:
                self.all |= table


def decompose_convolutions(step: Callable[P, T]) -> Callable[P, T]:
    """Return a step with the same decomposed convolutions as a compiled one, but without a compiler. cuDNN
    would search for kernels again for every batch size, which takes 8 s a size for MobileNetV2's layers on an
    H200."""
    without = left_out()
    if "uncompiled" in without:
        return step

    def run(*arguments: P.args, **named: P.kwargs) -> T:
        with _Decomposed(Decompositions(compiled=False, without=without).convolutions):
            return step(*arguments, **named)

    return run


class _Decomposed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, table: DecompositionTable) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._table = table

    def __torch_dispatch__(self, operator: Any, _: Any, arguments: Any = (), named: Any = None) -> Any:
        done = self._table[operator](*arguments) if operator in self._table else NotImplemented
        return operator(*arguments, **(named or {})) if done is NotImplemented else done
