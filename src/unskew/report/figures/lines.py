"""The lines and points of methods and classes, which can be told apart without colour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from unskew.report.looks import COLOURS, MARKERS, PlotStyle

if TYPE_CHECKING:
    from matplotlib.lines import Line2D


def line_style(look: PlotStyle) -> dict[str, Any]:
    """A method's line: its colour, and in grey its dash and its marker. Lines with gaps lie above those with
    fewer, so that of two that are the same both are seen."""
    gaps = sum(look.dash[1::2]) / sum(look.dash) if look.dash else 0.0
    return {
        "color": look.light,
        "linestyle": (0, look.dash) if look.dash else "-",
        "marker": look.marker,
        "markeredgewidth": 0.9,
        "zorder": 2 + gaps,
    }


def line_key(look: PlotStyle) -> Line2D:
    """The sample of a method's line in a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **line_style(look), markersize=3.8, markerfacecolor="white")


def mark_places(points: int, index: int, lines: int, inches: float) -> dict[str, Any]:
    """Where the index-th of so many lines has its markers: two to six of them, at points where no other line
    has one, as far as there are so many points; further lines have larger markers, around those of others."""
    room = max(int(inches / 0.095), 1)  # markers side by side
    each = int(np.clip(min(room, points) // lines, 2 if points >= 4 else 1, 6))
    step = max(points // each, 1)
    ring, place = divmod(index, min(lines, step))
    start = place * step // min(lines, step)
    inner = {"markerfacecolor": "white"} if ring == 0 else {"markerfacecolor": "none"}
    return {"markevery": (start, step), "markersize": 3.8 + 2.4 * min(ring, 4), **inner}


def class_looks(number: int) -> list[dict[str, Any]]:
    """Points of so many classes: each colour with another marker whenever it comes again."""
    return [
        {
            "linestyle": "",
            "marker": MARKERS[(index + 2 * (index // len(COLOURS))) % len(MARKERS)][0],
            "color": COLOURS[index % len(COLOURS)][0],
            "markeredgewidth": 0,
        }
        for index in range(number)
    ]
