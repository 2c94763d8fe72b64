"""How much every method may train."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainSerializer
from torch import Tensor

from unskew.errors import UserError
from unskew.parts.optimizers import OptimizerChoice
from unskew.parts.schedules import Schedule
from unskew.spec import Spec
from unskew.types import Optimizer


def _whole(number: float) -> float:
    """Turn a float that is a whole number into an int."""
    return int(number) if number == int(number) else number


class _Decay(Spec):
    lr_decay: float = Field(gt=0, le=1)


class Budget(Spec):
    """How much every method may train."""

    rounds: int = Field(default=20, ge=1, le=10**9)
    cohort: Literal["all"] | int = "all"
    """Clients that take part in a round."""
    epochs: (
        Annotated[
            float, Field(gt=0, le=1e9), AfterValidator(_whole), PlainSerializer(_whole, return_type=Any)
        ]
        | None
    ) = 5
    """Passes of a client over its data in a round; None if `steps` are given. Of a part of a pass, so many
    of its batches, rounded up."""
    steps: int | None = Field(default=None, ge=1, le=10**9)
    """Local steps of every client in a round, instead of epochs and however many samples it has: pass follows
    pass, each freshly shuffled and with the smaller batch at its end, until so many steps are taken."""
    batch_size: int = Field(default=32, ge=1)
    lr: float = Field(default=0.01, gt=0, le=1e30)
    schedule: str = "constant"
    """How the learning rate changes over the rounds: see `unskew.parts.schedules.Schedule`. `lr_decay=0.99`
    is another way to write exponential:0.99."""
    optimizer: str = "sgd"
    """By which rule clients move: see `unskew.parts.optimizers.OptimizerChoice`."""
    optimizer_state: Literal["fresh", "kept"] = "fresh"
    """A client's momentum, or moments, at the start of its round: none, or what it had at the end of its
    last, as in the released baselines of FedVLS (for study: it meets new weights)."""
    momentum: float | None = Field(default=0.9, ge=0, lt=1)
    """The momentum of SGD; None for other optimisers."""
    weight_decay: float = Field(default=1e-5, ge=0, le=1e30)

    def __init__(self, **values: Any) -> None:
        if "lr_decay" in values:
            if "schedule" in values:
                raise UserError("schedule and lr_decay are both given: lr_decay is exponential, keep one.")
            decay = _Decay(lr_decay=values.pop("lr_decay")).lr_decay
            values["schedule"] = "constant" if decay == 1 else f"exponential:{decay!r}"
        if values.get("steps") is not None:
            if values.setdefault("epochs", None) is not None:
                raise UserError("steps and epochs are both given: a round has so many of one, keep one.")
        elif "epochs" in values and values["epochs"] is None:
            raise UserError("epochs is None but there are no steps: give one of them.")
        for name, kind in (("schedule", Schedule), ("optimizer", OptimizerChoice)):
            if isinstance(values.get(name), str):
                values[name] = str(kind.parse(values[name]))
        if str(values.get("optimizer", "sgd")) != "sgd" and values.setdefault("momentum", None) is not None:
            raise UserError("momentum is of the optimizer sgd: leave it out, adam and adamw have betas.")
        if str(values.get("optimizer", "sgd")) == "sgd" and values.get("momentum", 0.9) is None:
            values["momentum"] = 0.0
        super().__init__(**values)
        if self.cohort != "all" and self.cohort < 1:
            raise UserError(f"cohort is {self.cohort} but should be at least 1, or 'all'.")
        plan = Schedule.parse(self.schedule)
        if plan.final > self.lr:
            raise UserError(f"schedule cosine final is {plan.final:g} but should be at most lr, {self.lr:g}.")
        if plan.warmup >= self.rounds and plan.warmup:
            raise UserError(
                f"schedule {plan.kind} warmup is {plan.warmup} but should be less than the {self.rounds} "
                "rounds: lower it."
            )

    def lr_at(self, round: int) -> float:
        """Return the learning rate of a round, counted from 0."""
        return Schedule.parse(self.schedule).lr_at(round, self.lr, self.rounds)

    def local_optimizer(self, lr: float | Tensor, *, fused: bool = False) -> Optimizer:
        """Make the clients' optimiser. `fused` chooses the GPU's fused kernels."""
        choice = OptimizerChoice.parse(self.optimizer)
        return choice.rule(lr, momentum=self.momentum or 0.0, weight_decay=self.weight_decay, fused=fused)

    def batch_sizes(self, samples: int, *, drop_single: bool = False) -> list[int]:
        """Return the sizes of the batches of one epoch. `drop_single` leaves out a last batch of one sample
        that follows full ones, since BatchNorm cannot compute statistics of it."""
        full, rest = divmod(samples, self.batch_size)
        left_out = drop_single and rest == 1 and full
        return [self.batch_size] * full + ([rest] if rest and not left_out else [])

    def steps_in(self, batches: int) -> int:
        """Return the local steps of a client whose epoch has so many batches."""
        if self.steps is not None:
            return self.steps if batches else 0
        return _steps_in(self.epochs, batches)

    def passed(self, samples: int, *, drop_single: bool = False) -> int:
        """Return how many samples a client with so many samples trains on in a round, counted once per
        epoch."""
        sizes = self.batch_sizes(samples, drop_single=drop_single)
        whole, rest = divmod(self.steps_in(len(sizes)), max(1, len(sizes)))
        return whole * sum(sizes) + sum(sizes[:rest])


@lru_cache(maxsize=1024)
def _steps_in(epochs: float, batches: int) -> int:
    """Count steps by the decimal digits of `epochs`, since 0.1 is not exactly a tenth in binary."""
    return math.ceil(Fraction(str(epochs)) * batches)
