"""From an experiment to all that it takes to run it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unskew import engines, models
from unskew.attacks import Attack
from unskew.checkpoints import Period
from unskew.data.augment import Augment
from unskew.data.dataset import Dataset
from unskew.data.federation import Federation
from unskew.data.loading import absolute
from unskew.data.partitions import absolute_skew
from unskew.engines.network import Network
from unskew.errors import UserError, unknown
from unskew.experiment.data import partition, write_validation
from unskew.experiment.hashes import code_sha256, init_sha256, method_sha256, skew_sha256
from unskew.experiment.settings import DataSpec, Experiment, MethodSpec, ModelSpec, SkewSpec, absolute_method
from unskew.method import Method
from unskew.methods.assemble import assemble
from unskew.notation import without
from unskew.program import Program
from unskew.rounds import check_compatible
from unskew.trial import (
    Stop,
    Trial,
)
from unskew.user_code import absolute_name, is_code, split_name


@dataclass(frozen=True, eq=False)
class Resolved:
    """An experiment whose every default is written out, and its trial."""

    experiment: Experiment
    trial: Trial


@dataclass(frozen=True, eq=False)
class Prepared(Resolved):
    """All that it takes to run an experiment."""

    method: Method | Program


def prepare(experiment: Experiment, dataset: Dataset, federation: Federation | None = None) -> Prepared:
    """Write out every default of an experiment and make its trial. `federation` saves the work of making it
    if it is known already."""
    Period.parse(experiment.checkpoint)  # a mistake in it is known before anything is written
    method, options = assemble(experiment.method.parts())
    alone = len(options) == 1
    options = {absolute_method(name): given for name, given in options.items()}
    federation = federation or partition(experiment, dataset)
    own, model = _model(experiment.model, dataset)
    trial = Trial(
        federation,
        own or model.name,
        budget=experiment.budget,
        evaluation=experiment.evaluation,
        probe=experiment.probe,
        faults=experiment.faults,
        seed=experiment.seed,
        norm=None if own else model.norm,
        model_options={} if own else experiment.model.model_extra or {},
        init=experiment.model.init or None,
        tuning=models.Tuning(
            freeze=model.freeze,
            train_only=model.train_only,
            lora=model.lora,
            lora_alpha=model.lora_alpha,
            lora_layers=model.lora_layers,
        ),
        statistics=experiment.model.statistics,
        teacher=experiment.model.teacher,
        augment=Augment.parse(experiment.data.augment),
        engine=experiment.engine,
        device=experiment.device,
        threads=experiment.threads,
        workers=experiment.workers,
        trace=experiment.trace,
        precision=experiment.precision,
        fast=experiment.fast,
        client_memory=None if experiment.client_memory == "auto" else experiment.client_memory,
        attack=Attack.parse(experiment.attack),
        stop=Stop.parse(experiment.stop),
    )
    check_compatible(trial, method.base if isinstance(method, Program) else method)
    if trial.faults.min_clients > trial.cohort:
        least = trial.faults.min_clients
        raise UserError(f"faults.min_clients is {least} but a round has {trial.cohort} clients: lower it.")
    resolved = experiment.model_copy(
        update={
            "engine": engines.choose(trial),
            "device": str(trial.pick_device()),
            "precision": trial.pick_precision(),
            "attack": str(trial.attack),
            "validation": write_validation(experiment.validation),
            "stop": str(trial.stop),
            "data": DataSpec(
                name=absolute(experiment.data.name),
                folder=str(Path(experiment.data.folder).resolve()) if experiment.data.folder else "",
                augment=str(trial.augment),
            ),
            "skew": SkewSpec(
                recipe=absolute_skew(federation.partition.recipe),
                clients=federation.clients,
                seed=federation.partition.seed,
                sha256=skew_sha256(experiment.skew),
            ),
            "model": model,
            "method": MethodSpec(
                name="+".join(options),
                sha256=method_sha256(experiment.method),
                **(next(iter(options.values())) if alone else options),
            ),
        }
    )
    # A model that does not fit the data is known before anything is written.
    if own is None:
        trial.build()
    else:
        _check_own(trial, own.name)
    return Prepared(resolved, trial, method)


def _model(spec: ModelSpec, dataset: Dataset) -> tuple[models.OwnModel | None, ModelSpec]:
    """Return the user's own model, if the settings name one, and the settings with every default written
    out."""
    given: dict[str, Any] = spec.model_extra or {}
    update: dict[str, Any] = {"init_sha256": init_sha256(spec)}
    if spec.init:
        update["init"] = str(Path(spec.init).expanduser().resolve())
    if is_code(spec.name):
        options = given if spec.norm == "auto" else given | {"norm": spec.norm}
        own = models.own_model(spec.name, dataset.inputs, len(dataset.classes), options)
        without(":", split_name(spec.name)[0].resolve())
        update |= {"name": absolute_name(spec.name), "sha256": code_sha256(spec.name, spec.sha256, "model")}
        # A parameter that is called as a setting has its default in the code alone.
        defaults = {
            key: value
            for key, value in models.stated_options(own).items()
            if key not in ModelSpec.model_fields
        }
        return own, spec.model_copy(update=update | defaults | given)
    if spec.sha256:
        raise UserError(f"model.sha256 is given, but model '{spec.name}' is no file: leave it out.")
    name = models.default_model(dataset.name, dataset.inputs) if spec.name == "auto" else spec.name
    if name not in models.MODELS:
        raise unknown("model", name, models.MODELS)
    for key in given:
        if key not in models.MODELS[name].defaults:
            known = [*ModelSpec.model_fields, *models.MODELS[name].defaults]
            raise unknown(f"setting of model '{name}'", key, known)
    update["norm"] = models.MODELS[name].norms[0] if spec.norm == "auto" else spec.norm
    return None, spec.model_copy(update={**update, "name": name, **models.MODELS[name].defaults, **given})


def _check_own(trial: Trial, name: str) -> None:
    """Refuse a model of the user's that cannot read the data, or whose initial weights do not follow from the
    seed."""
    first, second = Network(trial, torch.device("cpu")).train_module.state_dict(), trial.build().state_dict()
    if first.keys() != second.keys() or not all(torch.equal(first[key], second[key]) for key in first):
        raise UserError(
            f"the model '{name}' has other initial weights each time it is made: let it draw random numbers "
            "from PyTorch alone, which the seed sets."
        )
