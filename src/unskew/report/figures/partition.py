"""The figure of a partition: clients by classes (FedVLS, Fig. 7; FedLMD, Fig. 10)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unskew.errors import UserError
from unskew.report.conditions import by_condition, in_common
from unskew.report.figures.cells import shades
from unskew.report.figures.fitting import distinct, name_below, name_ticks, text_width, wrap
from unskew.report.figures.layout import add_scale, blank, panels, tile
from unskew.report.figures.style import COLUMN, LINE, NORMAL, PAGE, PITCH, SMALL, TALLEST, printed
from unskew.report.figures.words import heading
from unskew.report.read import SavedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

Counts = NDArray[np.int64]

MOST_DISCS = 30
"""With more clients or classes than this, discs would be too small to compare, and a heat map is drawn."""
DISC = "#2b7bba"
SMALLEST, CELL = 0.2, 0.28
"""The least width in inches of a cell in a figure of one column, and the greatest width of a cell with a
disc."""


def partition(runs: Sequence[SavedRun], *, width: float | None = None, title: str | None = None) -> Figure:
    """Draw the partitions of these runs, with a panel and its seed for each one that differs."""
    if not all(len(run.counts) for run in runs):
        raise UserError(
            "label counts stayed with the clients of this run, so nobody can draw who holds what: share them "
            "(federation.label_counts=share), or draw another figure."
        )
    distinct_ = {(run.classes, run.counts.shape, run.counts.tobytes()): run for run in reversed(runs)}
    shown = sorted(distinct_.values(), key=runs.index)
    if len(shown) == 1:
        (run,) = shown
        label = "" if title is None else f"seed {run.seed}"
        return _draw([(label, run.counts, run.classes, run.names)], heading([run], title), width)
    shorts = {run.path: part.short for part in by_condition(runs) for run in part.runs}
    several = [
        (", ".join(filter(None, (shorts[run.path], f"seed {run.seed}"))), run.counts, run.classes, run.names)
        for run in shown
    ]
    words = (runs[0].conditions if not shorts[runs[0].path] else in_common(runs)) if title is None else title
    return _draw(several, words, width)


def draw_partition(
    counts: Counts,
    classes: Sequence[str],
    clients: Sequence[str] = (),
    *,
    title: str = "",
    width: float | None = None,
) -> Figure:
    """Draw label counts [N, C] as discs, or for many clients or classes as a heat map.

    The area of a disc is the number of samples. A vacant class has no disc; a heat map is darker for more
    samples. `clients` has the clients' names, if they have any.
    """
    return _draw([("", counts, tuple(classes), tuple(clients))], title, width)


PartitionPanel = tuple[str, Counts, tuple[str, ...], tuple[str, ...]]
"""A title, label counts, the names of the classes, and the names of the clients."""


@printed
def _draw(parts: Sequence[PartitionPanel], title: str, width: float | None) -> Figure:
    clients = max(counts.shape[0] for _, counts, _, _ in parts)
    C = max(counts.shape[1] for _, counts, _, _ in parts)
    names = [distinct(classes, 1.3) for _, _, classes, _ in parts]
    sites = [distinct(called, 1.3) for _, _, _, called in parts]
    below = max((text_width(name, SMALL) for each in sites for name in each), default=0.0)
    margin = 0.4 + max(text_width(name, SMALL) for each in names for name in each)
    discs = max(clients, C) <= MOST_DISCS
    most = max(max(int(counts.max()) for _, counts, _, _ in parts), 1)
    bar = 0.0 if discs else 0.75  # the bar that explains the shades
    total = width or (COLUMN if len(parts) == 1 and margin + SMALLEST * clients + bar <= COLUMN else PAGE)
    columns, wide = tile(
        len(parts),
        total - margin - bar,
        TALLEST - 0.7,
        aspect=C / clients,
        gap=0.3,
        over=0.5,
        enough=CELL * clients,
        least=(PITCH + 0.003) * clients,
    )
    rows = math.ceil(len(parts) / columns)
    if discs:
        wide = tall = min(wide / clients, CELL)
    else:  # cells need not be square
        wide = ((total - margin - bar) / columns - 0.3) / clients
        tall = min(((TALLEST - 0.7) / rows - 0.5) / C, LINE)
    turned = below + 0.06 > wide  # names of sites are horizontal if they fit
    titles = [wrap(name, max(wide * clients + 0.4, total / columns - 0.3), NORMAL) for name, *_ in parts]
    room = 0.5 + (below if turned else 0.0) + (0.14 if any("\n" in each for each in titles) else 0.0)
    figure = blank(total, rows * (tall * C + room) + (0.4 if discs else 0.1), title)
    every, spare = panels(figure, len(parts), columns)
    each = zip(parts, names, sites, every, strict=True)
    for place, ((_, counts, classes, _), labels, called, axes) in enumerate(each):
        if discs:
            _discs(axes, counts, wide, most)
        else:
            image = _heat(axes, counts, most)
        if called:
            name_below(axes, called, wide)
        else:
            name_ticks(axes.xaxis, [str(client) for client in range(len(counts))], wide, across=True)
        named = place % columns == 0 or classes != parts[0][2]
        name_ticks(axes.yaxis, labels if named else [""] * len(labels), tall)
        axes.tick_params(length=0)
        axes.set(xlabel="site" if called else "client", ylabel="class" if named else "")
        axes.set_title(titles[place])
        for side in axes.spines.values():
            side.set_visible(False)
    if discs:
        _key(figure, most, wide)
    else:
        add_scale(figure, image, every, spare, "samples", format="{x:,.0f}")
    return figure


def _size(samples: float, most: int, cell: float) -> float:
    biggest = (0.86 * cell * 72) ** 2  # points², a disc that nearly fills its cell
    return float(max(samples / most * biggest, 1.0))


def _discs(axes: Axes, counts: Counts, cell: float, most: int) -> None:
    clients, C = counts.shape
    client, label = np.nonzero(counts)
    sizes = [_size(samples, most, cell) for samples in counts[client, label]]
    axes.scatter(client, label, s=sizes, color=DISC, linewidths=0, clip_on=False, zorder=2)
    axes.set(xlim=(-0.6, clients - 0.4), ylim=(C - 0.4, -0.6), aspect="equal")


def _key(figure: Figure, most: int, cell: float) -> None:
    from matplotlib.lines import Line2D

    keys = [key for key in (most, most // 4, most // 20) if key]
    handles = [
        Line2D([], [], linestyle="", marker="o", color=DISC, markeredgewidth=0,
               markersize=math.sqrt(_size(key, most, cell)))
        for key in keys
    ]  # fmt: skip
    widest = math.sqrt(_size(most, most, cell)) / SMALL  # in units of the text
    figure.legend(
        handles, [f"{key:,} samples" if key == most else f"{key:,}" for key in keys],
        loc="outside lower center", ncols=3, handlelength=max(1.5, widest), handleheight=max(0.7, widest),
        borderpad=0.1,
    )  # fmt: skip


def _heat(axes: Axes, counts: Counts, most: int) -> AxesImage:
    """Draw a heat map with vacant classes in white; its scale is logarithmic, since few clients hold most."""
    from matplotlib.colors import ListedColormap, LogNorm

    visible = ListedColormap(shades()(np.linspace(0.2, 1, 256)))  # a single sample is not white
    axes.grid(False)
    return axes.imshow(
        np.ma.masked_equal(counts.T, 0),
        aspect="auto",
        cmap=visible,
        norm=LogNorm(1, max(most, 2)),
        interpolation="nearest",
    )
