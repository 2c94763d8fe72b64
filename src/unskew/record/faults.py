"""Clients that a round continued without."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from unskew.record.base import DECLARED

ClientStage = Literal["prepare", "train", "update"]
"""Where a client's round can fail: before its first step, in its steps, or after the last."""

FaultKind = Literal["not finite", "form", "norm", "memory", "lost", "error"]
"""What was wrong with a client's answer: it holds NaN or infinite values; names, shapes or types are others
than those it was sent; the update is larger than allowed. Or why there was none: memory ran out, the process
or the machine ended, code raised an error."""


@DECLARED
@dataclass(frozen=True)
class Fault:
    """Why a round continued without one of its clients."""

    client: int
    stage: ClientStage
    kind: FaultKind
    reason: str
    """In words that fit into a sentence."""


FAULTS_SHOWN = 3
"""How many faults of a run are named one by one, in its note and while it runs; the others are counted."""


def fault_notes(faults: Iterable[tuple[int, Fault]]) -> list[str]:
    """Return a note that names the clients that were left out, each with its round (counted from 1); no note
    if there are none. Of many, the first are named and the others counted."""
    each = [
        f"client {fault.client} in round {round}, stage '{fault.stage}' ({fault.reason})"
        for round, fault in faults
    ]
    more = [f"{len(each) - FAULTS_SHOWN} more in rounds.jsonl"] if len(each) > FAULTS_SHOWN else []
    return [f"rounds continued without {'; '.join([*each[:FAULTS_SHOWN], *more])}."] if each else []
