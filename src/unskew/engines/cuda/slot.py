"""A slot on a GPU: where a client's captured step finds all that it works on.

A slot holds one client at a time: weights, optimiser state and all that the method looks at are at fixed
addresses, and the captured step works there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from unskew.engines.base import Local
from unskew.engines.client import Start
from unskew.engines.cuda.packed import PackedTensors
from unskew.engines.cuda.prefetch import ClientInputs, Prefetcher
from unskew.engines.cuda.streams import Event, Replay, Stream
from unskew.engines.job import Failed
from unskew.record import ClientStage
from unskew.types import Tensors


@dataclass(frozen=True, eq=False)
class Ready:
    """One client's round, with all that is known before it trains."""

    place: int
    """The client's place among the jobs."""
    start: Start
    random: Tensor | int
    """The state of the client's random numbers, or their seed."""
    inputs: ClientInputs

    def failed(self, stage: ClientStage, error: Exception) -> Failed:
        """Return that the client's training came to nothing, and why."""
        return Failed.of(self.start.job.task, stage, error)


@dataclass(frozen=True, eq=False)
class Shared:
    """What all slots have in common."""

    local: Local
    sent: PackedTensors
    """The model that was sent to all clients."""
    lr: Tensor
    prefetcher: Prefetcher


class Held(NamedTuple):
    """All that a step works on, but for the batch."""

    changing: dict[str, Tensors]
    scope: dict[str, Tensors]
    anchor: dict[str, Tensors]
    shared: Tensors
    lr: Tensor


@dataclass(eq=False)
class Slot:
    """Tensors at fixed addresses for one client, and the stream on which its steps run."""

    stream: Stream
    changing: PackedTensors
    """Parameters, buffers, optimiser state, summed loss and tallies: what a step changes."""
    scope: PackedTensors
    """Counts, memory, correction: what a step only reads; and the learning rate, where it is not the same in
    all steps of a round."""


@dataclass(eq=False)
class ClientSlot(Slot):
    """A slot for full batches, which the step fetches by itself from the inputs that are ready."""

    number: int
    position: Tensor
    """Where the next batch begins among the inputs."""
    replays: dict[int, Replay] = field(default_factory=dict)
    """The captured steps, by how many of them run at once."""


@dataclass(eq=False)
class PartialSlot(Slot):
    """A slot for batches of other sizes, where a client is for one step."""

    batches: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    replays: dict[int, Replay] = field(default_factory=dict)
    free: Event | None = None
    """When the last client has left."""
