"""Figures for print: colour-blind safe, readable in grey, classes by name."""

from __future__ import annotations

import contextlib
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unskew.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")


WIDEST, TALLEST = 7.2, 8.0
"""Inches: the text of a page set in two columns, or a page of a thesis."""
MOST_DISCS = 30
"""Clients or classes beyond which discs are too small to compare, and a heat map is drawn."""


def draw_partition(
    counts: NDArray[np.int64], classes: tuple[str, ...], path: Path, *, title: str = ""
) -> None:
    """Clients against classes: discs whose area is the number of samples, an empty place being vacant; for
    many clients or classes a heat map."""
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"cannot draw to '{path}': end its name in .png, .svg or .pdf.")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("drawing needs matplotlib: install it with pip install 'unskew[figures]'.") from None
    clients, C = counts.shape
    names = [name if len(name) <= 20 else f"{name[:11]}…{name[-8:]}" for name in classes]
    margin = 0.9 + 0.065 * max(map(len, names))  # 0.065 inches: a character of 8 points
    wide, tall = min(0.3, (WIDEST - margin) / clients), min(0.3, (TALLEST - 1.2) / C)  # inches of a cell
    discs = max(clients, C) <= MOST_DISCS
    if discs:
        wide = tall = min(wide, tall)
    figure = Figure(
        figsize=(max(3.4, wide * clients + margin), max(2.6, tall * C + 1.2)), layout="constrained"
    )
    axes = figure.add_subplot()
    if discs:
        _draw_discs(figure, axes, counts, wide)
    else:
        _draw_heat(figure, axes, counts)
    # Labels of 8 points need 0.25 inches for a number and 0.16 for a line.
    axes.set_xticks(range(0, clients, int(np.ceil(0.25 / wide))))
    every = int(np.ceil(0.16 / tall))
    axes.set_yticks(range(0, C, every), names[::every])
    axes.tick_params(labelsize=8, length=0)
    axes.set_xlabel("client", fontsize=9)
    axes.set_ylabel("class", fontsize=9)
    figure.suptitle("\n".join(textwrap.wrap(title, int(figure.get_figwidth() * 13))), fontsize=9)
    for side in axes.spines.values():
        side.set_visible(False)
    _save(figure, path)


def _draw_discs(figure: Figure, axes: Axes, counts: NDArray[np.int64], cell: float) -> None:
    clients, C = counts.shape
    most = max(int(counts.max()), 1)
    biggest = (0.86 * cell * 72) ** 2  # points², a disc that nearly fills its cell
    client, label = np.nonzero(counts)
    sizes = np.maximum(counts[client, label] / most * biggest, 1.0)
    axes.scatter(client, label, s=sizes, color="#2b7bba", linewidths=0, clip_on=False)
    axes.set_xlim(-0.6, clients - 0.4)
    axes.set_ylim(C - 0.4, -0.6)
    axes.set_aspect("equal")
    axes.grid(color="#e6e6e6", linewidth=0.5)
    axes.set_axisbelow(True)
    keys = [most, most // 10]
    handles = [
        axes.scatter(
            [], [], s=max(key / most * biggest, 1.0), color="#2b7bba", linewidths=0, label=f"{key:,}"
        )
        for key in keys
        if key
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=2, fontsize=8, frameon=False, title="samples",
        title_fontsize=8,
    )  # fmt: skip


def _draw_heat(figure: Figure, axes: Axes, counts: NDArray[np.int64]) -> None:
    """Darker for more, also in grey; vacant is white. Logarithmic, because a few hold most."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, LogNorm

    visible = ListedColormap(colormaps["Blues"](np.linspace(0.2, 1, 256)))  # a single sample is not white
    shown = np.ma.masked_equal(counts.T, 0)
    image = axes.imshow(
        shown,
        aspect="auto",
        cmap=visible,
        norm=LogNorm(1, max(int(counts.max()), 2)),
        interpolation="nearest",
    )
    bar = figure.colorbar(image, ax=axes, pad=0.02)
    bar.set_label("samples", fontsize=9)
    bar.ax.tick_params(labelsize=8)


def _save(figure: Figure, path: Path) -> None:
    partial = path.with_name(path.name + ".part")  # a reader sees all of it or none of it
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(partial, dpi=200, format=path.suffix[1:].lower())
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise UserError(
            f"cannot write the figure {path} ({error.strerror}): choose another place for it."
        ) from None
