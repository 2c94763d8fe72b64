"""How records are written to files and read from them."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, fields, is_dataclass
from functools import cached_property
from typing import (
    Annotated,
    Any,
    Generic,
    TypeVar,
)

from pydantic import (
    Discriminator,
    Tag,
    TypeAdapter,
    ValidationError,
)

from unskew.record.environment import Environment, Failure
from unskew.record.model import ModelFile
from unskew.record.partial import Compare, ExperimentRecord, PartitionRecord, Tuned
from unskew.record.plan import Plan
from unskew.record.probes import ProbeRecord
from unskew.record.rounds import RoundRecord, TestedRound
from unskew.record.summary import Summary

# Reading and writing

T = TypeVar("T")


class DamagedError(ValueError):
    """Why a text is not what it should be; begins with the name of the field if one is at fault."""


class Format(Generic[T]):
    """How values of a kind are read from their files."""

    def __init__(self, kind: Any, *, tagged: bool = False) -> None:
        self._kind, self._tagged = kind, tagged

    @cached_property
    def _adapter(self) -> TypeAdapter[T]:  # a run that only writes does without
        return TypeAdapter(self._kind)

    def parse(self, text: str) -> T:
        """Read a value from JSON."""
        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            raise self._damaged(error) from None

    def check(self, value: object) -> T:
        """Check what JSON or TOML was read to already."""
        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            raise self._damaged(error) from None

    def _damaged(self, error: ValidationError) -> DamagedError:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"][self._tagged :]))
        if first["type"] == "missing":
            return DamagedError(f"{place} is missing")
        if first["type"] == "unexpected_keyword_argument":
            return DamagedError(f"{place} is not a field that this version knows")
        return DamagedError(f"{place}: {first['msg']}" if place else first["msg"])


ROUND: Format[RoundRecord] = Format(
    Annotated[
        Annotated[RoundRecord, Tag("plain")] | Annotated[TestedRound, Tag("tested")],
        Discriminator(lambda line: "tested" if isinstance(line, dict) and "accuracy" in line else "plain"),
    ],
    tagged=True,
)


PROBE: Format[ProbeRecord] = Format(ProbeRecord)


SUMMARY: Format[Summary] = Format(Summary)


ENVIRONMENT: Format[Environment] = Format(Environment)


MODEL: Format[ModelFile] = Format(ModelFile)


FAILURE: Format[Failure] = Format(Failure)


PLAN: Format[Plan] = Format(Plan)


EXPERIMENT: Format[ExperimentRecord] = Format(ExperimentRecord)


PARTITION: Format[PartitionRecord] = Format(PartitionRecord)


COMPARE: Format[Compare] = Format(Compare)


TUNED: Format[Tuned] = Format(Tuned)


def to_json(value: Any, indent: int | None = 2) -> str:
    """Write a value as strict JSON, in which NaN and infinity are null. Without an indent the text is one
    ASCII line, which any terminal can show."""
    return json.dumps(plain(value), indent=indent, ensure_ascii=indent is None, allow_nan=False)


def plain(value: Any) -> Any:
    """Turn a record, or any value that holds records, into plain JSON values."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if is_dataclass(value):
        values = ((each, getattr(value, each.name)) for each in fields(value))
        return {
            each.name: plain(part) for each, part in values if each.default is MISSING or part != each.default
        }
    return value
