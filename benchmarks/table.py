"""From the times of single runs to rows, ratios and bars. Pure: no clock, no files, no processes."""

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
    """As its table row says it."""
    argument: str
    """As its process is told it."""

    @property
    def name(self) -> str:
        return f"{self.library}, {self.setting}"


@dataclass(frozen=True)
class Run:
    """One process of one competitor."""

    competitor: Competitor
    repetition: int
    rounds: list[float]
    """Seconds of each timed round."""
    startup: float
    """Seconds before the first round, and what the first took longer than the fastest."""
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
        """The median, and the extremes."""
        middle, least, most = (
            f"{value * scale:.{digits}f}" for value in (self.middle, self.least, self.most)
        )
        return middle, f"{least} to {most}"


@dataclass(frozen=True)
class Row:
    competitor: Competitor
    seconds: Spread
    """Of a round, over the repetitions."""
    ratio: Spread | None
    """Its time over ours in the same repetition; None where ours did not finish beside it."""
    startup: float
    accuracy: float


@dataclass(frozen=True)
class Bar:
    """A claim: our rounds are at least `factor` times as fast as those of each of these libraries."""

    claim: str
    factor: float
    rivals: tuple[str, ...]
    setting: str | None = None
    """The rivals in this setting alone; None: each in its best."""


@dataclass(frozen=True)
class Verdict:
    bar: Bar
    closest: Row | None
    """The rival that came nearest; None where none of them was raced."""

    @property
    def holds(self) -> bool | None:
        if self.closest is None or self.closest.ratio is None:
            return None
        return self.closest.ratio.middle >= self.bar.factor


PEERS = ("pfl", "flower", "fedlab", "fluke")


def bars(workload: str, cores: int) -> list[Bar]:
    bare = Bar(f"never slower than the bare loop with {threads(cores)}", 1.0, ("torch",), threads(cores))
    return {
        "cnn": [Bar("at least 1.5 times as fast as the best peer", 1.5, PEERS), bare],
        "digits": [
            Bar("at least 5 times as fast as Flower", 5.0, ("flower",)),
            Bar("at least 3 times as fast as pfl", 3.0, ("pfl",)),
            bare,
        ],
        "fashion": [bare],
    }[workload]


def threads(count: int) -> str:
    return f"{count} thread" if count == 1 else f"{count} threads"


def timed(laps: Sequence[float], started: float) -> tuple[list[float], float]:
    """Seconds of the rounds that count, and of the start-up, from when each round ended. The first round
    does not count, because it makes what the others reuse; nor the last, in which some test the model."""
    if len(laps) < 3:
        raise ValueError("a race needs at least 3 rounds: the first and the last do not count.")
    rounds = [after - before for before, after in pairwise(laps)][:-1]
    return rounds, laps[0] - started - min(rounds)


def spread(values: Iterable[float]) -> Spread:
    ordered = sorted(values)
    return Spread(median(ordered), ordered[0], ordered[-1])


def rows(runs: Sequence[Run]) -> list[Row]:
    """One row for each competitor that finished a run, the fastest first."""
    ours = {run.repetition: run.seconds for run in runs if run.competitor.name == OURS}
    by_competitor: dict[Competitor, list[Run]] = {}
    for run in runs:
        by_competitor.setdefault(run.competitor, []).append(run)
    table = []
    for competitor, mine in by_competitor.items():
        # Within a repetition, because runs that are minutes apart may have met another machine.
        ratios = [run.seconds / ours[run.repetition] for run in mine if run.repetition in ours]
        table.append(
            Row(
                competitor,
                spread(run.seconds for run in mine),
                spread(ratios) if ratios else None,
                median(run.startup for run in mine),
                median(run.accuracy for run in mine),
            )
        )
    return sorted(table, key=lambda row: row.seconds.middle)


def judge(bar: Bar, table: Sequence[Row]) -> Verdict:
    rivals = [
        row
        for row in table
        if row.ratio is not None
        and row.competitor.library in bar.rivals
        and bar.setting in (None, row.competitor.setting)
    ]
    return Verdict(bar, min(rivals, key=lambda row: row.ratio.middle if row.ratio else 0, default=None))


def markdown(table: Sequence[Row], verdicts: Sequence[Verdict]) -> str:
    lines = [
        "| competitor | ms per round | least to most | over ours | least to most | start-up, s | accuracy |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in table:
        ms, ms_range = row.seconds.show(1, 1000)
        ratio, ratio_range = row.ratio.show(2) if row.ratio else ("-", "-")
        lines.append(
            f"| {row.competitor.name} | {ms} | {ms_range} | {ratio} | {ratio_range} "
            f"| {row.startup:.1f} | {row.accuracy:.3f} |"
        )
    return "\n".join([*lines, "", *(_sentence(verdict) for verdict in verdicts)])


def _sentence(verdict: Verdict) -> str:
    word = {True: "holds", False: "missed", None: "not raced"}[verdict.holds]
    closest = verdict.closest
    if closest is None or closest.ratio is None:
        return f"- {word}: {verdict.bar.claim}."
    middle, extremes = closest.ratio.show(2)
    return f"- {word}: {verdict.bar.claim}. {middle} times ({extremes}) as fast as {closest.competitor.name}."
