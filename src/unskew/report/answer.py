"""Which method, by how much, and whether the seeds back it: the one source of what tables, figures, pages and
terminals say of methods that ran under the same conditions.

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
from unskew.report.skew_words import skew_in_words

REFERENCE = "fedavg"
SHOWN = 5e-4
"""Less than this is 0.0 points as printed."""
MOST_NAMES = 4
"""Methods that a sentence names."""
MANY = 100
"""Seeds that nobody runs."""

RunsByMethod = Mapping[str, Sequence[SavedRun]]
"""The runs of each method."""
Values = Mapping[str, Mapping[str, Mapping[int, float | None]]]
"""Of each method, by measure and seed."""

MAIN = ("accuracy", "worst", "vacant")
"""What a comparison shows first, by the names of MEASURES."""
MAIN_AT_SITES = ("site-mean", "worst-site", "worst")
"""The same where test samples belong to sites."""
TITLES = {
    "accuracy": "accuracy",
    "worst": "worst class",
    "majority": "majority classes",
    "minority": "minority classes",
    "vacant": "vacant classes",
    "site-mean": "mean over sites",
    "worst-site": "worst site",
}
"""What is compared between methods, in the words of tables and figures."""


@dataclass(frozen=True)
class Moment:
    """When runs are compared: at their end, or in the last round that all have reached."""

    round: int | None
    """None: at the end."""

    @property
    def verb(self) -> str:
        return "ends" if self.round is None else "stands"

    def reached(self, run: SavedRun) -> bool:
        """Whether a run has come so far."""
        return run.finished if self.round is None else any(line.round == self.round for line in run.tested)

    def series(self, run: SavedRun, measure: Measure) -> dict[int, float]:
        """A measure of a run by round, up to this time."""
        known = series(run, measure).items()
        return {round: value for round, value in known if self.round is None or round <= self.round}

    def value(self, run: SavedRun, measure: Measure) -> float | None:
        """A measure of a run's model at this time."""
        if self.round is None:
            return final_value(run, measure)
        if measure.probed:
            return next(reversed(self.series(run, measure).values()), None)
        return measure.of(next(line for line in run.tested if line.round == self.round))


@dataclass(frozen=True)
class Standing:
    """A method in a comparison."""

    name: str
    values: Mapping[str, metrics.SeedsSummary | None]
    """By measure, over the seeds that are compared."""
    differences: Mapping[str, Difference | None]
    """By measure, against the reference; empty for the reference itself."""


@dataclass(frozen=True)
class Answer:
    """What runs of methods under the same conditions come to."""

    sentence: str
    skew: str
    """How skewed the clients' labels are, in one sentence."""
    notes: tuple[str, ...] = ()
    """What keeps the sentence honest, one sentence each."""
    reference: str | None = None
    """The method that the others are compared with; None where nothing is compared."""
    round: int | None = None
    """The round that is compared; None at the end of the runs."""
    seeds: tuple[int, ...] = ()
    """Those that are compared."""
    measures: tuple[str, ...] = ()
    """What is compared, the main three first, by the names of MEASURES."""
    standings: tuple[Standing, ...] = ()
    best: Mapping[str, str | None] = field(default_factory=dict)
    """By measure, the method that is above every other one beyond chance."""

    @property
    def main(self) -> tuple[str, ...]:
        """The three measures that are shown first."""
        return self.measures[: len(MAIN)]

    @property
    def others(self) -> tuple[Standing, ...]:
        """The methods that are compared with the reference."""
        return tuple(each for each in self.standings if each.differences)

    def lines(self) -> list[str]:
        """A line for each method: its difference by the first measure, and whether it is settled."""
        return [
            f"{each.name} {points(found)}: {verdict(found)}." if found else f"{each.name}: {verdict(found)}."
            for each in self.others
            for found in [each.differences[self.main[0]]]
        ]


def moment(runs: Sequence[SavedRun]) -> Moment | None:
    """For runs that were tested; None where no round was tested in all of them."""
    if all(run.finished for run in runs):
        return Moment(None)
    common = set.intersection(*({line.round for line in run.tested} for run in runs))
    return Moment(max(common)) if common else None


def runs_at_moment(methods: RunsByMethod, answer: Answer) -> tuple[Moment | None, dict[str, list[SavedRun]]]:
    """When the runs of an answer are compared, and all that have come so far: also of seeds and methods that
    it leaves out. Where it compares nothing, all that were tested, at a time that they have in common; None
    where there is none."""
    begun = _begun(methods)
    runs = [run for seeds in begun.values() for run in seeds]
    when = Moment(answer.round) if answer.standings else moment(runs) if runs else None
    return when, {
        name: [run for run in begun.get(name, []) if when is None or when.reached(run)] for name in methods
    }


