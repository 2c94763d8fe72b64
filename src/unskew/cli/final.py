"""What the final models of runs make of test samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load

from unskew.data import Dataset, federate
from unskew.data.augment import normalise
from unskew.engines.network import Network
from unskew.errors import UserError, unknown
from unskew.experiment import Experiment, Prepared, load_data, prepare
from unskew.report.figures import Features
from unskew.report.figures.tsne import MOST_CLASSES
from unskew.report.figures.words import finished
from unskew.report.read import Run, by_method, same_classes
from unskew.trial import weights_of
from unskew.types import Weights
from unskew.user_code import is_code

MOST_SAMPLES = 1500
"""Of all classes together: more points hide each other, and t-SNE takes minutes."""
FEWEST_CLASSES = 10
"""Shown where all are too many: those with the lowest accuracy."""


def final_features(
    runs: Sequence[Run], *, classes: Sequence[str] = (), data: Path | None = None
) -> list[Features]:
    """The features of the same test samples, by the final model of each method's first seed. `data` is the
    folder with the datasets, where it has moved."""
    chosen = _choose(runs, classes)
    loaded: dict[str, Dataset] = {}
    found = []
    for name, members in by_method(runs).items():
        experiment = _experiment(members[0], data)
        source = f"{experiment.data.name} {experiment.data.folder}"
        if source not in loaded:
            loaded[source] = load_data(experiment)
        dataset = loaded[source]
        federation = federate(dataset, f"file:{members[0].path / 'partition.json'}", clients=0, seed=0)
        rows = _sample(dataset.test.labels.numpy(), chosen)
        values = _features(members[0], prepare(experiment, dataset, federation), rows)
        found.append(Features(name, values, dataset.test.labels.numpy()[rows]))
    return found


def _choose(runs: Sequence[Run], classes: Sequence[str]) -> list[int]:
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


def _experiment(run: Run, data: Path | None) -> Experiment:
    """As it was, but here and without its method: that is in the weights."""
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
    """As many of each class, drawn once and for all."""
    draw = np.random.default_rng(0)
    each = max(MOST_SAMPLES // len(chosen), 1)
    mine = [draw.permutation(np.flatnonzero(labels == label))[:each] for label in chosen]
    return np.asarray(draw.permutation(np.concatenate(mine)))  # mixed: some models normalise by the batch


@torch.no_grad()
def _features(run: Run, prepared: Prepared, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    trial = prepared.trial
    dataset, network = trial.federation.dataset, Network(trial, torch.device("cpu"))
    weights = _weights(run, weights_of(network.student).with_frozen(network.frozen_tensors))
    batches = torch.split(torch.from_numpy(rows), trial.evaluation.batch_size)
    parts = [
        network.test(weights, normalise(dataset.test.inputs[batch], dataset.mean, dataset.std)).features
        for batch in batches
    ]
    return np.asarray(torch.cat(parts).float().numpy())


def _weights(run: Run, like: Weights) -> Weights:
    finished(run)
    path = run.path / "model.safetensors"
    try:
        tensors = load(path.read_bytes())  # not mapped: a file may be cut short while it is
    except FileNotFoundError:
        raise UserError(f"{run.path} lacks model.safetensors: give another run, or run it again.") from None
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is damaged ({error}): give another run, or run it again.") from None
    wanted = like.params | like.buffers
    kinds, wanted_kinds = (
        {name: (value.shape, value.dtype) for name, value in each.items()} for each in (tensors, wanted)
    )
    if kinds != wanted_kinds:
        raise UserError(
            f"{path} is not the {run.experiment['model']['name']} of its experiment, as where a method such "
            "as fedconcat builds its own model: leave this run out."
        )
    return Weights(
        {name: tensors[name] for name in like.params}, {name: tensors[name] for name in like.buffers}
    )
