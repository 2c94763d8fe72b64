"""The axis of a setting, such as a learning rate: its name, the places of its values, and their ticks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from unskew.errors import UserError, unknown
from unskew.report.figures.fitting import fit, text_width
from unskew.report.figures.style import SMALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SettingValue = object


def find_setting(name: str, known: Sequence[str]) -> str:
    """Return the full name of one of the known settings, such as method.mu for mu."""
    if name in known:
        return name
    short = [key for key in known if key.rpartition(".")[2] == name]
    if not short:
        raise unknown("setting", name, known)
    if len(short) > 1:
        raise UserError(f"--over {name} may be {' or '.join(short)}: write it out.")
    return short[0]


def places_of(key: str, values: Sequence[SettingValue]) -> tuple[str, dict[SettingValue, float], bool]:
    """Return the name of the axis, the place of each value on it, and whether the places are numbers.

    Words are placed at equal distances. The number in a value such as dirichlet:0.1 counts as a number.
    """
    short = key.rpartition(".")[2]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return short, {value: float(str(value)) for value in values}, True
    heads = [re.fullmatch(r"([a-z-]+):([0-9.eE+-]*[0-9])", str(value)) for value in values]
    found = [match for match in heads if match]
    if len(found) == len(values) and len({match[1] for match in found}) == 1:
        numbers = {value: float(match[2]) for value, match in zip(values, found, strict=True)}
        return found[0][1], numbers, True
    return short, {value: float(index) for index, value in enumerate(values)}, False


def add_ticks(axes: Axes, places: Mapping[SettingValue, float], numeric: bool, inches: float) -> None:
    """Place ticks at the values: at all of them if their names have room in one line or in two, else at as
    many as have room in one."""
    from matplotlib.ticker import NullLocator

    values = sorted(places.values())
    at = {place: place for place in values}
    if numeric and _is_logarithmic(values):
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        at = {place: math.log(place) for place in values}
    inch = 0.9 * inches / max(at[values[-1]] - at[values[0]], 1e-12)  # 0.9: leaves room for the margins
    names = {
        place: f"{place:g}" if numeric else fit(str(value), inches / len(places) - 0.06)
        for value, place in places.items()
    }
    kept = _with_room(values, at, names, inch)
    below = [place for place in values if place not in kept]
    if below and _with_room(below, at, names, inch) == below:
        names |= {place: f"\n{names[place]}" for place in below}
        kept = values
    axes.set_xticks(kept, [names[place] for place in kept])


def _is_logarithmic(values: Sequence[float]) -> bool:
    """Say whether sorted values are shown on a logarithmic axis, where equal factors are equal distances.

    They are if they span a factor of 20, or one of 5 if their median is nearer to the middle there.
    """
    low, middle, high = values[0], float(median(values)), values[-1]
    if low <= 0 or high / low < 5:
        return False
    linear, log = (middle - low) / (high - low), math.log(middle / low) / math.log(high / low)
    return high / low >= 20 or abs(log - 0.5) < abs(linear - 0.5)


def _with_room(
    values: Sequence[float], at: Mapping[float, float], names: Mapping[float, str], inch: float
) -> list[float]:
    """Return the values whose names have room in one line, from the first on."""
    kept = [*values[:1]]
    for place in values[1:]:
        half = (text_width(names[place], SMALL) + text_width(names[kept[-1]], SMALL)) / 2
        if (at[place] - at[kept[-1]]) * inch >= half + 0.06:
            kept.append(place)
    return kept