def choose_reference(methods: RunsByMethod, wanted: str | None = None) -> str:
    """The method that the others are compared with: the one asked for, else the one that was asked for when
    all of them were run, else FedAvg, else the first."""
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


def answer(methods: RunsByMethod, *, reference: str | None = None) -> Answer:
    """For runs that differ in method and seed alone."""
    runs = [run for seeds in methods.values() for run in seeds]
    where, skew = _where(runs[0]), skew_in_words(runs[0])
    seed = f" (seed {runs[0].seed})" if any(_divided(run) != _divided(runs[0]) for run in runs) else ""
    skew = f"{skew[:1].upper()}{skew[1:]}{seed}."
    begun = _begun(methods)
    if not begun:
        return Answer(f"{where}, no round has been tested yet.", skew)
    compared, shared = _same_seeds(begun, reference)
    if not shared:
        return Answer(f"{where}, the methods have no seed in common, so they are not compared.", skew)
    notes = _left_out(methods, compared, len(shared))
    tested = [run for seeds in compared.values() for run in seeds]
    when = moment(tested)
    if when is None:
        return Answer(f"{where}, no round has been tested in all runs yet.", skew, tuple(notes))
    if when.round is not None:
        where = f"{where}, after {when.round} round{'s' * (when.round > 1)}"
        notes.append(
            f"Not all runs have ended: the numbers are of round {when.round}, the last that all reached."
        )
    against = reference if reference in compared else choose_reference(compared)
    if reference in methods and reference not in compared:
        notes.append(f"{reference} has too few seeds to compare with, so {against} takes its place.")
    found = replace(_compare(compared, against, when), skew=skew)
    if len(compared) == 1:
        alone = f"{where}, {_alone(found, when)}."
        return replace(
            found,
            sentence=_unbroken(alone),
            notes=(*_about_seeds(found), *_none_other(methods), *notes),
            reference=None,
        )
    sentence = f"{where}, {_few_seeds(found, when) or _claims(found, when)}."
    return replace(
        found,
        sentence=_unbroken(sentence),
        notes=tuple(_unbroken(note) for note in (*_about_seeds(found), *_other_claims(found), *notes)),
    )


def _begun(methods: RunsByMethod) -> dict[str, list[SavedRun]]:
    """The runs that were tested and have not failed: others would wait for one that goes no further. Where
    nothing else is there, those that failed."""
    tested = {name: [run for run in runs if run.tested] for name, runs in methods.items()}
    going = {name: [run for run in runs if not run.failure] for name, runs in tested.items()}
    return {name: runs for name, runs in (going if any(going.values()) else tested).items() if runs}


def _same_seeds(methods: RunsByMethod, reference: str | None) -> tuple[dict[str, list[SavedRun]], set[int]]:
    """The methods with the seeds that all of them have: a mean over other seeds may be higher for the seeds
    alone. Methods with so few of these that the others could claim nothing for their sake are left out."""

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


def _left_out(methods: RunsByMethod, compared: RunsByMethod, seeds: int) -> list[str]:
    notes = []
    if gone := [name for name in methods if name not in compared]:
        notes.append(f"Not compared, for want of tested seeds that the others have: {join(gone)}.")
    runs = sum(len(methods[name]) for name in compared)
    if (left := runs - seeds * len(compared)) > 0:
        notes.append(
            f"Left out: {left} of {runs} runs, failed, not tested yet or of a seed that not all methods have."
        )
    return notes


def _none_other(methods: RunsByMethod) -> list[str]:
    return ["No other method is here to compare it with."] if len(methods) == 1 else []


def _compare(methods: RunsByMethod, reference: str, when: Moment) -> Answer:
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
) -> Answer:
    """The numbers of an answer, without its words, where every difference is over the seeds that both have.
    The first measure is one family of claims, the others together are a second. Methods of different groups
    are of different families; without groups, all are of one."""
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
    seeds = tuple(sorted(values[reference][measures[0]]))
    return Answer("", "", (), reference, None, seeds, measures, standings, best)


def claims(answer: Answer) -> tuple[str, list[str]]:
    """What the seeds back of methods that have ended, as what follows "On these data,", and sentences on
    single classes and clients' classes."""
    sentence = _few_seeds(answer, Moment(None)) or _claims(answer, Moment(None))
    return _unbroken(sentence), [_unbroken(note) for note in _other_claims(answer)]


def best_backed(
    values: Mapping[str, Mapping[int, float | None]],
    reference: str,
    differences: Mapping[str, Difference | None],
) -> str | None:
    """The method above every other one, as far as that claims no more of the reference than Holm allows."""
    best = metrics.best_of(values)
    concerned = list(differences) if best == reference else [best] if best is not None else []
    claims = [differences[name] for name in concerned]
    return best if all(claim is not None and claim.settled for claim in claims) else None


# Words


