"""Names of files, classes and columns, as they stand in errors and notes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from unskew.errors import UserError


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return the names of folders, and of files without their suffix, each with as many parent folders as it
    takes to make all of them different."""
    resolved = [path.resolve() for path in paths]
    if len(set(resolved)) < len(resolved):
        twice = next(path for path, each in zip(paths, resolved, strict=True) if resolved.count(each) > 1)
        raise UserError(f"{twice} is named twice: name every part once.")
    full = [Path(os.path.abspath(path)) for path in paths]  # noqa: PTH100 (a link keeps its name)
    short = [path if path.is_dir() else path.with_suffix("") for path in full]
    whole = short if len(set(short)) == len(short) else full
    depth = 1
    while len({path.parts[-depth:] for path in whole}) < len(whole):
        depth += 1
    return ["/".join(path.parts[-depth:]) for path in whole]


def shortened(names: Iterable[str], most: int = 6) -> str:
    """Join the first names by commas, and say how many more there are."""
    names = list(names)
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join([*names[:most], *more])
