"""When a model is tested, which round is chosen, when clients are probed, and how faults are handled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field

from unskew import metrics
from unskew.errors import UserError
from unskew.notation import items
from unskew.spec import Spec


class Evaluation(Spec):
    """When and how the global model is tested and validated."""

    every: int = Field(default=1, ge=1)
    """Test, and validate, after every so many rounds; the last round always is."""
    batch_size: int = Field(default=500, ge=1, le=10**9)

    def due(self, round: int, rounds: int) -> bool:
        """Say whether the model is tested after a round, counted from 1."""
        return round % self.every == 0 or round == rounds


StopMetric = Literal["accuracy", "macro-f1", "balanced-accuracy", "worst-class", "loss"]
"""What rounds are chosen by, on the validation samples; of `loss`, less is better."""


class Stop(Spec):
    """How a round is chosen on the validation samples, and when training stops because none gets better."""

    patience: int | None = Field(default=None, ge=1)
    """Stop after so many rounds without a better one; None: never."""
    metric: StopMetric = "accuracy"
    min_delta: float = Field(default=0.0, ge=0)
    """How much better a round has to be for patience to begin anew. The best round is chosen without it."""

    @classmethod
    def parse(cls, text: str) -> Stop:
        """Read `none`, or `patience=20,metric=macro-f1,min_delta=0.001`, any of which may be left out."""
        if text.strip() in ("", "none"):
            return cls()
        values: dict[str, Any] = {}
        for item in items(text):
            if item.key not in cls.model_fields or item.key in values:
                raise UserError(
                    f"stop is '{text}' but should be such as patience=20,metric=macro-f1,min_delta=0.001, or "
                    "none."
                )
            values[item.key] = item.value
        try:
            return cls(**values)
        except UserError as error:
            raise UserError(f"stop.{error}") from None

    def __str__(self) -> str:
        if self == Stop():
            return "none"
        options = self.model_dump(exclude_none=True)
        return ",".join(f"{key}={value}" for key, value in options.items())

    def score(self, confusion: metrics.Counts, loss: float) -> float:
        """Compute how good a model is by the metric, from its confusion matrix and its loss: higher is
        better."""
        if self.metric == "loss":
            return -loss
        return float(METRICS[self.metric](confusion))


METRICS: dict[str, Callable[[metrics.Counts], float]] = {
    "accuracy": metrics.accuracy,
    "macro-f1": metrics.macro_f1,
    "balanced-accuracy": metrics.balanced_accuracy,
    "worst-class": lambda confusion: metrics.max_mean_min(metrics.class_accuracy(confusion))["min"],
}


class Probe(Spec):
    """How often the clients' own models are tested, which shows what a round did to each; it costs one test
    per client."""

    every: int = Field(default=0, ge=0)
    """Probe every so many rounds, and the last one; 0: never."""

    def due(self, round: int, rounds: int) -> bool:
        """Say whether a round, counted from 1, is probed."""
        return bool(self.every) and (round % self.every == 0 or round == rounds)


class Faults(Spec):
    """What to do about a client that sends no update, or one that cannot be used: with NaN or infinite
    values, with other names, shapes or types than the model's, or too large."""

    on_fault: Literal["stop-at-errors", "skip", "stop"] = "stop-at-errors"
    """skip: the round continues without the client. stop: the run stops. stop-at-errors: it stops where code
    raises an error, as a mistake in a method does, and otherwise continues."""
    min_clients: int = Field(default=1, ge=0)
    """With fewer usable updates than this, a round with a fault stops the run; 0: it needs none."""
    max_norm: float = Field(default=0.0, ge=0)
    """The largest norm that an update may have; 0: any."""
