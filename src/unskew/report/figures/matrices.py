"""Figures of classes by classes, and of classes by rounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unskew import metrics
from unskew.errors import UserError
from unskew.report.conditions import Condition, by_condition
from unskew.report.figures.cells import cross_out, diverging, shades, write_number
from unskew.report.figures.fitting import distinct, fit, name_below, name_ticks, panel_titles, text_width
from unskew.report.figures.layout import add_scale, blank, columns_for, panels, tile
from unskew.report.figures.style import COLUMN, LINE, NORMAL, PAGE, PITCH, SMALL, TALLEST, printed
from unskew.report.figures.words import finished, heading
from unskew.report.grouping import by_method, same_classes
from unskew.report.read import SavedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

READABLE, WITH_SIGN = 0.187, 0.2
"""The width in inches of the smallest cell that fits three digits of 7 points, and that fits two with a
sign."""
LEAST_DIFFERENCE = 20.0
"""The darkest shade of a difference stands for at least this many points, so that a few do not look like
many."""


@printed
def confusion(
    runs: Sequence[SavedRun],
    *,
    against: str | None = None,
    width: float | None = None,
    title: str | None = None,
) -> Figure:
    """Draw the final model's answers for each class, in percent of its test samples (FedVLS, Fig. 2).

    Each method has a panel, over all its seeds. With `against`, the name of a method, the panels show how
    many points more or less that is than with this method on the same seeds and under the same condition.
    """
    classes = same_classes(runs)
    if against is not None:
        return _against(runs, against, classes, width, title)
    shown = {name: 100 * _shares(members) for name, members in by_method(runs).items()}
    return _matrices(
        shown, classes, shades(), (0, 100), "% of the class", "{:.0f}", width, heading(runs, title),
        axes_names=("answer", "class"),
    )  # fmt: skip


def _shares(runs: Sequence[SavedRun]) -> Floats:
    return metrics.confusion_share(np.sum([finished(run).confusion for run in runs], axis=0))


def _against(
    runs: Sequence[SavedRun], reference: str, classes: Sequence[str], width: float | None, title: str | None
) -> Figure:
    shown, used = {}, []
    for condition in by_condition(runs):
        for name, theirs, ours in versus(condition, reference):
            where = f" ({condition.short})" if condition.short else ""
            shown[f"{name} − {reference}{where}"] = 100 * (_shares(theirs) - _shares(ours))
            used += [run for run in (*theirs, *ours) if run not in used]
    most = max(max(float(np.nanmax(np.abs(each))) for each in shown.values()), LEAST_DIFFERENCE)
    return _matrices(
        shown, classes, diverging(), (-most, most), "points", "{:+.0f}", width, heading(used, title),
        axes_names=("answer", "class"),
    )  # fmt: skip


def versus(condition: Condition, reference: str) -> Iterator[tuple[str, list[SavedRun], list[SavedRun]]]:
    """Yield each other method with its runs and the reference's runs, on the seeds that both have."""
    if reference not in condition.methods:
        raise UserError(
            f"{reference} is not among these runs: choose one of {', '.join(sorted(condition.methods))}."
        )
    if len(condition.methods) == 1:
        raise UserError(f"{reference} is the only method of these runs: give runs of another one, too.")
    base = {run.seed: run for run in condition.methods[reference]}
    for name, members in condition.methods.items():
        if name == reference:
            continue
        both = [run for run in members if run.seed in base]
        if not both:
            raise UserError(f"{name} and {reference} have no seed in common: run both on the same seeds.")
        yield name, both, [base[run.seed] for run in both]


@printed
def features(runs: Sequence[SavedRun], *, width: float | None = None, title: str | None = None) -> Figure:
    """Draw the distances between classes' mean features, relative to the mean distance (PKD, Fig. 4 and 7).

    A cell is dark if the final model finds two classes alike.
    """
    classes = same_classes(runs)
    shown = {}
    for name, members in by_method(runs).items():
        with np.errstate(invalid="ignore"):
            shown[name] = np.mean([_relative(run) for run in members], axis=0)
    words = heading(runs, title)
    most = max(float(np.nanmax(each)) for each in shown.values())
    return _matrices(
        shown, classes, shades().reversed(), (0, most), "distance / mean distance", "{:.1f}", width, words,
        axes_names=("class", "class"),
    )  # fmt: skip


