"""Dataset specs in text: NAME, NAME:VALUE,…,option=value,…"""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable
from pathlib import Path

from unskew.data.dataset import Dataset
from unskew.errors import UserError, unknown

Value = str | int | float | bool | Path | None
WORDS = {"true": True, "1": True, "false": False, "0": False}


def options_of(load: Callable[..., Dataset]) -> dict[str, inspect.Parameter]:
    """The options of a loader: its keyword-only parameters, in order."""
    parameters = inspect.signature(load, eval_str=True).parameters.values()
    return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}


def parse_options(name: str, load: Callable[..., Dataset], items: list[str]) -> dict[str, Value]:
    """Items VALUE (the options in their order) and then option=value, as arguments for `load`."""
    options = options_of(load)
    if items and not options:
        raise UserError(f"'{name}' has no options: leave out '{','.join(items)}'.")
    parsed: dict[str, Value] = {}
    unnamed = True
    for position, item in enumerate(items):
        key, equals, text = (part.strip() for part in item.partition("="))
        unnamed = unnamed and not equals
        if not equals:
            if not unnamed or position >= len(options) or not key:
                raise UserError(
                    f"'{item}' is out of place in the options of '{name}': give values in the order "
                    f"{', '.join(options)}, then option=value."
                )
            key, text = list(options)[position], key
        if key not in options:
            raise unknown(f"option of '{name}'", key, options)
        if key in parsed:
            raise UserError(f"option '{key}' of '{name}' is given twice: give it once.")
        parsed[key] = convert(text, options[key].annotation, f"option '{key}' of '{name}'")
    for key, option in options.items():
        if option.default is option.empty and key not in parsed:
            raise UserError(f"'{name}' needs {key}=…: add it after a comma.")
    return parsed


def convert(text: str, annotation: object, what: str) -> Value:
    """`text` as the type of a loader's parameter."""
    origin, choices = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):  # X | None
        return None if text.lower() == "none" else convert(text, choices[0], what)
    if origin is typing.Literal:
        if text not in choices:
            raise unknown(f"value of {what}", text, choices)
        return text
    if annotation is bool:
        if text.lower() not in WORDS:
            raise UserError(f"{what} is true or false, not '{text}'.")
        return WORDS[text.lower()]
    if annotation is int:
        try:
            return int(text)
        except ValueError:
            raise UserError(f"{what} is a whole number, not '{text}'.") from None
    if annotation is float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise UserError(f"{what} is a number, not '{text}'.")
        return number
    if annotation is Path:
        return Path(text).expanduser()
    if annotation is str:
        return text
    raise TypeError(f"{what} has the type {annotation}, which cannot be written in a spec")
