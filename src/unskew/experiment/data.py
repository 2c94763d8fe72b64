"""The data and the partition of an experiment."""

from __future__ import annotations

from pathlib import Path

from unskew import models
from unskew.data import load
from unskew.data.dataset import Dataset, Split
from unskew.data.federation import Federation, federate
from unskew.data.importers import Import
from unskew.data.loading import OWN, absolute
from unskew.data.partitions import (
    Domains,
    Natural,
    OwnSkew,
    Skew,
    innermost,
    parse_skew,
)
from unskew.data.sources import SOURCES, spelled
from unskew.data.validation import NONE, read_validation
from unskew.data.validation import parse as parse_validation
from unskew.errors import UserError, unknown
from unskew.experiment.settings import Experiment
from unskew.notation import (
    joined,
    named,
)
from unskew.user_code import is_code


def check_names(*, data: str | None = None, model: str = "auto") -> None:
    """Refuse the name of a dataset or a model that is neither listed nor the user's own, without loading
    it."""
    if model != "auto" and not is_code(model) and model not in models.MODELS:
        raise unknown("model", model, models.MODELS)
    for part in [] if data is None else joined(data):
        if (name := spelled(named(part)[0])) not in {*SOURCES, *OWN}:
            raise unknown("dataset", name, [*SOURCES, *OWN])


def load_data(experiment: Experiment) -> Dataset:
    folder = experiment.data.folder
    return load(experiment.data.name, Path(folder) if folder else None)


def partition(experiment: Experiment, dataset: Dataset) -> Federation:
    skew = experiment.skew
    seed = experiment.seed if skew.seed is None else skew.seed
    clients = skew.clients
    if clients == "auto":
        clients = 0 if _tells_clients(parse_skew(skew.recipe)) else 10
    elif clients < 1:
        raise UserError(f"skew.clients is {clients} but should be at least 1.")
    validation: float | str | Split | None = parse_validation(experiment.validation)
    if isinstance(validation, str):
        folder = experiment.data.folder
        validation = read_validation(validation, dataset, Path(folder) if folder else None)
    return federate(dataset, skew.recipe, clients=clients, seed=seed, validation=validation)


def write_validation(text: str) -> str:
    """Write a rule of validation as in a resolved experiment: numbers in one form, paths absolute."""
    found = parse_validation(text)
    return NONE if found is None else absolute(found) if isinstance(found, str) else repr(found)


def _tells_clients(skew: Skew) -> bool:
    """Say whether a skew determines the number of clients."""
    skew = innermost(skew)
    if isinstance(skew, OwnSkew):
        return skew.tells_clients
    return isinstance(skew, Import | Natural) or (isinstance(skew, Domains) and bool(skew.clients))
