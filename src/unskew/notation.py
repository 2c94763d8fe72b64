"""The notation NAME:VALUE,option=value, in which datasets, skews, augmentations and methods are written."""

from __future__ import annotations

import contextlib
import math
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unskew.errors import UserError, unknown

BOOLS = {"true": True, "1": True, "false": False, "0": False}
LARGEST = (1 << 63) - 1
"""The largest whole number that is read: that of an int64."""


@dataclass(frozen=True)
class Item:
    """One of the items after the colon. They are separated by commas."""

    text: str
    """The item as it was written, without the blanks around it."""
    key: str | None
    """The name of the option; None if only a value is given."""
    value: str


@dataclass(frozen=True)
class Option:
    """An option and its type: str, Path, int, float, bool, Literal["a", "b"], a union of one of these with
    Literal or None, or tuple[int, ...] or tuple[str, ...], whose parts are separated by slashes."""

    kind: object
    required: bool


def path_of(text: str) -> Path:
    """Return the path that a user has typed, with ~ for the home folder."""
    if "\0" in text:
        raise UserError(f"{text!r} is no path: no name of a file has a null character.")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UserError(
            f"'{text}' names the home folder of a user that does not exist: write the path out."
        ) from None


def without(signs: str, path: Path) -> str:
    """Return the path as it is written in a run's settings, and refuse one that contains any of these signs,
    since they separate settings there."""
    for sign in signs:
        if sign in str(path):
            raise UserError(
                f"the path {path} contains a '{sign}', which separates settings where those of a run are "
                "written down: use a folder and a file without it."
            )
    return str(path)


def joined(text: str) -> list[str]:
    """Split a text at the plus signs that join parts: those before a letter or before the path of a Python
    file. The plus sign of 1e+3 belongs to the number, and those of c++/data belong to the path."""
    return re.split(r"\+(?=[A-Za-z]|[./~][^+]*\.py:)", text.strip())


def method_parts(text: str) -> list[str]:
    """Split a method at the plus signs that join its parts: all but that of a number such as 1e+3. The names
    of methods and their files have none."""
    return [part.strip() for part in re.split(r"\+(?!\d)|(?<!\d[eE])\+", text)]


def named(text: str) -> tuple[str, str | None]:
    """Return the name before the first colon, and everything after the colon; None if there is no colon."""
    name, colon, rest = text.strip().partition(":")
    return name, rest if colon else None


def items(rest: str | None) -> list[Item]:
    """Return the items of the text after a colon."""
    return [_item(text.strip()) for text in rest.split(",")] if rest else []


def _item(text: str) -> Item:
    key, sign, value = text.partition("=")
    return Item(text, key.strip(), value.strip()) if sign else Item(text, None, text)


def read_options(
    name: str, given: Sequence[Item], options: Mapping[str, Option], unnamed: Sequence[str], path: str = ""
) -> dict[str, typing.Any]:
    """Return the values of the given options, each as its type. The options in `unnamed` may come first, in
    this order and without their names. `path` is what stands between the colon and the options, for
    errors."""
    if given and not options:
        raise UserError(f"{name} has no options: leave out '{','.join(item.text for item in given)}'.")
    values: dict[str, object] = {}
    only_values = True
    for position, item in enumerate(given):
        only_values = only_values and item.key is None
        if item.key is None and (position >= len(unnamed) or not only_values or not item.value):
            first = f"give {', '.join(unnamed)}, then" if unnamed else "write"
            raise UserError(f"'{item.text}' is out of place in the options of {name}: {first} option=value.")
        key = unnamed[position] if item.key is None else item.key
        if key not in options:
            raise unknown(f"option of {name}", key, options)
        if key in values:
            raise UserError(f"{name} is given {key} twice: give it once.")
        values[key] = _value(f"{name} {key}", options[key].kind, item.value)
    for key, option in options.items():
        if option.required and key not in values:
            raise UserError(f"{name} needs a value for {key}: write {name}:{path}{key.upper()}.")
    return values


def _value(what: str, kind: object, text: str) -> object:
    """Return the value of a text as an option's type. `what` names the option in errors."""
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)[0]
        parts = [] if text == "even" and inner is not str else text.split("/")
        return tuple(_value(what, inner, part.strip()) for part in parts)
    fixed, free = _alternatives(kind)
    if text in fixed:
        return fixed[text]
    if free is str:
        return text
    if free is Path:
        return path_of(text)
    if free is bool and text.lower() in BOOLS:
        return BOOLS[text.lower()]
    words = {bool: "true or false", int: "a whole number", float: "a number"}
    if free is int:
        with contextlib.suppress(ValueError):
            whole = int(text)
            if abs(whole) <= LARGEST:
                return whole
            words[int] = "a whole number of reasonable size"
    if free is float:
        with contextlib.suppress(ValueError):
            number = float(text)
            if math.isfinite(number):
                return number
            words[float] = "a finite number"
    if free is None:
        raise unknown(what, text, fixed)
    raise UserError(f"{what} is '{text}' but should be {' or '.join([*map(repr, fixed), words[free]])}.")


