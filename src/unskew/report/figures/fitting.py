"""Texts that fit into their place: how wide they are, how they are cut, and where they are broken."""

from __future__ import annotations

import functools
import math
import textwrap
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from unskew.report.figures.style import NORMAL, PITCH, SMALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

LONGEST_TEXT = 300
"""Texts with more letters are cut, since they would not fit on a page."""


def clean(text: str) -> str:
    """Return text from a run without control characters and surrogates, which no figure can hold.

    A long text is cut to its beginning and end, since no more could be shown.
    """
    if len(text) > LONGEST_TEXT:
        text = f"{text[: 2 * LONGEST_TEXT // 3]}…{text[-LONGEST_TEXT // 3 :]}"
    return "".join(" " if unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") else each for each in text)


@functools.lru_cache(maxsize=4096)
def text_width(text: str, size: float) -> float:
    """Measure the width of a text in inches, for a font size in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(
        text, FontProperties(family="DejaVu Sans", size=size), ismath=False
    )
    return float(width) / 72


def fit(text: str, inches: float, size: float = SMALL) -> str:
    """Return the text, or as much of its beginning and end as fits into a width."""
    text = clean(text)
    if text_width(text, size) <= inches:
        return text
    for kept in range(len(text) - 1, 1, -1):
        tail = kept // 3
        shorter = f"{text[: kept - tail]}…{text[len(text) - tail :]}"
        if text_width(shorter, size) <= inches:
            return shorter
    return "…"


def wrap(text: str, inches: float, size: float) -> str:
    """Break a text into at most two lines that fit into a width, after a comma if possible."""
    text = clean(text)
    if text_width(text, size) <= inches:
        return text
    for place in range(len(text) - 2, 0, -1):
        first, rest = text[: place + 1], text[place + 2 :]
        if (
            text[place : place + 2] == ", "
            and max(text_width(part, size) for part in (first, rest)) <= inches
        ):
            return f"{first}\n{rest}"
    letters = max(int(len(text) * inches / text_width(text, size)) - 2, 1)
    lines = textwrap.wrap(text, letters, break_long_words=False, break_on_hyphens=False)
    return "\n".join(fit(line, inches, size) for line in [*lines[:1], " ".join(lines[1:])] if line)


def distinct(names: Sequence[str], inches: float, size: float = SMALL) -> list[str]:
    """Shorten names to a width; names that would then look the same begin with their numbers."""
    short = [fit(name, inches, size) for name in names]
    twins = {name for name in short if short.count(name) > 1}
    return [
        f"{index} {fit(name, inches - text_width(f'{index} ', size), size)}"
        if short[index] in twins
        else name
        for index, name in zip(range(len(short)), short, strict=True)
    ]


def panel_titles(names: Sequence[str], inches: float) -> list[str]:
    """Return a title for each panel: on one line if the titles differ when they are cut, and else on two."""
    short = [fit(name, inches, NORMAL) for name in names]
    return short if len(set(short)) == len(set(names)) else [wrap(name, inches, NORMAL) for name in names]


def name_ticks(axis: Axis, names: Sequence[str], cell: float, *, across: bool = False) -> None:
    """Write a name at every cell, or at every second, third and so on if they would overlap.

    `cell` is the width of a cell in inches. With `across`, names are written along the axis instead of at
    right angles to it.
    """
    room = max((text_width(name, SMALL) for name in names), default=0.0) + 0.06 if across else PITCH
    step = max(math.ceil(room / cell - 1e-9), 1)
    axis.set_ticks(range(0, len(names), step), list(names[::step]))


def name_below(axes: Axes, names: Sequence[str], cell: float) -> None:
    """Write names below cells of a width in inches: horizontally if they fit, and else turned."""
    upright = max(text_width(name, SMALL) for name in names) + 0.06 <= cell
    name_ticks(axes.xaxis, names, cell, across=upright)
    axes.tick_params(axis="x", rotation=0 if upright else 90)
