"""What the files of a run folder hold: as much as reports rely on. Other keys may stand beside these."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 on alone

_ANY = ConfigDict(extra="allow", strict=True)

ByClass = list[float | None]

BY_CLASS = (
    "class_accuracy", "prediction_share", "local_class_accuracy", "before", "after", "aggregated",
    "confusion", "misclassification_share", "feature_distances",
)  # fmt: skip
"""Keys whose values have an entry for every class."""


@with_config(_ANY)
class Named(TypedDict):
    name: str


@with_config(_ANY)
class Skew(TypedDict):
    recipe: str


@with_config(_ANY)
class Budget(TypedDict):
    rounds: int
    cohort: int | Literal["all"]
    epochs: int


@with_config(_ANY)
class Experiment(TypedDict):
    """experiment.toml"""

    seed: int
    data: Named
    skew: Skew
    model: Named
    method: Named
    budget: Budget


@with_config(_ANY)
class Divided(TypedDict):
    classes: list[str]


@with_config(_ANY)
class Partition(TypedDict):
    """partition.json"""

    dataset: Divided
    counts: list[list[int]]


@with_config(_ANY)
class Groups(TypedDict):
    majority: float | None
    minority: float | None
    vacant: float | None


@with_config(_ANY)
class Traffic(TypedDict):
    up: int
    down: int


@with_config(_ANY)
class Round(TypedDict):
    """A line of rounds.jsonl; what a test tells is absent from rounds that were not tested."""

    round: int
    seconds: float
    accuracy: NotRequired[float | None]
    class_accuracy: NotRequired[ByClass]
    macro_accuracy: NotRequired[float | None]
    max_class: NotRequired[float | None]
    min_class: NotRequired[float | None]
    groups: NotRequired[Groups]
    prediction_share: NotRequired[ByClass]
    traffic: NotRequired[Traffic]
    trained: NotRequired[list[int]]
    activated: NotRequired[int]


@with_config(_ANY)
class Stages(TypedDict):
    before: float | None
    after: float | None
    aggregated: float | None
    drop: float | None


@with_config(_ANY)
class Effect(TypedDict):
    majority: Stages | None
    minority: Stages | None
    vacant: Stages | None


@with_config(_ANY)
class Client(TypedDict):
    client: int
    before: ByClass
    after: ByClass
    aggregated: ByClass
    groups: Effect
    in_local: float | None
    out_local: float | None
    deviation: float | None


@with_config(_ANY)
class Drift(TypedDict):
    received: float | None
    aggregated: float | None


@with_config(_ANY)
class Probe(TypedDict):
    """A line of probes.jsonl."""

    round: int
    seconds: float
    clients: list[Client]
    groups: Effect
    local_class_accuracy: ByClass | None
    drift: Drift


@with_config(_ANY)
class Passes(TypedDict):
    trained: float
    frozen: float
    once: float


@with_config(_ANY)
class Summary(TypedDict):
    """summary.json"""

    accuracy: dict[Literal["best", "last", "mean_last_10"], float | None]
    class_accuracy: ByClass
    groups: Groups
    worst_class_accuracy: float | None
    confusion: list[list[int]]
    misclassification_share: list[ByClass]
    feature_distances: list[ByClass]
    traffic: NotRequired[Traffic]
    passes: NotRequired[Passes | None]
    cost: NotRequired[float | None]
    probe_seconds: NotRequired[float | None]
    activation_frequency: NotRequired[list[float | None] | None]


@with_config(_ANY)
class Plan(TypedDict):
    """plan.json: what a compare is going to run."""

    runs: list[str]
    rounds: int


@with_config(_ANY)
class Place(TypedDict):
    run_dir: str


@with_config(_ANY)
class Compare(TypedDict):
    """compare.json"""

    runs: list[Place]
    methods: dict[str, Any]
