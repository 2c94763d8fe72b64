"""Runs by method: which runs are seeds of one method, and the names of methods with several settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unskew.errors import UserError
from unskew.notation import flatten
from unskew.report.read import SavedRun

FREE_AMONG_SEEDS = {
    "seed", "engine", "device", "threads", "workers", "trace", "fast", "client_memory", "checkpoint",
    "data.folder", "skew.seed", "evaluation.every", "evaluation.batch_size", "probe.every",
}  # fmt: skip
"""Settings that may differ between runs that count as seeds of the same method."""


def by_method(runs: Iterable[SavedRun]) -> dict[str, list[SavedRun]]:
    """Group runs by method, in order of appearance.

    If runs of a method differ in more than the seed, its name is followed by what differs; if a seed appears
    twice, by the name of the folder.
    """
    runs = list(runs)
    names = _names(runs)
    order = {label: place for place, label in reversed(list(enumerate(run.label for run in runs)))}
    found: dict[str, list[SavedRun]] = {}
    for run, name in sorted(zip(runs, names, strict=True), key=lambda each: order[each[0].label]):
        if any(run.seed == other.seed for other in found.get(name, [])):
            name = f"{name} [{run.path.name}]"
        found.setdefault(name, []).append(run)
    return found


def repeated(runs: Iterable[SavedRun]) -> SavedRun | None:
    """Return a run with the method, settings and seed of an earlier one; None if there is no such run."""
    runs, seen = list(runs), set[tuple[str, int]]()
    for run, name in zip(runs, _names(runs), strict=True):
        if (name, run.seed) in seen:
            return run
        seen.add((name, run.seed))
    return None


def _names(runs: Sequence[SavedRun]) -> list[str]:
    """Return the name of each run's method, followed by its settings if the method ran with several."""
    return tell_apart([run.label for run in runs], [settings(run) for run in runs])


def tell_apart(labels: Sequence[str], each: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the labels of methods, each with the settings in which methods of this label differ.

    `each` has the settings of each method, in the order of the labels.
    """
    by_label: dict[str, list[Mapping[str, object]]] = {}
    for label, chosen in zip(labels, each, strict=True):
        by_label.setdefault(label, []).append(chosen)
    varying = {
        label: [
            key
            for key in dict.fromkeys(key for chosen in several for key in chosen)
            if len({str(chosen.get(key)) for chosen in several}) > 1
        ]
        for label, several in by_label.items()
    }
    named = []
    for label, chosen in zip(labels, each, strict=True):
        differs = [f"{key.rpartition('.')[2]}={chosen[key]}" for key in varying[label] if key in chosen]
        named.append(f"{label} ({', '.join(differs)})" if varying[label] else label)
    return named


def same_classes(runs: Sequence[SavedRun]) -> tuple[str, ...]:
    """Return the classes of the runs; a UserError if they are not all the same."""
    for run in runs:
        if run.classes != runs[0].classes:
            raise UserError(f"{runs[0].path} and {run.path} have other classes: give runs on one dataset.")
    return runs[0].classes


def settings(run: SavedRun) -> dict[str, object]:
    """Return the settings that distinguish a run from others by more than its seed, except for its method.

    The keys are paths in the experiment, such as budget.lr.
    """
    named = {"skew.recipe": run.skew, "data.name": run.data, "model.name": run.model}
    content = {"data.sha256": run.data_sha256[:12]} if run.data_sha256 else {}
    return conditions_of(run.experiment) | named | content


def conditions_of(experiment: Mapping[str, Any]) -> dict[str, object]:
    """Return the same settings of an experiment's tables, with names as they are written there."""
    flat = dict(flatten({key: value for key, value in experiment.items() if key != "method"}))
    return {key: value for key, value in flat.items() if key not in FREE_AMONG_SEEDS}


def hyperparameters(run: SavedRun) -> dict[str, object]:
    """Return a method's hyperparameters by their path, such as method.mu, and its name as method.name."""
    table = {key: value for key, value in run.experiment["method"].items() if key != "sha256"}
    return dict(flatten({"method": table}))
