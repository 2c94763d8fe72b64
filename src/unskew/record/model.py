"""model.json: all it takes to use a trained model, in addition to its weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import (
    Annotated,
    Any,
    Literal,
)

from pydantic import Field

from unskew.record.base import DECLARED


@DECLARED
@dataclass(frozen=True)
class FixedHead:
    """A last layer that is never trained, and how the features before it are normalised."""

    normalise: Literal["batch", "l2", "none"]
    length: float
    """The length of every feature vector, if they are normalised by l2."""


@DECLARED
@dataclass(frozen=True)
class ClientModel:
    """The client that one of several models belongs to."""

    client: int
    name: str
    """The name of the client, such as that of a site; empty if clients have no names."""


@DECLARED
@dataclass(frozen=True, kw_only=True)
class TuningRecord:
    """Which part of a model was trained, as in `unskew.models.Tuning`."""

    freeze: tuple[str, ...] = ()
    train_only: tuple[str, ...] = ()
    lora: Annotated[int, Field(ge=0)] = 0
    lora_alpha: float = 0.0
    lora_layers: tuple[str, ...] = ()


@DECLARED
@dataclass(frozen=True, kw_only=True)
class NetworkRecord:
    """What a model is made of: all it takes to build it again but its weights."""

    name: str
    """A name of `unskew.models.MODELS`; of one's own model the file and the class, or its name in Python."""
    own: bool = False
    """Whether the user's own code builds it, which runs only on request."""
    norm: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    statistics: Literal["average", "local", "batch"] = "average"
    """How BatchNorm statistics are handled: with local and batch, every batch is normalised by its own."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    tuning: TuningRecord | None = None
    """None: all of it was trained."""
    fixed_head: FixedHead | None = None
    """The layer with which a method has replaced the last one."""
    side_by_side: Annotated[int, Field(ge=1)] | None = None
    """How many such networks stand side by side, under one last layer."""
    clients: list[ClientModel] | None = None
    """The clients whose models these are, if there are several, stacked in every tensor."""


@DECLARED
@dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """What one sample looks like to a model before it is normalised."""

    kind: Literal["image", "table", "text"]
    shape: list[Annotated[int, Field(ge=1)]]
    """image: channels, height, width; table: features; text: tokens."""
    vocabulary: Annotated[int, Field(ge=0)] = 0
    """text only: how many token ids there are."""


@DECLARED
@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """What model.json and the metadata of model.safetensors hold: all it takes to use the model."""

    version: Literal[1]
    """The version of this format."""
    network: NetworkRecord
    inputs: ModelInputs
    classes: list[str]
    mean: list[float]
    """By channel, of pixels divided by 255; empty: they are not normalised."""
    std: list[Annotated[float, Field(gt=0)]]
    columns: dict[str, Any] | None = None
    """How the columns of a table become features: `unskew.data.columns.Columns`."""
    words: dict[str, Any] | None = None
    """How texts become token ids: `unskew.data.words.Words`."""
    method: str
    dataset: str
    seed: int | None = None
    """None if it is kept from those who have the model, as with differential privacy."""
    round: int
    """The round after which the model was this, counted from 1."""
    identity: str | None = None
    """The hash of the experiment (`Experiment.identity`); None if the seed is, which it could reveal."""
