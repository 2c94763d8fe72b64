"""Errors for the user, each with a message of one sentence."""

from __future__ import annotations

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
    """Return the error for a name that is not among `known`. It suggests the known name that was probably
    meant, or lists all if none is similar enough."""
    names = sorted(set(known))
    if (match := nearest(name, names)) is not None:
        return UserError(f"unknown {kind} '{name}': did you mean '{match}'?")
    return UserError(f"unknown {kind} '{name}': choose one of {', '.join(names)}.")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a mistyped one probably means; None if none is similar enough.

    One typing error is allowed for every four letters, and one in a name of three. A name may also be cut
    short, or be longer than the known one, if half of it is there and no other known name fits as well.
    """
    typed, names = name.lower(), {each.lower(): each for each in known}
    errors = {each: typing_errors(typed, each) for each in names}
    allowed = 0 if len(typed) < 3 else max(1, len(typed) // 4)
    close = [each for each in names if errors[each] <= allowed]
    if close:
        return names[max(close, key=lambda each: (-errors[each], each))]
    begun = sorted((each for each in names if each.startswith(typed)), key=len)
    if begun and not all(each.startswith(begun[0]) for each in begun):
        return None
    for each in [*begun, *sorted(filter(typed.startswith, names), key=len, reverse=True)]:
        shorter, longer = sorted((len(each), len(typed)))
        if shorter >= max(3, longer / 2):
            return names[each]
    return None


def typing_errors(typed: str, meant: str) -> int:
    """Count the letters that were left out, added, replaced or swapped with the next one."""
    before, row = list[int](), list(range(len(meant) + 1))
    for at, letter in enumerate(typed):
        earlier, before, row = before, row, [at + 1]
        for place, other in enumerate(meant):
            least = min(before[place] + (letter != other), before[place + 1] + 1, row[place] + 1)
            if at and place and letter == meant[place - 1] and typed[at - 1] == other:
                least = min(least, earlier[place - 1] + 1)
            row.append(least)
    return row[-1]
