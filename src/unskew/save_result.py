"""Writes a result of training in Python as a run folder."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unskew import engines, models, record
from unskew.errors import UserError
from unskew.experiment import DataSpec, Experiment, MethodSpec, ModelSpec, Resolved, SkewSpec
from unskew.method import OWN
from unskew.methods import METHODS
from unskew.result import Result
from unskew.runs import EMPTY, claim
from unskew.sweep import run_folder
from unskew.tensor_files import dump
from unskew.trial import Trial
from unskew.user_code import sha256_of

IN_OTHER_FORM = {
    "engine",
    "device",
    "precision",
    "client_memory",
    "attack",
    "data",
    "skew",
    "model",
    "method",
    "checkpoint",
    "validation",
    "stop",
}
"""The settings of an experiment that a trial has in another form."""


def save(result: Result, path: Path, method: str) -> Path:
    """Write a run folder of a result and return its path; see `Result.save`."""
    if result.trial is None:
        raise UserError("this result does not know its trial: save what unskew.train returned.")
    if claim(path) != EMPTY:
        raise UserError(f"the folder {path} holds a run already: choose another.")
    parts = {
        method if method and name == OWN else name: options
        for name, options in (result.parts or {OWN: {}}).items()
    }
    resolved = Resolved(_experiment_of(result.trial, parts), result.trial)
    first, *others = [round.seconds for round in result.rounds]
    end = max(0.0, result.seconds - first - sum(others))
    time = record.Time(result.seconds, {}, first, sum(others), end)
    with run_folder(path, resolved) as folder:
        for round in result.rounds:
            folder.append(round)
        folder.finish(resolved, result, lambda: time)
    return path


def _experiment_of(trial: Trial, parts: dict[str, Any]) -> Experiment:
    """Return the experiment that describes a trial. Data and models that were made in Python are described by
    their names, and the method by the options of each of its parts."""
    same = {name: getattr(trial, name) for name in Experiment.model_fields if name not in IN_OTHER_FORM}
    federation = trial.federation
    seed = federation.partition.seed
    return Experiment(
        **same,
        engine=engines.choose(trial),
        device=str(trial.pick_device()),
        precision=trial.pick_precision(),
        client_memory="auto" if trial.client_memory is None else trial.client_memory,
        attack=str(trial.attack),
        validation=federation.validated_on,
        stop=str(trial.stop),
        data=DataSpec(name=federation.dataset.name, augment=str(trial.augment)),
        skew=SkewSpec(
            recipe=federation.partition.recipe,
            clients=federation.clients,
            seed=trial.seed if seed is None else seed,
        ),
        model=_model_of(trial),
        method=_method_of(parts),
    )


def _model_of(trial: Trial) -> ModelSpec:
    network = trial.network
    kept: dict[str, Any] = {"statistics": trial.statistics, "teacher": trial.teacher}
    if network.tuning is not None:
        kept |= asdict(network.tuning)
    if isinstance(trial.init, models.TrainedWeights):
        kept |= _start_of(trial.init)
    if network.own:
        return ModelSpec(name=network.name, **kept)
    known = models.MODELS[network.name]
    norm: Any = network.norm or known.norms[0]
    return ModelSpec(name=network.name, norm=norm, **kept, **{**known.defaults, **network.options})


def _start_of(init: models.TrainedWeights) -> dict[str, str]:
    """Return the source of the initial weights and their hash: of the file, or of the given tensors."""
    file = models.weights_file(init.source)
    if file.is_file():
        return {"init": str(Path(init.source).resolve()), "init_sha256": sha256_of(file)}
    return {"init": init.source, "init_sha256": hashlib.sha256(dump(init.tensors)).hexdigest()}


def _method_of(parts: dict[str, Any]) -> MethodSpec:
    options = {
        name: {**(METHODS[name].options if name in METHODS else {}), **given} for name, given in parts.items()
    }
    own = next(iter(options.values())) if len(options) == 1 else options
    return MethodSpec(name="+".join(options), **own)
