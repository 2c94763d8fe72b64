"""What the stages of a run cost, in rounds of FedAvg."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unskew.metrics import BACKWARD
from unskew.trial import Trial
from unskew.types import Look, View, Weights


def samples_per_round(trial: Trial) -> float:
    """Return how many samples a round of a trial trains on, on average over cohorts."""
    held = trial.federation.population.samples * trial.cohort / trial.federation.clients
    return trial.epochs * held


@dataclass
class PassCount:
    """Counts the forward passes of single samples that clients make for an answer; a backward pass counts as
    two."""

    forward: int = 0

    def passes_of(self, look: Look) -> Look:
        def counting(
            weights: Weights,
            /,
            *,
            grad: bool = False,
            batch_size: int | None = None,
            shuffle: bool = False,
        ) -> Iterator[View]:
            for view in look(weights, grad=grad, batch_size=batch_size, shuffle=shuffle):
                self.forward += len(view.labels) * (1 + BACKWARD if grad else 1)
                yield view

        return counting
