"""The lines and points of methods and classes, which can be told apart without colour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from unskew.report.figures.style import GREY
from unskew.report.looks import COLOURS, MARKERS, PlotStyle

if TYPE_CHECKING:
    from matplotlib.lines import Line2D


def line_style(look: PlotStyle) -> dict[str, Any]:
    """Return Matplotlib's arguments for a method's line: its colour, dash and marker.

    Lines with more gaps are drawn above lines with fewer, so that both are seen if their values are the same.
    """
    gaps = sum(look.dash[1::2]) / sum(look.dash) if look.dash else 0.0
    return {
        "color": look.light,
        "linestyle": (0, look.dash) if look.dash else "-",
        "marker": look.marker,
        "markeredgewidth": 0.9,
        "zorder": 2 + gaps,
    }


def line_key(look: PlotStyle) -> Line2D:
    """Return the sample of a method's line for a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **line_style(look), markersize=3.8, markerfacecolor="white")


def mark_key(marker: str, *, filled: bool = False) -> Line2D:
    """Return the sample of a mark that any method may have, for a legend: a filled one, or a bar."""
    from matplotlib.lines import Line2D

    size = 4.8 if filled else 8.0
    return Line2D([], [], color=GREY, linestyle="none", marker=marker, markersize=size, markeredgewidth=0.9)


def mark_places(points: int, index: int, lines: int, inches: float) -> dict[str, Any]:
    """Return Matplotlib's arguments that place the markers of one of several lines.

    Each line has two to six markers, at points where no other line has one. If there are too few points,
    further lines have larger markers around those of others.
    """
    room = max(int(inches / 0.095), 1)  # markers that fit next to each other
    each = int(np.clip(min(room, points) // lines, 2 if points >= 4 else 1, 6))
    step = max(points // each, 1)
    ring, place = divmod(index, min(lines, step))
    start = place * step // min(lines, step)
    inner = {"markerfacecolor": "white"} if ring == 0 else {"markerfacecolor": "none"}
    return {"markevery": (start, step), "markersize": 3.8 + 2.4 * min(ring, 4), **inner}


def class_looks(number: int) -> list[dict[str, Any]]:
    """Return Matplotlib's arguments for the points of each class; a repeated colour has another marker."""
    return [
        {
            "linestyle": "",
            "marker": MARKERS[(index + 2 * (index // len(COLOURS))) % len(MARKERS)][0],
            "color": COLOURS[index % len(COLOURS)][0],
            "markeredgewidth": 0,
        }
        for index in range(number)
    ]
