"""The axis of a setting, such as a learning rate: its name, the places of its values, and their ticks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
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
    """Place ticks at the values, as many as have room for their names."""
    from matplotlib.ticker import NullLocator

    values = sorted(places.values())
    at = {place: place for place in values}
    # On a logarithmic axis, values that differ by equal factors have equal distances.
    if numeric and values[0] > 0 and values[-1] / values[0] >= 20:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        at = {place: math.log(place) for place in values}
    inch = 0.9 * inches / max(at[values[-1]] - at[values[0]], 1e-12)  # 0.9: leaves room for the margins
    names = {
        place: f"{place:g}" if numeric else fit(str(value), inches / len(places) - 0.06)
        for value, place in places.items()
    }
    kept = values[:1]
    for place in values[1:]:
        half = (text_width(names[place], SMALL) + text_width(names[kept[-1]], SMALL)) / 2
        if (at[place] - at[kept[-1]]) * inch >= half + 0.06:
            kept.append(place)
    axes.set_xticks(kept, [names[place] for place in kept])
