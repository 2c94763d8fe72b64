"""Cards: the name, costs and page of a method."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Protocol, TypeVar, cast

from unskew.method import Method
from unskew.program import Program

OptionValue = bool | int | float | str
MakeMethod = Callable[..., Method | Program]
"""A constructor: its keyword arguments are the method's hyperparameters."""
M = TypeVar("M", bound=MakeMethod)

TEACHER = "one per batch, of the received model"
COPY = "one copy of the weights"
NOT_STATED = "not stated"


class RoundCosts(Protocol):
    """Counts the cost of the rounds of a finished run as the method's paper does."""

    def __call__(
        self,
        options: Mapping[str, Any],
        *,
        rounds: int,
        epochs: float | None,
        class_sizes: Sequence[int],
        shares: Mapping[str, Sequence[float | None]],
    ) -> dict[int, float] | None:
        """Return the cost of each round by its number, in rounds of FedAvg, or None if it is not known.

        `options` are the run's hyperparameters, `rounds` and `epochs` its numbers of rounds and of local
        epochs (None for a budget in steps), `class_sizes` its training samples of each class. `shares` has by
        the names of the method's tallies the shares that it counted in the last rounds.
        """
        ...


@dataclass(frozen=True)
class Card:
    """A method's name, its constructor, and what it costs in words; `Method.work` has the numbers."""

    name: str
    make: MakeMethod
    passes: str = "none"
    """Forward passes beyond plain training."""
    memory: str = "none"
    """What a client holds beyond plain training."""
    traffic: str = "none"
    """What travels beyond the model, down and up."""
    sends: str = "nothing"
    """What leaves the client besides the weights and the number of samples."""
    round_costs: RoundCosts | None = None
    """Counts the cost of rounds as the paper's tables do; None: each round counts as 1."""
    stated: bool = True
    """Whether the fields above were stated. If not, they are unknown."""

    def __call__(self, **options: OptionValue) -> Method | Program:
        """Make the method with these hyperparameters."""
        return self.make(**options)

    @property
    def idea(self) -> str:
        """The first line of the constructor's docstring."""
        return (inspect.getdoc(self.make) or "").partition("\n")[0]

    @property
    def page(self) -> str:
        """The file's docstring: reference, idea, formula, deviations."""
        return inspect.getdoc(inspect.getmodule(self.make)) or ""

    @property
    def needs_sgd(self) -> str:
        """Why clients must use SGD; empty if they may use any optimiser."""
        made = self.make()
        return (made.base if isinstance(made, Program) else made).needs_sgd

    @property
    def options(self) -> dict[str, OptionValue]:
        """Hyperparameters and their defaults."""
        return {name: p.default for name, p in inspect.signature(self.make).parameters.items()}


_WRITTEN: list[Card] = []


def card(
    name: str,
    *,
    passes: str = "none",
    memory: str = "none",
    traffic: str = "none",
    sends: str = "nothing",
    round_costs: RoundCosts | None = None,
) -> Callable[[M], M]:
    """Write a card for a constructor, whose methods then know how they were made. A constructor with two
    names has two cards."""

    def write(make: M) -> M:
        known = make if any(each.make is make for each in _WRITTEN) else _naming(make, name)
        _WRITTEN.append(Card(name, known, passes, memory, traffic, sends, round_costs))
        return known

    return write


def _naming(make: M, name: str) -> M:
    """Return a constructor whose methods keep this name and the hyperparameters that were given."""

    @wraps(make)
    def named(**options: OptionValue) -> Method | Program:
        method = make(**options)
        return replace(method, parts={name: options}) if isinstance(method, Method | Program) else method

    return cast(M, named)


def written() -> dict[str, Card]:
    """Return the cards written so far, by name."""
    return {each.name: each for each in _WRITTEN}


def card_of(make: MakeMethod, name: str) -> Card:
    """Return the card of a constructor. A constructor without one gets a card that states nothing."""
    for each in reversed(_WRITTEN):
        if each.make is make:
            return each
    return Card(name, make, NOT_STATED, NOT_STATED, NOT_STATED, NOT_STATED, stated=False)
