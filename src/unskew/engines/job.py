"""What an engine is asked and what it answers, for one client and one round."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from unskew.types import Tensors, Weights


@dataclass(frozen=True)
class Job:
    client: int
    round: int
    memory: Tensors
    buffers: Tensors | None = None
    """This client's own buffers, where they do not come with the anchor."""
    optimizer: Tensors = field(default_factory=dict)
    """The state of this client's optimiser after its last round, where it is kept."""


@dataclass(frozen=True)
class Fit:
    weights: Weights
    """After training."""
    samples: int
    steps: int
    """0 for a client that has no data: it takes no part in the average."""
    loss: Tensor
    """Mean training loss over the steps, 0-dimensional."""
    memory: Tensors
    reported: Tensors
    optimizer: Tensors = field(default_factory=dict)
    tallies: Tensors = field(default_factory=dict)
    """What the method counted, 0-dimensional each."""
