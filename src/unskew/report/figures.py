"""Figures for print: colour-blind safe, readable in grey, classes by name."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unskew.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")


def draw_partition(
    counts: NDArray[np.int64], classes: tuple[str, ...], path: Path, *, title: str = ""
) -> None:
    """Clients against classes: the area of a disc is the number of samples, an empty place is vacant."""
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"cannot draw to '{path}': end its name in .png, .svg or .pdf.")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("drawing needs matplotlib: install it with pip install 'unskew[figures]'.") from None
    clients, C = counts.shape
    cell = 0.28  # inches between neighbours: labels of 8 points do not touch
    figure = Figure(figsize=(max(3.5, cell * clients + 1.2), max(2.6, cell * C + 1.0)), layout="constrained")
    axes = figure.add_subplot()
    client, label = np.nonzero(counts)
    share = counts[client, label] / max(int(counts.max()), 1)
    biggest = (0.92 * cell * 72) ** 2  # points², a disc that fills its cell
    axes.scatter(client, label, s=np.maximum(share * biggest, 1.0), color="#2b7bba", linewidths=0)
    axes.set_xlim(-0.6, clients - 0.4)
    axes.set_ylim(C - 0.4, -0.6)
    step = max(1, int(np.ceil(clients / 25)))
    axes.set_xticks(range(0, clients, step))
    every = max(1, int(np.ceil(C / 40)))
    axes.set_yticks(range(0, C, every), [classes[index] for index in range(0, C, every)])
    axes.tick_params(labelsize=8, length=0)
    axes.set_xlabel("client", fontsize=9)
    axes.set_ylabel("class", fontsize=9)
    axes.set_title(title, fontsize=9)
    axes.grid(color="#e6e6e6", linewidth=0.5)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    _save(figure, path)


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
