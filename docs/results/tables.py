"""The tables of the pages of results."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from unskew import metrics
from unskew.metrics import Difference
from unskew.metrics.reference import corrected
from unskew.report.differences import points

Key = TypeVar("Key", bound=Hashable)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    whole = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return whole.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")


def star(found: Difference | None) -> str:
    """Return the mark of a difference whose sign is significant."""
    return " \\*" if found is not None and found.settled else ""


def differences(
    of: Mapping[Key, Mapping[int, float | None]],
    heads: Sequence[str],
    rows: Mapping[str, Sequence[tuple[Key, Key]]],
) -> str:
    """Return a table of paired differences in points, with their intervals.

    `of` has a value for each seed of a method, and `rows` the pairs of methods of each row.
    A star marks a sign that is significant after Holm's correction for all differences of the table. Rows
    without a difference are left out.
    """
    compared = {
        pair: one
        for pairs in rows.values()
        for pair in pairs
        if (one := metrics.compare(*(of.get(name, {}) for name in pair))) and one.interval
    }
    found = corrected(compared)
    shown = {
        name: [f"{points(found[pair])}{star(found[pair])}" if pair in found else "-" for pair in pairs]
        for name, pairs in rows.items()
    }
    return table(heads, ([name, *row] for name, row in shown.items() if set(row) != {"-"}))