def _relative(run: SavedRun) -> Floats:
    distances = np.array(finished(run).feature_distances, dtype=np.float64)
    np.fill_diagonal(distances, np.nan)
    known = distances[~np.isnan(distances)]
    if not known.size or not known.mean():
        raise UserError(
            f"{run.path} has no two classes with features to compare, because its training diverged or one "
            "class alone was tested: give another run."
        )
    return np.asarray(distances / known.mean())


def _matrices(
    shown: dict[str, Floats],
    classes: Sequence[str],
    colours: Colormap,
    limits: tuple[float, float],
    unit: str,
    number: str,
    width: float | None,
    title: str,
    axes_names: tuple[str, str],
) -> Figure:
    C = len(classes)
    names = distinct(classes, 0.9)
    margin = 0.3 + max(text_width(name, SMALL) for name in names)
    readable = WITH_SIGN if "+" in number else READABLE
    total = width or (COLUMN if len(shown) == 1 and C * readable + margin <= COLUMN else PAGE)

    def arrange(right: float, below: float) -> tuple[int, float]:
        return tile(
            len(shown),
            total - margin - right,
            TALLEST - 0.8 - margin - below,
            aspect=1.0,
            gap=0.06,
            over=0.24,
            enough=C * readable,
            least=C * (PITCH + 0.005),
        )

    columns, side = arrange(0.0, 0.0)
    numbers = side >= C * readable
    full = len(shown) % columns == 0
    # If cells are too small for numbers, a bar explains the shades, in an empty place if there is one.
    right, below = 0.0, 0.0
    if not numbers and full:
        right, below = (0.65, 0.0) if total > 5 and len(shown) <= 3 else (0.0, 0.45)
        columns, side = arrange(right, below)
    side = min(side, max(3.2, C * 0.06))
    rows, cell = math.ceil(len(shown) / columns), side / C
    figure = blank(total, rows * (side + 0.22) + margin + below, title)
    every, spare = panels(figure, len(shown), columns, sharex=True, sharey=True)
    label = f"{axes_names[0]} ({unit})" if numbers else axes_names[0]
    wide = len(shown) > 1 and text_width(label, NORMAL) > side
    titles = panel_titles(list(shown), side + 0.05)
    for place, (name, values, axes) in enumerate(zip(titles, shown.values(), every, strict=True)):
        image = axes.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], interpolation="nearest")
        axes.grid(False)
        if numbers:
            _write_values(axes, values, number)
        cross_out(axes, values)
        name_below(axes, names, cell)
        name_ticks(axes.yaxis, names, cell)
        axes.tick_params(length=0)
        if len(shown) > 1 or "−" in name:
            axes.set_title(name)
        if place % columns == 0:
            axes.set_ylabel(axes_names[1])
        if place + columns >= len(shown) and not wide:
            axes.set_xlabel(label)
    if wide:  # one label for all panels, since their own would overlap
        figure.supxlabel(label, fontsize=NORMAL)
    if not numbers or spare is not None:
        add_scale(figure, image, every, spare, unit, below=not right, shrink=0.9 if rows == 1 else 0.5)
    return figure


def _write_values(axes: Axes, values: Floats, number: str) -> None:
    """Write the numbers that do not round to 0."""
    for (row, column), value in np.ndenumerate(values):
        written = "" if np.isnan(value) else number.format(value).replace("-", "−")
        if written and float(written.replace("−", "-")):
            write_number(axes, row, column, written, float(value))


