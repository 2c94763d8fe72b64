"""Worker processes: forked once, asked often, gone with whoever forked them."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Generic, TypeVar

from unskew.engines.cpu.shared_tensors import Groups, Layout, Shelf
from unskew.engines.numerics import keep_freed_memory
from unskew.errors import UserError

T = TypeVar("T")
A = TypeVar("A")
E = TypeVar("E", bound=BaseException)

Work = Callable[[Groups, T, Groups], tuple[A, Groups]]
"""From what is on the board, a task and its tensors, to an answer and its tensors."""


@dataclass
class Worker:
    pid: int
    line: Connection
    desk: Shelf
    """Where a task's tensors lie until it is answered."""
    answers: tuple[Shelf, Shelf]
    """Used in turn, so that one answer can be fetched while the next is in the making."""
    turn: int = 0


class Crew(Generic[T, A]):
    def __init__(self, work: Work[T, A], size: int) -> None:
        self._board = Shelf()
        self._workers: list[Worker] = []
        ear, mouth = os.pipe()  # never used to speak: workers end when nobody is left at the mouth
        self._end = weakref.finalize(self, _end, os.getpid(), self._workers, mouth)
        try:
            for _ in range(size):
                self._workers.append(_hire(work, self._board, ear, mouth))
        except BaseException:
            self._end()
            raise
        finally:
            os.close(ear)

    @property
    def gone(self) -> bool:
        return not self._end.alive

    def do(self, board: Groups, tasks: Sequence[tuple[T, Groups]]) -> list[tuple[A, Groups]]:
        """The answers, in the order of the tasks. These are given out in that order, each to the first worker
        that is free. What is on the board every worker sees. Whatever goes wrong ends all workers."""
        done: dict[int, tuple[A, Groups]] = {}
        waiting = deque(enumerate(tasks))
        busy: dict[Connection, tuple[Worker, int]] = {}

        def give(worker: Worker) -> None:
            n, (task, tensors) = waiting.popleft()
            self._say(worker, (task, worker.desk.put(tensors)))
            busy[worker.line] = worker, n

        try:
            layout = self._board.put(board)
            for worker in self._workers[: len(tasks)]:
                self._say(worker, layout)
                give(worker)
            while busy:
                # Not for ever: a signal that another thread was given does not end the wait of this one.
                for line in wait(list(busy), timeout=1):
                    assert isinstance(line, Connection)
                    worker, n = busy.pop(line)
                    reply = self._hear(worker)
                    if isinstance(reply, BaseException):
                        raise reply
                    if waiting:
                        give(worker)
                    answer, layout = reply
                    done[n] = answer, worker.answers[worker.turn].take(layout, keep=True)
                    worker.turn = 1 - worker.turn
        except BaseException:
            self._end()
            raise
        return [done[n] for n in range(len(tasks))]

    def _say(self, worker: Worker, what: Layout | tuple[T, Layout]) -> None:
        try:
            worker.line.send(what)
        except OSError:
            raise self._lost(worker) from None

    def _hear(self, worker: Worker) -> tuple[A, Layout] | BaseException:
        try:
            reply: tuple[A, Layout] | BaseException = worker.line.recv()
        except (EOFError, OSError):
            raise self._lost(worker) from None
        return reply

    def _lost(self, worker: Worker) -> UserError:
        status = _reap(worker)
        self._workers.remove(worker)
        how = (
            f"was ended by {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else "ended"
        )
        return UserError(
            f"a worker process {how}, as happens when memory runs out: use fewer --workers, or --engine loop."
        )


def _hire(work: Work[T, A], board: Shelf, ear: int, mouth: int) -> Worker:
    ours, theirs = Pipe()
    worker = Worker(0, ours, Shelf(), (Shelf(), Shelf()))
    with _no_interrupt(), warnings.catch_warnings():
        # Python warns of forks beside other threads, whose locks stay locked in the fork. Here those are
        # threads of PyTorch's kernels, which rest between calls, and one that may draw on the terminal:
        # workers use neither.
        warnings.simplefilter("ignore", DeprecationWarning)
        worker.pid = os.fork()
        if not worker.pid:
            _live(work, board, worker, theirs, ear, mouth)
    theirs.close()
    return worker


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Ctrl-C waits until the fork is over: Python drops what is raised in the hooks it runs after one. It
    reaches all processes of a terminal, but it is for this one to end the others: for them it stays blocked.
    """
    came: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    ours = threading.current_thread() is threading.main_thread()  # no other hears of it
    if ours and handler is not None:  # None: it is not Python's
        signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if ours and handler is not None:
            signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


def _live(work: Work[T, A], board: Shelf, me: Worker, line: Connection, ear: int, mouth: int) -> None:
    """A worker's whole life. Works in a thread of its own, which has no memory of kernel threads that the
    fork left behind, while the first thread waits for the end of the parent."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        gc.freeze()  # what the parent left to collect is the parent's
        os.close(mouth)
        me.line.close()
        with suppress(OSError):  # files that are closed
            sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)  # what a method prints
            sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        keep_freed_memory(one_arena=True)
        threading.Thread(target=_serve, args=(work, board, me, line), daemon=True).start()
        os.read(ear, 1)
    finally:
        os._exit(0)


def _serve(work: Work[T, A], board: Shelf, me: Worker, line: Connection) -> None:
    seen: Groups = {}
    try:
        while True:
            what: Layout | tuple[T, Layout] = line.recv()
            if isinstance(what, Layout):
                seen = board.take(what)
                continue
            task, layout = what
            reply: tuple[A, Layout] | BaseException
            try:
                answer, tensors = work(seen, task, me.desk.take(layout))
                reply = answer, me.answers[me.turn].put(tensors)
            except BaseException as error:
                reply = portable(error)
            line.send(reply)
            me.turn = 1 - me.turn
    finally:
        os._exit(0)


def portable(error: E) -> E | RuntimeError:
    """As it can be raised in another process, with the place where it was raised in this one."""
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


def _end(owner: int, workers: list[Worker], mouth: int) -> None:
    if os.getpid() != owner:  # in a fork of another crew, which has a copy of everything
        return
    os.close(mouth)
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)
    for worker in workers:
        _reap(worker)
        worker.line.close()
    workers.clear()


def _reap(worker: Worker) -> int:
    try:
        return os.waitpid(worker.pid, 0)[1]
    except ChildProcessError:  # somebody waits for all children, or nobody wants to
        return 0
