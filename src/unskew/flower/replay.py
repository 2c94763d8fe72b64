"""Finds the method or the question of a stage, from the program and the stage's name.

A method in stages makes its losses and queries at the server, as it runs. To have them, a node runs the same
program up to the same stage. The results of earlier stages come from the server: models and values, never the
answers of other clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, overload

from unskew.engines import Engine
from unskew.errors import UserError
from unskew.faults import DivergedError
from unskew.flower.messages import Order
from unskew.flower.records import FROZEN, unpack, without_prefix
from unskew.method import Method
from unskew.models import frozen_tensors
from unskew.program import Program, Run
from unskew.result import Stage
from unskew.trial import Trial, weights_of
from unskew.types import Query, Tensors, Weights

FindResult = Callable[[str], Tensors | None]
"""Returns the result of a stage, by its name, or None if the server has not sent it."""


class FoundStage(Exception):  # noqa: N818 (no error: it ends the program at the stage of an order)
    """The stage of an order: the trial, and the method or the question for clients."""

    def __init__(self, trial: Trial, *, method: Method | None = None, query: Query | None = None) -> None:
        super().__init__()
        self.trial, self._method, self._query = trial, method, query

    @property
    def method(self) -> Method:
        """The method by which clients train."""
        if self._method is None:
            raise _other_program()
        return self._method

    @property
    def query(self) -> Query:
        """The question that clients answer."""
        if self._query is None:
            raise _other_program()
        return self._query


class MissingResultError(Exception):
    """The node needs the result of an earlier stage, which the server has not sent yet."""

    def __init__(self, stage: str) -> None:
        super().__init__(stage)
        self.stage = stage


def find_stage(program: Program, trial: Trial, order: Order, find: FindResult) -> FoundStage:
    """Run a program up to the stage of an order, and return what clients are to do in it, under a trial on
    their own data. `find` returns the results of earlier stages."""
    try:
        program.run(_Replay(trial, program.base, order, find))
    except FoundStage as found:
        return found
    raise _other_program()


def _other_program() -> UserError:
    return UserError("the server is at a stage that this method has not: use the same method and unskew.")


class _Replay(Run):
    """A run that trains no clients: it takes the results of earlier stages from the server."""

    def __init__(self, trial: Trial, base: Method, order: Order, find: FindResult) -> None:
        super().__init__(trial, base)
        self._order, self._find, self._started = order, find, 0

    def _start(self, trial: Trial) -> Engine:
        if self._order.action == "evaluate" and self._started == self._order.engine:
            raise FoundStage(trial)
        self._started += 1
        return _NoEngine(trial)  # type: ignore[return-value]

    def train(self, name: str, method: Method, trial: Trial | None = None, **options: Any) -> Any:
        trial = trial or self.trial
        self.engine(trial)
        if name == self._order.stage and self._order.action == "fit":
            raise FoundStage(trial, method=method)
        if options.get("aside"):
            self._engines.pop(id(trial))
        if name not in self._order.stages:
            raise DivergedError(f"stage '{name}' has no result.")
        return _Earlier(name, self._find)

    def ask(self, name: str, query: Query, *_: object, trial: Trial | None = None, **__: object) -> Any:
        trial = trial or self.trial
        self.engine(trial)
        if name == self._order.stage and self._order.action == "ask":
            raise FoundStage(trial, query=query)
        return _Withheld(name)

    def value(self, name: str, make: Callable[[], Tensors], *, shared: bool = True) -> Tensors:
        return _found(name, self._find) if shared else {}

    def repeat(self, name: str, *_: object, **__: object) -> Stage:
        raise _other_program()


def _found(name: str, find: FindResult) -> Tensors:
    tensors = find(name)
    if tensors is None:
        raise MissingResultError(name)
    return tensors


@dataclass(frozen=True)
class _NoEngine:
    """Has what programs use of an engine, except for training and testing."""

    trial: Trial

    @cached_property
    def initial(self) -> Weights:
        return weights_of(self.trial.build())

    @cached_property
    def frozen(self) -> Tensors:
        return frozen_tensors(self.trial.build())

    def deterministic(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class _Earlier:
    """The result of an earlier stage of training. Its model is looked up when the program reads it."""

    stage: str
    find: FindResult
    state: None = None
    rounds: tuple[()] = ()

    @property
    def served(self) -> Weights:
        return unpack(_found(self.stage, self.find))

    @property
    def frozen(self) -> Tensors:
        return without_prefix(FROZEN, _found(self.stage, self.find))

    @property
    def weights(self) -> Weights:
        return self.served.with_frozen(self.frozen)


class _Withheld(Sequence[Tensors]):
    """The clients' answers in an earlier stage, which other clients must not read."""

    def __init__(self, stage: str) -> None:
        self._stage = stage

    def _refuse(self) -> NoReturn:
        raise UserError(
            f"the method looks at the answers of stage '{self._stage}' outside of run.value, which would "
            "send them to every client: let it compute what it needs of them there."
        )

    @overload
    def __getitem__(self, place: int) -> Tensors: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Tensors]: ...

    def __getitem__(self, place: int | slice) -> Tensors | Sequence[Tensors]:
        self._refuse()

    def __len__(self) -> int:
        self._refuse()

    def __iter__(self) -> Iterator[Tensors]:
        self._refuse()
