"""A slot on a GPU: the memory in which a captured step finds a client's tensors.

A slot holds one client at a time: its weights, its optimiser state and all that the method reads are at fixed
addresses, which the captured step uses.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """A client that is ready to train, with all that is known before it does."""

    place: int
    """The client's place among the jobs."""
    start: Start
    random: Tensor | int
    """The state of the client's random numbers, or their seed."""
    inputs: ClientInputs
    lrs: Sequence[float]
    """The learning rate of each step; empty if all have that of the round."""

    def failed(self, stage: ClientStage, error: BaseException) -> Failed:
        """Return the failure of the client's training by an error."""
        return Failed.of(self.start.job.task, stage, error)


@dataclass(frozen=True, eq=False)
class Shared:
    """What all slots share."""

    local: Local
    sent: PackedTensors
    """The model that was sent to all clients."""
    lr: Tensor
    prefetcher: Prefetcher


class Held(NamedTuple):
    """All that a step works on, except for the batch."""

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
    """The tensors that a step changes: parameters, buffers, optimiser state, summed loss and tallies."""
    scope: PackedTensors
    """The tensors that a step only reads: counts, memory, correction, the client's own buffers, and the
    learning rate if it changes within a round."""


@dataclass(eq=False)
class ClientSlot(Slot):
    """A slot for full batches, which the captured step itself reads from the prefetched inputs."""

    number: int
    position: Tensor
    """The index of the next batch's first sample among the inputs."""
    replays: dict[int, Replay] = field(default_factory=dict)
    """The captured steps, by how many steps one replay takes."""


@dataclass(eq=False)
class PartialSlot(Slot):
    """A slot for partial batches, which a client uses for one step at a time."""

    batches: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    replays: dict[int, Replay] = field(default_factory=dict)
    free: Event | None = None
    """The event after which the slot is free again; None if it was never used."""
