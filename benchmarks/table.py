"""Makes rows, ratios and verdicts from the times of single runs. Pure: no clock, no files, no processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

OURS = "unskew, pool"
"""The competitor that all others are compared with."""


@dataclass(frozen=True)
class Competitor:
    """A library in one setting."""

    library: str
    setting: str
    """The setting as the table shows it."""
    argument: str
    """The setting as its process receives it."""

    @property
    def name(self) -> str:
        return f"{self.library}, {self.setting}"


@dataclass(frozen=True)
class Run:
    """One process of one competitor."""

    competitor: Competitor
    repetition: int
    whole: float
    """Seconds from the start of the process to its end: what a user waits for."""
    rounds: list[float]
    """Seconds of each timed round."""
    accuracy: float
    versions: dict[str, str]

    @property
    def seconds(self) -> float:
        return median(self.rounds)


@dataclass(frozen=True)
class Spread:
    """A median and the extremes around it."""

    middle: float
    least: float
    most: float

    def show(self, digits: int, scale: float = 1) -> tuple[str, str]:
        """Return the median and the extremes as text."""
        middle, least, most = (
            f"{value * scale:.{digits}f}" for value in (self.middle, self.least, self.most)
        )
        return middle, f"{least} to {most}"


@dataclass(frozen=True)
class Row:
    competitor: Competitor
    whole: Spread
    """Seconds of the whole command, over the repetitions."""
    whole_ratio: Spread | None
    """Its whole time relative to ours in the same repetition; None if ours did not finish in any of these."""
    seconds: Spread
    """Seconds of a round."""
    ratio: Spread | None
    accuracy: float


@dataclass(frozen=True)
class Bar:
    """A claim: we are at least `factor` times as fast as each of these libraries."""

    claim: str
    factor: float
    rivals: tuple[str, ...]
    setting: str | None = None
    """The setting in which rivals count; None: each in its best one."""
    whole: bool = False
    """Whether it is about the whole command, not about a round."""

    def ratio(self, row: Row) -> Spread | None:
        return row.whole_ratio if self.whole else row.ratio


@dataclass(frozen=True)
class Verdict:
    bar: Bar
    closest: Row | None
    """The rival with the lowest ratio; None if no rival took part."""

    @property
    def holds(self) -> bool | None:
        ratio = self.closest and self.bar.ratio(self.closest)
        return None if ratio is None else ratio.middle >= self.bar.factor


PEERS = ("pfl", "flower", "fedlab", "fluke", "blazefl", "pfllib", "flbench")


def bars(workload: str, cores: int) -> list[Bar]:
    bare = "never slower than the bare loop with " + threads(cores)
    everywhere = [
        Bar("the whole command: faster than every library", 1.0, PEERS, whole=True),
        Bar(f"the whole command: {bare}", 1.0, ("torch",), threads(cores), whole=True),
        Bar(f"a round: {bare}", 1.0, ("torch",), threads(cores)),
    ]
    return {
        "cnn": [*everywhere, Bar("a round: at least 1.5 times as fast as the best library", 1.5, PEERS)],
        "digits": [
            *everywhere,
            Bar("a round: at least 5 times as fast as Flower", 5.0, ("flower",)),
            Bar("a round: at least 3 times as fast as pfl", 3.0, ("pfl",)),
        ],
        "fashion": everywhere,
    }[workload]


def threads(count: int) -> str:
    return f"{count} thread" if count == 1 else f"{count} threads"


def timed(laps: Sequence[float]) -> list[float]:
    """Return the seconds of the rounds that count, from the times at which rounds ended.

    The first round does not count, because it prepares what the others reuse, nor does the last one, in which
    some libraries test the model.
    """
    if len(laps) < 3:
        raise ValueError("a race needs at least 3 rounds: the first and the last do not count.")
    return [after - before for before, after in pairwise(laps)][:-1]


def spread(values: Iterable[float]) -> Spread:
    ordered = sorted(values)
    return Spread(median(ordered), ordered[0], ordered[-1])


def rows(runs: Sequence[Run]) -> list[Row]:
    """Return a row for each competitor that finished a run, with the shortest whole command first."""
    ours = {run.repetition: run for run in runs if run.competitor.name == OURS}
    by_competitor: dict[Competitor, list[Run]] = {}
    for run in runs:
        by_competitor.setdefault(run.competitor, []).append(run)
    table = []
    for competitor, mine in by_competitor.items():
        # Within a repetition, because the machine's speed may change from minute to minute.
        pairs = [(run, ours[run.repetition]) for run in mine if run.repetition in ours]
        table.append(
            Row(
                competitor,
                spread(run.whole for run in mine),
                spread(run.whole / our.whole for run, our in pairs) if pairs else None,
                spread(run.seconds for run in mine),
                spread(run.seconds / our.seconds for run, our in pairs) if pairs else None,
                median(run.accuracy for run in mine),
            )
        )
    return sorted(table, key=lambda row: row.whole.middle)


def judge(bar: Bar, table: Sequence[Row]) -> Verdict:
    rivals = {
        row.competitor: (ratio.middle, row)
        for row in table
        if row.competitor.library in bar.rivals
        and bar.setting in (None, row.competitor.setting)
        and (ratio := bar.ratio(row)) is not None
    }
    closest = min(rivals.values(), key=lambda rival: rival[0], default=None)
    return Verdict(bar, closest and closest[1])


def markdown(table: Sequence[Row], verdicts: Sequence[Verdict]) -> str:
    lines = [
        "| competitor | whole, s | range | over ours | ms a round | range | over ours | accuracy |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in table:
        whole, whole_range = row.whole.show(1)
        ms, ms_range = row.seconds.show(1, 1000)
        ratios = [ratio.show(2)[0] if ratio else "-" for ratio in (row.whole_ratio, row.ratio)]
        lines.append(
            f"| {row.competitor.name} | {whole} | {whole_range} | {ratios[0]} "
            f"| {ms} | {ms_range} | {ratios[1]} | {row.accuracy:.3f} |"
        )
    return "\n".join([*lines, "", *(_sentence(verdict) for verdict in verdicts)])


def _sentence(verdict: Verdict) -> str:
    word = {True: "holds", False: "missed", None: "not raced"}[verdict.holds]
    ratio = verdict.closest and verdict.bar.ratio(verdict.closest)
    if verdict.closest is None or ratio is None:
        return f"- {word}: {verdict.bar.claim}."
    middle, extremes = ratio.show(2)
    rival = verdict.closest.competitor.name
    return f"- {word}: {verdict.bar.claim}. {middle} times ({extremes}) as fast as {rival}."
