"""Which method, by how much, and whether the seeds support it: the only source of what tables, figures, pages
and terminals say about methods that ran under the same conditions.

`standings` has the numbers and the rules, `sentences` puts them into words, and `answer` does both for runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from unskew.report.conditions import notes_on_tuned
from unskew.report.differences import points, verdict
from unskew.report.read import SavedRun
from unskew.report.sentences import (
    about_left_out,
    about_seeds,
    claim,
    describe_one,
    other_claims,
    unbroken,
    where_it_ran,
)
from unskew.report.skew_words import skew_in_words
from unskew.report.standings import (
    RunsByMethod,
    Standings,
    choose_reference,
    comparable_runs,
    compare_runs,
    moment,
    on_same_seeds,
)


@dataclass(frozen=True, kw_only=True)
class Answer(Standings):
    """A comparison of methods under the same conditions, in words and in numbers."""

    sentence: str
    skew: str
    """How skewed the clients' labels are, in one sentence."""
    notes: tuple[str, ...] = ()
    """What a reader has to know about the sentence and its numbers, one sentence each."""

    def lines(self) -> list[str]:
        """Return a line for each method but the reference: its difference, and if it is significant."""
        return [
            f"{each.name} {points(found)}: {verdict(found)}." if found else f"{each.name}: {verdict(found)}."
            for each in self.others
            for found in [each.differences[self.main[0]]]
        ]


def answer(methods: RunsByMethod, *, reference: str | None = None) -> Answer:
    """Compare the runs of methods that differ in method and seed alone, and say what the seeds support."""
    runs = [run for seeds in methods.values() for run in seeds]
    where, skew = where_it_ran(runs[0]), skew_in_words(runs[0])
    seed = (
        f" (seed {runs[0].seed})" if any(_partition_of(run) != _partition_of(runs[0]) for run in runs) else ""
    )
    skew = f"{skew[:1].upper()}{skew[1:]}{seed}."
    tuned = tuple(notes_on_tuned(methods))
    tested = comparable_runs(methods)
    if not tested:
        return Answer(sentence=f"{where}, no round has been tested yet.", skew=skew, notes=tuned)
    compared, shared = on_same_seeds(tested, reference)
    if not shared:
        sentence = f"{where}, the methods have no seed in common, so they are not compared."
        return Answer(sentence=sentence, skew=skew, notes=tuned)
    notes = about_left_out(methods, compared, len(shared))
    when = moment([run for seeds in compared.values() for run in seeds])
    if when is None:
        sentence = f"{where}, no round has been tested in all runs yet."
        return Answer(sentence=sentence, skew=skew, notes=(*notes, *tuned))
    if when.round is not None:
        where = f"{where}, after {when.round} round{'s' * (when.round > 1)}"
        notes.append(
            f"Not all runs have ended: the numbers are of round {when.round}, the last that all reached."
        )
    against = reference if reference in compared else choose_reference(compared)
    if reference in methods and reference not in compared:
        notes.append(f"{reference} has too few seeds to compare with, so {against} takes its place.")
    found = compare_runs(compared, against, when)
    if len(compared) == 1:
        text, about = describe_one(found, when), about_seeds(found)
        if len(methods) == 1:
            about.append("No other method is here to compare it with.")
        found = replace(found, reference=None)
    else:
        text, about = claim(found, when), [*about_seeds(found), *other_claims(found)]
    return Answer(
        sentence=unbroken(f"{where}, {text}."),
        skew=skew,
        notes=(*map(unbroken, (*about, *notes)), *tuned),
        **vars(found),
    )


def _partition_of(run: SavedRun) -> bytes:
    return run.counts.tobytes()
