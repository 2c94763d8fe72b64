"""What an engine is asked to do for one client in one round, and the result."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from unskew.data.federation import Holding
from unskew.errors import UserError
from unskew.record import ClientStage, FaultKind
from unskew.types import Tensors, Weights

T = TypeVar("T")
U = TypeVar("U")
E = TypeVar("E", bound=BaseException)


@dataclass(frozen=True, eq=False)
class Task:
    """Which client trains in which round, and on which samples."""

    client: int
    """The client's number, which seeds its random numbers and names it in messages."""
    round: int
    """The number of the round, counted from 0."""
    holding: Holding
    """The client's samples among those that the engine has."""

    def same_as(self, other: Task) -> bool:
        """Say whether both are of the same client in the same round, with the same samples."""
        same_turn = (self.client, self.round) == (other.client, other.round)
        return same_turn and self.holding.same_as(other.holding)


@dataclass(frozen=True, eq=False)
class Job:
    """A task, with what the client kept from earlier rounds."""

    task: Task
    memory: Tensors = field(default_factory=dict)
    """What the method kept at the client."""
    buffers: Tensors | None = None
    """The client's own buffers; None if it takes those of the model that is sent."""
    optimizer: Tensors = field(default_factory=dict)
    """The state of the client's optimiser after its last round; empty if it is not kept."""

    def anchor(self, sent: Weights) -> Weights:
        """Return the model that the client starts from: the one sent, but with the client's own buffers if it
        keeps them."""
        return sent if self.buffers is None else Weights(sent.params, self.buffers)


@dataclass(frozen=True, eq=False)
class Fit:
    """The result of training one client."""

    weights: Weights
    """The model after training."""
    samples: int
    steps: int
    """How many steps it took; 0 for a client without data, which takes no part in the average."""
    loss: Tensor
    """Mean training loss over the steps, 0-dimensional."""
    memory: Tensors
    """What the method keeps at the client."""
    reported: Tensors
    """What the client sends in addition to its model."""
    optimizer: Tensors = field(default_factory=dict)
    tallies: Tensors = field(default_factory=dict)
    """What the method counted, 0-dimensional each."""
    passed: int = 0
    """How many samples its steps were on, counted once per epoch."""


class LostError(UserError):
    """The process or machine that worked on a task has ended, and so did the one that tried it again."""


class RemoteError(Exception):
    """An error on a machine that sends no Python objects, in words that fit into a sentence."""


@dataclass(frozen=True, eq=False)
class Failed:
    """A client whose training failed, and why. A mistake of the user is not a failure of a client: it is
    raised as a `UserError`."""

    client: int
    round: int
    """The number of the round, counted from 0."""
    stage: ClientStage
    error: Exception
    kind: FaultKind

    @classmethod
    def of(cls, task: Task, stage: ClientStage, error: BaseException) -> Failed:
        """Return the failure of a client whose training has raised an error. A UserError is raised again,
        since the user has to do something, unless the worker was lost. Code that ends the process, such as by
        sys.exit, fails alike."""
        if isinstance(error, UserError) and not isinstance(error, LostError):
            raise error
        if not isinstance(error, Exception):
            error = RuntimeError(f"the code ended by {error!r}")
        kind = _kind(error)
        if kind == "memory":  # the frames of its traceback refer to the tensors that fill the memory
            error = error.with_traceback(None)
            error.__context__ = error.__cause__ = None
        return cls(task.client, task.round, stage, error, kind)

    def reason(self) -> str:
        """Return why the client failed, in words that fit into a sentence."""
        if self.kind == "memory":
            return "it ran out of memory: lower the batch size, or run fewer clients at once with --workers"
        said = " ".join(str(self.error).split()).removesuffix(".")
        plain = self.kind == "lost" or isinstance(self.error, RemoteError)
        return said if plain else f"{type(self.error).__name__}: {said}".removesuffix(": ")

    def raised(self) -> Exception:
        """Return the error, with a note of where it happened."""
        where = f"Client {self.client} failed in round {self.round + 1}, stage '{self.stage}'."
        if where not in getattr(self.error, "__notes__", ()):
            self.error.add_note(where)
        return self.error

    def portable(self) -> Failed:
        """Return this failure with an error that can be sent to another process."""
        return replace(self, error=portable(self.error))


OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "ALLOC_FAILED")
"""Parts of the messages of PyTorch's errors of other types when memory has run out."""


def _kind(error: Exception) -> FaultKind:
    if isinstance(error, LostError):
        return "lost"
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return "memory"
    out_of_memory = isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)
    return "memory" if out_of_memory else "error"


def portable(error: E) -> E | RuntimeError:
    """Return an error that can be raised in another process, with a note of the place where it was raised in
    this one. A UserError stays as it is; an error that cannot be pickled becomes a RuntimeError."""
    if isinstance(error, UserError):
        return error
    error.add_note("In a worker process:\n" + "".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        plain.add_note(error.__notes__[-1])
        return plain
    return error


CLIENT_ERRORS = (Exception, SystemExit, GeneratorExit)
"""What a user's code may raise that is a failure of the client for which it runs."""

Outcome = Fit | Failed


def completed(outcomes: list[Outcome]) -> list[Fit]:
    """Return the outcomes if no client has failed; else raise the error of the first one that has."""
    for outcome in outcomes:
        if isinstance(outcome, Failed):
            raise outcome.raised()
    return [outcome for outcome in outcomes if isinstance(outcome, Fit)]


class Pending(Generic[T]):
    """A value that a device may still be computing. Asking for it waits; it is made once."""

    def __init__(self, wait: Callable[[], T]) -> None:
        self._wait: Callable[[], T] | None = wait
        self._value: T

    @classmethod
    def done(cls, value: T) -> Pending[T]:
        """Wrap a value that is known already."""
        return cls(lambda: value)

    def result(self) -> T:
        """Return the value, and wait for it if it is not there yet."""
        if self._wait is not None:
            self._value, self._wait = self._wait(), None
        return self._value

    def then(self, make: Callable[[T], U]) -> Pending[U]:
        """Return what `make` gives for the value, pending as long as the value is."""
        return Pending(lambda: make(self.result()))
