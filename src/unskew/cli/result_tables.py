"""Tables and lines about finished runs, for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from unskew import metrics
from unskew.cli.terminal import LONGEST_NAME, Grid, listed, percent, shorten
from unskew.comparison.statistics import SPREAD, site_statistics, summary_of
from unskew.metrics import GROUPS, Difference
from unskew.notation import span
from unskew.record import Json, SiteRecord, Summary
from unskew.report.answer import Answer
from unskew.report.differences import points, verdict
from unskew.report.measures import mean_title
from unskew.report.read import SavedRun
from unskew.report.standings import TITLES

LONGEST_BAR = 20
WIDE, NARROW = 51, 42
"""Characters of a class table without the name and the bar, with titles in one line and in two."""


def _number(record: Json, key: str) -> float | None:
    """Return a number of a record, or None if it is missing or not finite."""
    value = record.get(key) if isinstance(record, dict) else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def spread(values: Sequence[float | None]) -> str:
    """Return mean ± standard deviation (n-1) in percent; a single value without a deviation."""
    known = metrics.over_seeds(values)
    return "-" if known is None else metrics.plus_minus(known, scale=100)


def class_table(run: SavedRun, width: int) -> Table:
    """Return a table of all classes: the final model's accuracy, and the number of clients in each group."""
    by_class = metrics.class_accuracy(np.array(summary_of(run).confusion))
    held = {name: mask.sum(axis=0) for name, mask in metrics.groups(run.counts).items()}
    names = max(len("class"), *map(len, run.classes))
    narrow = names + LONGEST_BAR + WIDE > width
    names = min(names, LONGEST_NAME) if narrow else names
    bar = max(0, min(width - NARROW - names, LONGEST_BAR))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("class", no_wrap=True, overflow="ellipsis", max_width=names)
    table.add_column("accuracy %", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name in GROUPS:
        table.add_column(name + ("\nat" if narrow else " at"), justify="right", no_wrap=True)
    worst = metrics.worst_class(by_class)
    for index, name in enumerate(run.classes):
        value = by_class[index]
        drawn = "" if np.isnan(value) else "█" * round(bar * value)
        cells = [str(held[group][index]) if len(run.counts) else "-" for group in GROUPS]
        table.add_row(Text(name), percent(value), drawn, *cells, style="bold" if index == worst else None)
    return table


def result_grid(rows: Sequence[tuple[str, Sequence[SavedRun]]]) -> Grid:
    """Return the main results with a row per method, over the runs of its seeds."""
    validations = [summary_of(run).validation for _, runs in rows for run in runs]
    chose = any(each is not None for each in validations)
    stopped = any(each is not None and each.stopped is not None for each in validations)

    def row(name: str, runs: Sequence[SavedRun]) -> list[str]:
        each = [summary_of(run) for run in runs]
        found = [summary.accuracy for summary in each]
        last, best = spread([one.last for one in found]), spread([one.best_by_test for one in found])
        cells = [name, last, best, spread([one.mean_last_10 for one in found])]
        if chose:
            rounds = [summary.validation.round for summary in each if summary.validation]
            cells = [
                name,
                spread([one.best_by_validation for one in found]),
                span(rounds, "-") if rounds else "-",
                best,
            ]
        if stopped:
            cells.append(span((summary.rounds for summary in each), "-"))
        return [
            *cells,
            spread([summary.worst_class_accuracy for summary in each]),
            *(spread([getattr(summary.groups, group) for summary in each]) for group in GROUPS),
            mean([summary.seconds for summary in each], ".1f"),
        ]

    first = ["accuracy %", "best by test", mean_title([run for _, runs in rows for run in runs])]
    if chose:
        first = ["best by validation %", "in round", "best by test"]
    if stopped:
        first.append("ended in round")
    heads = ["method", *first, "worst class", *GROUPS, "seconds"]
    return Grid(heads, [row(name, runs) for name, runs in rows])


SITES_SHOWN = 20
"""The most sites in a table; of more, those with the lowest accuracy are shown."""


def site_grid(summary: Summary) -> Grid | None:
    """Return a table of all sites: samples, results, and the classes they lack; None without sites."""
    sites = summary.sites
    if sites is None:
        return None
    shown = sites.each
    title = f"{sites.spread.sites} sites, each on its own test samples"
    if len(shown) > SITES_SHOWN:
        lowest = sorted(shown, key=lambda site: math.inf if site.accuracy is None else site.accuracy)
        shown = lowest[:SITES_SHOWN]
        title += f"; here the {SITES_SHOWN} with the lowest accuracy"

    def row(site: SiteRecord) -> list[str]:
        worst = "-"
        if site.worst_class is not None:
            accuracy = percent(site.class_accuracy[site.worst_class])
            worst = f"{shorten(summary.classes[site.worst_class])} {accuracy}"
        lacks = site.lacks(summary.classes)
        return [
            site.name,
            str(site.trained_on),
            str(sum(site.test)),
            percent(site.accuracy),
            percent(site.balanced_accuracy),
            worst,
            "everything" if len(lacks) == len(summary.classes) else listed(lacks),
        ]

    heads = ["site", "train", "test", "accuracy %", "balanced", "worst class", "lacks"]
    return Grid(heads, [row(site) for site in shown], title)


def spread_line(summary: Summary) -> str:
    """Return a line on how the accuracies of the sites are spread."""
    assert summary.sites is not None
    spread = summary.sites.spread
    line = (
        f"over sites: mean {percent(spread.mean)}, worst {percent(spread.worst)} ({spread.worst_site}), best "
        f"{percent(spread.best)}, standard deviation {percent(spread.std)}"
    )
    if spread.sites > SITES_SHOWN:
        line += f", a tenth below {percent(spread.q10)}, half below {percent(spread.median)}"
    return line + ("" if spread.unseen is None else f"; sites that did not train {percent(spread.unseen)}")


def compared_sites(rows: Sequence[tuple[str, Sequence[SavedRun]]]) -> list[Grid]:
    """Return tables of methods by sites, over the seeds; empty without sites.

    If there are many sites, only the spread over them is shown.
    """
    by_method = {name: site_statistics([summary_of(run) for run in runs]) for name, runs in rows}
    known = {name: sites for name, sites in by_method.items() if sites}

    def named(sites: Mapping[str, Json], key: str) -> Mapping[str, Json]:
        by_site = sites[key]
        assert isinstance(by_site, dict)
        return by_site

    names = list(dict.fromkeys(name for sites in known.values() for name in named(sites, "accuracy")))
    shown = names if len(names) <= SITES_SHOWN else []

    def cell(found: Json) -> str:
        mean, std = _number(found, "mean"), _number(found, "std")
        return "-" if mean is None else metrics.mean_and_std(mean, std, scale=100)

    def grid(key: str, title: str, more: Sequence[str]) -> Grid:
        lines = [
            [
                name,
                *(cell(named(sites, key).get(site)) for site in shown),
                *(cell(sites[each]) for each in more),
            ]
            for name, sites in known.items()
        ]
        return Grid(["method", *shown, *more], lines, title)

    found = list[Grid]()
    if known:
        title = (
            "accuracy % at each site, on its own test samples; then over sites, std the standard deviation"
        )
        found.append(grid("accuracy", title, SPREAD))
    if shown:
        found.append(grid("balanced_accuracy", "the same as mean over classes, each counted once", ()))
    return found


def score_grid(rows: Sequence[tuple[str, Sequence[SavedRun]]]) -> Grid:
    """Return other scores of the final models with a row per method, over its seeds."""

    def row(name: str, runs: Sequence[SavedRun]) -> list[str]:
        each = [summary_of(run) for run in runs]
        found = [summary.probabilities for summary in each if summary.probabilities is not None]
        return [
            name,
            spread([summary.macro_f1 for summary in each]),
            spread([summary.balanced_accuracy for summary in each]),
            spread([one.auc for one in found]),
            spread([one.calibration_error for one in found]),
            mean([one.brier for one in found], ".3f"),
            mean([one.log_loss for one in found], ".3f"),
        ]

    heads = ["method", "macro-F1 %", "balanced acc.", "AUC", "calibration err.", "Brier", "log-loss"]
    return Grid(heads, [row(name, runs) for name, runs in rows])


def validation_line(summary: Summary) -> str:
    """Return a line on the round that validation chose; empty without a validation set."""
    found = summary.validation
    if found is None:
        return ""
    value = (
        f"{found.value:.3f}" if found.metric == "loss" and found.value is not None else percent(found.value)
    )
    unit = "" if found.metric == "loss" else " %"
    line = (
        f"chosen by validation: round {found.round} ({found.metric} {value}{unit} on {found.samples} samples)"
    )
    return line + ("" if found.stopped is None else f"; stopped after round {found.stopped}")


def cost_grid(rows: Sequence[tuple[str, Sequence[SavedRun]]]) -> Grid:
    """Return what each method computes, in rounds of FedAvg, and what it sends, over its seeds.

    If runs were probed the table also has the accuracy that local updates cost on the client's classes, and
    the time of probing.
    """
    probed = any(summary_of(run).probe_seconds is not None for _, runs in rows for run in runs)

    def row(name: str, runs: Sequence[SavedRun]) -> list[str]:
        cells, each = [name], [summary_of(run) for run in runs]
        if probed:
            cells += [spread([mean_drop(run, group) for run in runs]) for group in GROUPS]
            cells += [mean([summary.probe_seconds for summary in each], ".1f")]
        cells += [mean([summary.cost for summary in each], ".3g")]
        cells += [mean([summary.traffic.up / 1e6 for summary in each], ".3g")]
        cells += [mean([summary.traffic.down / 1e6 for summary in each], ".3g")]
        return cells

    heads, title = ["method", "cost (rounds of FedAvg)", "MB up", "MB down"], ""
    if probed:
        heads[1:1] = [*(f"drop {group}" for group in GROUPS), "probing seconds"]
        title = "drop: points that a local update costs on the client's classes of the kind; below 0 it gains"
    return Grid(heads, [row(name, runs) for name, runs in rows], title)


def mean(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return format(np.mean(known), form) if known else "-"


def difference_grid(answer: Answer) -> Grid:
    """Return the differences of each method from the reference on the same seeds."""

    def cell(found: Difference | None) -> str:
        return "-" if found is None else points(found) + "*" * found.settled

    rows = [[each.name, *(cell(each.differences[key]) for key in answer.measures)] for each in answer.others]
    interval = " (95 % interval); * significant after Holm's correction" if len(answer.seeds) > 2 else ""
    title = f"against {answer.reference} on the same seeds, in points{interval}"
    return Grid(["method", *(TITLES[key] for key in answer.measures)], rows, title)


FOREST = 25
"""Characters of a forest plot in the terminal."""


def forest_grid(answer: Answer) -> Grid:
    """Return a forest plot of the first measure, with a verdict for each method."""
    main = answer.main[0]
    found = {each.name: each.differences[main] for each in answer.others}
    ends = [end for one in found.values() if one and one.interval for end in one.interval]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    rows: list[list[str | Text]] = []
    for name, one in found.items():
        drawn = "" if one is None else forest_line(one, low, high)
        rows.append([name, "-" if one is None else points(one), Text(drawn), Text(verdict(one))])
    title = f"{TITLES[main]} against {answer.reference}, over {len(answer.seeds)} seeds"
    return Grid(["method", "points (95 % interval)", "", ""], rows, title, words=2)


def forest_line(found: Difference, low: float, high: float) -> str:
    """Draw an interval on a line from `low` to `high` that marks 0; its circle is filled if it is settled."""
    if found.interval is None or high <= low:
        return ""

    def place(value: float) -> int:
        return round((FOREST - 1) * (value - low) / (high - low))

    line = [" "] * FOREST
    left, right = (place(end) for end in found.interval)
    line[left : right + 1] = "─" * (right + 1 - left)
    line[place(0)] = "┼" if left <= place(0) <= right else "│"
    if left < right:
        line[left], line[right] = "├", "┤"
    line[place(found.difference)] = "●" if found.settled else "○"
    return "".join(line)


def mean_drop(run: SavedRun, group: str) -> float | None:
    """Return the mean accuracy that local updates cost on a group of classes, over the probed rounds."""
    found = [getattr(probe.groups, group) for probe in run.probes]
    drops = [stages.drop for stages in found if stages is not None and stages.drop is not None]
    return float(np.mean(drops)) if drops else None
