"""The sentences about a comparison: what its seeds support, and what a reader has to know."""

from __future__ import annotations

from collections.abc import Sequence

from unskew import metrics
from unskew.metrics import GROUPS, Difference
from unskew.report.differences import SHOWN, between, is_same, signed
from unskew.report.read import SavedRun
from unskew.report.standings import TITLES, Moment, RunsByMethod, Standing, Standings

MOST_NAMES = 4
"""The most methods that a sentence names."""


def join(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """Write names as a list in a sentence; if there are many, the last ones are only counted."""
    shown = list(names) if len(names) <= most + 1 else [*names[:most], f"{len(names) - most} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def unbroken(text: str) -> str:
    """Keep numbers on one line with their unit and their spread, by spaces that do not break."""
    return text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}").replace(" %", "\N{NO-BREAK SPACE}%")


def where_it_ran(run: SavedRun) -> str:
    """Return the beginning of a sentence that names a run's data, skew and clients."""
    cohort = run.experiment["budget"]["cohort"]
    some = "" if cohort == "all" else f", {cohort} of them a round"
    if run.skew == "natural":
        return f"On {run.data} with its {run.clients} sites as clients{some}"
    return f"On {run.data} split by {run.skew} over {run.clients} clients{some}"


# What the seeds support


def claims(found: Standings) -> tuple[str, list[str]]:
    """Return what the seeds support about methods whose runs have all ended.

    The text continues a sentence such as "On these data, ..."; the list has whole sentences about single
    classes and about the clients' groups of classes.
    """
    end = Moment(None)
    return unbroken(claim(found, end)), [unbroken(note) for note in other_claims(found)]


def claim(found: Standings, when: Moment) -> str:
    """Return what the seeds support about two or more methods by the first measure, without "On ..., "."""
    return _few_seeds(found, when) or _claims(found, when)


def describe_one(found: Standings, when: Moment) -> str:
    """Return the numbers of the only method, without "On ..., "."""
    (one,) = found.standings
    parts = []
    for measure in found.measures[1:]:
        if known := _percent(one.values[measure]):
            whose = "its" if measure not in GROUPS else "clients'"
            parts.append(f"{whose} {TITLES[measure]} at {known}")
    level = f"{_percent(one.values[found.main[0]])}{_at_sites(found)}"
    return f"{one.name} {when.verb} at {level}: {', '.join(parts)}"


def _few_seeds(found: Standings, when: Moment) -> str:
    """Return the numbers without any claim; empty if there are enough seeds for claims."""
    number = len(found.seeds)
    if number >= metrics.FEWEST:
        return ""
    main, seeds = found.main[0], "one seed" if number == 1 else f"{number} seeds"
    ranked = sorted(found.standings, key=lambda each: -_mean(each, main))
    shown = [_percent(each.values[main]) for each in ranked]
    level = [each.name for each, text in zip(ranked, shown, strict=True) if text == shown[0]]
    if len(level) > 1:
        end = when.verb.removesuffix("s")
        high = " highest" if len(level) < len(ranked) else ""
        return f"in {seeds} {join(level)} {end}{high} alike at {shown[0]}{_at_sites(found)}"
    other = next((each for each in ranked[1:] if each.name == found.reference), ranked[1])
    among = f" highest of {len(ranked)} methods" if len(ranked) > 2 else ""
    back = "backs" if number == 1 else "back"
    return (
        f"in {seeds} {ranked[0].name} {when.verb}{among} at {shown[0]}, {other.name} at "
        f"{_percent(other.values[main])}{_at_sites(found)}; {seeds} {back} no claim"
    )


def _claims(found: Standings, when: Moment) -> str:
    """Return what enough seeds support by the first measure."""
    main = found.main[0]
    if all(is_same(each.differences[main]) for each in found.others):
        names = [each.name for each in found.standings]
        return f"{join(names)} {_plural(when)} the same in every seed, at {_reference_level(found)}"
    if len(found.others) == 1:
        return _one_against_reference(found, when)
    if found.best[main] is not None:
        return _one_above_all(found, when)
    return _some_above_or_below(found, when) or _none_significant(found)


def _one_against_reference(found: Standings, when: Moment) -> str:
    main, (one,) = found.main[0], found.others
    difference, level = one.differences[main], _percent(one.values[main])
    against = f"{found.reference}'s {_reference_level(found)}"
    if difference is None or difference.interval is None:
        return f"{one.name} {when.verb} at {level} against {against}, which are not compared"
    doubt = "" if difference.settled else f", which is not significant with {len(found.seeds)} seeds"
    return (
        f"{one.name} {when.verb} at {level} against {against}{doubt} ({_interval(difference)})"
        f"{_classes_that_change(one)}"
    )


def _one_above_all(found: Standings, when: Moment) -> str:
    main = found.main[0]
    best = next(each for each in found.standings if each.name == found.best[main])
    above_all = f"above each of the {len(found.standings) - 1} other methods"
    level = _percent(best.values[main])
    if best.name == found.reference:
        return f"{best.name} {when.verb} {above_all}, at {level}{_at_sites(found)}"
    difference = best.differences[main]
    assert difference is not None
    return (
        f"{best.name} {when.verb} {above_all}, at {level} against {found.reference}'s "
        f"{_reference_level(found)} ({_interval(difference)}){_classes_that_change(best)}"
    )


def _some_above_or_below(found: Standings, when: Moment) -> str:
    """Name the methods that are significantly above or below the reference; empty if there are none."""
    above, below = _significant(found, found.main[0])
    reference = f"{found.reference}'s {_reference_level(found)}"
    lower = f"{join(below)} {_agree(below, when)} below it" if below else ""
    if above:
        open_ = f"{len(found.seeds)} seeds do not show which method is best"
        return "; ".join(
            part for part in (f"{join(above)} {_agree(above, when)} above {reference}", lower, open_) if part
        )
    return f"no method {when.verb} significantly above {reference}; {lower}" if below else ""


def _none_significant(found: Standings) -> str:
    main = found.main[0]
    first = max(found.others, key=lambda each: _mean(each, main))
    difference = first.differences[main]
    none = (
        f"with {len(found.seeds)} seeds none of {len(found.others)} methods differs significantly from "
        f"{found.reference}'s {_reference_level(found)}"
    )
    if difference is None or abs(difference.difference) < SHOWN:
        return none
    interval = difference.interval
    alone = interval is not None and (interval[0] > 0 or interval[1] < 0)
    doubt = f"; significant alone, but not after correction for {len(found.others)} methods" if alone else ""
    return (
        f"{none}; {first.name} has the highest mean, {_percent(first.values[main])} "
        f"({_interval(difference)}{doubt})"
    )


def other_claims(found: Standings) -> list[str]:
    """Return sentences on the measures after the first; none if one alone is compared to the reference."""
    notes = []
    for measure in found.measures[1:] if len(found.others) > 1 else ():
        above, below = _significant(found, measure)
        parts = [
            f"{way} {found.reference}'s with {join(names)}"
            for way, names in (("above", above), ("below", below))
            if names
        ]
        if parts:
            notes.append(f"{TITLES[measure].capitalize()}: {', '.join(parts)}.")
    return notes


def _significant(found: Standings, measure: str) -> tuple[list[str], list[str]]:
    """Return the methods significantly above the reference and the ones below, each with its difference."""
    differences = [(each.name, each.differences[measure]) for each in found.others]
    claims = sorted(
        ((one.difference, name) for name, one in differences if one is not None and one.settled), reverse=True
    )
    above = [f"{name} ({signed(change)})" for change, name in claims if change > 0]
    return above, [f"{name} ({signed(change)})" for change, name in claims[::-1] if change < 0]


def _classes_that_change(one: Standing) -> str:
    """Name the groups of clients' classes that gain or lose significantly with a method, and say so of the
    worst class."""
    claims = [(name, one.differences.get(name)) for name in (*GROUPS, "worst")]
    changes = {name: found.difference for name, found in claims if found is not None and found.settled}
    worst = changes.pop("worst", None)
    words = [
        f"{group} classes {'gain' if changes[group] > 0 else 'lose'} {100 * abs(changes[group]):.1f}"
        for group in sorted(changes, key=lambda group: -changes[group])
    ]
    if words:
        words[0] = f"clients' {words[0]}"
    if worst is not None:
        words.append(f"the worst class {'gains' if worst > 0 else 'loses'} {100 * abs(worst):.1f}")
    if not words:
        return "; no group of clients' classes gains or loses significantly"
    return f"; with it {words[0]} points" + "".join(f", {word}" for word in words[1:])


# What a reader has to know


def about_seeds(found: Standings) -> list[str]:
    """Return a note on the number of seeds, and on how differences over them are tested."""
    number = len(found.seeds)
    if len(found.standings) == 1:
        return [f"± is the standard deviation over {number} seeds."] if number > 1 else []
    if number == 1:
        return ["One seed: results may differ with another; three or more can back a claim."]
    spread = f"± is the standard deviation over {number} seeds"
    if number < metrics.FEWEST:
        return [f"{spread}; intervals and tests need three seeds or more."]
    others = len(found.standings) - 1
    family = f"Holm's correction for {others} methods" if others > 1 else "no correction: one difference"
    more = "worst site, worst class" if "worst-site" in found.measures else "worst class"
    return [
        f"{spread}; differences are taken seed by seed, with 95 % intervals of each alone; a sign is claimed "
        f"by paired t-tests at 5 % ({family}; {more} and clients' classes are corrected together)."
    ]


def about_left_out(methods: RunsByMethod, compared: RunsByMethod, seeds: int) -> list[str]:
    """Return notes on the methods and runs that are not compared, with the number of compared seeds."""
    notes = []
    if gone := [name for name in methods if name not in compared]:
        notes.append(f"Not compared, for want of tested seeds that the others have: {join(gone)}.")
    runs = sum(len(methods[name]) for name in compared)
    if (left := runs - seeds * len(compared)) > 0:
        notes.append(
            f"Left out: {left} of {runs} runs, failed, not tested yet or of a seed that not all methods have."
        )
    return notes


# Parts of sentences


def _percent(value: metrics.SeedsSummary | None) -> str:
    """Write mean ± standard deviation in percent; empty if there is no value."""
    return "" if value is None else f"{metrics.plus_minus(value, scale=100)} %"


def _at_sites(found: Standings) -> str:
    return " on the mean over sites" if found.main[0] == "site-mean" else ""


def _reference_level(found: Standings) -> str:
    reference = next(each for each in found.standings if each.name == found.reference)
    return f"{_percent(reference.values[found.main[0]])}{_at_sites(found)}"


def _interval(found: Difference) -> str:
    change = f"{signed(found.difference)} points"
    return f"{change}, 95 % interval {between(found.interval)}" if found.interval else change


def _mean(standing: Standing, measure: str) -> float:
    value = standing.values[measure]
    return float("-inf") if value is None else value.mean


def _plural(when: Moment) -> str:
    return when.verb.removesuffix("s")


def _agree(names: Sequence[str], when: Moment) -> str:
    return when.verb if len(names) == 1 else _plural(when)
