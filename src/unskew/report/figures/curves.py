"""Figures of values by round, with bands over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unskew import metrics
from unskew.errors import UserError
from unskew.report.conditions import by_condition
from unskew.report.figures.fitting import fit, panel_titles, wrap
from unskew.report.figures.layout import add_legend, blank, columns_for, panels
from unskew.report.figures.lines import line_key, line_style, mark_places
from unskew.report.figures.style import BLACK, COLUMN, GREEN, NORMAL, PAGE, RED, TALLEST, printed
from unskew.report.figures.words import heading
from unskew.report.grouping import by_method
from unskew.report.looks import looks
from unskew.report.measures import MEASURES, find, shared_rounds
from unskew.report.read import SavedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Axis:
    """The vertical axis of a figure."""

    label: str
    scale: float
    limits: tuple[float, float]


Rounds = Mapping[int, Sequence[float]]
"""The values of all seeds, by round."""


@printed
def curves(
    runs: Sequence[SavedRun],
    *,
    metric: str = "accuracy",
    width: float | None = None,
    title: str | None = None,
) -> Figure:
    """Draw a metric in every tested round, with a line for each method (FedVLS, Fig. 3).

    A line is the mean over the method's seeds. A band of one standard deviation lies to each side of it, cut
    at the limits of the metric. Each condition has a panel of its own.
    """
    measure = find(metric, runs)
    parts = {
        condition.short: {name: shared_rounds(seeds, measure) for name, seeds in condition.methods.items()}
        for condition in by_condition(runs)
    }
    return _lines(parts, Axis(measure.axis, measure.scale, measure.limits), width, heading(runs, title))


@printed
def experts(runs: Sequence[SavedRun], *, width: float | None = None, title: str | None = None) -> Figure:
    """Draw what methods count in their clients' steps, such as how often PKD's experts teach (PKD, Fig. 11).

    Values are shares of the samples in these steps, by round. A method that counts several things has a line
    for each. Runs that count nothing are left out.
    """
    runs = counting(runs)
    words: dict[str, str] = {}
    found: dict[str, dict[tuple[str, str], Rounds]] = {}
    for condition in by_condition(runs):
        lines = found.setdefault(condition.short, {})
        for name, members in condition.methods.items():
            for tally, tally_title in _tallies(members[0]).items():
                words[tally] = tally_title
                each = [_shares(run, tally) for run in members]
                rounds = sorted(set.intersection(*(set(values) for values in each)))
                lines[name, tally] = {round: [values[round] for values in each] for round in rounds}
    one = len(set(words.values())) == 1
    parts = {
        short: {name if one else f"{name}: {words[tally]}": values for (name, tally), values in lines.items()}
        for short, lines in found.items()
    }
    ylabel = f"{next(iter(words.values()))} (%)" if one else "share of the samples (%)"
    return _lines(parts, Axis(ylabel, 100, (0, 100)), width, heading(runs, title))


def counting(runs: Sequence[SavedRun]) -> list[SavedRun]:
    """Return the runs that have counted something in their clients' steps; a UserError if there are none."""
    found = [run for run in runs if any(line.tallies for line in run.rounds)]
    if not found:
        raise UserError(
            f"{runs[0].path} has counted nothing yet: give runs of a method that does, such as pkd, and wait "
            "for its last stage."
        )
    return found


def _tallies(run: SavedRun) -> dict[str, str]:
    """Return what a run counts in words, by name; while it is under way, the words are the name."""
    names = dict.fromkeys(name for line in run.rounds for name in line.tallies)
    known = run.summary.tallies if run.summary else {}
    return {name: known[name].of if name in known else name for name in names}


def _shares(run: SavedRun, tally: str) -> dict[int, float]:
    return {
        line.round: line.tallies[tally] / line.samples
        for line in run.rounds
        if tally in line.tallies and line.samples
    }


