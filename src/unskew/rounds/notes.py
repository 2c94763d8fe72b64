"""Notes on finished rounds, and the computation that they cost."""

from __future__ import annotations

from collections.abc import Iterable

from unskew import metrics
from unskew.method import Method
from unskew.record import fault_notes
from unskew.result import Round
from unskew.trial import Trial
from unskew.types import Weights


def notes_of_faults(rounds: Iterable[Round]) -> list[str]:
    """Return a note that names the clients that rounds continued without; no note if there are none."""
    return fault_notes((round.number, fault) for round in rounds for fault in round.faults)


def divergence(weights: Weights) -> list[str]:
    """Return a note if a model holds NaN or infinite values; no note otherwise."""
    if is_finite(weights):
        return []
    return ["training diverged: the final model holds NaN or infinite weights; try a smaller lr."]


def is_finite(weights: Weights) -> bool:
    return all(bool(value.isfinite().all()) for value in (weights.params | weights.buffers).values())


def rounds_cost(trial: Trial, method: Method, rounds: int) -> float | None:
    """Return the computation of so many rounds, in rounds of FedAvg; None if it is unknown for the method."""
    work, epochs = method.work_in(trial), trial.epochs
    return None if work is None else rounds * metrics.round_cost(work.passes(epochs), epochs)
