"""A federated method: slots, each with the plain choice as its default, and how methods are put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from unskew.errors import UserError
from unskew.types import (
    Ascent,
    Correction,
    End,
    Gradient,
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
    """Mean cross-entropy over the batch."""
    return cross_entropy(view.out.logits, view.labels)


def plain_ascent(gradient: Gradient, scope: Scope) -> Gradient:
    return gradient


@dataclass(frozen=True)
class Method:
    """`Method()` is FedAvg. No method knows epochs, batch size or learning rate: those are the trial's, so
    that methods compared in one trial get the same budget.

    Methods are put together with `+`. A slot that holds one thing may be replaced by one of them; the others
    add up: terms, corrections, memories, and what the server notes and shares.
    """

    loss: Objective = plain_loss
    """Client: the classification loss."""
    terms: tuple[Objective, ...] = ()
    """Client: what is added to it."""
    ascent: Ascent = plain_ascent
    """Client: where the gradient is taken."""
    corrections: tuple[Correction, ...] = ()
    """Client: what is added to every gradient."""
    memory: Memory = Memory()
    """Client: what to keep and what to report."""
    server: Server = Server()
    notes: tuple[str, ...] = ()
    """What a reader of its results should know, one sentence each."""
    roles: frozenset[str] = frozenset()
    """What this method is to a combination of which there can be one, beyond its slots."""
    fresh: bool = False
    """Whether it counts on a momentum that starts at 0 in every round of a client."""
    tallies: tuple[str, ...] = ()
    """What its objective counts in a round: names for `View.tally`."""

    def objective(self, view: View) -> Tensor:
        total = self.loss(view)
        for term in self.terms:
            total = total + term(view)
        return total

    def correction(self, scope: Scope) -> Params | None:
        """The sum of the corrections; None where there are none."""
        total: Params | None = None
        for correction in self.corrections:
            more = correction(scope)
            total = more if total is None else {name: value + more[name] for name, value in total.items()}
        return total

    def start_tallies(self, device: torch.device) -> Tensors:
        """At 0, before a client's first step."""
        return {name: torch.zeros((), dtype=torch.int64, device=device) for name in self.tallies}

    def __add__(self, other: Method) -> Method:
        if not isinstance(other, Method):
            return NotImplemented
        for role in sorted(self.roles & other.roles):
            raise _clash(role)
        return Method(
            loss=_one_of("classification loss", plain_loss, self.loss, other.loss),
            terms=self.terms + other.terms,
            ascent=_one_of("place where gradients are taken", plain_ascent, self.ascent, other.ascent),
            corrections=self.corrections + other.corrections,
            memory=_both_memories(self.memory, other.memory),
            server=_both_servers(self.server, other.server),
            notes=self.notes + other.notes,
            roles=self.roles | other.roles,
            fresh=self.fresh or other.fresh,
            tallies=self.tallies + other.tallies,
        )


DRIFT = "state that corrects the clients' drift"

T = TypeVar("T")


def _clash(what: str) -> UserError:
    return UserError(f"these methods cannot be put together: each has its own {what}, and there is one.")


def _one_of(what: str, plain: T, first: T, second: T) -> T:
    if first is not plain and second is not plain:
        raise _clash(what)
    return second if first is plain else first


def _union(first: Tensors, second: Tensors) -> Tensors:
    if both := sorted(first.keys() & second.keys()):
        raise UserError(f"these methods cannot be put together: both keep '{both[0]}'.")
    return {**first, **second}


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

    return Server(
        combine=_one_of("way to combine updates", plain.combine, first.combine, second.combine),
        move=_one_of("server optimiser", plain.move, first.move, second.move),
        init=init,
        note=note,
        share=share,
        serve=_one_of("served model", plain.serve, first.serve, second.serve),
    )
