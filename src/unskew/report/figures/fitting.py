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
"""Letters: more would not fit on a page."""


def clean(text: str) -> str:
    """Text from a run without the characters that no figure can hold: of control, or half of a pair. Of a
    long one the beginning and the end, which are all that could be shown."""
    if len(text) > LONGEST_TEXT:
        text = f"{text[: 2 * LONGEST_TEXT // 3]}…{text[-LONGEST_TEXT // 3 :]}"
    return "".join(" " if unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") else each for each in text)


@functools.lru_cache(maxsize=4096)
def text_width(text: str, size: float) -> float:
    """Inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(
        text, FontProperties(family="DejaVu Sans", size=size), ismath=False
    )
    return float(width) / 72


def fit(text: str, inches: float, size: float = SMALL) -> str:
    """The text, or as much of its beginning and end as fits."""
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
    """The text in lines that fit, two at most, broken behind a comma where that will do."""
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
    """All names so short that they fit; where two would look the same, with their numbers."""
    short = [fit(name, inches, size) for name in names]
    twins = {name for name in short if short.count(name) > 1}
    return [
        f"{index} {fit(name, inches - text_width(f'{index} ', size), size)}"
        if short[index] in twins
        else name
        for index, name in zip(range(len(short)), short, strict=True)
    ]


def panel_titles(names: Sequence[str], inches: float) -> list[str]:
    """A title for each panel of this width: on one line where they stay apart so, else on two."""
    short = [fit(name, inches, NORMAL) for name in names]
    return short if len(set(short)) == len(set(names)) else [wrap(name, inches, NORMAL) for name in names]


def name_ticks(axis: Axis, names: Sequence[str], cell: float, *, across: bool = False) -> None:
    """A name at every cell of so many inches, or at every second, third ... where they would overlap.
    `across`: written along the axis, not at right angles to it."""
    room = max((text_width(name, SMALL) for name in names), default=0.0) + 0.06 if across else PITCH
    step = max(math.ceil(room / cell - 1e-9), 1)
    axis.set_ticks(range(0, len(names), step), list(names[::step]))


def name_below(axes: Axes, names: Sequence[str], cell: float) -> None:
    """Names under cells of so many inches: upright where they fit, else turned."""
    upright = max(text_width(name, SMALL) for name in names) + 0.06 <= cell
    name_ticks(axes.xaxis, names, cell, across=upright)
    axes.tick_params(axis="x", rotation=0 if upright else 90)