def signed(value: float, digits: int = 1) -> str:
    """A difference of accuracies in points."""
    shown = f"{round(100 * value, digits) + 0.0:+.{digits}f}"
    return (f"{0:.{digits}f}" if float(shown) == 0 else shown).replace("-", "−")


def between(interval: tuple[float, float]) -> str:
    """The ends of an interval of differences."""
    return f"{signed(interval[0])} to {signed(interval[1])}"


def points(found: Difference) -> str:
    """A difference in points, with its interval where there is one."""
    return signed(found.difference) + (f" ({between(found.interval)})" if found.interval else "")


def verdict(found: Difference | None) -> str:
    """Whether a difference is significant, and if not, with how many seeds it would be."""
    if found is None:
        return "not compared, as a value is missing"
    number = len(found.seeds)
    if found.interval is None:
        return f"not tested with {'one seed' if number == 1 else f'{number} seeds'}; give three or more"
    if found.p is None:
        return "the same in every seed" if _same(found) else "no spread over seeds to judge it by"
    if found.settled:
        return "significant"
    more = "more are not likely to change that"
    if found.needed is not None:
        more = (
            f"with about {found.needed} it would be" if found.needed <= MANY else f"it would take over {MANY}"
        )
    alone = found.interval[0] > 0 or found.interval[1] < 0
    corrected = " after correction" if alone else ""
    return f"not significant{corrected} with {number} seeds; {more}"


