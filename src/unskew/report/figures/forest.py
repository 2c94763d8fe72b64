"""The figure to see first: how much methods differ from a reference, and whether that is significant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from unskew.errors import UserError
from unskew.metrics import Difference
from unskew.report.answer import Answer, answer
from unskew.report.conditions import Condition, by_condition
from unskew.report.differences import signed
from unskew.report.figures.fitting import distinct, fit, text_width, wrap
from unskew.report.figures.layout import add_legend, blank
from unskew.report.figures.style import GREY, NORMAL, PAGE, PITCH, SMALL, TALLEST, printed
from unskew.report.figures.words import heading
from unskew.report.looks import PlotStyle, looks
from unskew.report.read import SavedRun
from unskew.report.standings import TITLES, choose_reference
from unskew.report.table_cells import NONE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW = 0.24
"""The height in inches of a method's row, if there is room."""


@printed
def forest(
    runs: Sequence[SavedRun],
    *,
    reference: str | None = None,
    width: float | None = None,
    title: str | None = None,
) -> Figure:
    """Draw how many points each method is above or below the reference, with 95 % intervals over seeds.

    There is a row for each method, and a panel each for accuracy, the worst class and vacant classes; if test
    samples belong to sites, for the mean over sites, the worst site and the worst class. A filled marker is a
    difference that is significant after Holm's correction, a hollow one is not. Without `reference` it is
    FedAvg, or the first method if FedAvg was not run. Rows of one condition stand together.
    """
    conditions = by_condition(runs)
    compared = ((part, _answer(part, reference)) for part in conditions)
    parts = [(part, found) for part, found in compared if found.others]
    if not parts:
        raise UserError(
            "no two methods have tested seeds in common: give runs of at least two methods on the same seeds."
        )
    references = {found.reference for _, found in parts}
    total = width or PAGE
    names = list(dict.fromkeys(each.name for _, found in parts for each in found.others))
    short = dict(zip(names, distinct(names, 1.3 if total > 5 else 0.85), strict=True))
    rows: list[ForestRow] = []
    for part, found in parts:
        if part.short:
            against = f", against {found.reference}" if len(references) > 1 else ""
            rows.append(ForestRow(f"{part.short}{against}"))
        rows += [ForestRow(short[each.name], each.name, each.differences) for each in found.others]
    pitch = min(ROW, (TALLEST - 1.4) / len(rows))
    if pitch < PITCH:
        raise UserError(f"{len(rows)} rows do not fit on a page: give fewer runs.")
    figure = blank(total, pitch * len(rows) + 0.65, _heading(parts, title))
    main = parts[0][1].main
    panels: list[Axes] = list(figure.subplots(1, len(main), sharey=True, squeeze=False)[0])
    seen = looks(name for part in conditions for name in part.methods)  # the reference too, as elsewhere
    margin = 0.04 + max(text_width(name, SMALL) for name in short.values())
    inside = (total - margin) / len(main) - 0.1
    against = f"points against {references.pop()}" if len(references) == 1 else "points against the reference"
    for axes, measure in zip(panels, main, strict=True):
        _panel(axes, rows, measure, seen, numbers=total > 5)
        axes.set_title(wrap(TITLES[measure], inside, NORMAL))
    panels[len(panels) // 2].set_xlabel(fit(against, total - 0.2, NORMAL))
    panels[0].set_yticks(
        [place for place, row in enumerate(rows) if row.method],
        [row.label for row in rows if row.method],
    )
    for place, row in enumerate(rows):
        if not row.method:
            panels[0].annotate(
                fit(row.label, total - 0.2, NORMAL), (0, place), (-72 * margin, 0), fontsize=NORMAL,
                xycoords=panels[0].get_yaxis_transform(), textcoords="offset points", va="center",
                annotation_clip=False, bbox={"facecolor": "white", "linewidth": 0, "pad": 1},
            ).set_in_layout(False)  # fmt: skip
    _explain(figure, parts)
    return figure


@dataclass(frozen=True)
class ForestRow:
    """A row of the figure: a method, or the condition of the methods below it."""

    label: str
    method: str = ""
    """Empty for a condition."""
    differences: Mapping[str, Difference | None] = field(default_factory=dict)
    """The difference to the reference for each measure."""


def _answer(part: Condition, reference: str | None) -> Answer:
    return answer(part.methods, reference=choose_reference(part.methods, reference))


def _heading(parts: Sequence[tuple[Condition, Answer]], title: str | None) -> str:
    """Return the title: the conditions, the compared seeds, and the round if not all runs have ended."""
    used = [
        run
        for part, answer in parts
        for each in answer.standings
        for run in part.methods[each.name]
        if run.seed in answer.seeds
    ]
    rounds = {answer.round for _, answer in parts} - {None}
    words = heading(used, title)
    if title is None and rounds:
        words += f", after round {' and '.join(str(round) for round in rounds)}"
    return words


def _panel(
    axes: Axes, rows: Sequence[ForestRow], measure: str, seen: Mapping[str, PlotStyle], *, numbers: bool
) -> None:
    axes.axvline(0, color=GREY, linewidth=0.8, zorder=1)
    axes.grid(False, axis="y")
    for place, row in enumerate(rows):
        if not row.method:
            continue
        found, look = row.differences.get(measure), seen[row.method]
        if found is not None:
            if found.interval:
                low, high = (100 * end for end in found.interval)
                axes.plot([low, high], [place, place], color=look.light, linewidth=1.3, solid_capstyle="butt")
            axes.plot(
                100 * found.difference, place, marker="o", markersize=5, color=look.light,
                markerfacecolor=look.light if found.settled else "white", zorder=3, clip_on=False,
            )  # fmt: skip
        if numbers or found is None:
            axes.annotate(
                NONE if found is None else signed(found.difference), (1, place), (2, 0), fontsize=SMALL,
                xycoords=axes.get_yaxis_transform(), textcoords="offset points", va="center",
                annotation_clip=False,
            )  # fmt: skip
    axes.margins(x=0.08)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _explain(figure: Figure, parts: Sequence[tuple[Condition, Answer]]) -> None:
    """Add a legend for the markers and lines that the figure has."""
    from matplotlib.lines import Line2D

    shown = [
        each.differences[measure] for _, answer in parts for each in answer.others for measure in answer.main
    ]
    known = [found for found in shown if found is not None]
    keys = {}
    dot: dict[str, Any] = {"marker": "o", "markersize": 5, "linestyle": "", "color": GREY}
    if any(found.settled for found in known):
        keys["significant after Holm's correction"] = Line2D([], [], **dot)
    if not all(found.settled for found in known):
        keys["not significant"] = Line2D([], [], markerfacecolor="white", **dot)
    if any(found.interval for found in known):
        keys["95 % interval"] = Line2D([], [], color=GREY, linewidth=1.3)
    else:
        keys["no interval: it takes three seeds"] = Line2D([], [], linestyle="")
    add_legend(figure, list(keys.values()), list(keys))
