"""What a page shows, as JSON: every number once, accuracies as whole hundredths of a percent."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import tomli_w

from unskew import metrics
from unskew.record import Json, Probe, Round, Stages, fault_notes, plain
from unskew.report.answer import GROUPS, Answer, answer, between, choose_reference, signed
from unskew.report.conditions import by_condition, tuned
from unskew.report.measures import MEASURES, Measure
from unskew.report.page.progress import progress
from unskew.report.page.sites import site_classes, site_table
from unskew.report.read import Run, by_method
from unskew.report.table import BY_VALIDATION, COLUMNS, NONE, tabulate
from unskew.version import VERSION

T = TypeVar("T")

# A page has 10 MB, of which plotly.js takes 4.8; a number takes five bytes, a cell of a matrix two.
MOST_CLASS_VALUES = 250_000
"""Accuracies of single classes over rounds; beyond this, rounds are left out."""
MOST_PROBE_VALUES = 250_000
"""Numbers about clients in probed rounds; beyond this, probed rounds are left out."""
MOST_SITE_VALUES = 100_000
"""Accuracies of single sites over rounds; beyond this, rounds are left out."""
MOST_SITE_CELLS = 100_000
"""Accuracies of single classes at sites; a run that would go beyond has none on the page."""
MOST_CONFUSIONS = 250_000
"""Cells of confusion matrices; a run whose matrix would go beyond has none on the page."""

HELP = {
    "best_by_validation": "accuracy of the round that the validation samples chose, tested after that",
    "last": "accuracy after the last round",
    "best_by_test": "of the tested rounds; chosen on the test set, so never read it alone",
    "mean_last_10": "accuracy over the last ten tested rounds",
    "worst_class": "accuracy of the final model on its worst class",
    "majority": "classes of which a client has at least an even share, mean over clients",
    "minority": "classes of which a client has less than an even share, mean over clients",
    "vacant": "classes of which a client has nothing, mean over clients",
    "rounds_to_target": "rounds until the reference's best accuracy on the same seed is reached",
    "speed_up": "how many times sooner than the reference its best accuracy is reached",
    "traffic": "between server and clients, up and down, the whole run",
    "cost": "computation in FedAvg rounds",
}
COSTS = 4
"""Columns of the table that are costs, its last; the others are the comparison."""


def page_data(runs: Sequence[Run], coming: Sequence[int] = ()) -> dict[str, Json]:
    """All that the page's script reads. `coming` are the rounds of each run that has not begun."""
    blocks = by_condition(runs)
    methods = [(block, name) for block in blocks for name in block.methods]
    owner = {
        run.path: (block, name)
        for block in blocks
        for name, members in block.methods.items()
        for run in members
    }
    federations: dict[object, Run] = {}
    for run in runs:
        federations.setdefault(_federation_key(run), run)
    keep = _thin(sum(len(run.tested) * len(run.classes) for run in runs), MOST_CLASS_VALUES)
    keep_sites = _thin(sum(_site_values(run) for run in runs), MOST_SITE_VALUES)
    keep_probes = _thin(sum(_probe_values(run) for run in runs), MOST_PROBE_VALUES)
    cells = site_cells = 0
    told: list[Json] = []
    for run in runs:
        cells += len(run.classes) ** 2
        site_cells += _site_cells(run)
        told.append(
            {
                "path": str(run.path),
                "method": methods.index(owner[run.path]),
                "seed": run.seed,
                "federation": list(federations).index(_federation_key(run)),
                "total": run.done if run.finished else run.total_rounds,
                "done": run.done,
                "finished": run.finished,
                "failed": run.failure is not None,
                **_curves(run, keep, keep_sites),
                "sites": site_classes(run) if site_cells <= MOST_SITE_CELLS else None,
                "probe_every": _probe_every(run),
                "probes": [_probe(probe) for probe in _every(run.probes, keep_probes)],
                "confusion": plain(run.summary.confusion)
                if run.summary and cells <= MOST_CONFUSIONS
                else None,
                "experiment": tomli_w.dumps(run.experiment),
                "environment": plain(run.environment),
            }
        )
    return {
        "version": VERSION,
        "written": time.strftime("%Y-%m-%d %H:%M"),
        "title": blocks[0].title
        if len(blocks) == 1
        else f"Runs under {len(blocks)} conditions"
        if blocks
        else "No run yet",
        "blocks": [
            _block(block.methods, block.title, [methods.index((block, name)) for name in block.methods])
            for block in blocks
        ],
        "methods": [f"{name} ({block.letter})" if block.letter else name for block, name in methods],
        "measures": _measures(),
        "federations": [_federation(run) for run in federations.values()],
        "runs": told,
        "notes": _notes(runs),
        "progress": progress(runs, coming),
    }


