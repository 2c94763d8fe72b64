"""What there is to know of a method beside its file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from unskew.method import Method
from unskew.metrics import Passes
from unskew.program import Program
from unskew.trial import Trial

Option = bool | int | float | str
Make = Callable[..., Method | Program]
"""A constructor: its keyword arguments are the method's hyperparameters."""


@dataclass(frozen=True)
class Work:
    """What a client computes for each of its samples, as numbers. Methods put together add up."""

    points: int = 1
    """In a step: where it takes the gradient of its objective, twice for SAM."""
    teacher: bool = False
    """At each point: whether it asks the received model, whose answers all terms share."""
    frozen: int = 0
    """At each point: other models it asks."""
    looks: float = 0
    """In a round: passes over the client's data."""
    gradients: float = 0
    """In a round: such passes with a gradient."""

    def __add__(self, other: Work) -> Work:
        return Work(
            points=max(self.points, other.points),
            teacher=self.teacher or other.teacher,
            frozen=self.frozen + other.frozen,
            looks=self.looks + other.looks,
            gradients=self.gradients + other.gradients,
        )

    def passes(self, epochs: int) -> Passes:
        return Passes(
            trained=self.points + self.gradients / epochs,
            frozen=self.points * (self.teacher + self.frozen),
            once=self.looks,
        )


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
    work: Work | Callable[[Trial, Mapping[str, Option]], Work | None] | None = None
    """What it computes; it may depend on the trial and the hyperparameters. None where nobody has said, and
    for methods whose stages differ."""

    def __call__(self, **options: Option) -> Method | Program:
        """The method with these hyperparameters."""
        return self.make(**options)

    def work_in(self, trial: Trial, options: Mapping[str, Option]) -> Work | None:
        """Under a trial, with these hyperparameters, all of them given."""
        return self.work(trial, options) if callable(self.work) else self.work

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
