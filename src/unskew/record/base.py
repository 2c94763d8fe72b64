"""What all records share."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import (
    ConfigDict,
    with_config,
)

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


Number = float | None
"""None if it does not exist, or is not finite."""


ByClass = list[Number]

BY_CLASS = (
    "class_accuracy", "prediction_share", "local_class_accuracy", "before", "after", "aggregated",
    "confusion", "misclassification_share", "feature_distances", "train", "test",
)  # fmt: skip
"""Fields whose values have an entry for every class."""

DECLARED = with_config(ConfigDict(extra="forbid", strict=True))


MORE_KEYS = with_config(ConfigDict(extra="allow", strict=True))


@DECLARED
@dataclass(frozen=True)
class Groups:
    """Accuracy on the clients' classes of each kind."""

    majority: Number
    minority: Number
    vacant: Number


@DECLARED
@dataclass(frozen=True)
class TrafficRecord:
    """Bytes between the server and all clients."""

    up: int
    down: int
