"""Errors for the user, each with a message of one sentence."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input. The message is one sentence that says what is wrong and what to do; the command line
    prints it and exits with code 2."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with a message that says what is kept."""


def require(condition: bool, sentence: str) -> None:
    """Raise a UserError with this sentence unless the condition holds."""
    if not condition:
        raise UserError(sentence)


def whole_number(name: str, value: object, least: int | None = 0) -> int:
    """Return a value as an int, or raise a UserError if it is not a whole number of at least `least`. Whole
    numbers of NumPy are accepted; `name` is for the error."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise UserError(f"{name} is {value!r} but should be a whole number.") from None
    require(least is None or number >= least, f"{name} is {number} but should be {least} or more.")
    return number


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Return the error for a name that is not among `known`. It suggests the most similar known name, or
    lists all if none is similar."""
    names = sorted(set(known))
    near = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1, cutoff=0.6)
    if near:
        match = next(n for n in names if n.lower() == near[0])
        return UserError(f"unknown {kind} '{name}': did you mean '{match}'?")
    return UserError(f"unknown {kind} '{name}': choose one of {', '.join(names)}.")
