"""The features of test samples by the final models of runs, and their t-SNE figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from unskew.data import Dataset, federate
from unskew.errors import UserError, unknown
from unskew.experiment import Experiment, load_data
from unskew.model_files import load_model, read_model
from unskew.report.figures import Features, tsne
from unskew.report.figures.tsne import MOST_CLASSES
from unskew.report.figures.words import finished, heading, seeds_of
from unskew.report.grouping import by_method, same_classes
from unskew.report.read import SavedRun
from unskew.user_code import is_code

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_SAMPLES = 1500
"""The most samples of all classes together: more points hide each other, and t-SNE takes minutes."""
FEWEST_CLASSES = 10
"""The number of classes shown if all are too many: those with the lowest accuracy."""


def final_features(
    runs: Sequence[SavedRun], *, classes: Sequence[str] = (), data: Path | None = None
) -> list[Features]:
    """Return the features of the same test samples by the final model of each method's first seed. `data` is
    the folder of the datasets, if it has moved."""
    chosen = _choose_classes(runs, classes)
    loaded: dict[str, Dataset] = {}
    found = []
    for name, members in by_method(runs).items():
        experiment = _experiment(members[0], data)
        source = f"{experiment.data.name} {experiment.data.folder}"
        if source not in loaded:
            loaded[source] = load_data(experiment)
        dataset = loaded[source]
        # This raises a UserError if the data are not those of the run.
        federate(dataset, f"file:{members[0].path / 'partition.json'}", clients=0, seed=0)
        rows = _sample(dataset.test.labels.numpy(), chosen)
        values = _features(members[0], experiment, dataset, rows)
        found.append(Features(name, values, dataset.test.labels.numpy()[rows]))
    return found


def draw_tsne(
    runs: Sequence[SavedRun],
    *,
    classes: Sequence[str] = (),
    data: Path | None = None,
    width: float | None = None,
    title: str | None = None,
) -> Figure:
    """Draw test samples by their features of each method's final model, of its first seed."""
    models = final_features(runs, classes=classes, data=data)
    firsts = [members[0] for members in by_method(runs).values()]
    words = f"{title} ({seeds_of(firsts)})" if title else heading(firsts, title)
    return tsne(models, runs[0].classes, width=width, title=words)


def _choose_classes(runs: Sequence[SavedRun], classes: Sequence[str]) -> list[int]:
    known = same_classes(runs)
    for name in classes:
        if name not in known:
            raise unknown("class", name, known)
    if classes:
        return [known.index(name) for name in classes]
    if len(known) <= MOST_CLASSES:
        return list(range(len(known)))
    accuracy = np.array([finished(run).class_accuracy for run in runs], dtype=np.float64).mean(axis=0)
    return sorted(np.argsort(accuracy, kind="stable")[:FEWEST_CLASSES].tolist())


def _experiment(run: SavedRun, data: Path | None) -> Experiment:
    """Return the experiment of a run as it loads the data on this machine. Its method is left out, since the
    weights are trained already."""
    model = {**run.experiment["model"], "init": "", "init_sha256": ""}
    if is_code(model["name"]):
        raise UserError(
            f"{run.path} has a model of your own, whose code figures do not run: leave this run out."
        )
    settings = {**run.experiment, "engine": "loop", "device": "cpu", "fast": False, "model": model}
    settings |= {"method": {"name": "fedavg"}, "skew": {}, "validation": "none", "stop": "none"}
    if data is not None:
        settings["data"] = {**settings["data"], "folder": str(data)}
    return Experiment(**settings)


def _sample(labels: NDArray[np.int64], chosen: Sequence[int]) -> NDArray[np.int64]:
    """Draw the same number of samples of each chosen class, always the same ones, and return their rows."""
    draw = np.random.default_rng(0)
    each = max(MOST_SAMPLES // len(chosen), 1)
    mine = [draw.permutation(np.flatnonzero(labels == label))[:each] for label in chosen]
    return np.asarray(
        draw.permutation(np.concatenate(mine))
    )  # shuffled, since some models normalise each batch by itself


@torch.no_grad()
def _features(
    run: SavedRun, experiment: Experiment, dataset: Dataset, rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    finished(run)
    if read_model(run.path)[0].network.clients is not None:
        raise UserError(f"{run.path} has a model of each client and none for all: leave this run out.")
    model = load_model(run.path)
    if dataset.inputs.shape != tuple(model.model_file.inputs.shape):
        raise UserError(f"{run.path} has a model for other data than its own: leave this run out.")
    batches = torch.split(torch.from_numpy(rows), experiment.evaluation.batch_size)
    parts = [model.core(dataset.test.inputs[batch]).features for batch in batches]
    return np.asarray(torch.cat(parts).numpy())
