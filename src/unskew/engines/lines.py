"""Lines of work that run side by side, and steps recorded once to be replayed many times.

On a GPU a line is a CUDA stream and a recording is a CUDA graph. Anywhere else the same calls run at once,
one after the other, so that the bookkeeping of the graphs engine can be tested without a GPU.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from unskew.errors import UserError

Step = Callable[[], None]


class Mark(Protocol):
    """A moment of a line that others can wait for."""

    def synchronize(self) -> None:
        """Let the host wait for it."""


class Line(Protocol):
    """Work in order, with random numbers of its own."""

    def work(self) -> AbstractContextManager[object]:
        """What is called inside is done on this line."""

    def take(self) -> None:
        """The caller's work is done on this line until the next one is taken or the `work` around it ends:
        quicker than `work` for every step."""

    def chance(self) -> AbstractContextManager[None]:
        """What is called inside draws this line's random numbers."""

    def mark(self) -> Mark: ...

    def wait(self, mark: Mark) -> None:
        """Do nothing further before `mark` is reached."""

    def seed(self, seed: int) -> None: ...

    def random_state(self) -> Tensor: ...

    def set_random_state(self, state: Tensor) -> None: ...

    def record(self, step: Step) -> Step:
        """`step` once more, cheaply, whenever the answer is called. It runs during the recording too."""


class _Now:
    def __init__(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass


class ImmediateLine:
    """Everything at once."""

    def __init__(self) -> None:
        self._random = torch.get_rng_state()

    def work(self) -> AbstractContextManager[object]:
        return nullcontext()

    def take(self) -> None:
        pass

    @contextmanager
    def chance(self) -> Iterator[None]:
        outside = torch.get_rng_state()
        torch.set_rng_state(self._random)
        try:
            yield
        finally:
            self._random = torch.get_rng_state()
            torch.set_rng_state(outside)

    def mark(self) -> Mark:
        return _Now()

    def wait(self, mark: Mark) -> None:
        pass

    def seed(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed).get_state()

    def random_state(self) -> Tensor:
        return self._random

    def set_random_state(self, state: Tensor) -> None:
        self._random = state

    def record(self, step: Step) -> Step:
        def replay() -> None:
            with self.chance():
                step()

        replay()
        return replay


class CudaLine:
    """A stream, with a random generator and a memory pool of its own: lines that shared them could not run
    side by side."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream
        self._default = torch.cuda.default_generators[self.stream.device_index]
        self._random = self._default.clone_state()
        self._pool: Any = None

    def work(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self.stream)

    def take(self) -> None:
        torch.cuda.set_stream(self.stream)

    @contextmanager
    def chance(self) -> Iterator[None]:
        outside = self._default.graphsafe_get_state()
        self._default.graphsafe_set_state(self._random)
        try:
            yield
        finally:
            self._default.graphsafe_set_state(outside)

    def mark(self) -> torch.cuda.Event:
        event: torch.cuda.Event = self.stream.record_event()
        return event

    def wait(self, mark: Mark) -> None:
        assert isinstance(mark, torch.cuda.Event)
        self.stream.wait_event(mark)

    def seed(self, seed: int) -> None:
        self._random.manual_seed(seed)

    def random_state(self) -> Tensor:
        return self._random.get_state()

    def set_random_state(self, state: Tensor) -> None:
        self._random.set_state(state)

    def record(self, step: Step) -> Step:
        try:
            return self._record(step)
        except torch.OutOfMemoryError as error:
            raise UserError(
                "the GPU has too little memory: lower the batch size, or run fewer clients side by side with "
                "--workers."
            ) from error

    def _record(self, step: Step) -> Step:
        host = torch.get_rng_state()
        with self.work(), self.chance(), _no_collection():
            step()  # once outside the recording: libraries start, constants are made
            if not torch.equal(host, torch.get_rng_state()):
                raise UserError(
                    "the graphs engine cannot run this method: its step draws random numbers on the CPU, "
                    "which a recording would repeat; draw them on the inputs' device, or use --engine loop."
                )
            graph = torch.cuda.CUDAGraph()
            try:
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    step()
                finally:
                    graph.capture_end()
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                reason = str(error).strip().splitlines()[0].rstrip(".")
                raise UserError(
                    f"the graphs engine cannot record this method's step ({reason}): use --engine loop."
                ) from error
        self._pool = graph.pool()
        return graph.replay


@contextmanager
def _no_collection() -> Iterator[None]:
    """Memory that others free must not enter a recording."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def line_on(device: torch.device, number: int, urgency: int) -> Line:
    """A new line, which runs beside those of other numbers and urgencies; urgent work goes first."""
    return CudaLine(_stream(device, number, urgency)) if device.type == "cuda" else ImmediateLine()


@cache
def _stream(device: torch.device, number: int, urgency: int) -> torch.cuda.Stream:
    """One for all engines: PyTorch has 32 of each priority and keeps scratch memory for matrix products for
    every one it ever used, which a recording uses too. Two lines of an engine must never get the same."""
    stream: torch.cuda.Stream = torch.cuda.Stream(device, priority=-urgency)  # type: ignore[no-untyped-call]
    return stream


def random_state(device: torch.device) -> Tensor:
    """Of the caller's own random numbers on a device."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def main_mark(device: torch.device, *, timed: bool = False) -> Mark:
    """Where the caller's own work has got to; `timed` for `seconds_between`."""
    if device.type != "cuda":
        return _Now()
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def seconds_between(first: Mark, last: Mark) -> float:
    """By the clock of the device, whose host may learn of a mark long after it was reached. Both must have
    been."""
    if isinstance(first, torch.cuda.Event):
        assert isinstance(last, torch.cuda.Event)
        return float(first.elapsed_time(last)) / 1000
    assert isinstance(first, _Now)
    assert isinstance(last, _Now)
    return last.at - first.at


def main_wait(device: torch.device, mark: Mark) -> None:
    """Let the caller's own work go on after `mark`; the host goes on at once."""
    if isinstance(mark, torch.cuda.Event):
        torch.cuda.current_stream(device).wait_event(mark)
