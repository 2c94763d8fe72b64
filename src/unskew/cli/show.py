"""What a person sees in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from types import TracebackType

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from unskew import metrics
from unskew.train import Result, Round

GROUPS = ("majority", "minority", "vacant")


def console() -> Console:
    """Standard output: as wide as the terminal, and wide enough for a table elsewhere."""
    width = None if sys.stdout.isatty() else 140
    # No markup: names and paths may hold square brackets.
    return Console(highlight=False, markup=False, emoji=False, width=width)


class Watch:
    """Progress on standard error: a live bar in a terminal, a plain line now and then elsewhere."""

    def __init__(self, rounds: int, *, quiet: bool) -> None:
        self._total = rounds
        self._done = 0
        self._last = time.monotonic()
        self._quiet = quiet
        terminal = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self._live = terminal.is_terminal and not quiet
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("accuracy {task.fields[accuracy]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=terminal,
            transient=True,
            disable=not self._live,
        )
        self._task = self._progress.add_task("", total=rounds, accuracy="-")
        self._label = ""

    def __enter__(self) -> Watch:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def label(self, text: str) -> None:
        self._label = text
        self._progress.update(self._task, description=text)

    def say(self, notes: Iterable[str]) -> None:
        """What to know before the numbers come."""
        for note in notes if not self._quiet else ():
            self._progress.console.print(f"note: {note}")

    def __call__(self, round: Round) -> None:
        self._done += 1
        accuracy = percent(metrics.accuracy(round.test.confusion)) + " %" if round.test else "-"
        self._progress.update(self._task, advance=1)
        if round.test:
            self._progress.update(self._task, accuracy=accuracy)
        due = self._done == self._total or time.monotonic() - self._last > 10
        if not self._live and not self._quiet and due:
            self._last = time.monotonic()
            print(f"{self._label}  {self._done}/{self._total} rounds  accuracy {accuracy}", file=sys.stderr)


def percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None or np.isnan(value) else f"{100 * value:.{digits}f}"


def spread(values: Sequence[float | None]) -> str:
    """Mean ± standard deviation (n-1) in percent; the value alone where there is one."""
    known = [value for value in values if value is not None and not np.isnan(value)]
    if not known:
        return "-"
    if len(known) == 1:
        return percent(known[0])
    return f"{percent(float(np.mean(known)))} ± {percent(float(np.std(known, ddof=1)))}"


def class_table(result: Result) -> Table:
    """Every class: how well the final model knows it, and what it is to the clients."""
    by_class = metrics.class_accuracy(result.final.confusion)
    held = {name: mask.sum(axis=0) for name, mask in metrics.groups(result.counts).items()}
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("class")
    table.add_column("accuracy %", justify="right")
    table.add_column("")
    for name in GROUPS:
        table.add_column(f"{name} at", justify="right")
    worst = metrics.worst_class(by_class)
    for index, name in enumerate(result.classes):
        value = by_class[index]
        bar = "" if np.isnan(value) else "█" * round(20 * value)
        cells = [str(held[group][index]) for group in GROUPS]
        table.add_row(Text(name), percent(value), bar, *cells, style="bold" if index == worst else None)
    return table


def result_table(rows: Sequence[tuple[str, Sequence[Result]]]) -> Table:
    """One row per method, over the runs of its seeds."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method", no_wrap=True, overflow="fold")
    for title in ("accuracy %", "best", "mean last 10", "worst class", *GROUPS, "seconds"):
        table.add_column(title, justify="right")
    for name, results in rows:
        accuracy = [result.accuracy for result in results]
        table.add_row(
            name,
            *(spread([values[key] for values in accuracy]) for key in ("last", "best", "mean_last_10")),
            spread([result.worst_accuracy for result in results]),
            *(spread([result.groups[group] for result in results]) for group in GROUPS),
            f"{np.mean([result.seconds for result in results]):.1f}",
        )
    return table
