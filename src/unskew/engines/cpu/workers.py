"""Worker processes that are forked once, given tasks often, and end with the process that forked them."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar

from unskew.engines.cpu.shared_tensors import Layout, SharedTensors, TensorGroups
from unskew.engines.job import LostError, portable
from unskew.engines.numerics import keep_freed_memory

T = TypeVar("T")
A = TypeVar("A")

WorkFunction = Callable[[TensorGroups, T, TensorGroups], tuple[A, TensorGroups]]
"""A function from the tensors common to all tasks, a task and its tensors, to an answer and its tensors."""


@dataclass(eq=False)
class Worker:
    """A worker process, how to reach it, and the memory it shares with the process that started it."""

    connection: Connection
    request: SharedTensors
    """The tensors of the task it works on."""
    replies: tuple[SharedTensors, SharedTensors]
    """The tensors of its answers, used in turn: one answer can be copied while the next is computed."""
    turn: int = 0
    """Which of `replies` the next answer is written to. Both processes count it."""


class Workers(Generic[T, A]):
    """A fixed number of worker processes that compute one function. One that dies is replaced."""

    def __init__(self, work: WorkFunction[T, A], size: int) -> None:
        self._work, self._common = work, SharedTensors()
        self._workers: dict[Worker, BaseProcess] = {}
        self.end = weakref.finalize(self, _end, os.getpid(), self._workers)
        """Kills the processes. This also happens when this object is garbage collected."""
        try:
            for _ in range(size):
                _start(work, self._common, self._workers)
        except BaseException:
            self.end()
            raise

    @property
    def ended(self) -> bool:
        """Whether the processes have ended, so that new ones have to be started."""
        return not self.end.alive

    def run(
        self, common: TensorGroups, tasks: Sequence[tuple[T, TensorGroups]]
    ) -> list[tuple[A, TensorGroups] | BaseException]:
        """Return an answer for every task, or the exception that was raised by it, in the order of the tasks.

        Tasks are given out in that order, each to the first worker that is free; `common` are tensors that
        all tasks need. After an exception in a task its worker continues with the next one. A task whose
        process dies is tried once more when all others are done, so that it has the machine's memory to
        itself; if that process dies too, the answer is a `LostError`. If this call is interrupted, all
        processes end.
        """
        done: dict[int, tuple[A, TensorGroups] | BaseException] = {}
        waiting, alone = deque(range(len(tasks))), deque[int]()
        busy: dict[Connection, tuple[Worker, int]] = {}
        informed: set[Worker] = set()
        tried: set[int] = set()

        def give(worker: Worker) -> None:
            n = waiting.popleft()
            task, tensors = tasks[n]
            request = task, worker.request.write(tensors)
            busy[worker.connection] = worker, n
            with suppress(OSError):  # it is dead, which is noticed when its connection is read
                if worker not in informed:
                    worker.connection.send(layout)
                    informed.add(worker)
                worker.connection.send(request)

        try:
            layout = self._common.write(common)
            for worker in list(self._workers)[: len(tasks)]:
                give(worker)
            while busy or alone:
                if not busy:
                    waiting.append(alone.popleft())
                    give(next(iter(self._workers)))
                # With a timeout, because a signal that another thread received does not end this wait.
                for connection in wait(list(busy), timeout=1):
                    assert isinstance(connection, Connection)
                    worker, n = busy.pop(connection)
                    try:
                        reply: tuple[A, Layout] | BaseException = connection.recv()
                    except (EOFError, OSError):
                        lost, worker = self._replace(worker)
                        if n in tried:
                            done[n] = lost
                        else:
                            tried.add(n)
                            alone.append(n)
                        if waiting:
                            give(worker)
                        continue
                    if waiting:
                        give(worker)
                    if isinstance(reply, BaseException):
                        done[n] = reply
                    else:
                        answer, where = reply
                        done[n] = answer, worker.replies[worker.turn].read(where, copy=True)
                    worker.turn = 1 - worker.turn
        except BaseException:
            self.end()
            raise
        return [done[n] for n in range(len(tasks))]

    def _replace(self, worker: Worker) -> tuple[LostError, Worker]:
        """Start a new worker for one that died; return the error that says how it died, and the new
        worker."""
        process = self._workers.pop(worker)
        process.join()
        worker.connection.close()
        lost = LostError(
            f"a worker process {how_it_ended(process)} twice, as happens when memory runs out: use fewer "
            "--workers, or --engine loop."
        )
        return lost, _start(self._work, self._common, self._workers)


def _start(work: WorkFunction[T, A], common: SharedTensors, workers: dict[Worker, BaseProcess]) -> Worker:
    fork = multiprocessing.get_context("fork")  # the functions of a method cannot be pickled
    ours, theirs = multiprocessing.Pipe()
    worker = Worker(ours, SharedTensors(), (SharedTensors(), SharedTensors()))
    process = fork.Process(target=_main, args=(work, common, worker, theirs), daemon=True)
    with forking():
        process.start()
        workers[worker] = process
    theirs.close()
    return worker


def how_it_ended(process: BaseProcess) -> str:
    """Return how a process ended, as a verb phrase that follows its name."""
    code = process.exitcode or 0  # None if something else has waited for the process
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else "ended"


@contextmanager
def forking() -> Iterator[None]:
    """Delay signals, and silence a warning, while a process is forked and recorded."""
    with _no_interrupt(), warnings.catch_warnings():
        # Python warns of forks while other threads run, whose locks stay locked in the fork. Here those are
        # threads of PyTorch's kernels, which are idle between calls, and one that may draw on the
        # terminal: the forked processes use neither.
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Delay Ctrl-C and a request to terminate until a new process is recorded, because Python drops what is
    raised in the hooks that it runs after a fork. In the new process Ctrl-C stays blocked: a terminal sends
    it to all processes, but the first one has to end the others."""
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    main = threading.current_thread() is threading.main_thread()  # only this thread handles signals
    delayed = [number for number, handler in handlers.items() if main and callable(handler)]
    for number in delayed:
        signal.signal(number, lambda number, _: received.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number in delayed:
            signal.signal(number, handlers[number])
        for each in received:
            signal.raise_signal(each)


def _main(work: WorkFunction[T, A], common: SharedTensors, worker: Worker, connection: Connection) -> None:
    """Run a worker process. It works in a new thread, which does not expect the parent's kernel threads,
    since a fork has none of them, while the first thread waits for the end of the parent, even by SIGKILL."""
    try:
        # `timeout`, systemd and Slurm terminate all processes at once; the parent says when this one ends.
        signal.signal(signal.SIGTERM, lambda *_: None)
        worker.connection.close()
        begin_in_fork()
        threading.Thread(target=_serve, args=(work, common, worker, connection), daemon=True).start()
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
    finally:
        os._exit(0)


def begin_in_fork() -> None:
    """Prepare this process, which was just forked, to train in a thread of its own."""
    gc.freeze()  # the garbage of the parent is for the parent to collect
    keep_freed_memory(one_arena=True)
    # New files, so that what a method prints is written line by line, without the parent's buffered output.
    for name, number in (("stdout", 1), ("stderr", 2)):
        before = getattr(sys, name)
        with suppress(OSError):  # the file is closed
            errors = getattr(before, "errors", None)
            setattr(sys, name, os.fdopen(number, "w", buffering=1, errors=errors, closefd=False))


def _serve(work: WorkFunction[T, A], common: SharedTensors, worker: Worker, connection: Connection) -> None:
    seen: TensorGroups = {}
    try:
        while True:
            message: Layout | tuple[T, Layout] = connection.recv()
            if isinstance(message, Layout):
                seen = common.read(message)
                continue
            task, layout = message
            reply: tuple[A, Layout] | BaseException
            try:
                answer, tensors = work(seen, task, worker.request.read(layout))
                reply = answer, worker.replies[worker.turn].write(tensors)
            except BaseException as error:
                reply = portable(error)
            connection.send(reply)
            worker.turn = 1 - worker.turn
    finally:
        os._exit(0)


def _end(owner: int, workers: dict[Worker, BaseProcess]) -> None:
    if os.getpid() != owner:  # in a worker of another `Workers`, which has a copy of this one
        return
    for process in workers.values():
        process.kill()
    for worker, process in workers.items():
        process.join()
        worker.connection.close()
    workers.clear()
