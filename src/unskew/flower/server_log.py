"""The lines that a federation's server writes into Flower's log."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from unskew import record
from unskew.flower.run_config import FederationSpec
from unskew.flower.settings import FlowerSettings
from unskew.methods import METHODS


def log(sentence: str) -> None:
    """Write a line into Flower's log."""
    logging.getLogger("flwr").info("unskew: %s", sentence)


def what_clients_send(settings: FlowerSettings, spec: FederationSpec, *, test_at_sites: bool) -> list[str]:
    """Return sentences that say what a server receives from its clients: models, counts and reports."""
    sentences = ["what leaves a client: its model after training, how many samples it has and its mean loss."]
    for name in settings.method.parts:
        card = METHODS.get(name)
        if card is not None and card.sends != "nothing":
            sentences.append(f"{name} also sends {card.sends}.")
    if test_at_sites:
        sentences.append(
            "each site also sends how its own test samples of each class are answered, as counts."
        )
    if any(name not in METHODS for name in settings.method.parts) or not settings.method.parts:
        sentences.append("the method is your own: what its clients report is sent too.")
    if spec.label_counts == "share":
        sentences.append("label counts are shared, as federation.label_counts asks.")
    return sentences


def left_out(fault: record.Fault, round: int) -> str:
    """Return a sentence that says that a client was left out of a round, and why."""
    return f"client {fault.client} is left out of round {round}, stage '{fault.stage}': {fault.reason}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


class LogWatch:
    """Writes the progress of a run into Flower's log."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def label(self, text: str) -> None:
        log(text)

    def say(self, notes: Iterable[str]) -> None:
        for note in notes:
            log(f"note: {note}")

    def skip(self, rounds: int) -> None:
        pass

    def __call__(self, line: record.RoundRecord, probe: record.ProbeRecord | None) -> None:
        parts = [f"round {line.round} of {self._rounds}: {len(line.trained)} of {len(line.cohort)} clients"]
        if line.train_loss is not None:
            parts.append(f"loss {line.train_loss:.4f}")
        if isinstance(line, record.TestedRound) and line.accuracy is not None and line.min_class is not None:
            parts.append(f"accuracy {percent(line.accuracy)}, worst class {percent(line.min_class)}")
        log(", ".join([*parts, f"{line.seconds:.1f} s"]))
        for fault in line.faults or ():
            log(left_out(fault, line.round))
