"""Loads the data that a node's config names."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from unskew.data.arrays import stratified
from unskew.data.dataset import Dataset, Split
from unskew.data.federation import Federation, federate
from unskew.data.loading import load_one
from unskew.data.validation import NONE, read_validation
from unskew.errors import UserError
from unskew.experiment import Experiment, load_data, partition
from unskew.flower.form import dataset_of_form
from unskew.flower.run_config import Config
from unskew.flower.site import Site, part_of, scaled, site_of
from unskew.notation import items, named
from unskew.user_code import find_name, is_code

FORM = "form.json"
"""The file in an app's folder that has the form of the data of all sites."""
OWN_TEST = 0.2
"""The share of a site's samples on which the model is tested, unless the node's config sets another."""


def load_site(experiment: Experiment, config: Config, folder: Path | None) -> Site:
    """Load the data that a node's config names: by `data`, such as csv:PATH,label=COLUMN, folder:PATH or
    file.py:load, or by `partition-id`, one client of the experiment's dataset or several, as in 0-4. `folder`
    is that of the app."""
    if "data" in config:
        return _own_site(str(config["data"]), experiment, config, folder)
    own = folder is not None and (folder / FORM).exists()
    if own or "partition-id" not in config:
        either = "" if own else ", or with a partition-id of the experiment's dataset"
        raise UserError(
            "this node's config names no data: start it with --node-config "
            f"'data=\"csv:PATH,label=COLUMN\"'{either}."
        )
    clients, skew = _numbers(config["partition-id"]), experiment.skew
    partitions = config.get("num-partitions")
    if skew.clients == "auto" and partitions is not None:
        skew = skew.model_copy(update={"clients": int(partitions)})
    return _part(experiment.model_copy(update={"skew": skew}).model_dump_json(), tuple(clients))


def _own_site(text: str, experiment: Experiment, config: Config, folder: Path | None) -> Site:
    """Load a site's own samples for training and testing, named by `text`."""
    if not text.strip():
        raise UserError(
            "data is empty in this node's config: name the samples, such as csv:PATH,label=COLUMN."
        )
    name = str(config.get("site", "")) or Path(items(named(text)[1] or text)[0].text).stem
    path = None if folder is None else folder / FORM
    like = None
    if path is not None and path.exists():
        like = dataset_of_form(path.read_text(encoding="utf-8"), experiment.data.name)
    tests = True
    if is_code(text):
        data = _made_by_code(text)
    elif like is None:
        data = load_one(text)
    else:
        data, tests = _read_like(text, like, config)
    if isinstance(data, Federation):
        return site_of(data, name)
    scale = None if like is None or like.inputs != data.inputs else (like.mean, like.std)
    data = replace(scaled(data, scale), name=experiment.data.name)
    if experiment.validation == NONE:
        site = site_of(data, name)
    else:
        held = federate(data, "iid", clients=1, seed=experiment.seed, validation=experiment.validation)
        site = replace(part_of(held, [0], [name], known=False), tests=(data.test,))
    return site if tests else replace(site, tests=(None,))


def _made_by_code(text: str) -> Dataset | Federation:
    """Return the data that a function of the user's own makes, named as in my_data.py:load."""
    function = find_name(text, "data")
    if not callable(function):
        raise UserError(f"'{text}' is no function: let it be one that returns a dataset.")
    data = function()
    if not isinstance(data, Dataset | Federation):
        raise UserError(
            f"'{text}' returns a {type(data).__name__}: let it return a dataset, such as "
            "unskew.data.from_arrays(x, y)."
        )
    return data


def _read_like(text: str, like: Dataset, config: Config) -> tuple[Dataset, bool]:
    """Return a site's samples in the form of `like`, divided into training and test samples within each
    class, and whether there are any test samples: if their share is 0 or the site is tiny, there are none."""
    share = config.get("test", OWN_TEST)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        raise UserError(
            f"test is {share!r} in this node's config but should be a share below 1, such as 0.2."
        )
    every = read_validation(text, like)
    train, test = stratified(every.labels.numpy(), float(share), 0)
    splits = [Split(every.inputs[rows], every.labels[rows]) for rows in map(torch.from_numpy, (train, test))]
    tests = len(splits[1]) > 0
    if not tests:  # a dataset needs a test split, so this one has a sample that is not used
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
    """Return the clients of a partition-id, which is a number or a range such as 0-4."""
    first, dash, last = str(text).partition("-")
    try:
        return list(range(int(first), int(last if dash else first) + 1))
    except ValueError:
        raise UserError(f"partition-id is '{text}' but should be a number, or several such as 0-4.") from None
