"""The figure of class accuracies before and after a local update (FedVLS, Fig. 1 and 9)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unskew import metrics
from unskew.errors import UserError
from unskew.metrics import GROUPS
from unskew.record import Client, ProbeRecord
from unskew.report.figures.fitting import distinct, fit, name_below, text_width
from unskew.report.figures.layout import add_legend, blank
from unskew.report.figures.style import BLUE, NORMAL, PAGE, RED, SMALL, TALLEST, printed
from unskew.report.figures.words import heading
from unskew.report.grouping import by_method, same_classes
from unskew.report.measures import no_probe
from unskew.report.read import SavedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NARROW = 0.09
"""With less room for a class than this, in inches, three bars would be too thin, and markers are drawn."""
STAGES = {
    "before": ("received model", "#bdbdbd", "", "o"),
    "after": ("after the local update", RED, "////", "v"),
    "aggregated": ("after aggregation", BLUE, "....", "s"),
}


@printed
def updates(
    runs: Sequence[SavedRun],
    *,
    client: int | None = None,
    round: int | None = None,
    width: float | None = None,
    title: str | None = None,
) -> Figure:
    """Draw accuracies by class and by group of classes around a local update, with a row for each method.

    The left panel shows one client in one round: the accuracy of each class by the model that it received, by
    its own model after training, and by the next global model. Classes are in the order of how many samples
    the client holds. The right panel shows the same three for majority, minority and vacant classes, as the
    mean over the round's clients and over seeds. Without `round` it is the last probed one, without `client`
    the first client that was probed.
    """
    classes = same_classes(runs)
    groups = by_method(runs)
    probes = {name: _probe(members[0], round) for name, members in groups.items()}
    found = {name: _client(members[0], probes[name], client) for name, members in groups.items()}
    held = [members[0].counts[found[name].client] for name, members in groups.items()]
    orders = [np.argsort(-counts, kind="stable") for counts in held]
    # A row has names of classes if it is the last, or if the next row has the classes in another order.
    named = [not np.array_equal(one, next_) for one, next_ in itertools.pairwise(orders)] + [True]

    total = width or PAGE
    right, cell = (1.9, (total - 2.8) / len(classes)) if total > 5 else (1.25, (total - 2.15) / len(classes))
    names = distinct(classes, 0.9)
    foot = sum(named) * (max(text_width(name, SMALL) for name in names) + 0.1)
    body = min((TALLEST - 0.6 - foot) / len(groups) - 0.4, 1.4)
    if body < 0.5:
        raise UserError(f"{len(groups)} methods do not fit on a page: give fewer runs.")
    places = {
        name: f"client {found[name].client}, round {probes[name].round}, seed {members[0].seed}"
        for name, members in groups.items()
    }
    once = total < 5 and len(groups) > 1 and len(set(places.values())) == 1  # then below the last row
    figure = blank(total, len(groups) * (body + 0.4) + foot + 0.15 * once, heading(runs, title))
    every = figure.subplots(len(groups), 2, squeeze=False, sharey=True, width_ratios=[total - right, right])
    for row, (name, members) in enumerate(groups.items()):
        left, means = every[row]
        _classes(left, found[name], held[row], orders[row], names if named[row] else None, cell)
        whose = name if once else f"{name}: {places[name]}" if len(groups) > 1 else places[name]
        left.set_title(fit(whose, total - right - 0.6, NORMAL), pad=12)
        left.set_ylabel("accuracy (%)")
        seeds = [_probe(run, probes[name].round) for run in members]
        _groups(means, seeds, named[row], (right - 0.15) / len(GROUPS))
        means.set_title("mean of the round's clients" if total > 5 else "round's clients", pad=12)
    if once:
        every[-1][0].set_xlabel(next(iter(places.values())), fontsize=SMALL)
    handles = list(every[0][0].containers or every[0][0].lines[: len(STAGES)])
    add_legend(figure, handles, [label for label, *_ in STAGES.values()])
    return figure


def _probe(run: SavedRun, round: int | None) -> ProbeRecord:
    if not run.probes:
        raise no_probe(run, "class accuracies around a local update")
    if round is None:
        return run.probes[-1]
    for probe in run.probes:
        if probe.round == round:
            return probe
    known = ", ".join(str(probe.round) for probe in run.probes[:20])
    raise UserError(f"{run.path} was not probed in round {round}: choose --round from {known}.")


def _client(run: SavedRun, probe: ProbeRecord, client: int | None) -> Client:
    clients = probe.clients
    if not clients:
        raise UserError(f"no client of {run.path} trained in round {probe.round}: choose another --round.")
    if client is None:
        client = clients[0].client
    for each in clients:
        if each.client == client and client < len(run.counts):
            return each
        if each.client == client:
            raise UserError(
                f"what client {client} of {run.path} holds is not known, since clients were drawn when they "
                f"were needed: choose a --client below {len(run.counts)}, or draw another figure."
            )
    known = ", ".join(str(each.client) for each in clients[:20])
    raise UserError(
        f"client {client} of {run.path} took no part in round {probe.round}: choose --client from {known}."
    )


def _classes(
    axes: Axes,
    found: Client,
    counts: NDArray[np.int64],
    order: NDArray[np.int64],
    names: Sequence[str] | None,
    cell: float,
) -> None:
    _bars(axes, {stage: np.array(getattr(found, stage), dtype=float)[order] for stage in STAGES}, cell)
    if names is None:
        axes.set_xticks([])
    else:
        name_below(axes, [names[index] for index in order], cell)
    start = 0
    for name, mask in metrics.groups(counts[None]).items():
        size = int(mask.sum())
        if not size:
            continue
        if start:
            axes.axvline(start - 0.5, color="#777777", linewidth=0.6, linestyle=":")
        label = name if text_width(name, SMALL) < size * cell else name[:3] + "."
        if text_width(label, SMALL) < size * cell + 0.05:
            axes.text(start + size / 2 - 0.5, 1.02, label, transform=axes.get_xaxis_transform(),
                      ha="center", va="bottom", fontsize=SMALL)  # fmt: skip
        start += size
    for index in np.flatnonzero(np.isnan(np.array(found.before, dtype=float)[order])):
        axes.text(float(index), 2, "no test samples", rotation=90, ha="center", va="bottom", fontsize=SMALL)


def _groups(axes: Axes, probes: Sequence[ProbeRecord], named: bool, cell: float) -> None:
    means, spread = {}, {}
    for stage in STAGES:
        seeds = [
            metrics.over_seeds([getattr(getattr(probe.groups, group), stage, None) for probe in probes])
            for group in GROUPS
        ]
        means[stage] = np.array([np.nan if each is None else each.mean for each in seeds])
        spread[stage] = np.array([0.0 if each is None or each.std is None else each.std for each in seeds])
    _bars(axes, means, cell, spread if len(probes) > 1 else None)
    if named:
        name_below(axes, GROUPS, cell)
    else:
        axes.set_xticks([])
    for index in np.flatnonzero(np.isnan(means["before"])):
        axes.text(float(index), 2, "none", rotation=90, ha="center", va="bottom", fontsize=SMALL)


def _bars(
    axes: Axes,
    values: Mapping[str, NDArray[np.float64]],
    cell: float,
    spread: Mapping[str, NDArray[np.float64]] | None = None,
) -> None:
    each = 0.84 / len(STAGES)
    for index, (stage, (_, color, hatch, marker)) in enumerate(STAGES.items()):
        if cell < NARROW:
            # Later markers are smaller, so that all are seen if their values are the same.
            axes.plot(
                100 * values[stage],
                linestyle="",
                color=color,
                marker=marker,
                markersize=4.5 - 1.2 * index,
                markeredgewidth=0,
                clip_on=False,
                zorder=3,
            )
            continue
        places = np.arange(len(values[stage])) + (index - 1) * each
        axes.bar(
            places,
            100 * values[stage],
            each,
            color=color,
            hatch=hatch,
            edgecolor="white",
            linewidth=0.2,
            yerr=None if spread is None else 100 * _within(values[stage], spread[stage]),
            error_kw={"elinewidth": 0.7, "capsize": 1.2},
        )
    axes.set_ylim(0, 101)
    axes.grid(False, axis="x")
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.6, len(values["before"]) - 0.4)


def _within(mean: NDArray[np.float64], std: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the lengths of error bars below and above the mean, cut at accuracies of 0 and 1."""
    return np.stack([np.minimum(std, mean), np.minimum(std, 1 - mean)])
