"""The accuracies that a run reaches, the rounds it takes, and its costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from unskew.errors import require
from unskew.metrics.classes import Floats

BACKWARD = 2
"""The cost of a backward pass in forward passes (PKD, Eq. 6: U_FP is a third of U_FP + U_BP)."""


def best_last_mean(accuracies: Sequence[float]) -> dict[str, float]:
    """Return the best accuracy, the last one, and the mean of the last ten; NaN if no round was tested.

    Do not report the best alone, since it was chosen on the test set.
    """
    if not len(accuracies):
        return {"best": float("nan"), "last": float("nan"), "mean_last_10": float("nan")}
    return {
        "best": float(max(accuracies)),
        "last": float(accuracies[-1]),
        "mean_last_10": float(np.mean(accuracies[-10:])),
    }


def rounds_to(target: float, accuracies: Mapping[int, float]) -> int | None:
    """Return the first round whose accuracy reaches the target, min{t: a^t ≥ target}; None if none does."""
    return next((round for round, value in sorted(accuracies.items()) if value >= target), None)


def speed_up(
    accuracies: Mapping[int, float], baseline: Mapping[int, float], *, target: float | None = None
) -> float | None:
    """Return how many times sooner than a baseline a run reaches a target: R(baseline) / R(run).

    R is the first round that reaches it (FedLMD, Table 3). The target is the baseline's best accuracy unless
    given. None if one of them does not reach it; the paper prints 1.00 then. Rounds count from 1. Test both
    runs in the same rounds: a run tested every tenth round seems to be up to nine rounds late.
    """
    if target is None:
        if not baseline:
            return None
        target = max(baseline.values())
    own, other = rounds_to(target, accuracies), rounds_to(target, baseline)
    return None if own is None or other is None else other / own


class Sized(Protocol):
    """An array or a tensor."""

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True)
class Traffic:
    """Bytes between the server and all clients."""

    up: int
    down: int

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.up + other.up, self.down + other.down)


def traffic(
    weights: Mapping[str, Sized],
    *,
    cohort: int,
    trained: int,
    shared: Mapping[str, Sized] | None = None,
    reported: Mapping[str, Sized] | None = None,
) -> Traffic:
    """Return the bytes that a round sends.

    Down, each client of the cohort receives the model and what the server shares in addition. Up, each client
    that trained sends the model and what it reports:

        down = cohort (|weights| + |shared|),   up = trained (|weights| + |reported|),   |x| in bytes

    `weights` includes the buffers, and `reported` is of one client. Sample counts and framing are not
    counted.
    """
    require(0 <= trained <= cohort, "traffic needs 0 <= trained <= cohort: correct the numbers of clients.")
    model = nbytes(weights)
    return Traffic(
        up=trained * (model + nbytes(reported or {})), down=cohort * (model + nbytes(shared or {}))
    )


def nbytes(tensors: Mapping[str, Sized]) -> int:
    """Return the bytes of all tensors together."""
    return sum(int(tensor.nbytes) for tensor in tensors.values())


@dataclass(frozen=True)
class Passes:
    """The forward passes that a method makes for each sample of a client."""

    trained: float = 1
    """Passes in every epoch with a backward pass: 2 for SAM and FedGF."""
    frozen: float = 0
    """Passes in every epoch without a backward pass: 1 for a teacher (FedNTD, FedLMD, FedVLS), 2 for MOON, G
    for G experts."""
    once: float = 0
    """Passes once in a round without a backward pass: evaluating the data before or after training."""


def forward_passes(passes: Passes, epochs: float) -> float:
    """Return the forward passes per sample in a round: E (trained + frozen) + once."""
    return epochs * (passes.trained + passes.frozen) + passes.once


def round_cost(passes: Passes, epochs: float) -> float:
    """Return a round's computation in units of a FedAvg round, U: (3 E trained + E frozen + once) / 3E.

    A backward pass counts as two forward passes (PKD, Eq. 3 and 6).
    """
    full = epochs * (1 + BACKWARD)
    require(full > 0, "a round without an epoch has no cost to compare with: give epochs above 0.")
    return (full * passes.trained + epochs * passes.frozen + passes.once) / full


def cost_unit(samples: int, epochs: float, forward: float) -> float:
    """Return PKD's unit U = E N (U_FP + U_BP) = 3 E N U_FP (Eq. 3): one FedAvg round with all clients.

    `forward` is the cost of one sample's forward pass; the paper counts a multiply-add as one operation.
    """
    return (1 + BACKWARD) * epochs * samples * forward


def expert_cost(
    group_sizes: Iterable[int], samples: int, *, epochs: float, expert_epochs: float | None = None
) -> float:
    """Return the cost of a round of training PKD's experts, in U: (E_exp / E) (Σ_g n_g / N) (Eq. 5)."""
    own = epochs if expert_epochs is None else expert_epochs
    return own / epochs * sum(group_sizes) / samples


def activation_frequency(activated: Sequence[int], samples: int | Sequence[int], epochs: float) -> Floats:
    """Return how often PKD's experts teach: n_KD^t / (E N) for each round t (Fig. 11).

    n_KD^t is the number of samples that activated an expert, counted once per epoch. N is the number of
    samples of the clients that trained: one number, or one for each round if the clients change.
    """
    return np.asarray(activated, dtype=np.float64) / (epochs * np.asarray(samples))


def distillation_cost(activated: int, samples: int, epochs: float) -> float:
    """Return the cost of a round of PKD's last stage, in U: 1 + n_KD / (3 E N) (Eq. 6).

    It assumes that experts see only the samples that activate them. If all G experts see all samples, it is
    `round_cost(Passes(frozen=G), epochs)`.
    """
    return 1 + activated / ((1 + BACKWARD) * epochs * samples)


def cost_to(
    target: float, accuracies: Mapping[int, float], costs: Mapping[int, float], *, before: float = 0
) -> float | None:
    """Return the computation until an accuracy is reached: before + Σ_{t ≤ R} cost^t.

    R is the first round that reaches the target (PKD, Tables 9 and 10, by the worst class's accuracy).
    `costs` has every round, tested or not; `before` is the cost outside of rounds, such as of experts. None
    if the target is not reached.
    """
    reached = rounds_to(target, accuracies)
    return None if reached is None else before + sum(cost for t, cost in costs.items() if t <= reached)
