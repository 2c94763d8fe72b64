"""The cells of a matrix drawn as an image: their colours, and what is written on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unskew.report.figures.style import SMALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap


def ink_on(colour: Sequence[float]) -> str:
    """Return black or white, whichever has more contrast to a colour (WCAG 2; it is always 4.5:1 or more)."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "white" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "black"


def write_number(axes: Axes, row: int, column: int, text: str, value: float, **more: Any) -> None:
    """Write a number on a cell of the image, in black or white.

    The layout does not measure it, since it needs no room outside of the image.
    """
    (shade,) = axes.images[0].to_rgba(np.array([value]))
    axes.text(
        column, row, text, ha="center", va="center", fontsize=SMALL, color=ink_on(shade), in_layout=False,
        **more,
    )  # fmt: skip


def cross_out(axes: Axes, values: NDArray[np.float64]) -> None:
    """Hatch the cells with NaN, such as the accuracy of a class without test samples, which is not 0."""
    from matplotlib.patches import Rectangle

    for row, column in np.argwhere(np.isnan(values)):
        axes.add_patch(
            Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, hatch="////", edgecolor="#999999", lw=0)
        )


def shades() -> Colormap:
    """Return colours from white to dark blue, which are in order in grey too."""
    from matplotlib import colormaps

    return colormaps["Blues"]


def diverging() -> Colormap:
    """Return colours from orange-brown (less) over white to violet (more), also for colour-blind eyes."""
    from matplotlib import colormaps

    return colormaps["PuOr"]
