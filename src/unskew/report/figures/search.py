"""The figure of a search: the scores of its trials on validation data, by each searched setting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from unskew import metrics
from unskew.errors import UserError, unknown
from unskew.record import TrialRecord, Tuned
from unskew.report.figures.fitting import fit
from unskew.report.figures.layout import add_legend, blank, columns_for, panels
from unskew.report.figures.lines import line_key, line_style, mark_key
from unskew.report.figures.settings_axis import SettingValue, add_ticks, find_setting, places_of
from unskew.report.figures.style import COLUMN, PAGE, TALLEST, printed
from unskew.report.figures.words import heading
from unskew.report.looks import PlotStyle, looks
from unskew.report.read import SavedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Trials = dict[SettingValue, TrialRecord]
"""The best trial at each value of a setting."""


@printed
def search(
    tuned: Tuned,
    winners: Sequence[SavedRun],
    *,
    over: Sequence[str] = (),
    methods: Sequence[str] = (),
    width: float | None = None,
    title: str | None = None,
) -> Figure:
    """Draw the scores of a search's trials by each searched setting, for each method that has it.

    At each value it is the trial with the best other settings, as mean and standard deviation over seeds. The
    filled mark is the winner. The trials of a grid are joined by lines. `over` chooses settings, such as
    budget.lr, or lr for short, and `methods` chooses methods as they were searched. `winners` are the runs of
    the winners, for the title.
    """
    searched = list(dict.fromkeys(trial["method"] for trial in tuned["all"]))
    for name in methods:
        if name not in searched:
            raise unknown("method of the search", name, searched)
    known = list(dict.fromkeys(key for trial in tuned["all"] for key in trial["values"]))
    keys = [find_setting(name, known) for name in over] or known
    found = {key: _best(tuned, key, methods or searched) for key in keys}
    found = {key: lines for key, lines in found.items() if any(len(each) > 1 for each in lines.values())}
    if not found:
        raise UserError(f"no method has scores for two values of {' or '.join(keys)}: search more of them.")
    total = width or (COLUMN if len(found) == 1 else PAGE)
    columns = columns_for(len(found), int(max(total // 2.2, 1)))
    rows = math.ceil(len(found) / columns)
    words = heading(winners, title)
    figure = blank(total, min(rows * 2.2, TALLEST - 1), words)
    every, spare = panels(figure, len(found), columns, sharey=True)
    names = list(dict.fromkeys(name for lines in found.values() for name in lines))
    seen = looks(names)
    won = {(each["method"], each["trial"]) for each in tuned["winners"]}
    for place, ((key, lines), axes) in enumerate(zip(found.items(), every, strict=True)):
        label = _panel(axes, key, lines, tuned, won, seen, total / columns - 0.7)
        alike = [other for other in found if other.rpartition(".")[2] == label]
        axes.set_xlabel(
            fit(label if len(alike) == 1 else key.removeprefix("method."), total / columns - 0.7, 8)
        )
        if place % columns == 0:
            axes.set_ylabel(f"{_metric(tuned)} on validation{' (%)' * (_scale(tuned) == 100)}")
    legend = {name: line_key(seen[name]) for name in names if len(names) > 1 or not words}
    if won:
        legend["winner"] = mark_key("o", filled=True)
    if any(len(trial["by_seed"]) > 1 for trial in tuned["all"]):
        legend["± std over seeds"] = mark_key("|")
    if legend:
        add_legend(figure, list(legend.values()), list(legend), spare)
    return figure


def _best(tuned: Tuned, key: str, methods: Sequence[str]) -> dict[str, Trials]:
    """Return the best trial at each value of a setting, for each of the methods that has it."""
    sign = -1 if tuned["metric"] == "loss" else 1
    found: dict[str, Trials] = {}
    for trial in tuned["all"]:
        if trial["method"] not in methods or key not in trial["values"] or (score := trial["score"]) is None:
            continue
        mine, value = found.setdefault(trial["method"], {}), trial["values"][key]
        if value not in mine or sign * score > sign * (mine[value]["score"] or 0.0):
            mine[value] = trial
    return found


def _scale(tuned: Tuned) -> int:
    return 1 if tuned["metric"] == "loss" else 100


def _metric(tuned: Tuned) -> str:
    return {
        "worst-class": "worst class",
        "balanced-accuracy": "balanced accuracy",
        "macro-f1": "macro F1",
    }.get(tuned["metric"], tuned["metric"])


def _panel(
    axes: Axes,
    key: str,
    lines: Mapping[str, Trials],
    tuned: Tuned,
    won: set[tuple[str, int]],
    seen: Mapping[str, PlotStyle],
    inches: float,
) -> str:
    """Draw the lines of a setting, and return its short name."""
    label, places, numeric = places_of(
        key, list(dict.fromkeys(value for each in lines.values() for value in each))
    )
    low, high = (0, np.inf) if tuned["metric"] == "loss" else (0, 100)
    for name, trials in lines.items():
        look = line_style(seen[name]) | ({} if tuned["sampler"] == "grid" else {"linestyle": "none"})
        order = sorted(trials, key=lambda value: places[value])
        ends = [metrics.over_seeds(trials[value]["by_seed"]) for value in order]
        mean = _scale(tuned) * np.array([end.mean for end in ends if end])
        std = _scale(tuned) * np.array([end.std or 0.0 for end in ends if end])
        at = [places[value] for value in order]
        axes.errorbar(
            at,
            mean,
            yerr=(mean - np.maximum(mean - std, low), np.minimum(mean + std, high) - mean)
            if std.any()
            else None,
            capsize=2,
            elinewidth=0.7,
            markersize=3.8,
            markerfacecolor="none",
            **look,
        )
        for place, value, height in zip(at, order, mean, strict=True):
            if (name, trials[value]["trial"]) in won:
                axes.plot(
                    place, height, marker=seen[name].marker, color=seen[name].light, markersize=4.8, zorder=4
                )
    add_ticks(axes, places, numeric, inches)
    return label
