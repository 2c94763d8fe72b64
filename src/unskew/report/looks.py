"""The looks of methods, on the page and in figures: a colour, a dash and a marker for each.

A method in `FIXED` has its look whatever else is shown. Any two of them differ in at least two of the three.
All others, such as a method with other hyperparameters, have a look that follows from their name.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from unskew.record import Json

COLOURS = (
    ("#3a3b41", "#bfc1c8"),  # ink
    ("#0a6a4a", "#7cffc7"),  # green
    ("#ef5306", "#ff7438"),  # orange
    ("#ca1191", "#bc5c95"),  # magenta
    ("#938b5b", "#f5eb13"),  # khaki, yellow
    ("#0b55ec", "#4968fc"),  # blue
    ("#0690d8", "#25a2ef"),  # sky
    ("#c30010", "#e91e1d"),  # red
    ("#400488", "#dfbffc"),  # indigo, lavender
    ("#4e1e07", "#c6937d"),  # brown
)
"""Each colour on white paper and on the dark page. On either, any two colours differ by at least 11
(CIEDE2000), also for eyes that lack one kind of cone, and each has a contrast of 3:1 or more to the
ground."""

DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (4, 1.6),
    (1, 1.4),
    (5, 1.4, 1, 1.4),
    (8, 2),
    (4, 1.3, 1, 1.3, 1, 1.3),
    (2.2, 1.2),
)
"""Strokes and gaps in widths of the line; () is a whole line."""

MARKERS = (
    ("o", "circle"),
    ("s", "square"),
    ("^", "triangle-up"),
    ("D", "diamond"),
    ("v", "triangle-down"),
    ("P", "cross"),
    ("X", "x"),
    ("<", "triangle-left"),
    (">", "triangle-right"),
    ("*", "star"),
    ("h", "hexagon2"),
    ("d", "diamond-tall"),
)
"""The names of the markers in Matplotlib and in Plotly."""

FIXED = (
    # Every ten methods have each colour once, in the order above. Methods that are often compared are in the
    # same ten, and methods of one family have different colours.
    "fedavg", "fedprox", "fedlc", "fedntd", "fedlmd",
    "fedvls", "steady", "pkd", "scaffold", "feddyn",
    "centralised", "logit-adjustment", "fedlmd-tf", "fedrs", "feddecorr",
    "moon", "fedgela", "calfat", "fedntd-tf", "ccvr",
    "local-only", "fedadam", "fedavgm", "fedlmd-switch", "fedsam",
    "balancefl", "fednova", "fedmr", "fedekd", "fedkd",
    "uniform", "mofedsam", "fpl", "feddkd", "fedexp",
    "fedconcat", "label-smoothing", "focal", "class-balanced", "logit-adjustment-post-hoc",
    "unnormalised", "fedyogi", "fedgf", "ema", "fedcodl",
    "fedcurv", "median", "krum", "trimmed-mean", "geometric-median",
    "dp", "clip", "nnm", "fedadagrad", "fedswa",
    "fedcm", "wima", "fedacg", "fedmoswa", "fedrcl",
    "feded",
)  # fmt: skip
"""Methods whose look follows from their place. Add new ones at the end, so that all others keep theirs."""

TURNING = 6
"""The number of turns through the colours that share the first dashes, and the number of these dashes."""

STEP = 101
"""The distance in `EVERY` between the looks that a name tries; it is prime, so that all of them are tried."""


@dataclass(frozen=True)
class PlotStyle:
    """A colour, a dash and a marker, by their places in `COLOURS`, `DASHES` and `MARKERS`."""

    colour: int
    dashes: int
    symbol: int

    @property
    def light(self) -> str:
        """The colour on white paper."""
        return COLOURS[self.colour][0]

    @property
    def dark(self) -> str:
        """The colour on the dark page."""
        return COLOURS[self.colour][1]

    @property
    def dash(self) -> tuple[float, ...]:
        """Strokes and gaps in widths of the line; () is a whole line."""
        return DASHES[self.dashes]

    @property
    def marker(self) -> str:
        """The marker as Matplotlib calls it."""
        return MARKERS[self.symbol][0]

    def page_json(self) -> dict[str, Json]:
        """Return the look for the page: both colours, the dash, and Plotly's name of the marker."""
        return {
            "light": self.light,
            "dark": self.dark,
            "dash": list(self.dash),
            "symbol": MARKERS[self.symbol][1],
        }

    @property
    def pairs(self) -> tuple[tuple[str, int, int], ...]:
        """Each two of the three; looks that share one of these pairs are hard to tell apart."""
        return (
            ("line", self.colour, self.dashes),
            ("points", self.colour, self.symbol),
            ("grey", self.dashes, self.symbol),
        )


def looks(names: Iterable[str]) -> dict[str, PlotStyle]:
    """Return a look for each of these methods, which are shown together.

    Methods in `FIXED` always have the same look. Each other method starts from a look that follows from its
    name, and keeps it unless a method that was placed before has its colour, or its dash and marker; then it
    takes the next free look. Methods are placed in the order of their names, so the order of `names` never
    matters. If all colours are taken, two methods share one and differ in dash and marker; if these are taken
    too, they differ in one of the three.
    """
    wanted = list(dict.fromkeys(names))
    placed = {name: OF_METHOD[name] for name in wanted if name in OF_METHOD}
    for name in sorted(set(wanted) - set(placed)):
        placed[name] = _place(name, placed.values())
    return {name: placed[name] for name in wanted}


def _fixed(place: int) -> PlotStyle:
    """Return the look of the method at a place in `FIXED`.

    Each turn through the colours shifts dashes by one and markers by two, so that no two methods share two of
    colour, dash and marker. After the turns that share the first six dashes, every turn has a dash of its own
    and the markers that these turns left out.
    """
    turn, colour = divmod(place, len(COLOURS))
    if turn < TURNING:
        return PlotStyle(colour, (colour + turn) % TURNING, (colour + 2 * turn) % len(MARKERS))
    return PlotStyle(colour, turn, (colour + 2 * turn + 1) % len(MARKERS))


OF_METHOD = {name: _fixed(place) for place, name in enumerate(FIXED)}
_TAKEN = set(OF_METHOD.values())
EVERY = [
    PlotStyle(*places)
    for places in itertools.product(*(range(len(part)) for part in (COLOURS, DASHES, MARKERS)))
]


def _place(name: str, shown: Iterable[PlotStyle]) -> PlotStyle:
    """Choose the look of a method without a fixed one, next to the looks that are already shown.

    It is the first one that the name tries whose colour is free and that shares at most one of colour, dash
    and marker with each look shown; if no colour is free, the first that shares at most one; if there is
    none, the first that is not shown itself; and if all are shown, the first.
    """
    exact = set(shown)
    pairs = {pair for look in exact for pair in look.pairs}
    colours = {look.colour for look in exact}
    tried = list(_tried(name))
    apart = [look for look in tried if not any(pair in pairs for pair in look.pairs)]
    other = (look for look in tried if look not in exact)
    return next((look for look in apart if look.colour not in colours), None) or next(
        iter(apart), next(other, tried[0])
    )


def _tried(name: str) -> Iterator[PlotStyle]:
    """Yield all looks that no method in `FIXED` has, beginning at one that follows from the name."""
    first = int.from_bytes(hashlib.sha256(name.encode("utf-8", "replace")).digest()[:8], "big")
    for step in range(len(EVERY)):
        look = EVERY[(first + step * STEP) % len(EVERY)]
        if look not in _TAKEN:
            yield look
