"""Files of label counts: how many samples of each class every client has."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unskew.errors import UserError
from unskew.skew_words import Counts

MOST = 1 << 53
"""Counts must be below this number, which no client reaches."""
FORM = "a row for each client and a number for each class"
CLIENT_WORDS = "client|site|owner|name|id"
"""Words of which one in a head is enough for a column with the clients' names or numbers."""
PLACE_WORDS = (
    "hospital|clinic|cent(re|er)|user|writer|node|device|party|partie|institut(e|ion)|organi[sz]ation|silo|worker|"
    "participant"
)
"""Words that the whole head must consist of, since classes may be called lymph node or party hat."""
CLIENT_WORD = re.compile(rf"(({CLIENT_WORDS})s?)+", re.IGNORECASE)
"""Matches several words written as one too, such as clientid."""
CLIENT_HEAD = re.compile(rf"(({CLIENT_WORDS}|{PLACE_WORDS})s?)+", re.IGNORECASE)
WORD_ENDS = re.compile(r"[\W\d_]+|(?<=[a-z])(?=[A-Z])")


def read_counts(path: Path) -> Counts:
    """Read label counts, clients by classes, from a CSV or a JSON file.

    CSV: a row for each client. A first row is left out if it has names or the classes' numbers. A first
    column is left out if it has names, or if its head is blank or a word such as client.

    JSON: a list of such rows, or an object that has them under "counts", as in partition.json of a run folder
    and in the output of `unskew skew --json`; or an object of clients, each with its row, or with a number
    for every class by name. If the first name is a word such as client, its numbers are left out.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"there is no file {path}: check the path.") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder: name a file of counts, CSV or JSON.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text: give counts as CSV or JSON.") from None
    rows = _json(text, path) if path.suffix.lower() == ".json" else _csv(text, path)
    return check_counts(rows, str(path))


def check_counts(rows: Sequence[Sequence[Any]], what: str) -> Counts:
    """Check rows of label counts and return them as an array; `what` names their source in errors."""
    try:
        listed = [list(row) for row in rows]
    except TypeError:
        raise UserError(f"{what} is no table of counts: give {FORM}.") from None
    if not listed or not listed[0]:
        raise UserError(f"{what} has no counts: give {FORM}.")
    for number, row in enumerate(listed, 1):
        if len(row) != len(listed[0]):
            raise UserError(
                f"client {number} of {what} has {len(row)} count{'s' * (len(row) != 1)} and client 1 has "
                f"{len(listed[0])}: give one for every class, 0 where a client has none."
            )
        for count in row:
            _check(count, number, what)
    counts = np.array([[int(count) for count in row] for row in listed], dtype=np.int64)
    if counts.shape[1] < 2:
        raise UserError(f"{what} has one class: give counts of two or more.")
    if not counts.any():
        raise UserError(f"{what} has no samples: give counts above 0.")
    return counts


def notes_on(counts: Counts) -> list[str]:
    """Return a sentence on each doubt about label counts that can be used."""
    first, clients = counts[:, 0].tolist(), len(counts)
    start = next((start for start in (0, 1) if first == list(range(start, start + clients))), None)
    if clients < 2 or start is None:
        return []
    return [
        f"the first column counts {start} to {first[-1]} and was taken for a class: if it numbers the "
        "clients, leave it out."
    ]


def _check(count: Any, client: int, what: str) -> None:
    try:
        whole = not isinstance(count, bool | str) and int(count) == count and abs(count) < MOST
    except (TypeError, ValueError, OverflowError):
        whole = False
    if not whole:
        raise _no_count(count, client, what)
    if count < 0:
        raise UserError(f"client {client} of {what} has the count {count} but should have 0 or more.")


def _no_count(count: object, client: int, what: str) -> UserError:
    shown = f"{count!r}"[:40]
    return UserError(f"client {client} of {what} has the count {shown} but should have a whole number.")


def _json(text: str, path: Path) -> Sequence[Sequence[object]]:
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise UserError(f"{path} is not valid JSON: give a list with {FORM}.") from None
    if isinstance(content, dict):
        content = content["counts"] if "counts" in content else list(content.values())
    if isinstance(content, list) and content and all(isinstance(row, dict) for row in content):
        classes = dict.fromkeys(name for row in content for name in row)
        first = next(iter(classes), None)
        if first is not None and _is_client_head(first) and all(first in row for row in content):
            del classes[first]
        content = [[row.get(name, 0) for name in classes] for row in content]
    if not isinstance(content, list) or not all(isinstance(row, list) for row in content):
        raise UserError(f"{path} holds no counts: give a list with {FORM}.")
    return content


def _csv(text: str, path: Path) -> Sequence[Sequence[object]]:
    first = text.partition("\n")[0]
    separator = next((each for each in (",", ";", "\t") if each in first), ",")
    try:
        rows = [row for row in csv.reader(text.splitlines(), delimiter=separator) if any(map(str.strip, row))]
    except csv.Error as error:
        raise UserError(f"{path} is no CSV file ({error}): give {FORM}.") from None
    heads = rows[0] if rows else []
    headed = bool(rows) and _is_head(heads, rows[1:])
    rows = rows[1:] if headed else rows
    if headed and _is_client_head(heads[0]):
        for number, row in enumerate(rows, 1):
            if not row[0].strip():
                raise _no_count("", number, str(path))
        rows = [row[1:] for row in rows]
    elif rows and all(_is_name(row[0]) for row in rows):
        rows = [row[1:] for row in rows]
    for number, row in enumerate(rows, 1):
        # Blanks come first, since they may be the cause of other errors.
        for cell in sorted(row, key=lambda cell: bool(cell.strip())):
            if _number(cell) is None:
                raise _no_count(cell.strip(), number, str(path))
    return [[_number(cell) for cell in row] for row in rows]


def _is_head(heads: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Say whether a first row has the classes' names or numbers, and not counts.

    Its first cell may be blank or the head of a column with the clients' names.
    """
    corner, numbers = heads[0].strip(), [_number(cell) for cell in heads]
    if all(map(_is_name, heads[1:])):
        return _is_name(corner) or (len(heads) > 1 and not any(sign.isdigit() for sign in corner))
    if not corner or _has_only_client_words(corner):
        over_numbers = bool(corner and below) and all(_number(row[0]) is not None for row in below)
        return _consecutive(numbers[1:]) or (over_numbers and None not in numbers[1:])
    return _counted(numbers)