def join(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """Names in a sentence, the last of many only counted."""
    shown = list(names) if len(names) <= most + 1 else [*names[:most], f"{len(names) - most} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _unbroken(text: str) -> str:
    """No line ends between a number and what belongs to it."""
    return text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}").replace(" %", "\N{NO-BREAK SPACE}%")


def _divided(run: SavedRun) -> bytes:
    return run.counts.tobytes()


def _where(run: SavedRun) -> str:
    cohort = run.experiment["budget"]["cohort"]
    some = "" if cohort == "all" else f", {cohort} of them a round"
    if run.skew == "natural":
        return f"On {run.data} with its {run.clients} sites as clients{some}"
    return f"On {run.data} split by {run.skew} over {run.clients} clients{some}"


def _percent(value: metrics.SeedsSummary | None) -> str:
    """Mean ± standard deviation; empty where there is no value."""
    return "" if value is None else f"{metrics.plus_minus(value, scale=100)} %"


def _alone(answer: Answer, when: Moment) -> str:
    (one,) = answer.standings
    parts = []
    for measure in answer.measures[1:]:
        if known := _percent(one.values[measure]):
            whose = "its" if measure not in GROUPS else "clients'"
            parts.append(f"{whose} {TITLES[measure]} at {known}")
    where = f"{_percent(one.values[answer.main[0]])}{_at_sites(answer)}"
    return f"{one.name} {when.verb} at {where}: {', '.join(parts)}"


def _at_sites(answer: Answer) -> str:
    return " on the mean over sites" if answer.main[0] == "site-mean" else ""


def _about_seeds(answer: Answer) -> list[str]:
    number = len(answer.seeds)
    if len(answer.standings) == 1:
        return [f"± is the standard deviation over {number} seeds."] if number > 1 else []
    if number == 1:
        return ["One seed: results may differ with another; three or more can back a claim."]
    spread = f"± is the standard deviation over {number} seeds"
    if number < metrics.FEWEST:
        return [f"{spread}; intervals and tests need three seeds or more."]
    others = len(answer.standings) - 1
    family = f"Holm's correction for {others} methods" if others > 1 else "no correction: one difference"
    more = "worst site, worst class" if "worst-site" in answer.measures else "worst class"
    return [
        f"{spread}; differences are taken seed by seed, with 95 % intervals of each alone; a sign is claimed "
        f"by paired t-tests at 5 % ({family}; {more} and clients' classes are corrected together)."
    ]


def _few_seeds(answer: Answer, when: Moment) -> str:
    """Numbers without a claim, where there are too few seeds for one."""
    number = len(answer.seeds)
    if number >= metrics.FEWEST:
        return ""
    main, seeds = answer.main[0], "one seed" if number == 1 else f"{number} seeds"
    ranked = sorted(answer.standings, key=lambda each: -_mean(each, main))
    shown = [_percent(each.values[main]) for each in ranked]
    level = [each.name for each, text in zip(ranked, shown, strict=True) if text == shown[0]]
    if len(level) > 1:
        end = when.verb.removesuffix("s")
        high = " highest" if len(level) < len(ranked) else ""
        return f"in {seeds} {join(level)} {end}{high} alike at {shown[0]}{_at_sites(answer)}"
    other = next((each for each in ranked[1:] if each.name == answer.reference), ranked[1])
    among = f" highest of {len(ranked)} methods" if len(ranked) > 2 else ""
    back = "backs" if number == 1 else "back"
    return (
        f"in {seeds} {ranked[0].name} {when.verb}{among} at {shown[0]}, {other.name} at "
        f"{_percent(other.values[main])}{_at_sites(answer)}; {seeds} {back} no claim"
    )


def _mean(standing: Standing, measure: str) -> float:
    value = standing.values[measure]
    return float("-inf") if value is None else value.mean


def _claims(answer: Answer, when: Moment) -> str:
    """What the seeds back."""
    main, number, ends = answer.main[0], len(answer.seeds), when.verb
    end = ends.removesuffix("s")
    by_name = {each.name: each for each in answer.standings}
    at = {name: _percent(each.values[main]) for name, each in by_name.items()}
    assert answer.reference is not None
    reference = f"{answer.reference}'s {at[answer.reference]}{_at_sites(answer)}"
    if all(_same(each.differences[main]) for each in answer.others):
        level = f"{at[answer.reference]}{_at_sites(answer)}"
        return f"{join(list(by_name))} {end} the same in every seed, at {level}"
    if len(answer.others) == 1:
        (one,) = answer.others
        found = one.differences[main]
        if found is None or found.interval is None:
            return f"{one.name} {ends} at {at[one.name]} against {reference}, which are not compared"
        change = _interval(found)
        doubt = "" if found.settled else f", which is not significant with {number} seeds"
        return f"{one.name} {ends} at {at[one.name]} against {reference}{doubt} ({change}){_gains(one)}"
    best, above_all = answer.best[main], f"above each of the {len(by_name) - 1} other methods"
    if best == answer.reference:
        return f"{best} {ends} {above_all}, at {at[best]}{_at_sites(answer)}"
    if best is not None:
        found = by_name[best].differences[main]
        assert found is not None
        change = _interval(found)
        return (
            f"{best} {ends} {above_all}, at {at[best]} against {reference} ({change}){_gains(by_name[best])}"
        )
    above, below = _settled(answer, main)
    lower = f"{join(below)} {_agree(below, end)} below it" if below else ""
    if above:
        open_ = f"{number} seeds do not show which method is best"
        return "; ".join(
            part for part in (f"{join(above)} {_agree(above, end)} above {reference}", lower, open_) if part
        )
    if below:
        return f"no method {ends} significantly above {reference}; {lower}"
    first = max(answer.others, key=lambda each: _mean(each, main))
    found = first.differences[main]
    none = f"with {number} seeds none of {len(answer.others)} methods differs significantly from {reference}"
    if found is None or abs(found.difference) < SHOWN:
        return none
    alone = found.interval is not None and (found.interval[0] > 0 or found.interval[1] < 0)
    doubt = f"; significant alone, but not after correction for {len(answer.others)} methods" if alone else ""
    return f"{none}; {first.name} has the highest mean, {at[first.name]} ({_interval(found)}{doubt})"


def _interval(found: Difference) -> str:
    change = f"{signed(found.difference)} points"
    return f"{change}, 95 % interval {between(found.interval)}" if found.interval else change


def _same(found: Difference | None) -> bool:
    return found is not None and found.std == 0 and abs(found.difference) < SHOWN


def _agree(names: Sequence[str], verb: str) -> str:
    return f"{verb}s" if len(names) == 1 else verb


def _settled(answer: Answer, measure: str) -> tuple[list[str], list[str]]:
    """The methods that are above the reference and those below, beyond chance, each with its difference."""
    found = [(each.name, each.differences[measure]) for each in answer.others]
    claims = sorted(
        ((one.difference, name) for name, one in found if one is not None and one.settled), reverse=True
    )
    above = [f"{name} ({signed(change)})" for change, name in claims if change > 0]
    return above, [f"{name} ({signed(change)})" for change, name in claims[::-1] if change < 0]


def _gains(one: Standing) -> str:
    """Which of the clients' classes gain and which lose, where the seeds back it."""
    claims = [(group, one.differences.get(group)) for group in GROUPS]
    gains = sorted(
        ((found.difference, group) for group, found in claims if found is not None and found.settled),
        reverse=True,
    )
    if not gains:
        return "; no group of clients' classes gains or loses significantly"
    words = [
        f"{group} classes {'gain' if change > 0 else 'lose'} {100 * abs(change):.1f}"
        for change, group in gains
    ]
    return f"; with it clients' {words[0]} points" + "".join(f", {word}" for word in words[1:])


def _other_claims(answer: Answer) -> list[str]:
    """What the seeds back of single classes and of clients' classes, where there are several methods."""
    notes = []
    for measure in answer.measures[1:] if len(answer.others) > 1 else ():
        above, below = _settled(answer, measure)
        parts = [
            f"{way} {answer.reference}'s with {join(names)}"
            for way, names in (("above", above), ("below", below))
            if names
        ]
        if parts:
            notes.append(f"{TITLES[measure].capitalize()}: {', '.join(parts)}.")
    return notes
