"""The data of a page, as JSON. Accuracies are fractions, which the page rounds when it prints them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import tomli_w

from unskew import metrics
from unskew.metrics import GROUPS
from unskew.record import Json, fault_notes, plain
from unskew.report.conditions import Condition, by_condition
from unskew.report.looks import looks
from unskew.report.measures import MEASURES, Measure
from unskew.report.page.blocks import block_data
from unskew.report.page.progress import progress
from unskew.report.page.runs import (
    curves,
    every,
    number,
    probe_every,
    probe_values,
    probed,
    site_values,
    spent,
    thin,
)
from unskew.report.page.sites import site_classes
from unskew.report.read import SavedRun
from unskew.version import VERSION

# A page may have 10 MB, of which plotly.js takes 4.8. A number takes up to twenty bytes, a number about a
# client in a probed round four, and a cell of a matrix two.
MOST_CLASS_VALUES = 60_000
"""The most accuracies of single classes over rounds; if there are more, rounds are left out."""
MOST_PROBE_VALUES = 250_000
"""The most numbers about clients in probed rounds; if there are more, probed rounds are left out."""
MOST_SITE_VALUES = 30_000
"""The most accuracies of single sites over rounds; if there are more, rounds are left out."""
MOST_SITE_CELLS = 30_000
"""The most accuracies of single classes at sites; a run that would exceed it has none on the page."""
MOST_CONFUSIONS = 250_000
"""The most cells of confusion matrices; a run whose matrix would exceed it has none on the page."""


def page_data(runs: Sequence[SavedRun], coming: Sequence[int] = ()) -> dict[str, Json]:
    """Return all data of the page. `coming` has the number of rounds of each run that has not begun."""
    blocks = by_condition(runs)
    methods = [(block, name) for block in blocks for name in block.methods]
    federations: dict[object, SavedRun] = {}
    for run in runs:
        federations.setdefault(_federation_key(run), run)
    look = looks(name for _, name in methods)
    return {
        "version": VERSION,
        "written": time.strftime("%Y-%m-%d %H:%M"),
        "title": blocks[0].title
        if len(blocks) == 1
        else f"Runs under {len(blocks)} conditions"
        if blocks
        else "No run yet",
        "blocks": [
            block_data(block, [methods.index((block, name)) for name in block.methods]) for block in blocks
        ],
        "methods": [
            {
                "name": name,
                "title": f"{name} ({block.letter})" if block.letter else name,
                "block": blocks.index(block),
                "look": look[name].page_json(),
            }
            for block, name in methods
        ],
        "measures": _measures(),
        "federations": [_federation(run) for run in federations.values()],
        "runs": _run_data(runs, methods, list(federations)),
        "notes": _notes(runs, coming),
        "progress": progress(runs, coming),
    }


def _run_data(
    runs: Sequence[SavedRun], methods: Sequence[tuple[Condition, str]], federations: Sequence[object]
) -> list[Json]:
    """Return the data of each run, with as many rounds, sites and matrices as the page has room for."""
    keep = thin(sum(len(run.tested) * len(run.classes) for run in runs), MOST_CLASS_VALUES)
    keep_sites = thin(sum(site_values(run) for run in runs), MOST_SITE_VALUES)
    keep_probes = thin(sum(probe_values(run) for run in runs), MOST_PROBE_VALUES)
    owner = {run.path: (block, name) for block, name in methods for run in block.methods[name]}
    cells = site_cells = 0
    shown: list[Json] = []
    for run in runs:
        block, name = owner[run.path]
        cells += len(run.classes) ** 2
        site_cells += _site_cells(run)
        shown.append(
            {
                "path": str(run.path),
                "method": methods.index((block, name)),
                "seed": run.seed,
                "federation": federations.index(_federation_key(run)),
                "total": run.done if run.finished else run.total_rounds,
                "asked": run.total_rounds,
                "done": run.done,
                "finished": run.finished,
                "failed": run.failure is not None,
                **curves(run, keep, keep_sites),
                "spent": spent(run, block.methods[name]),
                "sites": site_classes(run) if site_cells <= MOST_SITE_CELLS else None,
                "probe_every": probe_every(run),
                "probes": [probed(probe) for probe in every(run.probes, keep_probes)],
                "confusion": plain(run.summary.confusion)
                if run.summary and cells <= MOST_CONFUSIONS
                else None,
                "experiment": tomli_w.dumps(run.experiment),
                "environment": plain(run.environment),
            }
        )
    return shown


def _notes(runs: Sequence[SavedRun], coming: Sequence[int]) -> list[Json]:
    """Return the notes of the runs themselves, their failures, and how many have not begun."""
    own = {note: None for run in runs for note in (run.summary.notes if run.summary else _faults(run))}
    failed = [f"{run.label} seed {run.seed} failed: {run.failure.sentence}" for run in runs if run.failure]
    missing = [f"Of {len(runs) + len(coming)} runs {len(coming)} have not begun."] if coming else []
    return [*missing, *failed, *own]


def _faults(run: SavedRun) -> list[str]:
    """Return the notes on clients that were left out, as the summary of the run will have them."""
    return fault_notes((round.round, fault) for round in run.rounds for fault in round.faults or ())


# Runs


def _federation_key(run: SavedRun) -> object:
    return run.classes, run.counts.tobytes(), run.names


def _site_cells(run: SavedRun) -> int:
    return len(run.summary.sites.each) * len(run.classes) if run.summary and run.summary.sites else 0


def _federation(run: SavedRun) -> dict[str, Json]:
    masks = metrics.groups(run.counts)
    kind = sum(place * masks[group] for place, group in enumerate(GROUPS))
    assert isinstance(kind, np.ndarray)
    return {
        "classes": list(run.classes),
        "counts": run.counts.tolist(),
        "groups": ["".join(map(str, row)) for row in kind],
        "names": list(run.names),
    }


def _measures() -> list[Json]:
    """Return the measures that the curves can show, without single classes and domains."""
    return [
        {
            "key": key,
            "title": measure.title,
            "percent": measure.percent,
            "group": _group(key, measure),
            # The page cuts bands of one standard deviation at these limits.
            "least": number(measure.limits[0] / measure.scale),
            "most": number(measure.limits[1] / measure.scale),
        }
        for key, measure in MEASURES.items()
    ]


def _group(key: str, measure: Measure) -> str:
    if measure.probed:
        return "In local updates, from probes"
    if key in ("worst-site", "site-mean", "site-spread"):
        return "Sites"
    return "Clients' classes" if key in GROUPS else "All classes"
