"""A line of probes.jsonl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from unskew.record.base import DECLARED, ByClass, Number


@DECLARED
@dataclass(frozen=True)
class StagesRecord:
    """Accuracy before a local update, after it and after aggregation."""

    before: Number
    after: Number
    aggregated: Number
    drop: Number
    """How much accuracy the local update cost: `before` less `after`."""


@DECLARED
@dataclass(frozen=True)
class EffectRecord:
    """What a round did to the clients' classes of each kind; None if there are none."""

    majority: StagesRecord | None
    minority: StagesRecord | None
    vacant: StagesRecord | None


@DECLARED
@dataclass(frozen=True, kw_only=True)
class Client:
    """One client of a probed round."""

    client: int
    before: ByClass
    after: ByClass
    aggregated: ByClass
    groups: EffectRecord
    in_local: Number
    out_local: Number
    deviation: Number


@DECLARED
@dataclass(frozen=True)
class Drift:
    """Drift diversity, by what moves are measured from."""

    received: Number
    aggregated: Number


@DECLARED
@dataclass(frozen=True, kw_only=True)
class ProbeRecord:
    """A line of probes.jsonl."""

    round: Annotated[int, Field(ge=1)]
    seconds: float
    clients: list[Client]
    groups: EffectRecord
    local_class_accuracy: ByClass
    drift: Drift
