"""The figure of a final metric by one setting of the runs (FedVLS, Fig. 4 and 8)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from unskew import metrics
from unskew.errors import UserError
from unskew.report.figures.fitting import fit
from unskew.report.figures.layout import add_legend, blank, columns_for, panels
from unskew.report.figures.lines import line_key, line_style
from unskew.report.figures.settings_axis import SettingValue, add_ticks, find_setting, places_of
from unskew.report.figures.style import COLUMN, PAGE, TALLEST, printed
from unskew.report.figures.words import heading
from unskew.report.grouping import hyperparameters, settings
from unskew.report.looks import PlotStyle, looks
from unskew.report.measures import Measure, final_value, find, series
from unskew.report.read import SavedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RunsBySetting = dict[str, dict[SettingValue, list[SavedRun]]]
"""The runs at each value of the setting, by the name of their line."""


@printed
def sensitivity(
    runs: Sequence[SavedRun],
    *,
    over: Sequence[str] = (),
    metric: str = "accuracy",
    width: float | None = None,
    title: str | None = None,
) -> Figure:
    """Draw the metric of the final model by each setting that varies while all others stay the same.

    Each setting has a panel, with means and standard deviations over seeds. `over` chooses settings, such as
    method.mu, or mu for short. Methods without the setting are horizontal lines.
    """
    measure = find(metric, runs)
    flat = [hyperparameters(run) | settings(run) for run in runs]
    known = list(dict.fromkeys(key for each in flat for key in each))
    keys = [find_setting(name, known) for name in over] or _varying(flat)
    found = {key: _lines(key, runs, flat) for key in keys}
    found = {key: lines for key, lines in found.items() if any(len(values) > 1 for values in lines.values())}
    if not found:
        what = f"{', '.join(keys)} does not vary" if keys else "no setting varies"
        raise UserError(
            f"{what} among these runs while all else stays the same: give runs such as fedprox:mu=0.01 and "
            "fedprox:mu=0.1."
        )
    total = width or (COLUMN if len(found) == 1 else PAGE)
    columns = columns_for(len(found), int(max(total // 2.2, 1)))
    rows = math.ceil(len(found) / columns)
    words = heading(runs, title)
    figure = blank(total, min(rows * 2.2, TALLEST - 1), words)
    every, spare = panels(figure, len(found), columns, sharey=True)
    names = list(dict.fromkeys(name for lines in found.values() for name in lines))
    seen = looks(names)
    for place, ((key, lines), axes) in enumerate(zip(found.items(), every, strict=True)):
        _panel(axes, key, lines, measure, seen, total / columns - 0.7)
        if place % columns == 0:
            axes.set_ylabel(measure.axis)
    if len(names) > 1 or not words:
        add_legend(figure, [line_key(seen[name]) for name in names], names, spare)
    return figure


def _varying(flat: Sequence[Mapping[str, SettingValue]]) -> list[str]:
    known = dict.fromkeys(key for each in flat for key in each if key != "method.name")
    varying = [key for key in known if len({str(each[key]) for each in flat if key in each}) > 1]
    return sorted(varying, key=lambda key: not key.startswith("method."))  # the method's own first


def _lines(key: str, runs: Sequence[SavedRun], flat: Sequence[Mapping[str, SettingValue]]) -> RunsBySetting:
    """Group runs that differ only in this setting and the seed, and add methods without the setting.

    Such methods are added if they ran under the same conditions.
    """
    groups: dict[str, tuple[dict[str, SettingValue], dict[SettingValue, list[SavedRun]]]] = {}
    for run, mine in zip(runs, flat, strict=True):
        rest = {name: value for name, value in mine.items() if name != key}
        value = str(mine[key]) if isinstance(mine.get(key), list) else mine.get(key)
        groups.setdefault(str(rest), (rest, {}))[1].setdefault(value, []).append(run)
    lines = [(rest, values) for rest, values in groups.values() if len(values) > 1]
    under = [_conditions(rest) for rest, _ in lines]
    lines += [
        (rest, values) for rest, values in groups.values() if None in values and _conditions(rest) in under
    ]
    named: RunsBySetting = {}
    for rest, values in lines:
        method = rest["method.name"]
        apart = _varying([other for other, _ in lines if other["method.name"] == method])
        differs = ",".join(f"{name.rpartition('.')[2]}={rest[name]}" for name in apart if name in rest)
        named[f"{method} ({differs})" if differs else f"{method}"] = values
    return named


def _conditions(rest: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    return {name: value for name, value in rest.items() if not name.startswith("method.")}


def _panel(
    axes: Axes,
    key: str,
    lines: RunsBySetting,
    measure: Measure,
    seen: Mapping[str, PlotStyle],
    inches: float,
) -> None:
    values = list(dict.fromkeys(value for each in lines.values() for value in each if value is not None))
    label, places, numeric = places_of(key, values)
    ends = {
        name: {
            value: metrics.over_seeds([_last(run, measure) for run in runs]) for value, runs in each.items()
        }
        for name, each in lines.items()
    }
    low, high = measure.limits
    for name, each in ends.items():
        look = line_style(seen[name]) | {"markerfacecolor": "none"}
        if (level := each.get(None)) is not None:
            # Its marker is at the edge of the panel, where the other lines have none.
            axes.axhline(measure.scale * level.mean, **look, markersize=3.8, markevery=[1], clip_on=False)
            continue
        known = {places[value]: end for value, end in each.items() if end is not None}
        mean = measure.scale * np.array([known[place].mean for place in sorted(known)])
        std = measure.scale * np.array([known[place].std or 0.0 for place in sorted(known)])
        axes.errorbar(
            sorted(known),
            mean,
            yerr=(mean - np.maximum(mean - std, low), np.minimum(mean + std, high) - mean),
            capsize=2,
            elinewidth=0.7,
            markersize=3.8,
            **look,
        )
    add_ticks(axes, places, numeric, inches)
    axes.set_xlabel(fit(label, inches, 8))


def _last(run: SavedRun, measure: Measure) -> float:
    known = series(run, measure)  # raises an error if there is no value
    value = final_value(run, measure)
    return known[max(known)] if value is None else value
