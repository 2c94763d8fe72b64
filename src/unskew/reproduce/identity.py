"""Compares the experiment of a run with that of a cell. Needs no data."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from unskew import models
from unskew.data.augment import Augment
from unskew.data.importers import Import
from unskew.data.partitions import parse_skew, spell_out, write_skew
from unskew.errors import UserError
from unskew.experiment import Experiment
from unskew.methods.assemble import assemble
from unskew.notation import flatten, joined

NOT_COMPARED = ("device", "evaluation.batch_size")
"""Settings of how results are computed, in addition to those that `Experiment.result_settings` leaves out."""


def difference(asked: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    """Return the first setting in which a run's experiment differs from the one asked for, such as
    `budget.lr is 0.1, not 0.01`; empty if none does.

    `there` is what the run's experiment.toml holds. The seed and the budget are compared first.
    """
    name = asked["method"]["name"]
    if there["method"]["name"] != name:  # code that the run's file names must not run
        return f"method.name is {there['method']['name']}, not {name}"
    mine, theirs = _identifying(asked), _identifying(there)
    if mine["skew.clients"] == "auto":  # the data decide it
        mine["skew.clients"] = theirs["skew.clients"]
    for key in dict.fromkeys([*mine, *theirs]):
        if mine.get(key) != theirs.get(key):
            return f"{key} is {_text(theirs.get(key))}, not {_text(mine.get(key))}"
    return ""


def _identifying(experiment: Mapping[str, Any]) -> dict[str, object]:
    """Return the settings that results depend on, by path, with all defaults known without the data."""
    whole = Experiment(**{"precision": "fp32", **experiment})  # older runs do not have it
    settings = whole.result_settings()
    settings = {"seed": settings.pop("seed"), "budget": settings.pop("budget"), **settings}
    settings["data"]["augment"] = str(Augment.parse(whole.data.augment))
    settings["skew"] |= {"recipe": _recipe(whole), "seed": settings["skew"].get("seed", whole.seed)}
    if (model := models.MODELS.get(whole.model.name)) is not None:
        norm = model.norms[0] if whole.model.norm == "auto" else whole.model.norm
        settings["model"] = {**model.defaults, **settings["model"], "norm": norm}
    _, options = assemble(whole.method.parts())
    method = next(iter(options.values())) if len(options) == 1 else options
    settings["method"] = {"name": whole.method.name, **method}
    return {key: value for key, value in flatten(settings) if key not in NOT_COMPARED}


def _recipe(experiment: Experiment) -> str:
    """Return the skew in its normal form, without options that have their defaults."""
    domains = tuple(joined(experiment.data.name))
    with suppress(UserError):  # written by another version: its text is compared
        rule = parse_skew(experiment.skew.recipe)
        if not isinstance(rule, Import):
            rule = spell_out(rule, domains if len(domains) > 1 else (), 0)
        return write_skew(rule, brief=True)
    return experiment.skew.recipe


def _text(value: object) -> str:
    return "not set" if value is None else str(value)