def _lines(parts: Mapping[str, Mapping[str, Rounds]], axis: Axis, width: float | None, title: str) -> Figure:
    """Draw a panel for each part, with its lines by name."""
    names = list(dict.fromkeys(name for lines in parts.values() for name in lines))
    total = width or (COLUMN if len(names) <= 8 and len(parts) == 1 else PAGE)
    columns = columns_for(len(parts), int(max(total // 1.7, 1)))
    rows = -(-len(parts) // columns)
    if rows * 1.2 > TALLEST - 1:
        raise UserError(f"{len(parts)} conditions do not fit on a page: give fewer runs.")
    tall = (2.3 if total < 5 else 3.6) if len(parts) == 1 else min(2.1, (TALLEST - 1) / rows)
    figure = blank(total, rows * tall, title)
    every, spare = panels(figure, len(parts), columns, sharex=True, sharey=True)
    found = looks(names)
    inside = total / columns - 0.6
    titles = panel_titles(list(parts), total / columns - 0.3)
    for place, (panel, lines, axes) in enumerate(zip(titles, parts.values(), every, strict=True)):
        for line, values in lines.items():
            where = mark_places(len(values), names.index(line), len(names), inside)
            _band(axes, values, axis, line_style(found[line]) | where, 0.13 if len(lines) <= 5 else 0.07)
        whole_rounds(axes, inside)
        if panel:
            axes.set_title(panel)
        if place % columns == 0:
            axes.set_ylabel(wrap(axis.label, tall - 0.45, NORMAL))
        if place + columns >= len(parts):
            axes.set_xlabel("round")
    if len(names) > 1 or not title:
        add_legend(figure, [line_key(found[name]) for name in names], names, spare)
    return figure


def _band(axes: Axes, values: Rounds, axis: Axis, look: Mapping[str, Any], alpha: float) -> None:
    rounds = np.array(list(values))
    seeds = [metrics.over_seeds(each) for each in values.values()]
    mean = axis.scale * np.array([np.nan if each is None else each.mean for each in seeds])
    std = axis.scale * np.array([0.0 if each is None or each.std is None else each.std for each in seeds])
    if std.any():
        low, high = np.clip((mean - std, mean + std), *axis.limits)
        axes.fill_between(rounds, low, high, color=look["color"], alpha=alpha, linewidth=0)
    axes.plot(rounds, mean, **look)


@printed
def extremes(runs: Sequence[SavedRun], *, width: float | None = None, title: str | None = None) -> Figure:
    """Draw the accuracy of the best class, the mean over classes and the worst class by round (PKD, Fig. 3).

    Each method has a panel. Values are means over seeds.
    """
    groups = by_method(runs)
    total = width or (COLUMN if len(groups) == 1 else PAGE)
    columns = columns_for(len(groups), int(max(total // (1.7 if len(groups) > 3 else 2.3), 1)))
    rows = -(-len(groups) // columns)
    height = min(rows * (2.1 if rows < 4 else 1.6), TALLEST - 0.6)
    figure = blank(total, height, heading(runs, title))
    every, spare = panels(figure, len(groups), columns, sharex=True, sharey=True)
    stages = {
        "best": (GREEN, "--", "^", "best class"),
        "balanced-accuracy": (BLACK, "-", "o", "mean"),
        "worst": (RED, "-.", "v", "worst class"),
    }
    for place, ((name, members), axes) in enumerate(zip(groups.items(), every, strict=True)):
        lines = {}
        for index, (metric, (color, dash, marker, label)) in enumerate(stages.items()):
            values = shared_rounds(members, MEASURES[metric])
            mean = [100 * float(np.mean(seeds)) for seeds in values.values()]
            (lines[metric],) = axes.plot(
                list(values), mean, color=color, linestyle=dash, marker=marker, label=label,
                **mark_places(len(mean), index, len(stages), total / columns - 0.6),
            )  # fmt: skip
        axes.fill_between(
            lines["best"].get_xdata(), lines["worst"].get_ydata(), lines["best"].get_ydata(),
            color="#f0f0f0", linewidth=0, zorder=0,
        )  # fmt: skip
        if len(groups) > 1:
            axes.set_title(fit(name, total / columns - 0.45, NORMAL))
        axes.set_ylim(-3, 103)
        whole_rounds(axes, total / columns - 0.6)
        if place % columns == 0:
            axes.set_ylabel("accuracy (%)")
        if place + columns >= len(groups):
            axes.set_xlabel("round")
    handles = list(lines.values())
    add_legend(figure, handles, [str(line.get_label()) for line in handles], spare)
    return figure


def whole_rounds(axes: Axes, inches: float) -> None:
    """Place ticks at whole rounds, as many as fit on an axis of this length."""
    from matplotlib.ticker import MaxNLocator

    most = int(np.clip(inches / 0.4, 2, 9))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=most, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