def _probe_every(run: Run) -> int:
    table = run.experiment.get("probe")
    every = table.get("every", 0) if isinstance(table, dict) else 0
    return every if isinstance(every, int) else 0


def _notes(runs: Iterable[Run]) -> list[Json]:
    """What the runs themselves say about their numbers."""
    told = {note: None for run in runs for note in (run.summary.notes if run.summary else _faults(run))}
    failed = [f"{run.label} seed {run.seed} failed: {run.failure.sentence}" for run in runs if run.failure]
    return [*failed, *told]


def _faults(run: Run) -> list[str]:
    """The note on clients that were left out, as the summary of the run will have it."""
    return fault_notes((round.round, fault) for round in run.rounds for fault in round.faults or ())


def _tuning_notes(seeds: Mapping[str, Sequence[Run]]) -> list[Json]:
    """What was tuned for each method, where that differs."""
    each = {name: tuned(runs[0]) for name, runs in seeds.items()}
    names = dict.fromkeys(name for told in each.values() for name in told)
    notes: list[Json] = []
    for name in names:
        if len({told.get(name) for told in each.values()}) > 1:
            values = ", ".join(f"{told.get(name)} for {who}" for who, told in each.items())
            notes.append(f"{name} was chosen for each method: {values}.")
    return notes


def _block(seeds: Mapping[str, Sequence[Run]], title: str, colours: Sequence[int]) -> dict[str, Json]:
    told = answer(seeds)
    reference = told.reference or choose_reference(seeds)
    chose = any(run.summary and run.summary.validation for runs in seeds.values() for run in runs)
    columns = (BY_VALIDATION, *COLUMNS) if chose else COLUMNS
    heads: list[Json] = [{"title": column.title, "help": HELP[column.name]} for column in columns]
    return {
        "title": title,
        "sentence": told.sentence,
        "notes": [*told.notes, *_tuning_notes(seeds)],
        "reference": reference if len(seeds) > 1 else None,
        "heads": heads[:-COSTS],
        "costs": heads[-COSTS:],
        "rows": _rows(seeds, told, reference, colours),
        "sites": site_table(seeds),
    }


def _rows(
    seeds: Mapping[str, Sequence[Run]], told: Answer, reference: str, colours: Sequence[int]
) -> list[Json]:
    """The comparison, with the cells of `unskew table`."""
    names = [reference, *(name for name in seeds if name != reference)]  # a table's first is its reference
    tested = [run for name in names for run in seeds[name] if run.tested]
    rows = zip(tabulate(tested).rows, by_method(tested).values(), strict=True) if tested else ()
    cells = {run.path: row.cells for row, members in rows for run in members}
    ends = {tuple(sorted((run.seed, _end(run)) for run in runs)) for runs in seeds.values()}
    level = len(ends) == 1
    return [
        {
            "name": name,
            "method": colour,
            "seeds": len(runs),
            "rounds": _rounds(runs),
            # None is best of other seeds or at another round.
            "cells": [
                [cell.text, level and cell.is_best]
                for cell in next((cells[run.path] for run in runs if run.path in cells), ())
            ],
            "against": None if name == reference else _against(told, name),
            "seconds": _short(sum(line.seconds for run in runs for line in run.rounds) / len(runs)),
        }
        for (name, runs), colour in zip(seeds.items(), colours, strict=True)
    ]


def _end(run: Run) -> int | None:
    """Where a run stands: the last round that was tested, None at its end, which may come early."""
    return None if run.finished else run.tested[-1].round if run.tested else 0


def _rounds(runs: Sequence[Run]) -> str:
    """How far the runs are."""
    done = sorted({run.done for run in runs})
    told = "–".join(str(n) for n in dict.fromkeys((done[0], done[-1])))
    stopped = all(run.finished for run in runs)
    return told if stopped else f"{told} of {runs[0].total_rounds}"


def _against(told: Answer, name: str) -> str:
    """The paired difference of accuracy in points, with its 95 % interval."""
    change = next((each.differences[told.main[0]] for each in told.others if each.name == name), None)
    if change is None:
        return NONE
    ends = "" if change.interval is None else f" ({between(change.interval)})"
    return f"{signed(change.difference)}{ends}"


# Runs


def _federation_key(run: Run) -> object:
    return run.classes, run.counts.tobytes(), run.names


def _site_values(run: Run) -> int:
    return sum(len(line.sites.accuracy or {}) for line in run.tested if line.sites)


