"""A network of the user's own from a file, named as my_net.py:Net."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from unskew.errors import UserError, unknown
from unskew.types import Inputs
from unskew.user_code import find_name

SHAPE = ("inputs", "shape", "input_shape")
CLASSES = ("classes", "num_classes", "n_classes")
"""Names of parameters that receive the shape of a sample, and the number of classes."""


@dataclass(frozen=True)
class OwnModel:
    """A function without arguments that makes the user's network."""

    name: str
    """As it was written, for errors."""
    make: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]

    def __call__(self) -> nn.Module:
        try:
            made = self.make(*self.arguments, **self.options)
        except UserError:
            raise
        except Exception as error:
            said = " ".join(str(error).split()).removesuffix(".")
            raise UserError(
                f"the model '{self.name}' cannot be made ({type(error).__name__}: {said}): fix it, or give "
                "it other settings with --set model.NAME=VALUE."
            ) from error
        if not isinstance(made, nn.Module):
            raise UserError(
                f"'{self.name}' returns a {type(made).__name__}: let it return a torch.nn.Module."
            )
        return made


def own_model(
    name: str, inputs: Inputs, classes: int, given: Mapping[str, Any], make: Any = None
) -> OwnModel:
    """Find the model that a text such as my_net.py:Net names: an nn.Module class, or a function that returns
    a module.

    It receives the arguments that its parameters ask for: the shape of a sample (`inputs` or `shape`), the
    number of classes (`classes` or `num_classes`), or both as the only two parameters without a default; and
    the options in `given`, by name. `make` is the class or function, if it is known already.
    """
    make = find_name(name, "model") if make is None else make
    if isinstance(make, nn.Module):
        raise UserError(
            f"'{name}' is a module that is made already, with weights that no seed sets: name its class, or "
            "a function that returns it."
        )
    if not callable(make):
        raise UserError(
            f"'{name}' is of type {type(make).__name__}: let it be an nn.Module class, or a function that "
            "returns a module."
        )
    if isinstance(make, type) and not issubclass(make, nn.Module):
        raise UserError(f"the class '{name}' is no torch.nn.Module: derive it from one.")
    shape = tuple(inputs.shape)
    parameters = _parameters(name, make)
    open_ended = any(each.kind is each.VAR_KEYWORD for each in parameters)
    named = {
        each.name: each for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)
    }
    for key in given:
        if key not in named and not open_ended:
            if not named:
                raise UserError(f"model '{name}' takes no settings: leave out model.{key}.")
            raise unknown(f"setting of model '{name}'", key, named)
    options: dict[str, Any] = {
        key: each.default for key, each in named.items() if isinstance(each.default, bool | int | float | str)
    }
    options |= {key: shape for key in SHAPE if key in named} | {
        key: classes for key in CLASSES if key in named
    }
    options |= given
    asked = [
        each
        for each in parameters
        if each.default is each.empty
        and each.name not in options
        and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    positional = [each.name for each in asked if each.kind is not each.KEYWORD_ONLY]
    if len(asked) == len(positional) == 2 and positional == [each.name for each in parameters[:2]]:
        return OwnModel(name, make, (shape, classes), options)
    if asked:
        key = asked[0].name
        raise UserError(f"model '{name}' needs a value for {key}: give it as --set model.{key}=VALUE.")
    return OwnModel(name, make, (), options)


def stated_options(model: OwnModel) -> dict[str, Any]:
    """Return the options that an experiment file can state, without those that follow from the data."""
    return {key: value for key, value in model.options.items() if key not in SHAPE and key not in CLASSES}


def _parameters(name: str, make: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a class or function, or refuse one that does not state them."""
    try:
        return list(inspect.signature(make).parameters.values())
    except (TypeError, ValueError):  # one in C, without a signature
        raise UserError(f"'{name}' does not say what it takes: name a Python function or class.") from None
