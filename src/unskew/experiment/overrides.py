"""Settings from the command line, put into those of a file."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any

from unskew.errors import UserError
from unskew.methods import METHODS
from unskew.notation import (
    items,
    method_parts,
    named,
)


def assign(settings: dict[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """Return the settings with `path=value` pairs such as budget.rounds=5 put in. A value is read as TOML, or
    as plain text if it is not valid TOML."""
    settings = copy.deepcopy(settings)
    for assignment in assignments:
        path, sign, text = assignment.partition("=")
        if not sign or not path:
            raise UserError(f"'{assignment}' is not a setting: write path=value, such as budget.rounds=5.")
        text = text.strip()
        try:
            (value,) = tomllib.loads(f"value = {text}").values()
        except (ValueError, RecursionError):  # not TOML, or more than one value
            value = text
        put(settings, path.strip().split("."), value)
    return settings


def method_table(text: str) -> dict[str, Any]:
    """Read `NAME`, `NAME:option=value,option=value`, or several of these joined by +, as the [method] table
    of an experiment."""
    if text.strip().endswith(","):
        raise UserError(f"'{text}' ends with a comma: separate methods by spaces alone.")
    if len(several := _methods_in(text)) > 1:
        raise UserError(
            f"'{text}' names several methods: separate them by spaces, as in unskew compare "
            f"{' '.join(several)}."
        )
    parts = [named(part) for part in method_parts(text)]
    if not all(name for name, _ in parts):
        raise UserError(
            f"--method is '{text}' but a name is missing: write one, or several joined by +, which no path "
            "may have."
        )
    for name, options in parts:
        if name.endswith(".toml"):
            raise UserError(
                f"'{name}' is an experiment file and no method: give it to `unskew run` as {name}, and to "
                f"compare and tune as --experiment {name}."
            )
        if options == "" or any(item.key is None for item in items(options)):
            raise UserError(f"'{name}:{options}' is not a method: write {name}, or {name}:option=value.")
        if any(item.key == "name" for item in items(options)):
            raise UserError(f"'{name}:{options}' gives {name} a name: leave it out, as no hyperparameter is.")
    tables = {name: assign({}, [item.text for item in items(options)]) for name, options in parts}
    name = "+".join(name for name, _ in parts)
    return {"name": name, **(tables[name] if len(parts) == 1 else tables)}


def _methods_in(text: str) -> list[str]:
    """Split a text at the commas that separate methods, and not the hyperparameters of one."""
    found: list[str] = []
    for part in map(str.strip, text.split(",")):
        name = re.split(r"[:+]", part)[0]
        if not found or name in METHODS or found[-1] in METHODS:
            found.append(part)
        else:
            found[-1] += f",{part}"
    return found if re.split(r"[:+]", found[0])[0] in METHODS else [text]


def put(settings: dict[str, Any], path: Sequence[str], value: object) -> None:
    """Set the value at a path through the tables of settings."""
    *parents, key = path
    for parent in parents:
        settings = settings.setdefault(parent, {})
        if not isinstance(settings, dict):
            raise UserError(f"'{'.'.join(path)}' is not a setting: {parent} is a value, not a table.")
    settings[key] = value
