"""Reads Flower's run config: the experiment, and the settings of the federation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from unskew.data.federation import Federation
from unskew.errors import UserError
from unskew.experiment import Experiment, MethodSpec, method_table, prepare, put
from unskew.flower.settings import FlowerSettings, named_method
from unskew.spec import Spec
from unskew.trial import Faults, Probe, Trial
from unskew.user_code import is_code

Config = Mapping[str, Any]
EVERY_ROUND = "every=1"
"""The checkpoints of a federation, which have to be as frequent as the versions that clients keep."""


class FederationSpec(Spec):
    """Settings of a federation on Flower, in addition to those of an experiment."""

    nodes: int = Field(default=1, ge=1)
    """The number of nodes to wait for before the run begins. If nodes have a partition-id, the run waits for
    all partitions."""
    wait: float = Field(default=600.0, gt=0)
    """Seconds to wait for the nodes."""
    timeout: float = Field(default=3600.0, gt=0)
    """Seconds that a node may take to answer."""
    out: str = ""
    """The run's folder at the server. An unfinished run in it is resumed. Empty: a new folder in runs/."""
    test: Literal["sites", "server"] = "sites"
    """Where the model is tested: by each site on samples of its own, or by the server on the test samples of
    the experiment's dataset."""
    label_counts: Literal["keep", "share"] = "keep"
    """Whether clients share how many samples of each class they have, for results on their majority, minority
    and vacant classes."""


def tables(config: Config) -> dict[str, Any]:
    """Return settings given by their paths, such as budget.rounds, as nested tables."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        put(found, key.split("."), value)
    return found


def read_config(config: Config) -> tuple[Experiment, FederationSpec]:
    """Return the experiment in a run config, and the settings of the federation. The keys are those of an
    experiment file, such as budget.rounds; the federation's begin with federation."""
    settings = tables(config)
    table = settings.pop("federation", {})
    if not isinstance(table, dict):
        raise UserError(f"federation is {table!r} but should be settings such as federation.nodes.")
    try:
        spec = FederationSpec(**table)
    except UserError as error:
        raise UserError(f"federation.{error}") from None
    method = settings.get("method")
    if isinstance(method, str):
        settings["method"] = method_table(method)
    if settings.setdefault("checkpoint", EVERY_ROUND) != EVERY_ROUND:
        raise UserError(
            f"checkpoint is '{settings['checkpoint']}', but what clients keep on other machines goes by "
            f"every round: leave it out, it is {EVERY_ROUND}."
        )
    faults = settings.setdefault("faults", {})
    if isinstance(faults, dict):
        faults.setdefault("on_fault", "skip")
    return Experiment(**settings), spec


def with_code(experiment: Experiment, folder: Path | None) -> Experiment:
    """Return the experiment with the files of its own model and method found in the app's folder."""
    if folder is None:
        return experiment
    changed: dict[str, Any] = {}
    model, method = experiment.model, experiment.method
    if is_code(model.name):
        changed["model"] = model.model_copy(update={"name": str(folder / model.name)})
    if method.files():
        place = {name: str(folder / name) if name.endswith(".py") else name for name in method.parts()}
        options = {place.get(key, key): value for key, value in (method.model_extra or {}).items()}
        changed["method"] = MethodSpec(name="+".join(place.values()), **options)
    return experiment.model_copy(update=changed)


def settings_in(experiment: Experiment) -> FlowerSettings:
    """Return the method of an experiment, and how to make its trial on a federation."""
    method, name = named_method(experiment.method)

    def make_trial(federation: Federation) -> Trial:
        whole_cohort = experiment.budget.model_copy(update={"cohort": "all"})
        # A node receives the initial weights from the server, which reads their file.
        model = experiment.model.model_copy(update={"init": "", "init_sha256": ""})
        changed = {"engine": "loop", "budget": whole_cohort, "model": model, "attack": "none", "stop": "none"}
        at_node = experiment.model_copy(update={**changed, "faults": Faults(), "probe": Probe()})
        return prepare(at_node, federation.dataset, federation).trial

    return FlowerSettings(method, name, make_trial)