@printed
def predictions(runs: Sequence[SavedRun], *, width: float | None = None, title: str | None = None) -> Figure:
    """Draw how often the global model answers each class in every tested round (FedLMD, Fig. 2).

    Each method has a panel for its first seed, which the title names. If the labels that the clients of each
    round held are known, they have a panel before it.
    """
    classes = same_classes(runs)
    shown: dict[str, tuple[list[int], Floats]] = {}
    groups = by_method(runs)
    alike = len({members[0].seed for members in groups.values()}) == 1
    held = {name: _labels_held(members[0]) for name, members in groups.items()}
    several = len({(tuple(rounds), labels.tobytes()) for rounds, labels in filter(None, held.values())}) > 1
    for name, members in groups.items():
        run, labels = members[0], held[name]
        shares = np.array([line.prediction_share for line in run.tested], dtype=np.float64)
        known = any(labels is not None and np.array_equal(labels[1], values) for _, values in shown.values())
        if labels is not None and not known:
            whose = f"labels of {name}" if several else "clients' labels"
            shown[f"{whose}, seed {run.seed}"] = labels
        whose = f"answers of {name}" if shown and alike else f"answers of {name}, seed {run.seed}"
        shown[whose] = [line.round for line in run.tested], 100 * shares
    C, total = len(classes), width or (COLUMN if len(shown) <= 6 else PAGE)
    most = (2 if len(shown) > 5 else 1) if total < 5 else min(3, math.ceil(len(shown) / 3))
    columns = columns_for(len(shown), most)
    rows = math.ceil(len(shown) / columns)
    highest = max(float(np.nanmax(values)) for _, values in shown.values())
    names = distinct(classes, 0.9)
    tall = min(max(LINE * C, 1.0), (TALLEST - 0.5) / rows - 0.35, 3.5)
    if tall < 0.35:
        raise UserError(f"{len(shown) - 1} methods do not fit on a page: give fewer runs.")
    inside = (total - 0.9 - max(text_width(each, SMALL) for each in names)) / columns - 0.05
    words = heading([members[0] for members in groups.values()], title)
    figure = blank(total, rows * (tall + 0.35) + 0.2, words)
    every, spare = panels(figure, len(shown), columns)
    for place, (name, (rounds, values), axes) in enumerate(zip(shown, shown.values(), every, strict=True)):
        image = axes.imshow(
            values.T, aspect="auto", cmap=shades(), vmin=0, vmax=highest, interpolation="nearest"
        )
        axes.grid(False)
        name_ticks(axes.yaxis, names, tall / C)
        _round_ticks(axes, rounds, inside / len(rounds))
        axes.tick_params(length=0, labelleft=place % columns == 0)
        brief = name if text_width(name, NORMAL) <= inside else name.removeprefix("answers of ")
        axes.set_title(fit(brief, inside, NORMAL))
        if place + columns >= len(shown):
            axes.set_xlabel("round")
    add_scale(figure, image, every, spare, "share (%)")
    return figure


def _labels_held(run: SavedRun) -> tuple[list[int], Floats] | None:
    """Return the tested rounds and each class's share (%) of their clients' samples; None if not known."""
    if not run.tested:
        raise UserError(f"{run.path} has no tested round yet: wait for the first, or leave the run out.")
    if any(max(line.cohort, default=0) >= len(run.counts) for line in run.tested):
        return None
    held = np.array([run.counts[line.cohort].sum(axis=0) for line in run.tested], dtype=float)
    return [line.round for line in run.tested], 100 * held / np.maximum(held.sum(axis=1, keepdims=True), 1)


def _round_ticks(axes: Axes, rounds: Sequence[int], cell: float) -> None:
    """Place ticks at tested rounds far enough apart: at every first, second, fifth, tenth and so on."""
    room = max(text_width(str(rounds[-1]), SMALL) + 0.12, 0.3)
    stride = rounds[0] if all(round % rounds[0] == 0 for round in rounds) else 1
    steps = (stride * lead * 10**power for power in itertools.count() for lead in (1, 2, 5))
    step = next(step for step in steps if step * cell * len(rounds) / rounds[-1] >= room or step > rounds[-1])
    places = [place for place, round in enumerate(rounds) if round % step == 0] or [len(rounds) - 1]
    axes.set_xticks(places, [str(rounds[place]) for place in places])
