"""Clients that attack, for studies of servers that withstand them.

An attack is a condition of a run, the same for every method that is compared under it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Literal, cast, get_args, get_type_hints

import torch
from torch import Tensor

from unskew.data.federation import Federation
from unskew.errors import require, unknown
from unskew.notation import Option, items, named, read_options
from unskew.randomness import Purpose, draw_seed, stream
from unskew.types import Tensors, Weights

AttackKind = Literal["none", "sign-flip", "noise", "alie", "nan", "label-flip"]


@dataclass(frozen=True)
class Attack:
    """The behaviour of some clients in every round. Written KIND:fraction=0.2,scale=1, or `none`.

    sign-flip    move against the honest update, `scale` times as far
    noise        send the received model with Gaussian noise of deviation `scale` instead of training
    alie         know all honest updates of the round, and send their mean less `scale` times their deviation
                 (Baruch, Baruch, Goldberg. A Little Is Enough. NeurIPS 2019)
    nan          send NaN
    label-flip   train on wrong labels, class C-1-c for c, and claim label counts to match

    The first four change the model that is sent, averaged BatchNorm statistics included. What a method's
    clients report in addition to it, keep, or answer to a question is honest.
    """

    kind: AttackKind = "none"
    fraction: float = 0.2
    """The fraction of all clients that attack. The seed decides which ones."""
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(AttackKind):
            raise unknown("attack", self.kind, get_args(AttackKind))
        require(0 <= self.fraction <= 1, f"attack fraction is {self.fraction:g} but should be from 0 to 1.")
        require(self.scale >= 0, f"attack scale is {self.scale:g} but should be 0 or more.")

    @classmethod
    def parse(cls, text: str) -> Attack:
        """Read an attack from a text such as sign-flip:fraction=0.2,scale=10."""
        name, rest = named(text)
        if name not in get_args(AttackKind):
            raise unknown("attack", name, get_args(AttackKind))
        kind = cast(AttackKind, name)
        kinds = get_type_hints(cls)
        options = {each.name: Option(kinds[each.name], required=False) for each in fields(cls)[1:]}
        given = items(rest)
        return cls(kind, **read_options(f"attack {kind}", given, {} if kind == "none" else options, ()))

    def __str__(self) -> str:
        if self.kind == "none":
            return "none"
        scale = "" if self.kind in ("nan", "label-flip") else f",scale={self.scale!r}"
        return f"{self.kind}:fraction={self.fraction!r}{scale}"

    def notes(self, seed: int, clients: int) -> tuple[str, ...]:
        """Say which clients attack, for readers of a result."""
        if self.kind == "none":
            return ()
        numbers = ", ".join(map(str, sorted(self.attackers(seed, clients)))) or "none"
        return (f"attack {self}: clients that attack: {numbers}.",)

    def attackers(self, seed: int, clients: int) -> frozenset[int]:
        """Return the numbers of the clients that attack: the fraction of all, rounded down."""
        return frozenset() if self.kind == "none" else _drawn(seed, clients, self.fraction)

    def labels(self, federation: Federation, seed: int) -> Tensor:
        """Return the labels of the training split as clients train on them."""
        labels = federation.dataset.train.labels
        if self.kind != "label-flip":
            return labels
        labels = labels.clone()
        for client in self.attackers(seed, federation.clients):
            mine = federation.indices(client)
            labels[mine] = len(federation.dataset.classes) - 1 - labels[mine]
        return labels

    def counts(self, seed: int, clients: int, client: int, counts: Tensor) -> Tensor:
        """Return a client's label counts as it claims them."""
        flips = self.kind == "label-flip" and client in self.attackers(seed, clients)
        return counts.flip(0) if flips else counts

    def changed(
        self, seed: int, round: int, clients: int, sent: Weights, trained: Mapping[int, Weights]
    ) -> dict[int, Weights]:
        """Return what the attackers send in place of the models that they trained, by the client's number.
        `sent` is the model that the server sent to all clients, and `trained` has the models that clients
        trained in the round, those of attackers included."""
        if self.kind in ("none", "label-flip"):
            return {}
        attackers = self.attackers(seed, clients)
        honest = [weights for client, weights in trained.items() if client not in attackers]
        attacked = {}
        for client in sorted(attackers & trained.keys()):
            draw = torch.Generator().manual_seed(draw_seed(seed, Purpose.ATTACK, round, client))
            mine = trained[client]
            attacked[client] = Weights(
                self._attacked(sent.params, mine.params, [each.params for each in honest], draw),
                self._attacked(sent.buffers, mine.buffers, [each.buffers for each in honest], draw),
            )
        return attacked

    def _attacked(
        self, before: Tensors, mine: Tensors, honest: list[Tensors], draw: torch.Generator
    ) -> Tensors:
        def attacked(name: str, value: Tensor) -> Tensor:
            if not value.is_floating_point():
                return value
            if self.kind == "nan":
                return torch.full_like(value, math.nan)
            if self.kind == "noise":
                noise = torch.randn(value.shape, generator=draw).to(value)
                return before[name] + self.scale * noise
            if self.kind == "alie":
                if not honest:
                    return value
                spread, mean = torch.std_mean(torch.stack([each[name] for each in honest]), 0, correction=0)
                return mean - self.scale * spread
            return before[name] - self.scale * (value - before[name])

        return {name: attacked(name, value) for name, value in mine.items()}


@cache
def _drawn(seed: int, clients: int, fraction: float) -> frozenset[int]:
    order = stream(seed, Purpose.ATTACK).permutation(clients)
    return frozenset(order[: math.floor(fraction * clients + 1e-9)].tolist())
