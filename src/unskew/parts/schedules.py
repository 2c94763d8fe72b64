"""Schedules of the learning rate over the rounds, by their names; the same for every method."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Literal, cast, get_args

from unskew.errors import UserError, require
from unskew.notation import Option, items, named, read_options

ScheduleKind = Literal["constant", "exponential", "cosine", "step"]

OPTIONS: dict[ScheduleKind, dict[str, Option]] = {
    "constant": {},
    "exponential": {"factor": Option(float, required=True)},
    "cosine": {"final": Option(float, required=False)},
    "step": {"at": Option(tuple[int, ...], required=True), "factor": Option(float, required=False)},
}
"""The options of each schedule, in addition to the rounds of its warm-up."""


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every round t, counted from 0, in a training of `rounds` rounds. Written NAME or
    NAME:option=value,option=value.

    constant      lr
    exponential   lr factor^t
    cosine        final + (lr - final) (1 + cos(pi t / rounds)) / 2
    step          lr times the factor, once for every number of `at` that is at most t, such as at=50/75

    During a warm-up of W rounds (`warmup`) it is lr (t + 1) / (W + 1). After it exponential and cosine count
    t from 0 again, and cosine spreads over the rounds that are left. The numbers of `at` count from the first
    round.
    """

    kind: ScheduleKind = "constant"
    factor: float = 0.1
    """exponential: in every round; step: at each of the rounds in `at`."""
    final: float = 0.0
    """cosine: the learning rate that it would reach in the round after the last."""
    at: tuple[int, ...] = ()
    """step: after how many rounds the learning rate changes."""
    warmup: int = 0

    def __post_init__(self) -> None:
        what = f"schedule {self.kind}"
        require(
            0 < self.factor <= 1, f"{what} factor is {self.factor:g} but should be above 0 and at most 1."
        )
        require(self.final >= 0, f"{what} final is {self.final:g} but should be 0 or more.")
        require(self.warmup >= 0, f"{what} warmup is {self.warmup} but should be 0 or more.")
        shown = "/".join(map(str, self.at))
        require(
            all(earlier < later for earlier, later in pairwise((self.warmup, *self.at))),
            f"{what} at is {shown} but should be rising numbers of rounds, all after the warm-up.",
        )

    @classmethod
    @cache
    def parse(cls, text: str) -> Schedule:
        """Read a schedule from a text such as cosine:final=0.001,warmup=5."""
        name, rest = named(text)
        if name not in get_args(ScheduleKind):
            raise UserError(f"schedule is '{name}' but should be constant, exponential, cosine or step.")
        kind = cast(ScheduleKind, name)
        options = OPTIONS[kind] | {"warmup": Option(int, required=False)}
        unnamed = [key for key, option in options.items() if option.required]
        return cls(kind, **read_options(f"schedule {kind}", items(rest), options, unnamed))

    def __str__(self) -> str:
        options = {name: getattr(self, name) for name in OPTIONS[self.kind]}
        options |= {"warmup": self.warmup} if self.warmup else {}
        each = (
            f"{name}={'/'.join(map(str, value)) if isinstance(value, tuple) else value}"
            for name, value in options.items()
        )
        return f"{self.kind}:{','.join(each)}" if options else self.kind

    def lr_at(self, round: int, lr: float, rounds: int) -> float:
        """Return the learning rate of a round, counted from 0, in a training of `rounds` rounds. `lr` is the
        budget's."""
        if round < self.warmup:
            return lr * (round + 1) / (self.warmup + 1)
        rules: dict[ScheduleKind, Callable[[], float]] = {
            "constant": lambda: lr,
            "exponential": lambda: lr * self.factor ** (round - self.warmup),
            "cosine": lambda: self._cosine(round, lr, rounds),
            "step": lambda: lr * self.factor ** sum(at <= round for at in self.at),
        }
        return rules[self.kind]()

    def _cosine(self, round: int, lr: float, rounds: int) -> float:
        share = (1 + math.cos(math.pi * (round - self.warmup) / max(1, rounds - self.warmup))) / 2
        return lr * share + self.final * (1 - share)
