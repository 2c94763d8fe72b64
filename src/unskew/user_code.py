"""The user's own code, such as a model or a partition, named as FILE.py:NAME."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from unskew.errors import UserError, unknown


def existing(text: str) -> Path | None:
    """Return the path that a text is, if there is something; None also for a text that cannot be a path, such
    as one that is too long."""
    path = Path(text)
    with contextlib.suppress(OSError, ValueError):
        return path if path.exists() else None
    return None


def is_code(text: str) -> bool:
    """Say whether a text names something in a Python file."""
    return text.partition(":")[0].strip().endswith(".py")


def split_name(text: str) -> tuple[Path, str]:
    """Return the file and the name in it, from FILE.py:NAME."""
    file, _, name = text.strip().partition(":")
    return Path(file.strip()), name.strip()


def absolute_name(text: str) -> str:
    """Return FILE.py:NAME with the absolute path of the file, so that it can be read from any folder."""
    path, name = split_name(text)
    return f"{path.resolve()}:{name}"


def find_name(text: str, what: str) -> object:
    """Return the object that a text such as mine.py:Net names. `what` says in errors what it should be, such
    as a model."""
    path, name = split_name(text)
    module = run_file(path, what)
    callables = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    mine = [key for key in callables if getattr(vars(module)[key], "__module__", None) == module.__name__]
    if not name:
        raise UserError(
            f"'{text}' does not say which {what} of the file: write {path}:{(mine or ['NAME'])[0]}."
        )
    if name not in vars(module):
        if not mine:
            raise UserError(f"{path} defines no '{name}': define it there.")
        raise unknown(f"name in {path}", name, mine)
    return vars(module)[name]


def run_file(path: Path, what: str) -> ModuleType:
    """Run a Python file and return its module. A file that has not changed is not run again."""
    try:
        if not path.is_file():
            raise UserError(f"there is no {what} file {path}: check the path.")
        return _run(path, path.resolve(), path.stat().st_mtime_ns, what)
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"the {what} file {path} cannot be read ({error}): check the path.") from None


@cache
def _run(path: Path, place: Path, changed: int, what: str) -> ModuleType:
    # A name that no other module has, since a file may have the name of a module of the standard library.
    name = f"unskew_{what}_{path.stem}_{hashlib.sha256(os.fsencode(place)).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} cannot be read as a Python file: check it.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that the file's own classes and docstring can be found again
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        message = " ".join(str(error).split()).removesuffix(".")
        raise UserError(f"{path} does not run: {type(error).__name__}: {message}.") from error
    return module


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
