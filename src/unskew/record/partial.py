"""Files that are defined elsewhere: only the keys that reports rely on are declared here."""

from __future__ import annotations

from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,  # pydantic takes typing's own from Python 3.12 on alone
)

from pydantic import BeforeValidator
from typing_extensions import TypedDict

from unskew.record.base import MORE_KEYS


@MORE_KEYS
class Named(TypedDict):
    name: str


@MORE_KEYS
class SkewRecord(TypedDict):
    recipe: str
    clients: NotRequired[int]


@MORE_KEYS
class BudgetRecord(TypedDict):
    rounds: int
    cohort: int | Literal["all"]


@MORE_KEYS
class ExperimentRecord(TypedDict):
    """What reports rely on in experiment.toml."""

    seed: int
    data: Named
    skew: SkewRecord
    model: Named
    method: Named
    budget: BudgetRecord


@MORE_KEYS
class Divided(TypedDict):
    classes: list[str]
    samples: NotRequired[str]


@MORE_KEYS
class PartitionRecord(TypedDict):
    """What reports rely on in partition.json."""

    dataset: Divided
    counts: list[list[int]]
    names: NotRequired[list[str]]


@MORE_KEYS
class RunPlace(TypedDict):
    run_dir: str


@MORE_KEYS
class TrialRecord(TypedDict):
    method: str
    trial: int
    values: dict[str, Any]
    score: float | None
    by_seed: list[float | None]
    folders: list[str]


def _from_one(value: object) -> object:
    """Renumber a trial of an older tune.json, which counted trials from 0 under the key `number`."""
    if isinstance(value, dict) and "trial" not in value and isinstance(value.get("number"), int):
        return {**value, "trial": value["number"] + 1}
    return value


@MORE_KEYS
class BestTrial(TypedDict):
    method: str
    trial: int


@MORE_KEYS
class Tuned(TypedDict):
    """What reports rely on in tune.json."""

    metric: str
    sampler: str
    winners: list[BestTrial]
    all: list[Annotated[TrialRecord, BeforeValidator(_from_one)]]


@MORE_KEYS
class Compare(TypedDict):
    """What reports rely on in compare.json."""

    runs: list[RunPlace]
    methods: dict[str, Any]
