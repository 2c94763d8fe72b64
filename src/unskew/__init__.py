"""unskew: federated learning when clients' labels are skewed."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unskew import data, flower, losses, methods, metrics, models, plot
    from unskew.advice import Advice, advise
    from unskew.checkpoints import Checkpoints
    from unskew.comparison.compare import Compared, compare
    from unskew.data import Dataset, Federation, federate, load
    from unskew.data.augment import Augment
    from unskew.errors import UserError
    from unskew.method import Method
    from unskew.model_files import load_model
    from unskew.program import Program
    from unskew.result import Result, Round
    from unskew.train import train
    from unskew.trained_model import TrainedModel
    from unskew.trial import Budget, Evaluation, Faults, Probe, Stop, Trial

__all__ = [
    "Advice",
    "Augment",
    "Budget",
    "Checkpoints",
    "Compared",
    "Dataset",
    "Evaluation",
    "Faults",
    "Federation",
    "Method",
    "Probe",
    "Program",
    "Result",
    "Round",
    "Stop",
    "TrainedModel",
    "Trial",
    "UserError",
    "advise",
    "compare",
    "data",
    "federate",
    "flower",
    "load",
    "load_model",
    "losses",
    "methods",
    "metrics",
    "models",
    "plot",
    "train",
]

_MODULES = {
    "advice": ("Advice", "advise"),
    "checkpoints": ("Checkpoints",),
    "comparison.compare": ("Compared", "compare"),
    "data": ("Dataset", "Federation", "federate", "load"),
    "data.augment": ("Augment",),
    "errors": ("UserError",),
    "method": ("Method",),
    "model_files": ("load_model",),
    "program": ("Program",),
    "result": ("Result", "Round"),
    "train": ("train",),
    "trained_model": ("TrainedModel",),
    "trial": ("Budget", "Evaluation", "Faults", "Probe", "Stop", "Trial"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


class _Package(ModuleType):
    """This package, which imports what it offers when that is asked for: `unskew --help` needs no PyTorch."""

    def __getattr__(self, name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'unskew' has no attribute '{name}'")
        module = importlib.import_module(f"unskew.{_HOMES.get(name, name)}")
        return getattr(module, name) if name in _HOMES else module

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "train":  # the function: importing the module of that name would hide it
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
