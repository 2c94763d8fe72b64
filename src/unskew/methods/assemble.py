"""Methods made from names: one by name, several combined, or one from a user's own file."""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Mapping
from functools import reduce
from operator import add
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from unskew.errors import UserError, unknown
from unskew.method import Method
from unskew.methods import METHODS
from unskew.methods.card import Card, MakeMethod, OptionValue, card_of
from unskew.notation import NO_HYPERPARAMETERS
from unskew.program import Program
from unskew.spec import is_but_should_be
from unskew.user_code import existing, run_file

ENDINGS = "experiment files end in .toml, and files with a method of your own in .py"


def assemble(
    parts: Mapping[str, Mapping[str, OptionValue]],
) -> tuple[Method | Program, dict[str, dict[str, OptionValue]]]:
    """Make the methods of these names with these hyperparameters, combine them, and return them with all
    hyperparameters, also those at their defaults."""
    made: list[Method | Program] = []
    resolved: dict[str, dict[str, OptionValue]] = {}
    for name, given in parts.items():
        card = find(name)
        resolved[name] = fill(name, card, given)
        made.append(card(**resolved[name]))
        if not isinstance(made[-1], Method | Program):
            raise UserError(f"'{name}' returned a {type(made[-1]).__name__}: it should return a Method.")
    try:
        return reduce(add, made), resolved
    except UserError as error:
        raise UserError(f"{'+'.join(parts)}: {error}") from None


def find(name: str) -> Card:
    """Find a method by its name: one of METHODS, one of a file, such as mine.py, or an importable function,
    such as lab.mine.mine."""
    if name in METHODS:
        return METHODS[name]
    path = existing(name)
    if path and path.is_dir():
        raise UserError(f"{name} is a folder and no method: see `unskew methods`.")
    if not name.endswith(".py") and ("/" in name or path):
        what = f"{name} is no method" if path else f"there is no file {name}"
        raise UserError(f"{what}: {ENDINGS}.")
    if "." not in name or name.replace(".", "").isdigit():
        raise unknown("method", name, METHODS)
    own = card_of(_from_file(Path(name)) if name.endswith(".py") else _from_import(name), name)
    _check_hyperparameters(own)
    return own


def _check_hyperparameters(own: Card) -> None:
    """Refuse a method whose arguments cannot be written as settings."""
    for key, each in inspect.signature(own.make).parameters.items():
        if each.kind not in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD):
            raise UserError(
                f"'{own.name}' takes {each}, which cannot be a hyperparameter: name each of them, with "
                "a default, such as *, mu: float = 0.1."
            )
        if not isinstance(each.default, OptionValue):
            found = "no default" if each.default is each.empty else f"the default {each.default!r}"
            raise UserError(
                f"the hyperparameter {key} of '{own.name}' has {found}: give it one that is a number, a text "
                f"or a bool, such as {key}: float = 0.1."
            )
        if key in NO_HYPERPARAMETERS:
            raise UserError(
                f"'{own.name}' has a hyperparameter called {key}, which settings use for something else: "
                "choose another name."
            )


def fill(name: str, card: Card, given: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
    """Return all hyperparameters of a method, with the given values checked against the constructor's
    types."""
    options, kinds = card.options, typing.get_type_hints(card.make)
    for key, value in given.items():
        if not options:
            raise UserError(f"method '{name}' has no hyperparameters: remove {key}.")
        if key not in options:
            raise unknown(f"hyperparameter of {name}", key, options)
        try:
            options[key] = TypeAdapter(kinds.get(key) or _kind(options[key])).validate_python(
                value, strict=True
            )
        except ValidationError as error:
            raise UserError(f"{key} of {name} {is_but_should_be(error)}") from None
    return options


def _kind(default: OptionValue) -> typing.Any:
    """Return the type of a hyperparameter without an annotation, from its default."""
    return int | float if type(default) is int else type(default)


def _from_file(path: Path) -> MakeMethod:
    """Return the function that is named like the file, or the only public one defined in it."""
    module = run_file(path, "method")
    functions = {
        each: value
        for each, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not each.startswith("_")
    }
    if path.stem in functions:
        return functions[path.stem]
    if len(functions) == 1:
        return next(iter(functions.values()))
    raise UserError(f"{path} defines {len(functions)} functions: let one be named {path.stem}, the method.")


def _from_import(name: str) -> MakeMethod:
    """Return the function of this name from an importable module."""
    module_name, _, function = name.rpartition(".")
    try:
        make = getattr(importlib.import_module(module_name), function)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise UserError(f"method '{name}' cannot be imported: {error}.") from None
        raise UserError(f"there is no file {name} and no module {error.name}: {ENDINGS}.") from None
    except Exception as error:  # whatever the module does when it is imported
        raise UserError(f"method '{name}' cannot be imported: {error}.") from None
    try:
        plain = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # no function, or one without a signature
        raise UserError(f"'{name}' is not a method: name a function that returns one.") from None
    if any(each.kind is not each.KEYWORD_ONLY for each in plain):
        raise UserError(f"'{name}' is not a method: let its arguments be keyword-only hyperparameters.")
    return typing.cast(MakeMethod, make)
