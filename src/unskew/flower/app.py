"""A whole app: its settings are Flower's run config, its data what each node's config names."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from unskew.data.arrays import stratified
from unskew.data.dataset import Dataset, Split
from unskew.data.federation import Federation, federate
from unskew.data.loading import load_one
from unskew.data.validation import NONE, read_validation
from unskew.errors import Interrupted, UserError
from unskew.experiment import Experiment, MethodSpec, load_data, method_table, partition, prepare, put
from unskew.flower.client import respond
from unskew.flower.form import dataset_of_form
from unskew.flower.server import FederationSpec, serve
from unskew.flower.settings import FlowerSettings, named_method
from unskew.flower.site import Site, part_of, scaled, site_of
from unskew.notation import items, named
from unskew.trial import Faults, Probe, Trial
from unskew.user_code import find_name, is_code

Config = Mapping[str, Any]
EVERY_ROUND = "every=1"
FORM = "form.json"
"""In an app's folder: what the data of all sites look like."""
OWN_TEST = 0.2
"""The share of a site's samples that test, where its node's config does not say otherwise."""


def tables(config: Config) -> dict[str, Any]:
    """Settings that stand under their paths, such as budget.rounds, as tables."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        put(found, key.split("."), value)
    return found


def read_config(config: Config) -> tuple[Experiment, FederationSpec]:
    """The experiment in a run config, whose keys are the paths of an experiment file such as budget.rounds,
    and the settings of the federation, which begin with federation."""
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
    """The experiment with its own model and method where the app has them: in its folder."""
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
    """The method of an experiment, and its conditions."""
    method, name = named_method(experiment.method)

    def make_trial(federation: Federation) -> Trial:
        everybody = experiment.budget.model_copy(update={"cohort": "all"})
        # Weights to start from come from the server, which has them.
        model = experiment.model.model_copy(update={"init": "", "init_sha256": ""})
        changed = {"engine": "loop", "budget": everybody, "model": model, "attack": "none", "stop": "none"}
        at_node = experiment.model_copy(update={**changed, "faults": Faults(), "probe": Probe()})
        return prepare(at_node, federation.dataset, federation).trial

    return FlowerSettings(method, name, make_trial)


# A node


def client_app(folder: Path | str | None = None) -> ClientApp:
    """A ClientApp whose node's config says where its data are. `folder` is the app's own, in which the form
    of the data may lie."""
    app = ClientApp()
    place = None if folder is None else Path(folder)

    def answer(message: Message, context: Context) -> Message:
        experiment = with_code(read_config(context.run_config)[0], place)
        key = json.dumps([dict(context.run_config), dict(context.node_config)], sort_keys=True)

        def load() -> Site:
            return _site(key, place, context.node_id)

        return respond(message, context, settings_in(experiment), load)

    app.train()(answer)
    app.evaluate()(answer)
    app.query()(answer)
    return app


@lru_cache(maxsize=4)  # in a simulation one process answers for many nodes
def _site(key: str, folder: Path | None, node: int) -> Site:
    run_config, node_config = json.loads(key)
    return site_in(read_config(run_config)[0], node_config, folder, node)


def site_in(experiment: Experiment, config: Config, folder: Path | None, node: int) -> Site:
    """The data that a node's config names: `data`, such as csv:PATH,label=COLUMN, folder:PATH or
    file.py:load; or a part of the experiment's dataset by its `partition-id`, one or several as in 0-4."""
    if "data" in config:
        return _own_site(str(config["data"]), experiment, config, folder)
    if "partition-id" not in config:
        raise UserError(
            "this node's config names no data: start it with --node-config 'data=\"csv:PATH,label=COLUMN\"', "
            "or with a partition-id of the experiment's dataset."
        )
    clients, partitions, skew = (
        _numbers(config["partition-id"]),
        config.get("num-partitions"),
        experiment.skew,
    )
    if skew.clients == "auto" and partitions is not None:
        skew = skew.model_copy(update={"clients": int(partitions)})
    return _part(experiment.model_copy(update={"skew": skew}).model_dump_json(), tuple(clients))


