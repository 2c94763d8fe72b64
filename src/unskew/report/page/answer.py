"""Which method, how skewed, who gains: in one sentence that says no more than the runs do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from unskew import metrics
from unskew.report.measures import MEASURES, final_value
from unskew.report.read import Run

GROUPS = ("majority", "minority", "vacant")
BASELINE = "fedavg"
SHOWN = 5e-4
"""Less than this is 0.0 points as printed."""

Value = Callable[[Run], float | None]
Seeds = Mapping[str, Sequence[Run]]
"""The runs of each method."""


@dataclass(frozen=True)
class Answer:
    sentence: str
    notes: tuple[str, ...]
    """What keeps the sentence honest, one sentence each."""


@dataclass(frozen=True)
class Moment:
    """When runs are compared: at their end, or in the last round that all have reached."""

    round: int | None
    """None: at the end."""

    @property
    def verb(self) -> str:
        return "ends" if self.round is None else "stands"

    def value(self, name: str) -> Value:
        """How to take one of MEASURES from a run."""

        def take(run: Run) -> float | None:
            if self.round is None:
                return final_value(run, MEASURES[name])
            return MEASURES[name].of(next(line for line in run.tested if line.round == self.round))

        return take


def moment(runs: Sequence[Run]) -> Moment | None:
    """For runs that were tested; None where no round was tested in all of them."""
    if all(run.finished for run in runs):
        return Moment(None)
    common = set.intersection(*({line.round for line in run.tested} for run in runs))
    return Moment(max(common)) if common else None


def paired(first: Sequence[Run], second: Sequence[Run], value: Value) -> metrics.Comparison | None:
    """Two methods on the seeds that both have."""
    return metrics.compare({run.seed: value(run) for run in first}, {run.seed: value(run) for run in second})


def answer(methods: Seeds) -> Answer:
    """For runs that differ in method and seed alone."""
    runs = [run for seeds in methods.values() for run in seeds]
    where = _where(runs[0])
    begun = {name: tested for name, seeds in methods.items() if (tested := [r for r in seeds if r.tested])}
    if not begun:
        return Answer(f"{where}, no round has been tested yet.", ())
    shared = set.intersection(*({run.seed for run in seeds} for seeds in begun.values()))
    if not shared:
        return Answer(f"{where}, the methods have no seed in common, so they are not compared.", ())
    # A mean over other seeds may be higher for the seeds alone.
    begun = {name: [run for run in seeds if run.seed in shared] for name, seeds in begun.items()}
    tested = [run for seeds in begun.values() for run in seeds]
    notes = []
    if len(tested) < len(runs):
        notes.append(
            f"Left out: {len(runs) - len(tested)} of {len(runs)} runs, not tested yet or of a seed that not "
            "all methods have."
        )
    when = moment(tested)
    if when is None:
        return Answer(f"{where}, no round has been tested in all runs yet.", tuple(notes))
    if when.round is not None:
        where = f"{where}, after {when.round} round{'s' * (when.round > 1)}"
        notes.append(
            f"Not all runs have ended: the numbers are of round {when.round}, the last that all reached."
        )
    told = _compare(where, begun, when) if len(begun) > 1 else _alone(where, begun, when)
    return Answer(_unbroken(told.sentence), (*told.notes, *notes))


def _unbroken(text: str) -> str:
    """No line ends between a number and what belongs to it."""
    return text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}").replace(" %", "\N{NO-BREAK SPACE}%")


def _where(run: Run) -> str:
    cohort = run.experiment["budget"]["cohort"]
    some = "" if cohort == "all" else f", {cohort} of them a round"
    return f"On {run.experiment['data']['name']} split by {run.skew} over {run.clients} clients{some}"


def _alone(where: str, methods: Seeds, when: Moment) -> Answer:
    ((name, runs),) = methods.items()
    last = _percent(runs, when.value("accuracy"))
    parts = [f"its worst class at {_percent(runs, when.value('worst'))}"]
    for group in GROUPS:
        if told := _percent(runs, when.value(group)):
            whose = "clients' " if len(parts) == 1 else ""
            parts.append(f"{whose}{group} classes at {told}")
    return Answer(
        f"{where}, {name} {when.verb} at {last}: {', '.join(parts)}.",
        (*_about_seeds(methods), "No other method is here to compare it with."),
    )


def _compare(where: str, methods: Seeds, when: Moment) -> Answer:
    last = when.value("accuracy")
    means = {name: _mean(runs, last) for name, runs in methods.items()}
    first, second, *_ = sorted(means, key=lambda name: -means[name])
    baseline = next((name for name, runs in methods.items() if runs[0].label == BASELINE), None)
    other = second if baseline is None or baseline == first else baseline
    mine, theirs = methods[first], methods[other]
    high, low = _percent(mine, last), _percent(theirs, last)
    among = f" highest of {len(methods)} methods," if len(methods) > 2 else ""
    sentence = f"{where}, {first} {when.verb}{among} at {high} against {other}'s {low}"
    difference = paired(mine, theirs, last)
    notes = _about_seeds(methods)
    assert difference is not None  # they share all seeds
    if difference.interval is None:
        sentence += " in one seed"
    elif not _clear(difference):
        ends = " to ".join(f"{100 * end:.1f}".replace("-", "−") for end in difference.interval)
        number = len(difference.seeds)
        sentence += f", a difference that {number} seeds do not settle (95 % interval {ends} points)"
    if other != second and (behind := paired(mine, methods[second], last)) and not _clear(behind):
        notes.append(f"{second}, at {_percent(methods[second], last)}, is not clearly behind {first}.")
    return Answer(f"{sentence}{_gains(mine, theirs, when)}.", tuple(notes))


def _gains(mine: Sequence[Run], theirs: Sequence[Run], when: Moment) -> str:
    """Which of the clients' classes gain and which lose, where the seeds leave no doubt."""
    told = []
    for group in GROUPS:
        change = paired(mine, theirs, when.value(group))
        if change and _clear(change) and abs(change.difference) >= SHOWN:
            told.append((change.difference, group))
    if not told:
        return "; no group of classes clearly gains or loses"
    words = [
        f"{group} classes {'gain' if change > 0 else 'lose'} {100 * abs(change):.1f}"
        for change, group in sorted(told, reverse=True)
    ]
    return f"; with it clients' {words[0]} points" + "".join(f", {word}" for word in words[1:])


def _clear(change: metrics.Comparison) -> bool:
    """Whether seeds leave no doubt about the sign; of one seed that is noted apart."""
    if change.interval is None:
        return True
    return change.interval[0] > 0 or change.interval[1] < 0


def _about_seeds(methods: Seeds) -> list[str]:
    seeds = len(next(iter(methods.values())))  # all have the same
    if seeds == 1:
        return ["One seed: another may tell otherwise. Several, as in --seeds 1-5, show the spread."]
    return [f"± is the standard deviation over {seeds} seeds; differences are taken seed by seed."]


def _mean(runs: Sequence[Run], value: Value) -> float:
    known = metrics.over_seeds(value(run) for run in runs)
    return float("-inf") if known is None else known.mean


def _percent(runs: Sequence[Run], value: Value) -> str:
    """Mean ± standard deviation; empty where there is no value."""
    known = metrics.over_seeds(value(run) for run in runs)
    return "" if known is None else f"{metrics.plus_minus(known, scale=100)} %"
