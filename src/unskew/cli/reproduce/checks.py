"""Checks of the options of `unskew reproduce`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

from unskew.errors import UserError, unknown
from unskew.reproduce import READINGS, Cell, PublishedTable, Reading, experiment
from unskew.reproduce.published import check_reading
from unskew.reproduce.version import Version
from unskew.trial import Precision

BOTH = "both"
OPTIONS = (
    "cell", "seeds", "reading", "rounds", "fraction", "engine", "device", "workers", "precision", "fast",
    "checkpoint", "out", "data", "log",
)  # fmt: skip
"""All options of a run."""
USED = {
    "--list": ("data",),
    "--show": ("cell", "reading", "rounds", "fraction", "precision", "fast", "out"),
    "--write": (
        "cell", "seeds", "reading", "rounds", "fraction", "engine", "device", "workers", "precision", "fast",
        "checkpoint", "data",
    ),
}  # fmt: skip
"""The options of a run that --list, --show and --write use, which run nothing."""


def refuse_idle(modes: Mapping[str, bool], values: Mapping[str, object]) -> None:
    """Refuse several of --list, --show and --write together, and options that the given one does not use.

    `modes` says which of them is given, `values` has all options of the command.
    """
    given = [mode for mode, is_given in modes.items() if is_given]
    if len(given) > 1:
        raise UserError(f"{', '.join(given)} cannot be combined: keep one.")
    for mode in given:
        given_options = (name for name in OPTIONS if values[name] not in (None, False, [], ()))
        idle = [f"--{name}" for name in given_options if name not in USED[mode]]
        if idle:
            does, them = ("do", "them") if len(idle) > 1 else ("does", "it")
            raise UserError(f"{', '.join(idle)} {does} nothing with {mode}: leave {them} out.")


def parse_version(rounds: str | None, fraction: str | None, precision: str | None, *, fast: bool) -> Version:
    """Check --rounds, --fraction and --precision, and return the version of tables that they ask for."""
    number = None if rounds is None else _number("--rounds", rounds)
    share = None if fraction is None else _number("--fraction", fraction)
    if number is not None and not (number >= 1 and number.is_integer()):
        raise UserError(f"--rounds is {rounds} but should be a whole number of at least 1.")
    if share is not None and not 0 < share < 1:
        raise UserError(f"--fraction is {fraction} but should be a share between 0 and 1, such as 0.1.")
    if precision is not None and precision not in get_args(Precision):
        raise unknown("precision", precision, get_args(Precision))
    return Version(None if number is None else int(number), share, precision or Version.precision, fast)


def check_fewer_rounds(wanted: Iterable[tuple[Cell, Reading]], version: Version) -> None:
    """Refuse a smaller version that has as many rounds as published for some cell, or more."""
    for cell, reading in wanted:
        if version.rounds is None or cell.not_runnable:
            continue
        published = experiment(cell, reading)["budget"]["rounds"]
        if version.rounds >= published:
            raise UserError(
                f"--rounds is {version.rounds} but {cell.id} is published with {published}: ask for fewer, "
                "leave --rounds out, or choose other cells with --cell."
            )


def _number(flag: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{flag} is '{text}' but should be a number.") from None


def choose_readings(table: PublishedTable, asked: str | None) -> tuple[Reading, ...]:
    """Check --reading, and return the readings of a table that it asks for."""
    if asked is not None and asked not in (*READINGS, BOTH):
        raise unknown("reading", asked, (*READINGS, BOTH))
    return table.readings if asked == BOTH else (check_reading(table, asked),)
