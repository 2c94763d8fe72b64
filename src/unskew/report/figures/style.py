"""How all figures look: made for a printed column or page, told apart without colour."""

from __future__ import annotations

import contextlib
import functools
import math
import textwrap
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from unskew.errors import UserError
from unskew.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
COLUMN, PAGE, TALLEST = 3.4, 7.2, 8.6
"""Inches: a column of two, the text of a page, and as much of its height as leaves room for a caption."""
SMALL, NORMAL = 7.0, 8.0
"""Points."""
LINE = 0.13
"""Inches from one line of small text to the next."""

BLACK, ORANGE, SKY, GREEN, BLUE, RED, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
"""Okabe and Ito's colours (Color Universal Design, 2008), without the yellow that is lost on white."""
COLOURS = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, BLACK)
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
"""Four dashes and nine markers: 36 lines that differ in grey."""

RC: dict[str, object] = {
    "font.family": "DejaVu Sans",  # comes with Matplotlib: the same everywhere
    "font.size": NORMAL,
    "axes.titlesize": NORMAL,
    "axes.labelsize": NORMAL,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "legend.handlelength": 2.8,  # a whole period of every dash
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
    "svg.hashsalt": "unskew",  # the same run, the same bytes
    "savefig.dpi": 200,
}
NO_DATE = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}

P = ParamSpec("P")


def printed(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """A function whose figure has the style above, whatever the person's own settings."""

    @functools.wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with _style():
            figure = draw(*args, **kwargs)
            figure.draw_without_rendering()  # places all text while the style holds
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
        with _style(), replacing(path) as partial:
            figure.savefig(partial, format=kind[1:], metadata=NO_DATE[kind])
    except OSError as error:
        raise UserError(
            f"cannot write the figure {path} ({error.strerror}): choose another place for it."
        ) from None


def blank(width: float, height: float, title: str = "") -> Figure:
    """An empty figure of this size in inches, that lays itself out."""
    from matplotlib.figure import Figure

    title = wrap(title, width - 0.2, NORMAL)
    extra = (title.count("\n") + 1) * 0.16 if title else 0.0
    figure = Figure(figsize=(width, min(height + extra, TALLEST)), layout="constrained")
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(w_pad=0.03, h_pad=0.03)  # type: ignore[call-arg]  # of the constrained engine
    if title:
        figure.suptitle(title, fontsize=NORMAL)
    return figure


def panels(
    figure: Figure, number: int, columns: int, *, sharex: bool = False, sharey: bool = False
) -> list[Axes]:
    """As many axes in rows of `columns`."""
    columns = min(number, columns)
    rows = math.ceil(number / columns)
    every = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey)
    axes: list[Axes] = list(every.ravel())
    for spare in axes[number:]:
        spare.remove()
    for index, each in enumerate(axes[:number]):
        if index + columns >= number:  # nothing below it, though its row may not be the last
            each.tick_params(labelbottom=True)
    return axes[:number]


def tile(
    number: int, width: float, height: float, *, aspect: float, gap: float, enough: float
) -> tuple[int, float]:
    """In how many columns so many panels are largest in this room, and how wide each then is; a panel is
    `aspect` times as high as wide and has `gap` around it, and larger than `enough` is no better. Inches."""

    def wide(columns: int) -> float:
        rows = math.ceil(number / columns)
        return min(width / columns - gap, (height / rows - gap) / aspect)

    # Of several, the one with the fewest rows.
    columns = max(range(number, 0, -1), key=lambda columns: min(wide(columns), enough))
    return columns, wide(columns)


def line_style(index: int) -> dict[str, Any]:
    """The look of the index-th line: by colour, and in grey by dash and marker."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
    }


def mark_every(points: int, index: int) -> tuple[int, int]:
    """About six markers on a line, each line's at places of its own."""
    step = max(points // 6, 1)
    return index % step, step


def shades() -> Colormap:
    """From white to dark blue, also in grey."""
    from matplotlib import colormaps

    return colormaps["Blues"]


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
    """The text in lines that fit, two at most."""
    text = clean(text)
    if text_width(text, size) <= inches:
        return text
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


def name_ticks(axis: Axis, names: Sequence[str], cell: float, *, across: bool = False) -> None:
    """A name at every cell of so many inches, or at every second, third ... where they would overlap.
    `across`: written along the axis, not at right angles to it."""
    room = max((text_width(name, SMALL) for name in names), default=0.0) + 0.06 if across else LINE
    step = max(math.ceil(room / cell - 1e-9), 1)
    axis.set_ticks(range(0, len(names), step), list(names[::step]))


def name_below(axes: Axes, names: Sequence[str], cell: float) -> None:
    """Names under cells of so many inches: upright where they fit, else turned."""
    upright = max(text_width(name, SMALL) for name in names) + 0.06 <= cell
    name_ticks(axes.xaxis, names, cell, across=upright)
    axes.tick_params(axis="x", rotation=0 if upright else 90)


def legend_below(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Under the axes, in as many columns as fit; the figure grows by its height."""
    width, height = figure.get_size_inches()
    handle = 0.45  # inches: the sample of a line, and the space around it
    labels = [fit(label, width - handle - 0.2) for label in labels]
    widest = max(text_width(label, SMALL) for label in labels) + handle + 0.1
    columns = int(np.clip((width - 0.1) // widest, 1, len(labels)))
    rows = math.ceil(len(labels) / columns)
    figure.set_size_inches(width, height + rows * 0.16 + 0.05)
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, columnspacing=1.2, handletextpad=0.5,
        labelspacing=0.35, borderpad=0.1, borderaxespad=0.1,
    )  # fmt: skip
