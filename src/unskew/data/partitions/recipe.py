"""Partitioners as text: NAME:PARAMETER,option=value. Options are read in any order and printed all."""

from __future__ import annotations

import typing
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

from unskew.errors import UserError, unknown

T = TypeVar("T")

HIDDEN = "then"
"""The field of a partitioner that holds another one; it is written after a plus sign."""


def read(name: str, kind: type[T], text: str, **hidden: object) -> T:
    """A `kind` with the options in `text`: first the required ones, which need no name, then option=value."""
    known = {field.name: field for field in _options(kind)}
    required = [key for key, field in known.items() if _required(field)]
    hints = typing.get_type_hints(kind)
    values: dict[str, object] = {}
    for position, item in enumerate(text.split(",") if text else ()):
        key, sign, value = item.partition("=")
        if not sign:
            if position >= len(required) or position != len(values):
                raise UserError(
                    f"{name} does not take the bare value '{item.strip()}' there: write option=value."
                )
            key, value = required[position], item
        key, value = key.strip(), value.strip()
        if not known:
            raise UserError(f"{name} has no options: remove '{item}'.")
        if key not in known:
            raise unknown(f"option of {name}", key, known)
        if key in values:
            raise UserError(f"{name} is given {key} twice: keep one.")
        values[key] = _value(f"{name} {key}", hints[key], value)
    for key in required:
        if key not in values:
            raise UserError(f"{name} needs a value for {key}: write {name}:{key.upper()}.")
    return kind(**values, **hidden)


def write(name: str, rule: Any, *, brief: bool = False) -> str:
    """The text that `read` turns into `rule`: required fields first without their names, then every option,
    or in brief those that are not what they would be anyway."""
    chosen = {field.name: getattr(rule, field.name) for field in fields(rule)}
    plain = type(rule)(**{field.name: chosen[field.name] for field in fields(rule) if _required(field)})
    items = [
        _text(chosen[field.name]) if _required(field) else f"{field.name}={_text(chosen[field.name])}"
        for field in _options(type(rule))
        if _required(field) or not brief or chosen[field.name] != getattr(plain, field.name)
    ]
    return f"{name}:{','.join(items)}" if items else name


def _options(kind: type[Any]) -> list[Field[Any]]:
    return [field for field in fields(kind) if field.name != HIDDEN]


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING


def _value(what: str, hint: Any, text: str) -> object:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        choices = typing.get_args(hint)
        if text not in choices:
            raise unknown(what, text, choices)
        return text
    if origin is tuple:
        parts = [] if text == "even" else text.split("/")
        return tuple(_value(what, typing.get_args(hint)[0], part) for part in parts)
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise UserError(f"{what} is '{text}' but should be true or false.")
        return text.lower() == "true"
    try:
        return hint(text)
    except ValueError:
        kind = {int: "a whole number", float: "a number"}[hint]
        raise UserError(f"{what} is '{text}' but should be {kind}.") from None


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, tuple):
        return "/".join(map(_text, value)) or "even"
    return str(value)
