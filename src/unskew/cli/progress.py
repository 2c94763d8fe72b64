"""The progress of runs, on standard error: a live bar in a terminal, otherwise a line every few seconds, and
with --table a line for every tested round."""

from __future__ import annotations

import math
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from unskew.cli.terminal import percent
from unskew.metrics import GROUPS
from unskew.record import FAULTS_SHOWN, ProbeRecord, RoundRecord, TestedRound

PERIOD = 10
"""Seconds between two plain lines."""
BESIDE_LABEL = 44
"""Characters of the live bar without its label: ten for the bar itself, the rounds and the times."""
WIDE = {"round": 5, "lr": 7, "loss": 8, "accuracy": 8, "worst": 5} | dict.fromkeys(GROUPS, 8) | {"seconds": 7}
NARROW = {"rnd": 4, "lr": 7, "loss": 7, "acc": 5, "worst": 5, "maj": 5, "min": 5, "vac": 5, "sec": 5}
"""Columns of the table per round, with their widths; the second for less than 80 characters."""


@dataclass(frozen=True)
class Numbers:
    """Texts separated by two spaces, wrapped to the width of the terminal."""

    parts: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = "  ".join(part.replace(" ", "\xa0") for part in self.parts)  # no line break within a part
        for line in textwrap.wrap(whole, options.max_width):
            yield Text(line.replace("\xa0", " "))


class Bar(Progress):
    """Rich's bar with numbers below it."""

    numbers = Numbers()

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield self.numbers


class ProgressDisplay:
    """Shows the progress of `cells` runs with `rounds` rounds in total. If they train side by side, every
    line of a table names its run."""

    def __init__(
        self,
        rounds: int,
        *,
        cells: int = 1,
        quiet: bool = False,
        table: bool = False,
        side_by_side: bool = False,
    ) -> None:
        self._side_by_side = side_by_side
        self._rounds, self._cells, self._quiet, self._table = rounds, cells, quiet, table
        self._screen = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._live = self._screen.is_terminal and not quiet
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._screen,
            transient=True,
            expand=True,
            disable=not self._live,
        )
        self._task = self._bar.add_task("", total=rounds)
        self._began = self._said = time.monotonic()
        self._name, self._label, self._numbers = "", "", list[str]()
        self._begun = set[str]()
        self._done = 0
        self._probed = 0.0
        self._headed = False
        self._faults = Counter[str]()

    def __enter__(self) -> ProgressDisplay:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def label(self, text: str) -> None:
        """Name the run that the next rounds belong to; it may have begun before."""
        self._begun.add(text)
        count = f" ({len(self._begun)}/{self._cells})" if self._cells > 1 else ""
        self._name, self._label = text, text + count
        self._headed = self._headed and self._side_by_side
        room = max(10, self._screen.width - BESIDE_LABEL) - len(count)
        short = text if len(text) <= room else text[: room - 1] + "…"
        self._bar.update(self._task, description=short + count)

    def say(self, notes: Iterable[str]) -> None:
        """Print notes, unless the display is quiet."""
        for note in notes if not self._quiet else ():
            self._print(f"note: {note}")

    def __call__(self, line: RoundRecord, probe: ProbeRecord | None = None) -> None:
        """Show a finished round, given as its lines of rounds.jsonl and probes.jsonl."""
        self._done += 1
        self._note_faults(line)
        self._probed += probe.seconds if probe else 0.0
        if isinstance(line, TestedRound):
            self._numbers = [
                f"accuracy {percent(line.accuracy)} %",
                f"worst class {percent(line.min_class)}",
                f"vacant {percent(line.groups.vacant)}",
            ]
            if line.validation:
                self._numbers.append(f"validation {percent(line.validation.accuracy)}")
        shown = [*self._numbers, *([f"probing {self._probed:.1f} s"] if self._probed else [])]
        self._bar.numbers = Numbers(shown)
        self._bar.update(self._task, advance=1)
        if self._table:
            if isinstance(line, TestedRound):
                self._print_row(line)
        elif not self._live and not self._quiet:
            self._print_line(shown)

    def skip(self, rounds: int) -> None:
        """Count a run that ended early by a number of rounds."""
        self._rounds -= rounds
        self._bar.update(self._task, total=self._rounds)
        if rounds and not (self._live or self._quiet or self._table):
            self._print_line(self._numbers)

    def _note_faults(self, line: RoundRecord) -> None:
        """Print a note for each of the run's first faults, and one note that there are more."""
        run = f"{self._name}: " * self._side_by_side
        for fault in line.faults or ():
            self._faults[self._name] += 1
            count = self._faults[self._name]
            if count <= FAULTS_SHOWN:
                where = f"round {line.round} continues without client {fault.client}, stage '{fault.stage}'"
                self.say([f"{run}{where}: {fault.reason}."])
            elif count == FAULTS_SHOWN + 1:
                self.say([f"{run}there are more such faults: the run's rounds.jsonl has them all."])

    def _print(self, line: str) -> None:
        self._screen.print(line, soft_wrap=True)

    def _print_line(self, numbers: Sequence[str]) -> None:
        now = time.monotonic()
        if self._done < self._rounds and now - self._said < PERIOD:
            return
        self._said, elapsed = now, now - self._began
        left = elapsed / self._done * (self._rounds - self._done)
        times = f"{timedelta(seconds=round(elapsed))}, left {timedelta(seconds=round(left))}"
        self._print("  ".join([self._label, f"{self._done}/{self._rounds} rounds", *numbers, times]))

    def _print_row(self, line: TestedRound) -> None:
        wide = not self._screen.is_terminal or self._screen.width >= 80
        columns = WIDE if wide else NARROW
        if not self._headed:
            self._headed = True
            title = f"{self._cells} runs side by side" if self._side_by_side else self._label
            self._print(f"{title}, accuracies in %")
            self._print(_row(columns, columns) + "  run" * self._side_by_side)
        cells = [
            str(line.round),
            _short(line.lr),
            _short(line.loss),
            percent(line.accuracy),
            percent(line.min_class),
            *(percent(getattr(line.groups, group)) for group in GROUPS),
            f"{line.seconds:.2f}",
        ]
        self._print(_row(cells, columns) + f"  {self._name}" * self._side_by_side)


def _short(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.3g}"


def _row(cells: Iterable[str], columns: Mapping[str, int]) -> str:
    gap = "  " if columns is WIDE else " "
    return gap.join(cell.rjust(width) for cell, width in zip(cells, columns.values(), strict=True))
