"""The report of a measurement with its conditions, as a value and as two files."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from unskew.record import Json, to_json
from unskew.runs import slug, write_whole, writing

COLUMNS = (
    "what",
    "command",
    "whole",
    "first round",
    "a round",
    "samples/s",
    "overhead",
    "of dense",
    "memory",
    "target",
)


@dataclass(frozen=True)
class Target:
    """A target: at most so many seconds, or at least so many samples per second."""

    value: float
    unit: Literal["s", "samples/s"] = "s"

    def met(self, line: Line) -> bool | None:
        """Say whether a line meets the target; None if it does not have the number."""
        if self.unit == "s":
            return None if line.steady_seconds is None else line.steady_seconds <= self.value
        return None if line.samples_per_second is None else line.samples_per_second >= self.value

    def __str__(self) -> str:
        return f"{'≤' if self.unit == 's' else '≥'} {self.value:,.0f} {self.unit}"


@dataclass(frozen=True)
class Line:
    """The times of one entry or limit; values that do not apply are None."""

    what: str
    method: str | None = None
    engine: str | None = None
    precision: str | None = None
    rounds: int | None = None
    """Rounds measured in one run, including the first."""
    repeats: int | None = None
    seconds: float | None = None
    """A whole run of the cell's rounds, from the start of the engine to the last test; for other cells the
    only time that was taken. The median over the repeats."""
    projected: bool = False
    """Whether fewer rounds were run than the cell has, so that `seconds` is extrapolated from them."""
    first_round_seconds: float | None = None
    """The first round, with the start of the engine and all work that is done once."""
    once_seconds: float | None = None
    """The part of the first round beyond a later one, if steps are compiled; targets do not count it."""
    command_seconds: float | None = None
    """The whole command with all rounds of the cell in a process of its own, from its start to its end. It
    runs once, after the other runs, so that what they compiled is in its cache."""
    command_parts: dict[str, float] | None = None
    """The parts of this time, as the command reports them."""
    round_seconds: float | None = None
    """The median of the rounds after the first, over all repeats."""
    round_quartiles: tuple[float, float] | None = None
    samples_per_second: float | None = None
    """Training samples per second, over all rounds after the first."""
    overhead: float | None = None
    """The median time of a round beyond its bare training steps on as many cores, as a share of their
    time."""
    dense_share: float | None = None
    """samples_per_second as a share of the rate of one model, trained plainly in large batches."""
    memory_bytes: int | None = None
    """The largest memory in use: on a GPU as allocated by PyTorch, on a CPU the resident memory of the
    process and of those it started, with memory that they share counted for each."""
    reserved_bytes: int | None = None
    """The largest memory that PyTorch reserved on a GPU."""
    target: Target | None = None

    @property
    def steady_seconds(self) -> float | None:
        """The whole run without the work that is done once."""
        return None if self.seconds is None else self.seconds - (self.once_seconds or 0.0)

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.target.met(self)

    def json(self) -> dict[str, Json]:
        return {**asdict(self), "target": self.target and str(self.target), "met": self.met}

    def cells(self) -> list[str]:
        """Return the line as a row of the table, with `COLUMNS`."""
        reached = {None: "", True: ": met", False: ": missed"}[self.met]
        rest = ""
        if self.target and self.target.unit == "s" and self.once_seconds is not None:
            rest = f"{_time(self.steady_seconds)} once compiled, "
        return [
            self.what,
            ("~" if self.projected and self.command_seconds else "") + _time(self.command_seconds),
            ("~" if self.projected else "") + _time(self.seconds),
            _time(self.first_round_seconds),
            _time(self.round_seconds),
            "-" if self.samples_per_second is None else f"{self.samples_per_second:,.0f}",
            "-" if self.overhead is None else f"{100 * self.overhead:+.1f} %",
            "-" if self.dense_share is None else f"{100 * self.dense_share:.0f} %",
            "-" if self.memory_bytes is None else f"{self.memory_bytes / 2**20:,.0f} MiB",
            "-" if self.target is None else f"{rest}{self.target}{reached}",
        ]


@dataclass(frozen=True)
class Section:
    """The measurements of one cell."""

    name: str
    title: str
    lines: Sequence[Line]
    notes: Sequence[str] = ()

    def json(self) -> dict[str, Json]:
        return {
            "name": self.name,
            "title": self.title,
            "lines": [line.json() for line in self.lines],
            "notes": list(self.notes),
        }

    def markdown(self) -> str:
        rows = [COLUMNS, ["---"] * len(COLUMNS), *(line.cells() for line in self.lines)]
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        notes = "".join(f"\n- {note}" for note in self.notes)
        return f"## {self.name}\n\n{self.title}\n\n{table}\n" + (f"{notes}\n" if notes else "")


@dataclass(frozen=True)
class Report:
    conditions: dict[str, Json]
    sections: Sequence[Section]

    def json(self) -> dict[str, Json]:
        return {"conditions": self.conditions, "cells": [section.json() for section in self.sections]}

    def markdown(self) -> str:
        conditions = "\n".join(f"- {name}: {_plain(value)}" for name, value in self.conditions.items())
        body = "\n".join(section.markdown() for section in self.sections)
        return f"# unskew bench\n\n{conditions}\n\n{body}\n{LEGEND}\n"

    def save(self, folder: Path) -> list[Path]:
        """Write the report as .json and .md, named after the time and the cells; return both paths."""
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        names = "-".join(section.name for section in self.sections)
        stem = f"{datetime.now():%Y-%m-%d-%H%M%S}-{slug(names)}"
        paths = [folder / f"{stem}.json", folder / f"{stem}.md"]
        write_whole(paths[0], to_json(self.json()) + "\n")
        write_whole(paths[1], self.markdown())
        return paths


def median_and_quartiles(times: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Return the median of times, and the quartiles."""
    if len(times) == 1:
        return times[0], (times[0], times[0])
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return middle, (low, high)


LEGEND = (
    "command: the same as `unskew run`, from Enter to its end, with what is compiled in the cache. "
    "whole: a run of all the cell's rounds, from the start of the engine (~: projected from fewer rounds). "
    "first round: with the start of the engine and all that is done once. "
    "a round: median of the others. "
    "once compiled: whole, with a round like the others in place of the first. "
    "overhead: beyond the bare training steps on as many cores. "
    "of dense: samples/s as a part of one model's, trained plainly in large batches."
)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{1000 * seconds:,.1f} ms"


def _plain(value: Json) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(part)}" for name, part in value.items())
    return ", ".join(map(_plain, value)) if isinstance(value, list) else str(value)