def _is_name(cell: str) -> bool:
    """Say whether a cell has a name: letters, or numbers with a sign between them, as in 2020-01.

    Numbers, numbers that cannot be read, such as 1,000 or <5, and blanks are no names.
    """
    written = any(sign.isalpha() for sign in cell) or re.search(r"\d[-–/:]\d", cell) is not None
    return written and _number(cell) is None


def _consecutive(numbers: Sequence[float | None]) -> bool:
    """Say whether the cells after the first are the numbers of the classes, counted from 0 or from 1."""
    return len(numbers) > 1 and list(numbers) in (
        list(range(len(numbers))),
        list(range(1, len(numbers) + 1)),
    )


def _counted(numbers: Sequence[float | None]) -> bool:
    """Say whether all cells together are the numbers of the classes, counted from 0."""
    return len(numbers) > 2 and list(numbers) == list(range(len(numbers)))


def _has_only_client_words(head: str) -> bool:
    """Say whether a head has only words for clients, and is not the name of one, such as site A or site 1."""
    return _all_client_words(head) and not any(sign.isdigit() for sign in head)


def _all_client_words(head: str) -> bool:
    words = [word for word in WORD_ENDS.split(head) if word]
    return bool(words) and all(CLIENT_HEAD.fullmatch(word) for word in words)


def _is_client_head(head: str) -> bool:
    """Say whether the head of the first column means that it has the clients' names or numbers.

    The head is read word by word: site_name, siteName and site name have the same words, and a class may be
    called covid or width.
    """
    one_word = any(CLIENT_WORD.fullmatch(word) for word in WORD_ENDS.split(head))
    return one_word or _all_client_words(head) or not head.strip()


def _number(cell: str) -> float | int | None:
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return None
