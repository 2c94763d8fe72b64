"""Functions that run in processes forked from this one, a limited number at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar

from unskew.engines.cpu.workers import begin_in_fork, forking, how_it_ended
from unskew.engines.job import LostError, portable

M = TypeVar("M")
R = TypeVar("R")


class StopRequest:
    """A request to stop, made to a function that may listen for it."""

    def __init__(self) -> None:
        self._asked = False
        self._stop: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def ask(self) -> None:
        """Ask the function to stop, now or as soon as it listens."""
        with self._lock:
            self._asked = True
            if self._stop is not None:
                self._stop()

    @contextmanager
    def listening(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call `stop` inside this context when the request is made, and at once if it was made before."""
        with self._lock:
            self._stop = stop
            if self._asked:
                stop()
        try:
            yield
        finally:
            with self._lock:
                self._stop = None


ForkedFunction = Callable[[Callable[[M], None], StopRequest], R]
"""A function that is given a function to send messages with, and a request to stop to listen for. Its
messages and its result have to be picklable."""


@dataclass(frozen=True)
class Sent(Generic[M]):
    """A message that a function has sent while it runs."""

    message: M


@dataclass(frozen=True)
class Returned(Generic[R]):
    """The result that a function has returned."""

    value: R


@dataclass(frozen=True)
class Raised:
    """The error that a function has raised, or a `LostError` if its process died."""

    error: BaseException


class Forked(Generic[M, R]):
    """Runs functions, each in a process of its own, at most `at_once` of them at the same time."""

    def __init__(self, works: Sequence[ForkedFunction[M, R]], at_once: int) -> None:
        self._works, self._at_once = works, at_once
        self._running: dict[Connection, tuple[int, BaseProcess]] = {}
        self._stopped = False

    def events(self) -> Generator[tuple[int, Sent[M] | Returned[R] | Raised], None, None]:
        """Yield events as they come, each with the number of its function. The last event of a function is
        the only one that is not `Sent`; functions that had not started when all were asked to stop have none.
        Leaving the loop over the events kills the processes that are left."""
        begun = 0
        try:
            while True:
                while begun < len(self._works) and len(self._running) < self._at_once and not self._stopped:
                    begun += 1
                    try:
                        self._start(begun - 1)
                    except OSError as error:  # the system allows no further process
                        yield begun - 1, Raised(error)
                if not self._running:
                    return
                # With a timeout, because a signal that another thread received does not end this wait.
                for connection in wait(list(self._running), timeout=1):
                    assert isinstance(connection, Connection)
                    number, process = self._running[connection]
                    try:
                        event: Sent[M] | Returned[R] | Raised = connection.recv()
                    except (EOFError, OSError):
                        process.join()
                        event = Raised(_lost(process))
                    if not isinstance(event, Sent):
                        del self._running[connection]
                        process.join()
                        connection.close()
                    yield number, event
        finally:
            self._end()

    def stop(self) -> None:
        """Ask all running functions to stop, and start no others."""
        self._stopped = True
        for connection in list(self._running):
            with suppress(OSError):  # the process has just ended
                connection.send(None)

    def _start(self, number: int) -> None:
        fork = multiprocessing.get_context("fork")  # the functions of a method cannot be pickled
        ours, theirs = multiprocessing.Pipe()
        process = fork.Process(target=_main, args=(self._works[number], ours, theirs))
        with forking():
            process.start()
            self._running[ours] = number, process
        theirs.close()

    def _end(self) -> None:
        for _, process in self._running.values():
            process.kill()
        for connection, (_, process) in self._running.items():
            process.join()
            connection.close()
        self._running.clear()


def _lost(process: BaseProcess) -> LostError:
    return LostError(
        f"the process of this run {how_it_ended(process)}, as happens when memory runs out: use fewer "
        "--workers, so that fewer runs train side by side."
    )


def _main(work: ForkedFunction[M, R], ours: Connection, theirs: Connection) -> None:
    """Run a process. It works in a new thread, which does not expect the parent's kernel threads, since a
    fork has none of them, while the first thread waits for a request to stop and for the end of the
    parent."""
    try:
        signal.signal(signal.SIGTERM, lambda *_: None)  # the parent gets it too, and asks to stop
        ours.close()
        begin_in_fork()
        request = StopRequest()
        threading.Thread(target=_work, args=(work, theirs, request), daemon=True).start()
        parent = multiprocessing.parent_process()
        assert parent is not None
        while theirs in wait([theirs, parent.sentinel]):
            theirs.recv()
            request.ask()
    finally:
        os._exit(0)


def _work(work: ForkedFunction[M, R], connection: Connection, request: StopRequest) -> None:
    try:
        try:
            end: Returned[R] | Raised = Returned(
                work(lambda message: connection.send(Sent(message)), request)
            )
        except BaseException as error:
            end = Raised(portable(error))
        for file in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # it is closed
                file.flush()
        connection.send(end)
    finally:
        os._exit(0)
