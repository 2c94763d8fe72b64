"""The layout of a figure: its size, its panels, its legend and its scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unskew.report.figures.fitting import clean, fit, text_width, wrap
from unskew.report.figures.style import NORMAL, SMALL, TALLEST

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


def blank(width: float, height: float, title: str = "") -> Figure:
    """Make an empty figure of this size in inches, which grows for its title and lays itself out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    title = wrap(title, width - 0.2, NORMAL)
    extra = (title.count("\n") + 1) * 0.16 if title else 0.0
    figure = Figure(figsize=(width, min(height + extra, TALLEST)), layout="constrained")
    FigureCanvasAgg(figure)  # keeps one renderer, so that it is not made anew for each size of a text
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(w_pad=0.03, h_pad=0.03)  # type: ignore[call-arg]  # of the constrained engine
    if title:
        figure.suptitle(title, fontsize=NORMAL)
    return figure


def panels(
    figure: Figure, number: int, columns: int, *, sharex: bool = False, sharey: bool = False
) -> tuple[list[Axes], Axes | None]:
    """Add this number of axes in rows of `columns`, and return them with an empty place for a legend.

    The place is the first empty one of the last row; None if the row is full.
    """
    columns = min(number, columns)
    rows = math.ceil(number / columns)
    every = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey)
    axes: list[Axes] = list(every.ravel())
    spare = axes[number:]
    for each in spare[1:]:
        each.remove()
    for index, each in enumerate(axes[:number]):
        if index + columns >= number:  # nothing below it, though its row may not be the last
            each.tick_params(labelbottom=True)
    if not spare:
        return axes, None
    spare[0].set_axis_off()
    return axes[:number], spare[0]


def columns_for(number: int, most: int) -> int:
    """Choose the number of columns for panels, up to `most`, so that the fewest places stay empty.

    Among equally good numbers it is the largest. A single column is chosen only if there is no room for two.
    """
    if number <= most:
        return number
    fewest = min(2, most)
    return min(range(most, fewest - 1, -1), key=lambda columns: -number % columns)


def tile(
    number: int,
    width: float,
    height: float,
    *,
    aspect: float,
    gap: float,
    over: float,
    enough: float,
    least: float = 0.0,
) -> tuple[int, float]:
    """Choose the number of columns for panels in a room of this size, and return it with their width.

    A panel is `aspect` times as high as wide, with `gap` between columns and `over` between rows, all in
    inches. If panels can be `enough` wide, wider ones count as no better. If they cannot, they may be
    somewhat smaller than possible, but not below `least`, to save rows and empty places.
    """

    def wide(columns: int) -> float:
        rows = math.ceil(number / columns)
        return min(width / columns - gap, (height / rows - over) / aspect)

    best = max(map(wide, range(1, number + 1)))
    goal = enough if best >= enough else max(0.65 * best, min(least, best))
    able = [columns for columns in range(1, number + 1) if wide(columns) >= goal]
    columns = min(able, key=lambda columns: math.ceil(number / columns) + 1.5 * (-number % columns))
    return columns, wide(columns)


def add_legend(
    figure: Figure, handles: Sequence[Any], labels: Sequence[str], spare: Axes | None = None
) -> None:
    """Add the legend in the empty place `spare` if it fits there, and else below all axes.

    Below, it has as many columns as fit, and the figure grows by its height.
    """
    width, height = figure.get_size_inches()
    handle = 0.55  # inches: the sample of a line, and the space around it
    look = {"handletextpad": 0.5, "labelspacing": 0.35, "borderpad": 0.1, "borderaxespad": 0.1}
    if spare is not None:
        rows, columns = _grid(spare)
        inside, tall = width / columns - 0.15, (height - 0.3) / rows - 0.3
        widest = max(text_width(clean(label), SMALL) for label in labels) + handle
        if widest <= inside and 0.165 * len(labels) <= tall:
            spare.legend(handles, [clean(label) for label in labels], loc="center", **look)
            return
    labels = [fit(label, width - handle - 0.2) for label in labels]
    sizes = [text_width(label, SMALL) + handle + 0.12 for label in labels]
    number = len(labels)
    for columns in range(number, 0, -1):
        rows = math.ceil(number / columns)
        if sum(max(sizes[column::columns]) for column in range(columns)) <= width - 0.1:
            break
    columns = math.ceil(number / rows)  # makes columns of equal length, as far as possible
    # Matplotlib fills column by column, but readers read row by row.
    order = [place for column in range(columns) for place in range(column, number, columns)]
    figure.set_size_inches(width, height + rows * 0.165 + 0.05)
    figure.legend(
        [handles[place] for place in order], [labels[place] for place in order],
        loc="outside lower center", ncols=columns, columnspacing=1.2, **look,
    )  # fmt: skip


def _grid(panel: Axes) -> tuple[int, int]:
    """Return the number of rows and columns of the grid that a panel belongs to."""
    grid = panel.get_gridspec()
    assert grid is not None
    return grid.nrows, grid.ncols


def add_scale(
    figure: Figure,
    image: AxesImage,
    every: Sequence[Axes],
    spare: Axes | None,
    unit: str,
    *,
    below: bool = False,
    shrink: float = 1.0,
    **more: Any,
) -> None:
    """Add the bar that explains the shades in the empty place `spare`, or else to the right or `below`."""
    if spare is None and below:
        scale = figure.colorbar(image, ax=every, location="bottom", pad=0.02, aspect=30, shrink=0.8, **more)
    elif spare is None:
        scale = figure.colorbar(image, ax=every, pad=0.02, aspect=30 * shrink, shrink=shrink, **more)
    else:
        place = spare.inset_axes((0.1, 0.55, 0.8, 0.06))
        scale = figure.colorbar(image, cax=place, orientation="horizontal", **more)
        unit = wrap(unit, figure.get_figwidth() / _grid(spare)[1] - 0.4, NORMAL)
    scale.set_label(unit)
    scale.outline.set_visible(False)
