"""Streams that run side by side, each with random numbers of its own, and steps captured as CUDA graphs.

Without a GPU the same calls run at once, one after the other, so that the bookkeeping of the graphs engine
can be tested anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from unskew.errors import UserError
from unskew.garbage_collection import without_collection

Replay = Callable[[], None]
"""A captured step: calling it runs the step once more."""


class Event(Protocol):
    """A point in the work of a stream."""

    def synchronize(self) -> None:
        """Let the host wait until the stream has reached this point."""


class Stream(Protocol):
    """Work in order, with random numbers of its own."""

    def activate(self) -> AbstractContextManager[object]:
        """Run what is called inside on this stream."""

    def make_current(self) -> None:
        """Run what is called next on this stream, until another is made current or the surrounding `activate`
        ends. For single steps this is faster than `activate`."""

    def random_numbers(self) -> AbstractContextManager[None]:
        """Draw random numbers from this stream's generator inside."""

    def record_event(self) -> Event:
        """Record an event after all work that the stream has so far, and return it."""

    def wait_event(self, event: Event) -> None:
        """Let the stream's next work wait for an event."""

    def seed(self, seed: int) -> None:
        """Seed the stream's random numbers."""

    def random_state(self) -> Tensor:
        """Return the state of the stream's random numbers."""

    def set_random_state(self, state: Tensor) -> None:
        """Set the state of the stream's random numbers."""

    def capture(self, step: Callable[[], None]) -> Replay:
        """Capture a step as a graph, and return a function that runs it again. The step itself runs here
        too."""


class _Now:
    """An event after work that was done at once."""

    def __init__(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass


class ImmediateStream:
    """A stream without a GPU: what is called is done at once."""

    def __init__(self) -> None:
        self._random = torch.get_rng_state()

    def activate(self) -> AbstractContextManager[object]:
        return nullcontext()

    def make_current(self) -> None:
        pass

    @contextmanager
    def random_numbers(self) -> Iterator[None]:
        outside = torch.get_rng_state()
        torch.set_rng_state(self._random)
        try:
            yield
        finally:
            self._random = torch.get_rng_state()
            torch.set_rng_state(outside)

    def record_event(self) -> Event:
        return _Now()

    def wait_event(self, event: Event) -> None:
        pass

    def seed(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed).get_state()

    def random_state(self) -> Tensor:
        return self._random

    def set_random_state(self, state: Tensor) -> None:
        self._random = state

    def capture(self, step: Callable[[], None]) -> Replay:
        def replay() -> None:
            with self.random_numbers():
                step()

        replay()
        return replay


class CudaStream:
    """A CUDA stream with a random generator and a memory pool of its own. Streams that shared these could not
    run side by side."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream
        self._default = torch.cuda.default_generators[self.stream.device_index]
        self._random = self._default.clone_state()
        self._pool: Any = None

    def activate(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self.stream)

    def make_current(self) -> None:
        torch.cuda.set_stream(self.stream)

    @contextmanager
    def random_numbers(self) -> Iterator[None]:
        outside = self._default.graphsafe_get_state()
        self._default.graphsafe_set_state(self._random)
        try:
            yield
        finally:
            self._default.graphsafe_set_state(outside)

    def record_event(self) -> torch.cuda.Event:
        event: torch.cuda.Event = self.stream.record_event()
        return event

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, torch.cuda.Event)
        self.stream.wait_event(event)

    def seed(self, seed: int) -> None:
        self._random.manual_seed(seed)

    def random_state(self) -> Tensor:
        return self._random.get_state()

    def set_random_state(self, state: Tensor) -> None:
        self._random.set_state(state)

    def capture(self, step: Callable[[], None]) -> Replay:
        host = torch.get_rng_state()
        # A garbage collection could free memory while the graph is captured.
        with self.activate(), self.random_numbers(), without_collection():
            step()  # once outside the capture: libraries start, constants are made
            if not torch.equal(host, torch.get_rng_state()):
                raise UserError(
                    "the graphs engine cannot run this method: its step draws random numbers on the CPU, "
                    "which a CUDA graph would repeat; draw them on the inputs' device, or use --engine loop."
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
                    f"the graphs engine cannot capture this method's step ({reason}): use --engine loop."
                ) from error
        self._pool = graph.pool()
        return graph.replay


def stream_on(device: torch.device, number: int, priority: int) -> Stream:
    """Return the stream of a number and a priority. Streams that differ in either run side by side; higher
    priorities go first."""
    return CudaStream(_cuda_stream(device, number, priority)) if device.type == "cuda" else ImmediateStream()


@cache
def _cuda_stream(device: torch.device, number: int, priority: int) -> torch.cuda.Stream:
    """Return a CUDA stream, the same one for all engines: PyTorch has 32 of each priority, and for every
    stream that was ever used it keeps scratch memory for matrix products, which a captured graph uses too.
    Two streams of an engine must never be the same."""
    stream: torch.cuda.Stream = torch.cuda.Stream(device, priority=-priority)  # type: ignore[no-untyped-call]
    return stream


def random_state(device: torch.device) -> Tensor:
    """Return the state of a device's current random numbers."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def current_event(device: torch.device, *, timed: bool = False) -> Event:
    """Record an event after all work of the current stream so far, and return it. `timed` is for
    `seconds_between`."""
    if device.type != "cuda":
        return _Now()
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def seconds_between(first: Event, last: Event) -> float:
    """Return the time between two events that were both reached, by the clock of the device: the host may
    notice an event much later."""
    if isinstance(first, torch.cuda.Event):
        assert isinstance(last, torch.cuda.Event)
        return float(first.elapsed_time(last)) / 1000
    assert isinstance(first, _Now)
    assert isinstance(last, _Now)
    return last.at - first.at


def current_waits(device: torch.device, event: Event) -> None:
    """Let the current stream's next work wait for an event. The host does not wait."""
    if isinstance(event, torch.cuda.Event):
        torch.cuda.current_stream(device).wait_event(event)
