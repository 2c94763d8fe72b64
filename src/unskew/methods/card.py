"""What there is to know of a method beside its file."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from unskew.method import Method
from unskew.train import Program

Option = bool | int | float | str
Make = Callable[..., Method | Program]
"""A constructor: its keyword arguments are the method's hyperparameters."""


@dataclass(frozen=True)
class Card:
    make: Make
    passes: str = "none"
    """Forward passes beyond plain training."""
    memory: str = "none"
    """What a client holds beyond plain training."""
    traffic: str = "none"
    """What travels beyond the model, down and up."""
    sends: str = "nothing"
    """What leaves the client besides the weights and the number of samples."""

    def __call__(self, **options: Option) -> Method | Program:
        """The method with these hyperparameters."""
        return self.make(**options)

    @property
    def idea(self) -> str:
        """One line: the constructor's docstring begins with it."""
        return (inspect.getdoc(self.make) or "").partition("\n")[0]

    @property
    def page(self) -> str:
        """The file's docstring: reference, idea, formula, deviations."""
        return inspect.getdoc(inspect.getmodule(self.make)) or ""

    @property
    def options(self) -> dict[str, Option]:
        """Hyperparameters and their defaults."""
        return {name: p.default for name, p in inspect.signature(self.make).parameters.items()}
