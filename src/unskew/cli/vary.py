"""--vary of `unskew compare`: the settings that its conditions differ in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from unskew.cli.flags import PATHS
from unskew.errors import UserError
from unskew.report.grouping import FREE_AMONG_SEEDS

NOT_VARIED = {
    "method": "name several methods",
    "seed": "give --seeds",
    "skew.seed": "give --seeds",
    "engine": "results do not depend on it",
    "device": "run it once for each",
    "workers": "results do not depend on it",
    "data": "give --data",
    "checkpoint": "results do not depend on it",
    "probe": "give --probe",
}
"""Flags that conditions cannot differ in, and what to do instead."""


def varied(assignments: Iterable[str]) -> dict[str, list[str]]:
    """Return the values of each flag or setting that --vary names, in order."""
    found: dict[str, list[str]] = {}
    for assignment in assignments:
        name, sign, value = (part.strip() for part in assignment.partition("="))
        if not (name and sign and value):
            raise UserError(
                f"--vary '{assignment}' is not a setting: write name=value, such as skew=shards:2."
            )
        name = name.replace("-", "_") if name.replace("-", "_") in PATHS else name
        name = next((flag for flag, path in PATHS.items() if path == name), name)
        why = NOT_VARIED.get("method" if name.startswith("method.") else name)
        if PATHS.get(name, name) in FREE_AMONG_SEEDS:
            why = why or "runs that differ in it count as one condition"
        if why is not None:
            raise UserError(f"--vary '{assignment}' makes no other condition: {why}.")
        if value in found.get(name, []):
            raise UserError(f"--vary '{assignment}' is given twice: give each value once.")
        found.setdefault(name, []).append(value)
    return found


def refuse_given(
    varied: Mapping[str, object], flags: Mapping[str, object], assignments: Iterable[str]
) -> None:
    """Refuse a setting that both --vary and a flag or --set give."""
    assigned = {assignment.partition("=")[0].strip() for assignment in assignments}
    for name in varied:
        flag = f"--{name.replace('_', '-')}"
        other = flag if flags.get(name) is not None else "--set" if PATHS.get(name, name) in assigned else ""
        if other:
            raise UserError(f"--vary {name} and {other} both give {name}: keep one.")
