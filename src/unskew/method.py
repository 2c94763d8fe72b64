"""A federated method: slots, each with the plain choice as its default, and how methods are combined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from unskew.errors import UserError
from unskew.method_checks import check_functions, check_like_model, check_tuple, is_one_number, not_one_number
from unskew.metrics import Passes
from unskew.trial import Trial
from unskew.types import (
    Correction,
    End,
    Gradient,
    GradientTransform,
    Look,
    Memory,
    Objective,
    Params,
    Scope,
    Server,
    ServerState,
    Tensors,
    Updates,
    View,
    Weights,
)


def plain_loss(view: View) -> Tensor:
    """Compute the mean cross-entropy over the batch."""
    return cross_entropy(view.out.logits, view.labels)


def plain_transform(gradient: Gradient, scope: Scope) -> Gradient:
    """Take the gradient at the parameters themselves."""
    return gradient


LrFactor = Callable[[float], float]
"""Gives the factor of the learning rate of a client's next step, from the part of its round that is done: 0
before its first step and below 1 before its last."""


class Tally(NamedTuple):
    """Something that an objective counts over a client's round."""

    name: str
    label: str
    """What is counted, such as "samples that ask an expert"; figures are labelled with it."""


@dataclass(frozen=True)
class Work:
    """What a client computes for each of its samples, in numbers. Those of combined methods add up."""

    points: int = 1
    """At how many points it takes the gradient of its objective in a step; 2 for SAM."""
    teacher: bool = False
    """Whether it asks the received model at each point, whose answers all terms share."""
    frozen: int = 0
    """How many other models it asks at each point."""
    looks: float = 0
    """How many passes it makes over the client's data in a round without a gradient."""
    gradients: float = 0
    """How many passes it makes over the client's data in a round with a gradient."""

    def __add__(self, other: Work) -> Work:
        return Work(
            points=max(self.points, other.points),
            teacher=self.teacher or other.teacher,
            frozen=self.frozen + other.frozen,
            looks=self.looks + other.looks,
            gradients=self.gradients + other.gradients,
        )

    def passes(self, epochs: float) -> Passes:
        """Return this work as forward passes per sample."""
        return Passes(
            trained=self.points + self.gradients / epochs,
            frozen=self.points * (self.teacher + self.frozen),
            once=self.looks,
        )


@dataclass(frozen=True)
class Method:
    """`Method()` is FedAvg. No method knows epochs, batch size or learning rate: those are the trial's, so
    that methods compared in one trial get the same budget.

    Methods are combined with `+`. A slot that holds one thing may be replaced by one of them; the others
    add up: terms, corrections, memories, and what the server notes, shares and revises.
    """

    loss: Objective = plain_loss
    """Client: the classification loss."""
    terms: tuple[Objective, ...] = ()
    """Client: what is added to the loss."""
    transform: GradientTransform = plain_transform
    """Client: how the gradient of a step is taken, such as at a point uphill."""
    corrections: tuple[Correction, ...] = ()
    """Client: what is added to every gradient."""
    lr_factor: LrFactor | None = None
    """Client: how the learning rate changes within a round; None if it stays the same."""
    memory: Memory = Memory()
    """Client: what to keep and what to report."""
    server: Server = Server()
    """How the server turns the clients' updates into the next model."""
    notes: tuple[str, ...] = ()
    """What a reader of its results should know, one sentence each."""
    roles: frozenset[str] = frozenset()
    """Roles, beyond its slots, that only one method of a combination can have."""
    fresh_momentum: bool = False
    """Whether it counts on a momentum that starts at 0 in every round of a client."""
    needs_sgd: str = ""
    """Why its clients must move by SGD, as what follows "because"; empty: they may move by any optimiser."""
    steady_lr: bool = False
    """Whether it counts on a learning rate that stays the same within a client's round."""
    own_start: bool = False
    """Whether its clients start elsewhere than at the model they receive. What they send and keep is then
    their weights less the way to there, which it adds where it combines them."""
    levels: bool = False
    """Whether its objective looks at `View.levels`."""
    tallies: tuple[Tally, ...] = ()
    """What its objective counts in a round, by `View.tally`."""
    work: Work | Callable[[Trial], Work | None] | None = None
    """What a client computes beyond plain training, for the cost of a run. A method that changes nothing at
    the client need not say it; for other methods None means unknown."""
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)
    """The methods that it combines: by name, the hyperparameters that were given. Empty if it has no
    name."""

    def __post_init__(self) -> None:
        check_functions("Method", {"loss": self.loss, "transform": self.transform})
        check_tuple("Method", "terms", self.terms)
        check_tuple("Method", "corrections", self.corrections)
        if self.lr_factor is not None:
            check_functions("Method", {"lr_factor": self.lr_factor})
        for name, value, kind in (("memory", self.memory, Memory), ("server", self.server, Server)):
            if not isinstance(value, kind):
                raise UserError(f"Method.{name} is {value!r} but should be a {kind.__name__}(...).")
        at_client = {name: getattr(self.memory, name) for name in ("init", "prepare", "update")}
        check_functions("Memory", at_client)
        names = [each.name for each in fields(Server) if each.name != "buffers" or self.server.buffers]
        check_functions("Server", {name: getattr(self.server, name) for name in names})

    def work_in(self, trial: Trial) -> Work | None:
        """Return what a client computes under a trial; None if it is unknown."""
        if callable(self.work):
            return self.work(trial)
        return Work() if self.work is None and self._is_plain_at_clients else self.work

    @property
    def _is_plain_at_clients(self) -> bool:
        return (self.loss, self.terms, self.transform, self.corrections, self.lr_factor, self.memory) == (
            plain_loss, (), plain_transform, (), None, Memory()
        )  # fmt: skip

    @property
    def _sees_ends(self) -> bool:
        """Whether it looks at the weights that clients end with, other than to combine them."""
        return self.memory.update is not Memory().update or self.server.revise is not Server().revise

    def objective(self, view: View) -> Tensor:
        total = self.loss(view)
        if not is_one_number(total):
            raise not_one_number("loss", self.loss, total)
        for n, term in enumerate(self.terms):
            part = term(view)
            if not is_one_number(part):
                raise not_one_number(f"terms[{n}]", term, part)
            total = total + part
        return total

    def correction(self, scope: Scope) -> Params | None:
        """Return the sum of the corrections; None if there are none."""
        total: Params | None = None
        for n, correction in enumerate(self.corrections):
            more = check_like_model(f"corrections[{n}]", correction(scope), scope.anchor.params)
            total = more if total is None else {name: value + more[name] for name, value in total.items()}
        return total

    def start_tallies(self, device: torch.device) -> Tensors:
        """Return the tallies before a client's first step: all zero."""
        return {name: torch.zeros((), dtype=torch.int64, device=device) for name, _ in self.tallies}

    def __add__(self, other: Method) -> Method:
        if not isinstance(other, Method):
            return NotImplemented
        for role in sorted(self.roles & other.roles):
            raise _clash(role)
        if (self.lr_factor and other.steady_lr) or (other.lr_factor and self.steady_lr):
            raise UserError(
                "these methods cannot be combined: one changes the learning rate within a round, and "
                "another counts on one that stays the same."
            )
        if (self.own_start and other._sees_ends) or (other.own_start and self._sees_ends):
            raise UserError(
                "these methods cannot be combined: one starts clients at their own last weights, and "
                "another looks at the weights that they end with."
            )
        return Method(
            loss=_one_of("classification loss", plain_loss, self.loss, other.loss),
            terms=self.terms + other.terms,
            transform=_one_of("gradient transform", plain_transform, self.transform, other.transform),
            corrections=self.corrections + other.corrections,
            lr_factor=_one_of("learning-rate factor within a round", None, self.lr_factor, other.lr_factor),
            memory=_both_memories(self.memory, other.memory),
            server=_both_servers(self.server, other.server),
            notes=self.notes + other.notes,
            roles=self.roles | other.roles,
            fresh_momentum=self.fresh_momentum or other.fresh_momentum,
            needs_sgd=self.needs_sgd or other.needs_sgd,
            steady_lr=self.steady_lr or other.steady_lr,
            own_start=self.own_start or other.own_start,
            levels=self.levels or other.levels,
            tallies=self.tallies + other.tallies,
            work=_both_works(self, other),
            parts=combined_parts(self.parts, other.parts),
        )


