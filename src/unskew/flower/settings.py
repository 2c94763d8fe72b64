"""The method and conditions of a federation, which are the same at its server and at every node."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from unskew.data.federation import Federation
from unskew.engines import FLOWER
from unskew.errors import UserError, unknown
from unskew.experiment import MethodSpec, method_table
from unskew.method import OWN, Method
from unskew.methods.assemble import assemble
from unskew.methods.card import OptionValue
from unskew.notation import write_parts
from unskew.program import Program
from unskew.train import in_one_stage
from unskew.trial import Faults, Trial

AnyMethod = str | Method | Program


@dataclass(frozen=True, eq=False)
class FlowerSettings:
    """A method, and the conditions under which clients train by it."""

    method: Method | Program
    name: str
    """The name of the method, with all its hyperparameters."""
    make_trial: Callable[[Federation], Trial]
    """Makes the trial of these conditions on a federation. Call `trial`, which also sets the precision."""

    def __post_init__(self) -> None:
        refuse_one_place(self.method, self.name)

    @property
    def program(self) -> Program:
        """The method as a program."""
        return self.method if isinstance(self.method, Program) else in_one_stage(self.method)

    def trial(self, federation: Federation) -> Trial:
        """Return the trial on a federation. Its precision is full unless the conditions set another, so that
        it is the same on machines with a GPU and without."""
        trial = self.make_trial(federation)
        return replace(trial, precision="fp32") if trial.precision == "auto" else trial

    def node_trial(self, federation: Federation, rounds: int) -> Trial:
        """Return the trial of `rounds` rounds on a node's own clients, all of which may train in a round."""
        trial = self.trial(federation)
        budget = trial.budget.model_copy(update={"cohort": "all", "rounds": rounds})
        return replace(trial, budget=budget, faults=Faults())

    def server_trial(self, federation: Federation, rounds: int) -> Trial:
        """Return the trial of `rounds` rounds that the server runs. Unless the conditions say otherwise, a
        round continues without clients that fail."""
        trial = self.trial(federation)
        faults = trial.faults if "on_fault" in trial.faults.model_fields_set else Faults(on_fault="skip")
        budget = trial.budget.model_copy(update={"rounds": rounds})
        return replace(trial, engine=FLOWER, device="cpu", budget=budget, faults=faults)

    def agreement(self, trial: Trial) -> str:
        """Return the settings that server and nodes have to share, as JSON."""
        dataset = trial.federation.dataset
        settings: dict[str, Any] = {
            "method": self.name,
            "model": asdict(replace(trial.network, name=Path(trial.network.name).name)),
            "seed": trial.seed,
            "budget": trial.budget.model_dump(mode="json", exclude={"cohort", "rounds"}),
            "teacher": trial.teacher,
            "augment": str(trial.augment),
            "classes": list(dataset.classes),
            "inputs": asdict(dataset.inputs),
            "mean": list(dataset.mean),
            "std": list(dataset.std),
        }
        return json.dumps(settings, sort_keys=True)

    def check_agreement(self, theirs: str, trial: Trial) -> None:
        """Refuse a server whose settings, `theirs`, differ from those of this node, and name the first that
        differs."""
        mine = self.agreement(trial)
        if mine == theirs:
            return
        try:
            other = json.loads(theirs)
        except ValueError:
            other = {}
        for name, value in json.loads(mine).items():
            if other.get(name) != value:
                raise UserError(
                    f"the server trains with {name} {_short(other.get(name))} and this node with "
                    f"{_short(value)}: give both the same settings."
                )
        raise UserError("the server has other settings than this node: use the same unskew at both.")


def refuse_one_place(method: Method | Program, name: str) -> None:
    """Refuse a method that cannot train across machines."""
    if isinstance(method, Program) and method.one_place:
        raise UserError(
            f"{name.partition(':')[0]} cannot train across machines, because {method.one_place}: choose "
            "another method."
        )


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def settings_of(
    method: AnyMethod, model: str | nn.Module | Callable[[], nn.Module], **conditions: Any
) -> FlowerSettings:
    """Return settings that are given in Python: a method or its name, a model, and other arguments of
    `unskew.Trial`, such as a budget."""
    found, name = named_method(method)
    known = {each.name for each in fields(Trial)} - {"federation", "model"}
    for each in conditions:
        if each not in known:
            raise unknown("condition", each, known)

    def make_trial(federation: Federation) -> Trial:
        return Trial(federation, model, **conditions)

    return FlowerSettings(found, name, make_trial)


def named_method(method: AnyMethod | MethodSpec) -> tuple[Method | Program, str]:
    """Return a method, which may be given by its name, such as "fedvls:lam=0.2", and its name with all
    hyperparameters."""
    if isinstance(method, str):
        method = MethodSpec(**method_table(method))
    if isinstance(method, MethodSpec):
        found, options = assemble(method.parts())
        # Without the folders of files, which differ between machines.
        return found, write_parts({Path(name).name: each for name, each in options.items()})
    if not isinstance(method, Method | Program):
        raise UserError(
            f"method is of type {type(method).__name__}: give its name, such as 'fedvls', or call its "
            "function."
        )
    parts: Mapping[str, Mapping[str, OptionValue]] = method.parts or (
        {"fedavg": {}} if method == Method() else {OWN: {}}
    )
    return method, write_parts(parts)
