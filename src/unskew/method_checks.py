"""Checks of what the slots of a method hold and return. What is wrong is refused in one sentence. Only types,
names and shapes are checked, so that nothing waits for a device and nothing is traced or captured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from torch import Tensor

from unskew.errors import UserError
from unskew.types import Params, Tensors


def check_functions(owner: str, slots: Mapping[str, object]) -> None:
    """Refuse a value that is not a function in slots that hold functions."""
    for name, value in slots.items():
        if not callable(value):
            raise UserError(f"{owner}.{name} is {with_article(value)} but should be a function.")


def check_tuple(owner: str, name: str, value: object) -> None:
    """Refuse a value that is not a tuple of functions in a slot that holds several."""
    if not isinstance(value, tuple):
        raise UserError(
            f"{owner}.{name} is {with_article(value)} but should be a tuple: write {name}=(yours,), with the "
            "comma."
        )
    check_functions(owner, {f"{name}[{n}]": each for n, each in enumerate(value)})


def is_one_number(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.ndim == 0


def not_one_number(slot: str, function: Callable[..., object], value: object) -> UserError:
    """Return the error for a loss or a term that does not return a tensor of one number."""
    what = f"has shape {list(value.shape)}" if isinstance(value, Tensor) else f"is {with_article(value)}"
    hint = "one number" if isinstance(value, Tensor) else "a tensor of one number, which has a gradient"
    return UserError(f"the method's {slot}{quoted_name(function)} {what}: let it return {hint}.")


def checked_factor(value: object) -> float:
    """Return what `lr_factor` returned if it is a number of 0 or more; else refuse it."""
    if not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise UserError(f"the method's lr_factor returns {value!r}: let it return a number of 0 or more.")
    return value


def quoted_name(function: Callable[..., object]) -> str:
    """Return the name of a function, quoted and in brackets, or an empty text if it has none."""
    name = getattr(function, "__name__", "")
    return f" ('{name}')" if name.isidentifier() and name != "plain_loss" else ""


def check_named_tensors(slot: str, value: object) -> Tensors:
    """Return what a slot returned if it is a dictionary of named tensors; else refuse it."""
    if not isinstance(value, dict):
        raise UserError(
            f"the method's {slot} returns {with_article(value)}: let it return a dictionary of named "
            "tensors, {} for none."
        )
    for name, each in value.items():
        if not isinstance(name, str):
            raise UserError(f"the method's {slot} returns a tensor named {name!r}: let names be text.")
        if not isinstance(each, Tensor):
            raise UserError(
                f"the method's {slot} returns {with_article(each)} as '{name}': let every value be a tensor, "
                "such as torch.tensor(value)."
            )
    return value


def check_like_model(slot: str, value: object, model: Tensors) -> Params:
    """Return what a slot returned if it has the names and shapes of a model's tensors; else refuse it."""
    if not isinstance(value, dict):
        raise UserError(
            f"the method's {slot} returns {with_article(value)}: let it return the model's tensors by name."
        )
    found = check_named_tensors(slot, value)
    if missing := sorted(model.keys() - found.keys()):
        raise UserError(f"the method's {slot} lacks '{missing[0]}': let it return every tensor of the model.")
    if unknown := sorted(found.keys() - model.keys()):
        raise UserError(f"the method's {slot} returns '{unknown[0]}', which the model has not: leave it out.")
    for name, each in found.items():
        if each.shape != model[name].shape:
            raise UserError(
                f"the method's {slot} returns '{name}' of shape {list(each.shape)}: let it have the model's "
                f"{list(model[name].shape)}."
            )
    return found


def check_pair(slot: str, value: object, parts: str) -> tuple[Any, Any]:
    """Return what a slot returned if it is a pair; else refuse it."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise UserError(
            f"the method's {slot} returns {with_article(value)}: let it return the pair ({parts})."
        )
    return value


def kept_and_reported(value: object, before: Tensors) -> tuple[Tensors, Tensors]:
    """Return what a client keeps and what it reports. Tensors that `memory.update` leaves out stay as they
    were, but it may not leave out one name and add another, because that is probably a misspelt name."""
    kept, reported = check_pair("memory.update", value, "kept, reported")
    kept = check_named_tensors("memory.update", kept)
    reported = check_named_tensors("memory.update", reported)
    new, forgotten = sorted(kept.keys() - before.keys()), sorted(before.keys() - kept.keys())
    if new and forgotten:
        raise UserError(
            f"the method's memory.update forgets '{forgotten[0]}' and keeps '{new[0]}', which memory.init "
            "did not make: let both use the same names; what memory.update leaves out stays as it was."
        )
    return {**before, **kept}, reported


def check_instance(slot: str, value: object, kind: type) -> None:
    """Refuse a value that is not of the type that a slot should return."""
    if not isinstance(value, kind):
        raise UserError(f"the method's {slot} returns {with_article(value)}: let it return {kind.__name__}.")


def with_article(value: object) -> str:
    """Return the name of a value's type, with its article."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
