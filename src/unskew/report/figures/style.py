"""The style of all figures: made for a printed column or page, readable without colour."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec

from unskew.errors import UserError
from unskew.files import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
COLUMN, PAGE, TALLEST = 3.4, 7.2, 8.6
"""Widths in inches of one of two columns and of the text of a page, and the greatest height of a figure,
which leaves room for a caption."""
SMALL, NORMAL = 7.0, 8.0
"""Font sizes in points."""
LINE = 0.13
"""The distance in inches from one line of small text to the next."""

PITCH = 0.117
"""The least distance in inches from one line of small text to the next, if the lines are names of ticks."""

BLACK, GREEN, BLUE, RED = "#000000", "#009E73", "#0072B2", "#D55E00"
"""Some of Okabe and Ito's colours (Color Universal Design, 2008), for everything but methods, which have the
colours of `unskew.report.looks`."""
GREY = "#444444"
"""The colour of what belongs to no method."""

RC: dict[str, object] = {
    "font.family": "DejaVu Sans",  # comes with Matplotlib, so it is the same everywhere
    "font.size": NORMAL,
    "axes.titlesize": NORMAL,
    "axes.labelsize": NORMAL,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "legend.handlelength": 3.4,  # two periods of every dash
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "hatch.linewidth": 0.5,
    "text.parse_math": False,  # names may hold dollar signs
    "svg.fonttype": "none",  # text stays text
    "pdf.fonttype": 42,
    "svg.hashsalt": "unskew",  # the same run gives the same bytes
    "savefig.dpi": 200,
}
NO_DATE = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}

P = ParamSpec("P")


def printed(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Make a drawing function draw in the style above, whatever Matplotlib's settings are."""

    @functools.wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with _style():
            figure = draw(*args, **kwargs)
            engine = figure.get_layout_engine()
            assert engine is not None
            engine.execute(figure)  # places all text while the style holds
            return figure

    return styled


@contextlib.contextmanager
def _style() -> Iterator[None]:
    try:
        from matplotlib import style
    except ImportError:
        raise UserError("drawing needs matplotlib: install it with pip install 'unskew[figures]'.") from None
    with style.context(["default", RC]), warnings.catch_warnings():
        # A character that the font lacks is drawn as a box; SVG keeps the character itself.
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
        yield


def check_format(path: Path) -> None:
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"cannot draw to '{path}': end its name in .png, .svg or .pdf.")


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, SVG or PDF, by the ending of the name. The same figure gives the same bytes."""
    check_format(path)
    kind = path.suffix.lower()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn = BytesIO()  # on a full disk Matplotlib's PDFs fail with another error than an OSError
        with _style():
            figure.savefig(drawn, format=kind[1:], metadata=NO_DATE[kind])
        write_file(path, drawn.getvalue())
    except OSError as error:
        raise UserError(
            f"cannot write the figure {path} ({error.strerror}): choose another place for it."
        ) from None
