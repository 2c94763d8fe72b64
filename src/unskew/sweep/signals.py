"""Ctrl-C and SIGTERM while runs are under way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from unskew.sweep.watcher import Watcher


def handles_signals() -> bool:
    """Say whether this thread can handle signals: only the main thread can."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Treat SIGTERM between two runs as Ctrl-C, so that the command says how to resume."""
    if not handles_signals() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def stopping(stop: Callable[[], None], watch: Watcher, came: list[int]) -> Iterator[None]:
    """Call `stop` on Ctrl-C or SIGTERM, which ends the run after its present round; a second signal ends it
    at once. The signals are added to `came`."""
    if not handles_signals():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handled = [number for number, handler in before.items() if handler is not signal.SIG_IGN]

    def handle(number: int, _: object) -> None:
        came.append(number)
        for each in handled:
            signal.signal(each, signal.default_int_handler)
        stop()
        watch.say(["stopping after this round; press Ctrl-C again to stop at once."])

    try:
        for number in handled:
            signal.signal(number, handle)
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number] or signal.SIG_DFL)
