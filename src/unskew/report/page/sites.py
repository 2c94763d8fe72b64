"""The page's data of sites: the model on the test samples of each of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from unskew.record import Json, Number, SiteRecord, SiteSpread
from unskew.report.page.runs import number, over_seeds
from unskew.report.read import SavedRun

MOST_ROWS = 40
"""The most sites of the table; if there are more, it has the ones with the lowest accuracy."""
SPREAD = {
    "mean": "mean over sites",
    "worst": "worst site",
    "std": "standard deviation over sites",
}


def site_table(seeds: Mapping[str, Sequence[SavedRun]]) -> dict[str, Json] | None:
    """Return the table of sites by methods under one condition, over seeds; None if no run has sites."""
    last = {name: [found for run in runs if (found := _last(run))] for name, runs in seeds.items()}
    if not any(last.values()):
        return None
    known = {site.name: site for runs in seeds.values() for run in runs for site in _each(run)}
    by_site = {
        name: {method: _values(spreads, name) for method, spreads in last.items()}
        for name in dict.fromkeys([*_named(last.values()), *known])
    }
    for method, runs in seeds.items():  # with many sites, only the summaries name some of them
        for run in runs:
            for site in _each(run) if _last(run) and not _accuracies(run) else ():
                by_site[site.name].setdefault(method, []).append(site.accuracy)
    names = [name for name in by_site if _in_all(name, by_site[name], seeds)]
    if len(names) > MOST_ROWS:
        names = sorted(names, key=lambda name: _lowest(by_site[name].values()))[:MOST_ROWS]
    classes = next(iter(seeds.values()))[0].classes
    total = max(spread.sites for spreads in last.values() for spread in spreads)
    return {
        "methods": list(seeds),
        "total": total,
        "unseen": any(spread.unseen is not None for spreads in last.values() for spread in spreads),
        "rows": [
            {
                "name": name,
                "train": known[name].trained_on if name in known else None,
                "test": sum(known[name].test) if name in known else None,
                "lacks": [*known[name].lacks(classes)] if name in known else [],
                "accuracy": [over_seeds(by_site[name].get(method, [])) for method in seeds],
                "macro": [over_seeds(_macro(runs, name)) for runs in seeds.values()],
            }
            for name in names
        ],
        "spread": [
            {
                "name": title,
                "cells": [over_seeds([getattr(spread, key) for spread in last[method]]) for method in seeds],
            }
            for key, title in SPREAD.items()
        ],
    }


def _in_all(
    name: str, values: Mapping[str, Sequence[Number]], seeds: Mapping[str, Sequence[SavedRun]]
) -> bool:
    """Say whether every run with sites has this one, since a mean over some of the runs would mislead."""
    return all(
        len(values.get(method, [])) == sum(_last(run) is not None for run in runs)
        for method, runs in seeds.items()
    )


def site_classes(run: SavedRun) -> Json:
    """Return class accuracies and class counts of each site that the summary has; None if it has none."""
    if not _each(run):
        return None
    return [
        {
            "name": site.name,
            "train": list(site.train) if site.samples is None else None,
            "test": list(site.test),
            "accuracy": [number(value) for value in site.class_accuracy],
        }
        for site in _each(run)
    ]


def _last(run: SavedRun) -> SiteSpread | None:
    return run.final.sites if run.final else None


def _accuracies(run: SavedRun) -> dict[str, Number]:
    spread = _last(run)
    return (spread.accuracy or {}) if spread else {}


def _each(run: SavedRun) -> list[SiteRecord]:
    return run.summary.sites.each if run.summary and run.summary.sites else []


def _named(spreads: Iterable[Sequence[SiteSpread]]) -> list[str]:
    return [name for each in spreads for spread in each for name in spread.accuracy or {}]


def _values(spreads: Sequence[SiteSpread], name: str) -> list[Number]:
    return [spread.accuracy[name] for spread in spreads if spread.accuracy and name in spread.accuracy]


def _macro(runs: Sequence[SavedRun], name: str) -> list[Number]:
    return [site.balanced_accuracy for run in runs for site in _each(run) if site.name == name]


def _lowest(values: Iterable[Sequence[Number]]) -> float:
    found = [value for each in values for value in each if value is not None]
    return float(np.mean(found)) if found else math.inf
