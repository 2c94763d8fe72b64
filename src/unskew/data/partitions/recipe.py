"""Read and write partitioners as text: NAME:PARAMETER,option=value."""

from __future__ import annotations

import typing
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

from unskew.notation import Option, items, read_options

T = TypeVar("T")

HIDDEN = "then"
"""The field of a partitioner that holds the next one, which is written after a plus sign."""


def read(name: str, kind: type[T], text: str | None, **hidden: object) -> T:
    """Make a `kind` with the options in `text`: the required ones, which need no name, then option=value."""
    hints = typing.get_type_hints(kind)
    known = {field.name: Option(hints[field.name], _required(field)) for field in _options(kind)}
    required = [key for key, option in known.items() if option.required]
    return kind(**read_options(name, items(text), known, required), **hidden)


def write(name: str, rule: Any, *, brief: bool = False) -> str:
    """Return the text that `read` turns into `rule`: first required fields without their names, then every
    option, or if `brief` only those that differ from what they would be if they were left out."""
    chosen = {field.name: getattr(rule, field.name) for field in fields(rule)}
    written = [
        _text(chosen[field.name]) if _required(field) else f"{field.name}={_text(chosen[field.name])}"
        for field in _options(type(rule))
        if _required(field) or not brief or _matters(rule, field, chosen)
    ]
    return f"{name}:{','.join(written)}" if written else name


def _matters(rule: Any, field: Field[Any], chosen: dict[str, Any]) -> bool:
    """Say whether the rule would be another one without this option, with all others kept."""
    without = type(rule)(**{key: value for key, value in chosen.items() if key != field.name})
    return bool(without != rule)


def _options(kind: type[Any]) -> list[Field[Any]]:
    return [field for field in fields(kind) if field.name != HIDDEN]


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, tuple):
        return "/".join(map(_text, value)) or "even"
    return str(value)
