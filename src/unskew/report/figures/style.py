"""How all figures look: made for a printed column or page, told apart without colour."""

from __future__ import annotations

import contextlib
import functools
import math
import textwrap
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
from numpy.typing import NDArray

from unskew.errors import UserError
from unskew.files import write_file
from unskew.report.looks import COLOURS, MARKERS, PlotStyle

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.lines import Line2D

FORMATS = (".png", ".svg", ".pdf")
COLUMN, PAGE, TALLEST = 3.4, 7.2, 8.6
"""Inches: a column of two, the text of a page, and as much of its height as leaves room for a caption."""
SMALL, NORMAL = 7.0, 8.0
"""Points."""
LINE = 0.13
"""Inches from one line of small text to the next."""

PITCH = 0.117
"""Inches from one line of small text to the next at the least, where lines are names of ticks."""

BLACK, GREEN, BLUE, RED = "#000000", "#009E73", "#0072B2", "#D55E00"
"""Of Okabe and Ito's colours (Color Universal Design, 2008): for what is not a method. Methods have those of
`unskew.report.looks`."""

RC: dict[str, object] = {
    "font.family": "DejaVu Sans",  # comes with Matplotlib: the same everywhere
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
        drawn = BytesIO()  # Matplotlib's PDFs fail otherwise than with an OSError where a disk is full
        with _style():
            figure.savefig(drawn, format=kind[1:], metadata=NO_DATE[kind])
        write_file(path, drawn.getvalue())
    except OSError as error:
        raise UserError(
            f"cannot write the figure {path} ({error.strerror}): choose another place for it."
        ) from None


def blank(width: float, height: float, title: str = "") -> Figure:
    """An empty figure of this size in inches, that lays itself out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    title = wrap(title, width - 0.2, NORMAL)
    extra = (title.count("\n") + 1) * 0.16 if title else 0.0
    figure = Figure(figsize=(width, min(height + extra, TALLEST)), layout="constrained")
    FigureCanvasAgg(figure)  # keeps a renderer, with the sizes of texts: else each question makes one
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(w_pad=0.03, h_pad=0.03)  # type: ignore[call-arg]  # of the constrained engine
    if title:
        figure.suptitle(title, fontsize=NORMAL)
    return figure


def panels(
    figure: Figure, number: int, columns: int, *, sharex: bool = False, sharey: bool = False
) -> tuple[list[Axes], Axes | None]:
    """As many axes in rows of `columns`; and where the last row is not full, its empty end, for a legend."""
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
    """How many columns so many panels have, `most` at the most: those that leave the fewest places empty,
    and of these the most. A single column only where there is no room for two."""
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
    """In how many columns so many panels stand in this room, and how wide each then is; a panel is `aspect`
    times as high as wide, with `gap` between columns and `over` between rows. Where a panel can be `enough`
    wide, it is, and larger is no better; else it may be somewhat smaller than it could be, though not below
    `least`, for the sake of fewer rows and of no empty place. Inches."""

    def wide(columns: int) -> float:
        rows = math.ceil(number / columns)
        return min(width / columns - gap, (height / rows - over) / aspect)

    best = max(map(wide, range(1, number + 1)))
    goal = enough if best >= enough else max(0.65 * best, min(least, best))
    able = [columns for columns in range(1, number + 1) if wide(columns) >= goal]
    columns = min(able, key=lambda columns: math.ceil(number / columns) + 1.5 * (-number % columns))
    return columns, wide(columns)


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


def ink_on(colour: Sequence[float]) -> str:
    """Black or white, whichever is read better on this colour: by the contrast of WCAG 2, 4.5:1 or more."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "white" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "black"


def write_number(axes: Axes, row: int, column: int, text: str, value: float, **more: Any) -> None:
    """A number on a cell of the image, in black or white as is read better. It takes no room beside the
    image: the layout need not measure it."""
    (shade,) = axes.images[0].to_rgba(np.array([value]))
    axes.text(
        column, row, text, ha="center", va="center", fontsize=SMALL, color=ink_on(shade), in_layout=False,
        **more,
    )  # fmt: skip


def cross_out(axes: Axes, values: NDArray[np.float64]) -> None:
    """What is not known is hatched, such as the accuracy of a class without test samples: it is not 0."""
    from matplotlib.patches import Rectangle

    for row, column in np.argwhere(np.isnan(values)):
        axes.add_patch(
            Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, hatch="////", edgecolor="#999999", lw=0)
        )


def shades() -> Colormap:
    """From white to dark blue, also in grey."""
    from matplotlib import colormaps

    return colormaps["Blues"]


def diverging() -> Colormap:
    """From orange-brown, which is less, over white to violet, which is more: told apart with any kind of
    colour vision."""
    from matplotlib import colormaps

    return colormaps["PuOr"]


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
    """The text in lines that fit, two at most, broken behind a comma where that will do."""
    text = clean(text)
    if text_width(text, size) <= inches:
        return text
    for place in range(len(text) - 2, 0, -1):
        first, rest = text[: place + 1], text[place + 2 :]
        if (
            text[place : place + 2] == ", "
            and max(text_width(part, size) for part in (first, rest)) <= inches
        ):
            return f"{first}\n{rest}"
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


def panel_titles(names: Sequence[str], inches: float) -> list[str]:
    """A title for each panel of this width: on one line where they stay apart so, else on two."""
    short = [fit(name, inches, NORMAL) for name in names]
    return short if len(set(short)) == len(set(names)) else [wrap(name, inches, NORMAL) for name in names]


def name_ticks(axis: Axis, names: Sequence[str], cell: float, *, across: bool = False) -> None:
    """A name at every cell of so many inches, or at every second, third ... where they would overlap.
    `across`: written along the axis, not at right angles to it."""
    room = max((text_width(name, SMALL) for name in names), default=0.0) + 0.06 if across else PITCH
    step = max(math.ceil(room / cell - 1e-9), 1)
    axis.set_ticks(range(0, len(names), step), list(names[::step]))


def name_below(axes: Axes, names: Sequence[str], cell: float) -> None:
    """Names under cells of so many inches: upright where they fit, else turned."""
    upright = max(text_width(name, SMALL) for name in names) + 0.06 <= cell
    name_ticks(axes.xaxis, names, cell, across=upright)
    axes.tick_params(axis="x", rotation=0 if upright else 90)


def add_legend(
    figure: Figure, handles: Sequence[Any], labels: Sequence[str], spare: Axes | None = None
) -> None:
    """The legend, in the place that panels leave empty where it fits there; else under the axes in as many
    columns as fit, and the figure grows by its height."""
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
    columns = math.ceil(number / rows)  # as even as they can be
    # Matplotlib fills columns from above, eyes read rows.
    order = [place for column in range(columns) for place in range(column, number, columns)]
    figure.set_size_inches(width, height + rows * 0.165 + 0.05)
    figure.legend(
        [handles[place] for place in order], [labels[place] for place in order],
        loc="outside lower center", ncols=columns, columnspacing=1.2, **look,
    )  # fmt: skip


def _grid(panel: Axes) -> tuple[int, int]:
    """Rows and columns of the panels that this is one of."""
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
    """The bar that explains shades: in the place that panels leave empty, else beside them, or `below`."""
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