def _site_cells(run: Run) -> int:
    return len(run.summary.sites.each) * len(run.classes) if run.summary and run.summary.sites else 0


def _federation(run: Run) -> dict[str, Json]:
    masks = metrics.groups(run.counts)
    kind = sum(number * masks[group] for number, group in enumerate(GROUPS))
    assert isinstance(kind, np.ndarray)
    return {
        "classes": list(run.classes),
        "counts": run.counts.tolist(),
        "groups": ["".join(map(str, row)) for row in kind],
        "names": list(run.names),
    }


def _measures() -> list[Json]:
    """What can be chosen for the curves, beside single classes and domains."""
    return [
        {"key": key, "title": measure.title, "percent": measure.percent, "group": _group(key, measure)}
        for key, measure in MEASURES.items()
    ]


def _group(key: str, measure: Measure) -> str:
    if measure.probed:
        return "In local updates, from probes"
    if key in ("worst-site", "site-mean", "site-spread"):
        return "Sites"
    return "Clients' classes" if key in GROUPS else "All classes"


def _curves(run: Run, keep: int, keep_sites: int) -> dict[str, Json]:
    """Every measure by round, and every class's accuracy in each `keep`-th tested round and the last; of
    sites likewise. The rounds stand apart: under `all` where a measure is of every round, `tested`,
    `probed`, `by_class` or `by_site`."""
    some, of_sites = _every(run.tested, keep), _every(run.tested, keep_sites)
    lines: dict[str, Sequence[Round | Probe]] = {
        "all": run.rounds,
        "tested": run.tested,
        "probed": run.probes,
        "by_class": some,
        "by_site": of_sites,
    }
    series: dict[str, Json] = {}
    for key, measure in MEASURES.items():
        kind = "probed" if measure.probed else "all" if key == "train-loss" else "tested"
        values = [measure.of(line) for line in lines[kind]]
        if any(value is not None for value in values):
            series[key] = [kind, [_whole(value) if measure.percent else _short(value) for value in values]]
    domains = dict.fromkeys(name for line in run.tested for name in line.domains or {})
    by_site = [(line.sites.accuracy or {}) if line.sites else {} for line in of_sites]
    sites = dict.fromkeys(name for values in by_site for name in values)
    return {
        "rounds": {kind: [line.round for line in those] for kind, those in lines.items()},
        "series": series,
        "domains": {
            name: [_whole((line.domains or {}).get(name)) for line in run.tested] for name in domains
        },
        "by_site": {name: [_whole(values.get(name)) for values in by_site] for name in sites},
        "by_class": [[_whole(line.class_accuracy[c]) for line in some] for c in range(len(run.classes))],
    }


def _probe_values(run: Run) -> int:
    return sum(
        len(probe.clients) * 12 + sum(map(len, _models(probe).values())) * len(run.classes)
        for probe in run.probes
    )


def _models(probe: Probe) -> dict[str, list[list[float | None]]]:
    """Class accuracies around the local updates: of every client, or once where all have the model in
    common."""
    told = {}
    for name in ("before", "after", "aggregated"):
        models = [getattr(client, name) for client in probe.clients]
        same = name != "after" and all(model == models[0] for model in models)
        told[name] = models[:1] if same else models
    return told


def _probe(probe: Probe) -> dict[str, Json]:
    """The clients of a probed round, one value or list for each; a model that all have in common once."""
    clients = probe.clients
    told: dict[str, Json] = {"round": probe.round, "clients": [client.client for client in clients]}
    for name, models in _models(probe).items():
        told[name] = [[_whole(value) for value in model] for model in models]
    told["groups"] = [[_stages(getattr(client.groups, group)) for group in GROUPS] for client in clients]
    for key in ("in_local", "out_local", "deviation"):
        told[key] = [_whole(getattr(client, key)) for client in clients]
    return told


def _stages(stages: Stages | None) -> Json:
    if stages is None:
        return None
    return [_whole(value) for value in (stages.before, stages.after, stages.aggregated)]


def _thin(values: int, most: int) -> int:
    """Which part of the rounds to keep: every 1st, 2nd, 3rd..."""
    return max(1, math.ceil(values / most))


def _every(lines: Sequence[T], step: int) -> list[T]:
    """Each `step`-th, counted from the last."""
    return list(lines[::-1][::step][::-1])


def _whole(value: float | None) -> int | None:
    scaled = None if value is None else 10_000 * value
    return None if scaled is None or not math.isfinite(scaled) else round(scaled)


def _short(value: float | None) -> float | None:
    short = None if value is None else float(f"{value:.4g}")
    return None if short is None or not math.isfinite(short) else short