def _alternatives(kind: object) -> tuple[dict[str, object], type | None]:
    """Return the fixed texts that a type allows with their values, and the type of every other text; None if
    no other text is allowed."""
    is_union = typing.get_origin(kind) in (types.UnionType, typing.Union)
    fixed: dict[str, object] = {}
    free: type | None = None
    for each in typing.get_args(kind) if is_union else (kind,):
        if typing.get_origin(each) is typing.Literal:
            fixed |= {choice: choice for choice in typing.get_args(each)}
        elif each is types.NoneType:
            fixed["none"] = None
        else:
            free = each
    return fixed, free


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names sorted: as numbers if all are whole numbers, else as texts."""
    names = list(names)
    whole = all(len(text) < 20 and text.removeprefix("-").isdecimal() for text in names)
    return sorted(names, key=lambda text: (int(text), text)) if whole else sorted(names)


NO_HYPERPARAMETERS = {"name", "sha256"}
"""The keys of a method's table that identify its code."""


def write_method(method: Mapping[str, typing.Any]) -> str:
    """Return a method as it can be typed, from its table: name:option=value, with parts joined by +."""
    names = method_parts(method["name"])
    given = {key: value for key, value in method.items() if key not in NO_HYPERPARAMETERS}
    return write_parts({names[0]: given} if len(names) == 1 else {name: given.get(name) for name in names})


def write_parts(parts: Mapping[str, object]) -> str:
    """Return a method as it can be typed, from its parts and the hyperparameters of each."""
    return "+".join(
        f"{name}:{','.join(f'{key}={write_value(value)}' for key, value in options.items())}"
        if options and isinstance(options, dict)
        else name
        for name, options in parts.items()
    )


def write_value(value: object) -> str:
    """Return a value as it can be typed. Equal values give the same text: 1.0 is 1."""
    if isinstance(value, bool):
        return str(value).lower()
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
    return str(int(value)) if whole and isinstance(value, float) else str(value)


def short_paths(paths: Iterable[str]) -> dict[str, str]:
    """Return a short name for each path: the file without its folders. If files have the same name, theirs
    keep as many folders as make all of them different."""
    parts = {path: Path(path).parts for path in paths}
    short: dict[str, str] = {}
    for path, mine in parts.items():
        alike = [other for other in parts.values() if other[-1:] == mine[-1:]]
        length = 1
        while length < len(mine) and len({other[-length:] for other in alike}) < len(set(alike)):
            length += 1
        short[path] = str(Path(*mine[-length:])) if mine else path
    return short


def path_in(text: str) -> str:
    """Return the absolute path at the beginning, or behind the first colon, of a text that names data, a
    skew, a model or a part of a method; an empty text if there is none."""
    name, rest = named(text)
    first = items(rest)
    for each in (name, first[0].text if first else ""):
        if Path(each).is_absolute():
            return each
    return ""


def short_texts(texts: Iterable[str]) -> dict[str, str]:
    """Return a short name for each text that names data, a skew or a model: files without their folders, as
    long as all names remain different."""
    each = {text: joined(text) for text in texts}
    short = short_paths(path for parts in each.values() for part in parts if (path := path_in(part)))
    return {
        text: "+".join(
            part.replace(path, short[path], 1) if (path := path_in(part)) else part for part in parts
        )
        for text, parts in each.items()
    }


def short_data(texts: Iterable[str]) -> dict[str, str]:
    """Return a short name for each text that names data: for the user's own files and folders only their
    name, without the kind and the options, as long as all names remain different."""
    whole = short_texts(texts)
    files = short_paths(path for text in whole for part in joined(text) if (path := path_in(part)))
    brief = {text: "+".join(files.get(path_in(part), part) for part in joined(text)) for text in whole}
    names = list(brief.values())
    return {text: name if names.count(name) == 1 else whole[text] for text, name in brief.items()}


def flatten(table: Mapping[str, typing.Any], above: str = "") -> Iterator[tuple[str, typing.Any]]:
    """Yield the values of nested tables, each with its path, such as budget.lr."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def span(numbers: Iterable[int], dash: str = "–") -> str:
    """Return the smallest and the largest of the numbers with a dash between them, or the number if all are
    equal. There must be at least one."""
    known = sorted(set(numbers))
    return dash.join(str(number) for number in dict.fromkeys((known[0], known[-1])))


def parse_class_groups(text: str) -> list[tuple[int, ...]]:
    """Read groups of classes: `0/6,2/4/6` is (0, 6), (2, 4, 6). A semicolon may replace the comma, since on a
    command line a comma ends an option."""
    groups: list[tuple[int, ...]] = []
    for part in re.split(r"[,;]", text) if text.strip() else []:
        if not re.fullmatch(r"\s*\d+(\s*/\s*\d+)+\s*", part):
            raise UserError(
                f"groups is '{text}' but should list two classes or more per group, such as 0/6,2/4/6."
            )
        group = tuple(sorted({int(label) for label in part.split("/")}))
        if len(group) <= part.count("/"):
            raise UserError(f"groups is '{text}' but names a class twice in a group.")
        if group in groups:
            raise UserError(f"groups is '{text}' but names a group twice.")
        groups.append(group)
    return groups