def _own_site(text: str, experiment: Experiment, config: Config, folder: Path | None) -> Site:
    """A site's own samples, of which some test."""
    if not text.strip():
        raise UserError(
            "data is empty in this node's config: name the samples, such as csv:PATH,label=COLUMN."
        )
    name = str(config.get("site", "")) or Path(items(named(text)[1] or text)[0].text).stem
    form = (
        None
        if folder is None or not (folder / FORM).exists()
        else (folder / FORM).read_text(encoding="utf-8")
    )
    tests = True
    if is_code(text):
        load_own = find_name(text, "data")
        if not callable(load_own):
            raise UserError(f"'{text}' is no function: let it be one that returns a dataset.")
        data = load_own()
        if not isinstance(data, Dataset | Federation):
            raise UserError(
                f"'{text}' returns a {type(data).__name__}: let it return a dataset, such as "
                "unskew.data.from_arrays(x, y)."
            )
    elif form is None:
        data = load_one(text)
    else:
        data, tests = _read_like(text, dataset_of_form(form, experiment.data.name), config)
    if isinstance(data, Federation):
        return site_of(data, name)
    data = replace(data if form else scaled(data), name=experiment.data.name)
    if experiment.validation == NONE:
        site = site_of(data, name)
    else:
        held = federate(data, "iid", clients=1, seed=experiment.seed, validation=experiment.validation)
        site = replace(part_of(held, [0], [name], known=False), tests=(data.test,))
    return site if tests else replace(site, tests=(None,))


def _read_like(text: str, like: Dataset, config: Config) -> tuple[Dataset, bool]:
    """A site's samples in the form that all sites have, a part of each class for testing; and whether there
    are any to test on, which a share of 0 or a tiny site leaves none of."""
    share = config.get("test", OWN_TEST)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        raise UserError(
            f"test is {share!r} in this node's config but should be a share below 1, such as 0.2."
        )
    every = read_validation(text, like)
    train, test = stratified(every.labels.numpy(), float(share), 0)
    splits = [Split(every.inputs[rows], every.labels[rows]) for rows in map(torch.from_numpy, (train, test))]
    tests = len(splits[1]) > 0
    if not tests:  # a dataset has a test split
        splits[1] = Split(every.inputs[:1], every.labels[:1])
    return replace(like, train=splits[0], test=splits[1]), tests


@lru_cache(maxsize=64)
def _part(experiment: str, clients: tuple[int, ...]) -> Site:
    return part_of(_whole(experiment), clients)


@lru_cache(maxsize=2)
def _whole(experiment: str) -> Federation:
    spec = Experiment(**json.loads(experiment))
    return partition(spec, load_data(spec))


def _numbers(text: object) -> list[int]:
    """The clients that a node hosts: 3, or 0-4."""
    first, dash, last = str(text).partition("-")
    try:
        return list(range(int(first), int(last if dash else first) + 1))
    except ValueError:
        raise UserError(f"partition-id is '{text}' but should be a number, or several such as 0-4.") from None


# The server


def server_app(folder: Path | str | None = None) -> ServerApp:
    """A ServerApp that trains what the run config says, across all nodes, into a run folder. `folder` is the
    app's own, in which its own model and method may lie."""
    app = ServerApp()
    place = None if folder is None else Path(folder)

    def main(grid: Grid, context: Context) -> None:
        try:
            experiment, spec = read_config(context.run_config)
            experiment = with_code(experiment, place)
            serve(grid, experiment, spec, settings_in(experiment))
        except (UserError, Interrupted) as error:
            logging.getLogger("flwr").error("unskew: %s", error)
            # Flower takes note of errors alone: of a process that just ends it hears no more heartbeats.
            raise UserError(str(error)) from None

    app.main()(main)
    return app
