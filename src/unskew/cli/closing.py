"""The last lines of a command: where its time went, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from unskew.cli.terminal import console
from unskew.clock import Clock
from unskew.record import Summary, SweepTime, Time


def say_next(*commands: str) -> None:
    """Print the commands to run next, as the last lines of a command; each can be pasted."""
    first, *more = commands
    for line in (f"next: {first}", *(f"      {command}" for command in more)):
        console().print(line, soft_wrap=True)


def report_command(folder: Path) -> str:
    """Return the command that writes the report of the runs in a folder to that folder."""
    return _written("report", folder, folder / "report.html")


def table_command(folder: Path) -> str:
    """Return the command that writes the table of the runs in a folder to that folder."""
    return _written("table", folder, folder / "table.tex")


def _written(command: str, folder: Path, out: Path) -> str:
    again = " --overwrite" if out.exists() else ""
    return f"unskew {command} {shlex.quote(str(folder))} --out {shlex.quote(str(out))}{again}"


def time_line(time: Time, rounds: int | None) -> str:
    """Return a line that says where the time of a run went, from the start of the command to its result.

    The number of rounds is None if some of them were done before the command.
    """
    if rounds is None:
        return _sum(time.start, {"rounds": time.first_round + time.rounds, "end": time.end})
    others = f"{rounds - 1} round{'s' * (rounds != 2)}"
    later = {"first round": time.first_round, others: time.rounds, "end": time.end}
    return _sum(time.start, {name: spent for name, spent in later.items() if name != "0 rounds"})


def sweep_time_line(
    time: SweepTime, summaries: Sequence[Summary], runs: int, *, side_by_side: bool = False
) -> str:
    """Return a line that says where the time of several runs went, from the start of the command."""
    what = f"{runs} run{'s' * (runs > 1)}" + " side by side" * side_by_side
    if not side_by_side:
        first = round(sum(each.time.first_round for each in summaries), 1)
        rest = round(sum(each.time.rounds for each in summaries), 1)
        overhead = max(0.0, round(time.runs, 1) - first - rest)
        what += f" (first rounds {first:.1f}, other rounds {rest:.1f}, overhead {overhead:.1f})"
    return _sum(time.start, {what: time.runs, "end": time.end})


def work_time_line(clock: Clock, work: str) -> str:
    """Return a line that says where the time of a command went, most of it in the part called `work`."""
    clock.mark("end")
    start = {name: spent for name, spent in clock.parts.items() if name not in (work, "end")}
    return _sum(start, {name: clock.parts[name] for name in (work, "end")})


def _sum(start: Mapping[str, float], later: Mapping[str, float]) -> str:
    """Return the line with its total, which is the sum of the parts as they are printed."""
    before = {name: round(spent, 1) for name, spent in start.items()}
    after = {name: round(spent, 1) for name, spent in later.items()}
    parts = ", ".join(f"{name} {spent:.1f}" for name, spent in before.items())
    total = sum(before.values()) + sum(after.values())
    each = [f"start {sum(before.values()):.1f} ({parts})", *(_part(*pair) for pair in after.items())]
    return f"time: {total:.1f} s = {' + '.join(each)}"


def _part(name: str, spent: float) -> str:
    """Return a part with its seconds, which are put before a bracket in its name."""
    what, bracket, inside = name.partition(" (")
    return f"{what} {spent:.1f}{bracket}{inside}"
