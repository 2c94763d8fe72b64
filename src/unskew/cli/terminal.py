"""Printing to the terminal: lines, tables that fit its width, and numbers as text."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

CONTROL_CHARACTERS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
"""Characters that a terminal takes as commands instead of showing them."""
LONGEST_NAME = 24
"""Characters of a class's name in a narrow table."""


def say(line: str) -> None:
    """Print a line to standard error, which keeps standard output for results."""
    screen = Console(stderr=True, highlight=False, markup=False, emoji=False)
    screen.print(line, soft_wrap=not screen.is_terminal)


class Screen(Console):
    """A terminal that shows names and notes from files as plain text: each control character becomes a
    question mark."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text
            shown = text if segment.control or text.isprintable() else CONTROL_CHARACTERS.sub("?", text)
            yield Segment(shown, segment.style, segment.control)


def console() -> Console:
    """Return a console for standard output, as wide as the terminal, or 140 characters without a terminal."""
    width = None if sys.stdout.isatty() else 140
    # No markup: names and paths may hold square brackets.
    return Screen(highlight=False, markup=False, emoji=False, width=width)


@dataclass(frozen=True)
class Grid:
    """A table whose first column names the rows. If it is wider than the terminal it continues below, with
    the names repeated."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str | Text]]
    title: str = ""
    words: int = 0
    """The number of last columns that hold words, which are aligned to the left."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [
            max(cell_len(str(cell)) for cell in column) for column in zip(self.heads, *self.rows, strict=True)
        ]
        name = min(widths[0], options.max_width // 2)
        if self.title:
            yield Text(self.title)
        first = 1
        while first < len(widths):
            last, room = first + 1, options.max_width - name - 2 - widths[first]
            while last < len(widths) and (room := room - 2 - widths[last]) >= 0:
                last += 1
            if first > 1:
                yield Text()
            yield self._part(range(first, last), name)
            first = last

    def _part(self, columns: Sequence[int], name: int) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column(self.heads[0], width=name, overflow="fold")
        for column in columns:
            words = column >= len(self.heads) - self.words
            table.add_column(self.heads[column], justify="left" if words else "right", no_wrap=True)
        for row in self.rows:
            cells = (row[0], *(row[column] for column in columns))
            table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
        return table


def percent(value: float | None, digits: int = 1) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{round(100 * value, digits) + 0.0:.{digits}f}"  # + 0.0: no minus before a zero


def shorten(name: str) -> str:
    """Cut a name to the length that fits into a cell."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def listed(names: Sequence[str], most: int = 4) -> str:
    """List the first names and say how many more there are; return a dash for no names."""
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return ", ".join([*map(shorten, names[:most]), *more]) or "-"