OWN = "own"
"""The name of a method without one, in a combination."""


def combined_parts(
    first: Mapping[str, Mapping[str, Any]], second: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, Mapping[str, Any]]:
    """Return the parts of two methods that are combined; empty if neither has a name."""
    return {**(first or {OWN: {}}), **(second or {OWN: {}})} if first or second else {}


DRIFT = "correction of client drift"
START = "model that client updates are measured from"

T = TypeVar("T")


def _clash(what: str) -> UserError:
    return UserError(f"these methods cannot be combined: each has its own {what}, but only one is possible.")


def _one_of(what: str, plain: T, first: T, second: T) -> T:
    if first is not plain and second is not plain and first is not second:
        raise _clash(what)
    return second if first is plain else first


def _union(first: Tensors, second: Tensors) -> Tensors:
    if both := sorted(first.keys() & second.keys()):
        raise UserError(f"these methods cannot be combined: both keep '{both[0]}'.")
    return {**first, **second}


def _both_works(first: Method, second: Method) -> Callable[[Trial], Work | None]:
    def work(trial: Trial) -> Work | None:
        one, other = first.work_in(trial), second.work_in(trial)
        return None if one is None or other is None else one + other

    return work


def _both_memories(first: Memory, second: Memory) -> Memory:
    if Memory() in (first, second):
        return second if first == Memory() else first

    def init(weights: Weights, counts: Tensor) -> Tensors:
        return _union(first.init(weights, counts), second.init(weights, counts))

    def prepare(scope: Scope, look: Look) -> Tensors:
        return _union(first.prepare(scope, look), second.prepare(scope, look))

    def update(scope: Scope, end: End) -> tuple[Tensors, Tensors]:
        (kept, reported), (more_kept, more_reported) = first.update(scope, end), second.update(scope, end)
        return _union(kept, more_kept), _union(reported, more_reported)

    return Memory(init, prepare, update)


def _both_servers(first: Server, second: Server) -> Server:
    if Server() in (first, second):
        return second if first == Server() else first
    plain = Server()

    def init(weights: Weights) -> Tensors:
        return _union(first.init(weights), second.init(weights))

    def note(state: ServerState, after: Weights, updates: Updates) -> Tensors:
        return _union(first.note(state, after, updates), second.note(state, after, updates))

    def share(state: ServerState) -> Tensors:
        return _union(first.share(state), second.share(state))

    def revise(state: ServerState, updates: Updates) -> Updates:
        return second.revise(state, first.revise(state, updates))

    return Server(
        combine=_one_of("aggregation rule", plain.combine, first.combine, second.combine),
        move=_one_of("server optimiser", plain.move, first.move, second.move),
        init=init,
        note=note,
        share=share,
        send=_one_of("model sent to the clients", plain.send, first.send, second.send),
        serve=_one_of("served model", plain.serve, first.serve, second.serve),
        revise=plain.revise if first.revise is second.revise is plain.revise else revise,
        buffers=_one_of("aggregation rule for buffers", plain.buffers, first.buffers, second.buffers),
    )
