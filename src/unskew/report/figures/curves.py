"""What changes from round to round, with bands over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from unskew import metrics
from unskew.errors import UserError
from unskew.report.figures.style import (
    BLACK,
    COLUMN,
    GREEN,
    NORMAL,
    PAGE,
    RED,
    TALLEST,
    blank,
    fit,
    legend_below,
    line_style,
    mark_every,
    panels,
    printed,
)
from unskew.report.figures.words import heading
from unskew.report.measures import MEASURES, find, shared_rounds
from unskew.report.read import Run, by_method

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


@printed
def curves(
    runs: Sequence[Run], *, metric: str = "accuracy", width: float | None = None, title: str | None = None
) -> Figure:
    """A metric in every tested round, one line for each method: the mean over its seeds, and a band of one
    standard deviation to each side (FedVLS, Fig. 3)."""
    measure = find(metric, runs)
    groups = {name: shared_rounds(members, measure) for name, members in by_method(runs).items()}
    return _lines(groups, measure.axis, measure.scale, width, heading(runs, title))


@printed
def experts(runs: Sequence[Run], *, width: float | None = None, title: str | None = None) -> Figure:
    """What methods count in the steps of their clients, in every round, as a share of the samples that these
    passed through: such as how often PKD's experts teach (PKD, Fig. 11). Of a method that counts several
    things, a line for each."""
    words: dict[str, str] = {}
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    for name, members in by_method(runs).items():
        for tally, told in _tallies(members[0]).items():
            words[tally] = told
            each = [_shares(run, tally) for run in members]
            rounds = sorted(set.intersection(*(set(values) for values in each)))
            found[name, tally] = {round: [values[round] for values in each] for round in rounds}
    one = len(set(words.values())) == 1
    groups = {name if one else f"{name}: {words[tally]}": values for (name, tally), values in found.items()}
    ylabel = f"{next(iter(words.values()))} (%)" if one else "share of the samples (%)"
    return _lines(groups, ylabel, 100, width, heading(runs, title))


def _tallies(run: Run) -> dict[str, str]:
    """What a run has counted, in words; while it is under way, by name."""
    names = dict.fromkeys(name for line in run.rounds for name in line.tallies)
    if not names:
        raise UserError(
            f"{run.path} has counted nothing yet: give runs of a method that does, such as pkd, and wait for "
            "its last stage."
        )
    known = run.summary.tallies if run.summary else {}
    return {name: known[name].of if name in known else name for name in names}


def _shares(run: Run, tally: str) -> dict[int, float]:
    return {
        line.round: line.tallies[tally] / line.samples
        for line in run.rounds
        if tally in line.tallies and line.samples
    }


def _lines(
    groups: Mapping[str, Mapping[int, Sequence[float]]],
    ylabel: str,
    scale: float,
    width: float | None,
    title: str,
) -> Figure:
    total = width or (COLUMN if len(groups) <= 8 else PAGE)
    figure = blank(total, 2.3 if total < 5 else 3.6, title)
    axes = figure.add_subplot()
    handles = []
    for index, values in enumerate(groups.values()):
        handles.append(_band(axes, values, scale, index))
    axes.set(xlabel="round", ylabel=ylabel)
    whole_rounds(axes)
    if len(groups) > 1 or not title:
        legend_below(figure, handles, list(groups))
    return figure


def _band(axes: Axes, values: Mapping[int, Sequence[float]], scale: float, index: int) -> Line2D:
    rounds = np.array(list(values))
    seeds = [metrics.over_seeds(each) for each in values.values()]
    mean = scale * np.array([np.nan if each is None else each.mean for each in seeds])
    std = scale * np.array([0.0 if each is None or each.std is None else each.std for each in seeds])
    look = line_style(index)
    if std.any():
        axes.fill_between(rounds, mean - std, mean + std, color=look["color"], alpha=0.15, linewidth=0)
    (line,) = axes.plot(rounds, mean, **look, markevery=mark_every(len(rounds), index))
    return line


@printed
def extremes(runs: Sequence[Run], *, width: float | None = None, title: str | None = None) -> Figure:
    """The best class, the mean over classes and the worst class in every round, a panel for each method; over
    seeds, their means (PKD, Fig. 3)."""
    groups = by_method(runs)
    total = width or (COLUMN if len(groups) == 1 else PAGE)
    columns = int(np.clip(total // (1.7 if len(groups) > 3 else 2.3), 1, len(groups)))
    rows = -(-len(groups) // columns)
    height = min(rows * (2.1 if rows < 4 else 1.6), TALLEST - 0.6)
    figure = blank(total, height, heading(runs, title))
    every = panels(figure, len(groups), columns, sharex=True, sharey=True)
    looks = {
        "best": (GREEN, "--", "^", "best class"),
        "balanced-accuracy": (BLACK, "-", "o", "mean"),
        "worst": (RED, "-.", "v", "worst class"),
    }
    for place, ((name, members), axes) in enumerate(zip(groups.items(), every, strict=True)):
        lines = {}
        for metric, (color, dash, marker, label) in looks.items():
            values = shared_rounds(members, MEASURES[metric])
            mean = [100 * float(np.mean(seeds)) for seeds in values.values()]
            (lines[metric],) = axes.plot(
                list(values), mean, color=color, linestyle=dash, marker=marker, label=label,
                markevery=mark_every(len(mean), 0),
            )  # fmt: skip
        axes.fill_between(
            lines["best"].get_xdata(), lines["worst"].get_ydata(), lines["best"].get_ydata(),
            color="#f0f0f0", linewidth=0, zorder=0,
        )  # fmt: skip
        if len(groups) > 1:
            axes.set_title(fit(name, total / columns - 0.45, NORMAL))
        axes.set_ylim(-3, 103)
        whole_rounds(axes)
        if place % columns == 0:
            axes.set_ylabel("accuracy (%)")
        if place + columns >= len(groups):
            axes.set_xlabel("round")
    handles = list(lines.values())
    legend_below(figure, handles, [str(line.get_label()) for line in handles])
    return figure


def whole_rounds(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
