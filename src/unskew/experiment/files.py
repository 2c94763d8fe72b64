"""Experiment files, and which of the user's own code they may run."""

from __future__ import annotations

import contextlib
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from unskew.errors import UserError
from unskew.experiment.settings import absolute_method, skew_code
from unskew.notation import (
    method_parts,
    named,
    write_method,
)
from unskew.user_code import absolute_name, is_code


def read(path: Path) -> dict[str, Any]:
    """Read the settings of an experiment file without checking them."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no experiment file {path}: check the path.") from None
    except IsADirectoryError:
        files = (path / "experiment.toml", *sorted(path.glob("best/*.toml")), *sorted(path.glob("*.toml")))
        found = next((f", such as {each}" for each in files if each.is_file()), " of an experiment")
        raise UserError(f"{path} is a folder: name a file{found}.") from None
    except OSError as error:
        raise UserError(f"the experiment file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"the experiment file {path} is not text: write it as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"the experiment file {path} is not valid TOML: {error}; fix it.") from None
    except (ValueError, RecursionError):  # a number of thousands of digits, or tables in tables without end
        raise UserError(
            f"the experiment file {path} contains an invalid value, such as a number of thousands of "
            "digits or tables nested too deeply: fix it."
        ) from None


def refuse_code(
    settings: Mapping[str, Any],
    path: Path,
    methods: Iterable[str] | None = (),
    model: str | None = "",
    skew: str | None = "",
) -> None:
    """Refuse to run code that somebody else's experiment file names: its method, model and partition must be
    unskew's own, or those given here as trusted. None means that nothing of this kind will run."""
    if methods is not None:
        _refuse_methods(settings, path, methods)
    for what, key, trusted in (("model", "name", model), ("skew", "recipe", skew)):
        code = _code_in(what, settings.get(what), key)
        if trusted is None or not code or code == _code_in(what, {key: trusted}, key):
            continue
        raise UserError(
            f"{path} names the {what} '{settings[what][key]}', whose code would run: if you trust it, give "
            f"it yourself, as --{what} {shlex.quote(settings[what][key])}."
        )


def _code_in(what: str, table: object, key: str) -> str:
    """Return the user's own model or partition that the settings name, with its absolute path; an empty text
    if there is none."""
    name = table.get(key) if isinstance(table, dict) else None
    if not isinstance(name, str):
        return ""
    if what == "skew":
        with contextlib.suppress(UserError):  # refused when it is read
            name = skew_code(name)
    return absolute_name(name) if is_code(name) else ""


def _refuse_methods(settings: Mapping[str, Any], path: Path, trusted: Iterable[str]) -> None:
    known = {absolute_method(named(each)[0]) for text in trusted for each in method_parts(text)}
    table = settings.get("method")
    name = table.get("name") if isinstance(table, dict) else None
    if isinstance(name, str) and (
        own := [part for part in method_parts(name) if "." in part and absolute_method(part) not in known]
    ):
        raise UserError(
            f"{path} names the method '{own[0]}', whose code would run: if you trust it, give it yourself, "
            f"as --method {shlex.quote(write_method(settings['method']))}."
        )
