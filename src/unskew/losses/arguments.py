"""Checks of the losses' arguments, with one sentence for each that is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor

from unskew.errors import UserError, unknown

if TYPE_CHECKING:
    from numpy.typing import NDArray

ClassCounts: TypeAlias = "Tensor | Sequence[float] | NDArray[Any]"
"""How many samples of each class a client holds, one number per class."""

Reduction: TypeAlias = Literal["mean", "sum", "none"]
"""How the losses of the samples are reduced: to their mean, to their sum, or not at all, [B]."""


def upcast(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def matrix(name: str, x: Tensor, columns: str) -> Tensor:
    """Return rows of floating-point numbers, at least in float32, or refuse them."""
    check_tensor(name, x)
    if x.ndim != 2 or 0 in x.shape:
        raise UserError(
            f"the shape of {name} is {tuple(x.shape)}: pass [samples, {columns}], at least one of each."
        )
    if not x.is_floating_point():
        raise UserError(f"{name} are {x.dtype}: pass a floating point tensor.")
    return upcast(x)


def checked_logits(logits: Tensor) -> Tensor:
    return matrix("logits", logits, "classes")


def checked_features(features: Tensor) -> Tensor:
    return matrix("features", features, "dimensions")


def checked_labels(
    labels: Tensor, rows: Tensor, classes: int, ignore_index: int | None
) -> tuple[Tensor, Tensor | None]:
    """Return the labels, and a mask of the samples to keep, which is None for all of them. Labels of other
    samples are replaced by 0."""
    check_tensor("labels", labels)
    check_fits("labels", labels, rows, rows.shape[:1], "one class index per sample")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise UserError(f"labels are {labels.dtype}: pass class indices as integers.")
    y = labels.long()
    keep = None if ignore_index is None else y != ignore_index
    y = y if keep is None else torch.where(keep, y, 0)
    check_range(y, classes)
    return y, keep


def check_range(labels: Tensor, classes: int) -> None:
    """Refuse labels that are no class. This waits for no device, and adds nothing to a step that is captured
    or traced."""
    if _is_traced(labels):
        return
    if labels.device.type == "cpu":
        low, high = (int(bound) for bound in labels.aminmax())
        if low < 0 or high >= classes:
            raise UserError(out_of_range(low if low < 0 else high, classes))
    elif labels.device.type == "cuda":
        inside = (labels.clamp(0, classes - 1) == labels).all()
        torch._assert_async(inside, f"unskew: a label is not from 0 to {classes - 1}.")


def out_of_range(label: int, classes: int) -> str:
    return (
        f"a label is {label}, where there are {classes} classes: pass class indices from 0 to {classes - 1}, "
        f"or ignore_index={label} to leave such samples out."
    )


def _is_traced(x: Tensor) -> bool:
    """Say whether a tensor has no value to be read now, or reading it would become part of what is
    recorded."""
    return (
        torch.compiler.is_compiling()
        or type(x) is not Tensor
        or torch._C._functorch.is_functorch_wrapped_tensor(x)
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._is_tracing()
        or (x.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def checked_counts(counts: ClassCounts, logits: Tensor) -> Tensor:
    """Return the counts on the device of the logits, or refuse them."""
    n = counts_tensor(counts)
    if n.device != logits.device and not n.is_meta:
        n = n.to(logits.device, non_blocking=n.device.type == "cpu")
    check_fits("counts", n, logits, (logits.shape[1],), "one count per column of the logits")
    return n


def counts_tensor(counts: ClassCounts) -> Tensor:
    """Return the counts as int64, or in the floating-point type that they have, at least float32."""
    if not isinstance(counts, Tensor):
        counts = _numbers(counts)
    known = counts.is_floating_point() and counts.device.type == "cpu" and not _is_traced(counts)
    if known and not bool((counts.isfinite() & (counts >= 0)).all()):
        raise UserError("counts are negative or not finite: pass the number of samples of each class.")
    return upcast(counts) if counts.is_floating_point() else counts.long()


def _numbers(counts: object) -> Tensor:
    wrong = UserError(
        f"counts are {type(counts).__name__}: pass a list, a NumPy array or a tensor, one number per class."
    )
    # A pandas Series or a Counter has its own order, by which numbers would go to the wrong classes.
    if not isinstance(counts, list | tuple) and not hasattr(counts, "__array_interface__"):
        raise wrong
    try:
        found = torch.as_tensor(counts)
    except (TypeError, ValueError, RuntimeError):
        raise wrong from None
    return found


def constant(teacher: Tensor | None, logits: Tensor) -> Tensor:
    """Return the teacher's logits without gradient, in the precision of the computation. None gives a uniform
    teacher."""
    z = upcast(logits)
    if teacher is None:
        return torch.zeros_like(z)
    check_fits("teacher", teacher, logits, logits.shape, "the shape of the logits")
    return teacher.detach().to(z.dtype)


def checked_group(index: int, group: Sequence[int], classes: int) -> Sequence[int]:
    if len(group) < 2 or len(set(group)) < len(group) or not all(0 <= c < classes for c in group):
        raise UserError(
            f"groups[{index}] is {list(group)}: pass at least two different classes from 0 to {classes - 1}."
        )
    return group


def check_tensor(name: str, x: object) -> None:
    if not isinstance(x, Tensor):
        raise UserError(f"{name} are a {type(x).__name__}: pass a tensor.")


def check_fits(name: str, x: Tensor, like: Tensor, shape: tuple[int, ...], meaning: str) -> None:
    if x.shape != shape:
        raise UserError(f"the shape of {name} is {tuple(x.shape)}: pass {tuple(shape)}, {meaning}.")
    check_device(name, x, like)


def check_device(name: str, x: Tensor, like: Tensor) -> None:
    # Not moved silently: the copy would wait for the device at every step and cannot be captured.
    if x.device != like.device:
        raise UserError(
            f"the device of {name} is {x.device}, the model's output is on {like.device}: move {name} there."
        )


def checked_temperature(value: float) -> float:
    if not (_is_number(value) and value > 0 and math.isfinite(value)):
        raise UserError(f"temperature is {value}: choose a number above 0.")
    return value


def check_non_negative(name: str, value: float) -> None:
    if not (_is_number(value) and value >= 0 and math.isfinite(value)):
        raise UserError(f"{name} is {value}: choose a number of at least 0.")


def check_fraction(name: str, value: float) -> None:
    if not (_is_number(value) and 0 <= value <= 1):
        raise UserError(f"{name} is {value}: choose a number from 0 to 1.")


def _is_number(value: object) -> bool:
    return isinstance(value, Real | Tensor)


def check_among(kind: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise unknown(kind, name, known)


def check_reduction(reduction: str) -> None:
    check_among("reduction", reduction, ("mean", "sum", "none"))
