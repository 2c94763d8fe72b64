"""The numbers of a comparison: which methods, seeds and round are compared, and how much the methods differ.

Every difference is a paired one, seed by seed, against one reference. Its sign is claimed only after Holm's
correction: for accuracy over all methods, for the class-wise measures over all methods and measures together.
A method is called the best only if it is above every other one as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from unskew import metrics
from unskew.errors import unknown
from unskew.metrics import GROUPS, Difference
from unskew.report.measures import MEASURES, Measure, final_value, series
from unskew.report.read import SavedRun

REFERENCE = "fedavg"

RunsByMethod = Mapping[str, Sequence[SavedRun]]
"""The runs of each method."""
Values = Mapping[str, Mapping[str, Mapping[int, float | None]]]
"""A value for each method, measure and seed."""

MAIN = ("accuracy", "worst", "vacant")
"""The measures that a comparison shows first, by their names in MEASURES."""
MAIN_AT_SITES = ("site-mean", "worst-site", "worst")
"""The measures that a comparison shows first if test samples belong to sites."""
TITLES = {
    "accuracy": "accuracy",
    "worst": "worst class",
    "majority": "majority classes",
    "minority": "minority classes",
    "vacant": "vacant classes",
    "site-mean": "mean over sites",
    "worst-site": "worst site",
}
"""The titles of the compared measures in tables and figures."""


@dataclass(frozen=True)
class Moment:
    """When runs are compared: at their end, or in the last round that all of them have tested."""

    round: int | None
    """The round, or None for the end of the runs."""

    @property
    def verb(self) -> str:
        """The verb for a result: a method "ends" at a value, or "stands" at one until all runs have ended."""
        return "ends" if self.round is None else "stands"

    def reached(self, run: SavedRun) -> bool:
        """Say whether a run has ended, or has tested the round of the comparison."""
        return run.finished if self.round is None else any(line.round == self.round for line in run.tested)

    def series(self, run: SavedRun, measure: Measure) -> dict[int, float]:
        """Return a measure of a run by round, without the rounds after this moment."""
        known = series(run, measure).items()
        return {round: value for round, value in known if self.round is None or round <= self.round}

    def value(self, run: SavedRun, measure: Measure) -> float | None:
        """Return a measure of the model that a run has at this moment; None if the measure is not known."""
        if self.round is None:
            return final_value(run, measure)
        if measure.probed:
            return next(reversed(self.series(run, measure).values()), None)
        return measure.of(next(line for line in run.tested if line.round == self.round))


@dataclass(frozen=True)
class Standing:
    """One method of a comparison."""

    name: str
    values: Mapping[str, metrics.SeedsSummary | None]
    """A summary over the compared seeds for each measure."""
    differences: Mapping[str, Difference | None]
    """The difference to the reference for each measure; empty for the reference itself."""


@dataclass(frozen=True, kw_only=True)
class Standings:
    """The numbers of a comparison of methods that ran under the same conditions."""

    reference: str | None = None
    """The method that the others are compared with; None if nothing is compared."""
    round: int | None = None
    """The round that is compared; None for the end of the runs."""
    seeds: tuple[int, ...] = ()
    """The seeds that are compared."""
    measures: tuple[str, ...] = ()
    """The compared measures by their names in MEASURES, the three main ones first."""
    standings: tuple[Standing, ...] = ()
    best: Mapping[str, str | None] = field(default_factory=dict)
    """For each measure the method that is significantly above every other one; None if there is none."""

    @property
    def main(self) -> tuple[str, ...]:
        """The three measures that are shown first."""
        return self.measures[: len(MAIN)]

    @property
    def others(self) -> tuple[Standing, ...]:
        """The methods that are compared with the reference."""
        return tuple(each for each in self.standings if each.differences)


def moment(runs: Sequence[SavedRun]) -> Moment | None:
    """Choose when to compare runs that were all tested; None if they have no tested round in common."""
    if all(run.finished for run in runs):
        return Moment(None)
    common = set.intersection(*({line.round for line in run.tested} for run in runs))
    return Moment(max(common)) if common else None


def runs_at_moment(
    methods: RunsByMethod, compared: Standings
) -> tuple[Moment | None, dict[str, list[SavedRun]]]:
    """Return the moment of a comparison and the runs of each method that have reached it.

    These include the runs of seeds and methods that the comparison leaves out. If it compares nothing, the
    moment is one that all tested runs have in common; if there is none, it is None and all tested runs are
    returned.
    """
    tested = comparable_runs(methods)
    runs = [run for seeds in tested.values() for run in seeds]
    when = Moment(compared.round) if compared.standings else moment(runs) if runs else None
    return when, {
        name: [run for run in tested.get(name, []) if when is None or when.reached(run)] for name in methods
    }


def choose_reference(methods: RunsByMethod, wanted: str | None = None) -> str:
    """Choose the method that the others are compared with.

    It is the wanted one; without it the one that was named when the runs were started; without that FedAvg;
    and if FedAvg was not run, the first method.
    """
    if wanted is not None:
        if (found := _named(wanted, methods)) is None:
            raise unknown("method among the runs", wanted, methods)
        return found
    asked = {run.reference for runs in methods.values() for run in runs}
    before = asked.pop() if len(asked) == 1 else None
    known = (_named(name, methods) for name in (before, REFERENCE) if name is not None)
    return next((name for name in known if name is not None), next(iter(methods)))


def _named(wanted: str, methods: RunsByMethod) -> str | None:
    return next((name for name, runs in methods.items() if wanted in (name, runs[0].label)), None)


def comparable_runs(methods: RunsByMethod) -> dict[str, list[SavedRun]]:
    """Return the tested runs of each method that have not failed, or the failed ones if all of them failed.

    A failed run would keep the others at the round where it stopped. Methods without such a run are left out.
    """
    tested = {name: [run for run in runs if run.tested] for name, runs in methods.items()}
    sound = {name: [run for run in runs if not run.failure] for name, runs in tested.items()}
    return {name: runs for name, runs in (sound if any(sound.values()) else tested).items() if runs}


def on_same_seeds(methods: RunsByMethod, reference: str | None) -> tuple[dict[str, list[SavedRun]], set[int]]:
    """Return the methods with their runs on the seeds that all of them have, and these seeds.

    A mean over other seeds may be higher because of the seeds alone. A method is left out if fewer than
    `metrics.FEWEST` common seeds would remain with it, unless no two methods have as many in common.
    """

    def shared(names: Sequence[str]) -> set[int]:
        return set.intersection(*({run.seed for run in methods[name]} for name in names))

    first = reference or choose_reference(methods)
    names = sorted(methods, key=lambda name: (name != first, -len(methods[name])))
    kept: list[str] = []
    for name in names:
        if len(shared([*kept, name])) >= metrics.FEWEST:
            kept.append(name)
    kept = kept if len(kept) > 1 else names
    seeds = shared(kept)
    return {
        name: [run for run in runs if run.seed in seeds] for name, runs in methods.items() if name in kept
    }, seeds


def compare_runs(methods: RunsByMethod, reference: str, when: Moment) -> Standings:
    """Compare methods by their runs on the same seeds.

    The measures are the main ones and those that at least one method has for all its runs.
    """
    sites = all(
        line.sites is not None for runs in methods.values() for run in runs for line in run.tested[-1:]
    )
    main = MAIN_AT_SITES if sites else MAIN
    wanted = (*main, *(name for name in ("worst", *GROUPS) if name not in main))
    values: Values = {
        name: {measure: {run.seed: when.value(run, MEASURES[measure]) for run in runs} for measure in wanted}
        for name, runs in methods.items()
    }
    measures = tuple(
        measure
        for measure in wanted
        if measure in main or any(None not in each[measure].values() for each in values.values())
    )
    return replace(compare_values(values, reference, measures), round=when.round)


def compare_values(
    values: Values, reference: str, measures: tuple[str, ...], groups: Sequence[Collection[str]] = ()
) -> Standings:
    """Compare methods by their values, each with the reference on the seeds that both have.

    The first measure is one family of claims, all others together are a second one. Methods of different
    `groups` belong to different families; without groups, all methods belong to the same two.
    """
    differences: dict[str, dict[str, Difference | None]] = {}
    for group in groups or [values]:
        some = {name: each for name, each in values.items() if name in group or name == reference}
        differences |= metrics.against_reference(some, reference, families=[measures[:1], measures[1:]])
    standings = tuple(
        Standing(
            name,
            {
                measure: metrics.over_seeds(each[measure].values(), bounds=metrics.SHARE)
                for measure in measures
            },
            differences.get(name, {}),
        )
        for name, each in values.items()
    )
    best = {
        measure: best_backed(
            {name: each[measure] for name, each in values.items()},
            reference,
            {name: each[measure] for name, each in differences.items()},
        )
        for measure in measures
    }
    return Standings(
        reference=reference,
        seeds=tuple(sorted(values[reference][measures[0]])),
        measures=measures,
        standings=standings,
        best=best,
    )


def best_backed(
    values: Mapping[str, Mapping[int, float | None]],
    reference: str,
    differences: Mapping[str, Difference | None],
) -> str | None:
    """Return the method that is above every other one, and above the reference after Holm's correction too.

    If it is the reference, its differences to all others must be significant after the correction. None if no
    method is above every other one.
    """
    best = metrics.best_of(values)
    concerned = list(differences) if best == reference else [best] if best is not None else []
    claims = [differences[name] for name in concerned]
    return best if all(claim is not None and claim.settled for claim in claims) else None
