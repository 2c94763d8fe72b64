"""The accuracy of every class by every method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unskew.errors import UserError
from unskew.report.conditions import Condition, by_condition
from unskew.report.figures.cells import cross_out, shades, write_number
from unskew.report.figures.fitting import distinct, name_below, name_ticks, panel_titles, text_width
from unskew.report.figures.layout import add_scale, blank, columns_for, panels
from unskew.report.figures.style import COLUMN, LINE, NORMAL, PAGE, SMALL, TALLEST, printed
from unskew.report.figures.words import finished, heading
from unskew.report.grouping import same_classes
from unskew.report.read import SavedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

WIDEST, NARROWEST = 0.75, 0.245
"""The width in inches of the widest cell, and of the narrowest into which 100 can be written."""


@printed
def heatmap(
    runs: Sequence[SavedRun], *, sort: bool = False, width: float | None = None, title: str | None = None
) -> Figure:
    """Draw the accuracy of each class by the final model of each method, as the mean over seeds.

    A frame marks the lowest accuracy of each method. Each condition has a panel of its own. With `sort`, the
    class with the lowest mean over all methods comes first.
    """
    classes = same_classes(runs)
    parts = by_condition(runs)
    values = [_accuracies(part) for part in parts]
    order = np.arange(len(classes))
    if sort:
        every = np.concatenate(values, axis=1)
        order = np.argsort(_mean(every), kind="stable")  # classes without test samples last
    methods = max(len(part.methods) for part in parts)
    names = distinct([classes[c] for c in order], 0.9)
    margin = 0.35 + max(text_width(name, SMALL) for name in names)
    total = width or (COLUMN if len(parts) == 1 and margin + methods * NARROWEST <= COLUMN else PAGE)
    room = max(int((total - margin) // (methods * NARROWEST + 0.15)), 1)
    columns = columns_for(len(parts), min(room, len(parts)))
    rows = math.ceil(len(parts) / columns)
    wide = min((total - margin - 0.15 * columns) / columns / methods, WIDEST)
    below = [distinct(list(part.methods), 1.3) for part in parts]
    foot = max(text_width(name, SMALL) for each in below for name in each)
    foot = 0.2 if foot + 0.06 <= wide else foot + 0.1
    same = all(each == below[0] for each in below)  # then only the last panel of a column has names
    readable = wide >= NARROWEST
    feet = foot if same else rows * foot
    tall = min(LINE + 0.05, (TALLEST - 0.8 - rows * 0.3 - feet) / rows / len(classes))
    if tall <= 0.01:
        raise UserError(f"{len(parts)} conditions do not fit on a page: give fewer runs.")
    written = readable and tall >= LINE - 0.01
    figure = blank(total, rows * (tall * len(classes) + 0.3) + feet + 0.25, heading(runs, title))
    axes, spare = panels(figure, len(parts), columns)
    above = panel_titles([part.short for part in parts], wide * methods + (0.1 if columns > 1 else margin))
    for place, (each, labels, short, one) in enumerate(zip(values, below, above, axes, strict=True)):
        image = one.imshow(
            each[order], aspect="auto", cmap=shades(), vmin=0, vmax=100, interpolation="nearest"
        )
        one.grid(False)
        if written:
            for (row, column), value in np.ndenumerate(each[order]):
                if not np.isnan(value):
                    write_number(one, row, column, f"{value:.0f}", float(value))
        cross_out(one, each[order])
        _frame_worst(one, each[order])
        if same and place + columns < len(parts):
            one.set_xticks([])
        else:
            name_below(one, labels, wide)
        if wide == WIDEST and tall > LINE:
            one.set_box_aspect(tall * len(classes) / (wide * methods))
        named = place % columns == 0
        name_ticks(one.yaxis, names if named else [""] * len(names), tall)
        one.tick_params(length=0)
        one.spines[:].set_visible(False)
        if named:
            one.set_ylabel("class")
        if short:
            one.set_title(short)
    if not written or spare is not None:
        add_scale(figure, image, axes, spare, "accuracy (%); framed: the lowest of a method")
    else:
        figure.supxlabel("accuracy (%); framed: the lowest of a method", fontsize=NORMAL)
    return figure


def _accuracies(part: Condition) -> Floats:
    """Return accuracies in percent, [C, methods]; NaN for a class without test samples."""
    means = [
        _mean(np.array([finished(run).class_accuracy for run in seeds], dtype=np.float64).T)
        for seeds in part.methods.values()
    ]
    return 100 * np.stack(means, axis=1)


def _mean(values: Floats) -> Floats:
    """Return the mean of each row over its known values; NaN if it has none."""
    known = ~np.isnan(values)
    sums, counts = np.where(known, values, 0.0).sum(axis=1), known.sum(axis=1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _frame_worst(axes: Axes, values: Floats) -> None:
    from matplotlib.patches import Rectangle

    for column, each in enumerate(values.T):
        if not np.isnan(each).all():
            row = int(np.nanargmin(each))
            axes.add_patch(
                Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="#D55E00", lw=1.3, zorder=3)
            )
