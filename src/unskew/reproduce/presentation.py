"""Reproduced cells next to the published numbers: as rows, as a page and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from unskew.record import Json
from unskew.reproduce.outcome import CellOutcome
from unskew.reproduce.published import PERCENT, Published, PublishedTable
from unskew.reproduce.version import Version


def to_json(table: PublishedTable, cells: Sequence[CellOutcome], version: Version) -> dict[str, Json]:
    """Return a table's outcomes for programs, with numbers in the published unit."""
    return {
        "table": table.id,
        "title": table.title,
        "reports": table.reports,
        "statistic": table.statistic,
        "version": {
            "full": version.full,
            "words": version.words,
            "rounds": version.rounds,
            "fraction": version.fraction,
            "precision": version.precision,
            "fast": version.fast,
        },
        "notes": list(table.notes),
        "differences": list(table.differences),
        "cells": [_cell_json(table, each) for each in cells],
    }


def _cell_json(table: PublishedTable, outcome: CellOutcome) -> dict[str, Json]:
    summaries = [run.summary for run in outcome.runs if run.summary is not None]
    return {
        "cell": outcome.cell.id,
        "reading": outcome.reading,
        "assumed": list(outcome.cell.assumed),
        "seeds": [run.seed for run in outcome.runs],
        "measures": {
            name: {
                "published": published_json(outcome.cell.published.get(name)),
                "mean": found.mean if (found := outcome.over_seeds(name)) else None,
                "std": found.std if found else None,
                "values": [
                    value if math.isfinite(value) else None for value in outcome.measured.get(name, ())
                ],
                "difference": outcome.difference(name),
            }
            for name in table.measures
        },
        "beside": {
            **{
                f"accuracy.{name}": [_percent(getattr(each.accuracy, name)) for each in summaries]
                for name in ("best_by_test", "last", "mean_last_10")
            },
            "worst_class": [_percent(each.worst_class_accuracy) for each in summaries],
            "drift.received": [run.probes[-1].drift.received if run.probes else None for run in outcome.runs],
        },
        "seconds": [each.seconds for each in summaries],
        "devices": [str(run.experiment.get("device", "")) for run in outcome.runs],
        "runs": [str(run.path) for run in outcome.runs],
    }


def published_json(number: Published | None) -> Json:
    """Return a published number for programs; None if there is no number."""
    return None if number is None else {"value": number.value, "std": number.std, "word": number.word or None}


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def rows_of(
    table: PublishedTable, cells: Sequence[CellOutcome], version: Version
) -> tuple[list[str], list[list[str]]]:
    """Return the heads and the rows of the table that is shown: published, ours, difference, reading.

    If the paper reports the best round, which was chosen on the test set, the mean of the last ten rounds is
    shown as well.
    """
    several = len(table.measures) > 1
    ours = "ours, smaller version" if version.smaller else "ours"
    best = table.statistic == "best_by_test" and "accuracy" in table.measures
    heads = ["cell", *["measure"] * several, "published", ours, "difference"]
    heads += [*["mean of last 10"] * best, "reading"]
    rows = []
    for each in cells:
        for name in table.measures:
            published = each.cell.published.get(name)
            if several and published is None and not each.measured.get(name):
                continue
            difference = each.difference(name)
            rows.append(
                [
                    each.cell.id,
                    *[name] * several,
                    "-" if published is None else str(published),
                    each.text(name),
                    "-" if difference is None else f"{difference:+.2f}",
                    *[each.last_ten() if name == "accuracy" else ""] * best,
                    each.reading,
                ]
            )
    return heads, rows


def caption(table: PublishedTable, version: Version) -> list[str]:
    """Return the lines above the numbers: what is published, and in which version ours are."""
    percent = [name.startswith(PERCENT) for name in table.measures]
    unit = "in %" if all(percent) else "accuracies in %" if any(percent) else ""
    lines = [f"{table.id}: {table.title}", f"published: {table.reports}" + f" ({unit})" * bool(unit)]
    if not version.full:
        warning = ": not to be compared with what is published" * version.smaller
        lines.append(f"ours: {version.words}{warning}")
    return lines


def to_markdown(table: PublishedTable, cells: Sequence[CellOutcome], version: Version) -> str:
    """Return the table as a Markdown page."""
    heads, rows = rows_of(table, cells, version)
    first, *rest = caption(table, version)
    lines = [f"# {first}", "", *(f"{line}.  " for line in rest), ""]
    lines += [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    about = [*table.notes, *(f"assumed: {each}" for each in assumptions(cells)), *table.differences]
    if about:
        lines += ["", *(f"- {each}" for each in about)]
    return "\n".join(lines) + "\n"


def assumptions(cells: Iterable[CellOutcome]) -> list[str]:
    """Return what had to be chosen for these cells, each once."""
    return list(dict.fromkeys(each for one in cells for each in one.cell.assumed))
