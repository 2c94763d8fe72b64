"""`unskew.compare`: compare methods in Python, from results in memory or from run folders, as `unskew
compare` does on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unskew import metrics, notebook
from unskew.errors import UserError, unknown
from unskew.report.answer import Answer, answer
from unskew.report.conditions import by_condition
from unskew.report.differences import points, verdict
from unskew.report.grouping import repeated
from unskew.report.standings import TITLES, Standing
from unskew.run_sources import RunSources, gathered

ComparedRow = dict[str, str | float | int | None]


@dataclass(frozen=True, repr=False)
class Compared:
    """Methods compared under the same conditions and on the same seeds. A notebook and `print` show it as a
    table with a sentence on what the seeds show."""

    conditions: tuple[str, ...]
    """Data, skew, clients, cohort and model; one for each of `answers`."""
    answers: tuple[Answer, ...]
    """The conclusion under each of these conditions, and its numbers."""

    @property
    def sentence(self) -> str:
        """A sentence for each condition, which claims no more than the seeds show."""
        return " ".join(answer.sentence for answer in self.answers)

    @property
    def rows(self) -> list[ComparedRow]:
        """A row for each condition, method and measure, with numbers as fractions: for
        `pandas.DataFrame(found.rows)`.

        mean and std are those of the method. difference is its difference to the reference, and low and high
        are the ends of the 95 % interval of the difference. p is corrected for all differences of its family
        (Holm). settled says whether the sign of the difference can be claimed."""
        return [
            _row(condition, answer, each, measure)
            for condition, answer in zip(self.conditions, self.answers, strict=True)
            for each in answer.standings
            for measure in answer.measures
        ]

    def __repr__(self) -> str:
        """Return the table, the differences and the sentence as text."""
        parts = []
        for condition, found in zip(self.conditions, self.answers, strict=True):
            lines = found.lines()
            if lines:
                lines = [
                    f"{TITLES[found.main[0]]} against {found.reference}, in points (95 % interval)",
                    *lines,
                ]
            blocks = [_columns(_cells(found, differences=False)), lines, [found.sentence]]
            parts.append("\n\n".join("\n".join(lines) for lines in ([condition], *blocks) if lines))
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        """Return the same for a notebook, with the best method in bold if it can be claimed to be the
        best."""
        parts = []
        for condition, found in zip(self.conditions, self.answers, strict=True):
            head, *rows = _cells(found, differences=True) or [[]]
            shown: list[list[str | notebook.HtmlCell]] = [
                [
                    name,
                    *(
                        notebook.HtmlCell(text, bold=_best(found, name, place))
                        for place, text in enumerate(more)
                    ),
                ]
                for name, *more in rows
            ]
            texts = [notebook.paragraph(text) for text in (found.sentence, found.skew, *found.notes)]
            parts.append(notebook.panel(condition, notebook.table(head, shown) if rows else "", *texts))
        return "".join(parts)


def compare(runs: RunSources, *, reference: str | None = None) -> Compared:
    """Compare methods on the seeds that all of them have.

    `runs` is the folder that `unskew compare` wrote, several run folders, or results in memory:
    `compare({"fedavg": [first, second, third], "mine": [...]})`, with a result for each seed. The others are
    compared with `reference`. By default this is FedAvg, or the first method if FedAvg is not among them.
    Differences are paired, seed by seed, and their signs are claimed after Holm's correction. One or two
    seeds are too few for a claim. Runs that differ in more than method and seed are compared separately. Name
    methods of your own here, unless they are files: without a name, all of them are called own."""
    with gathered(runs, failed=True) as found:
        conditions = by_condition(found)
        for each in conditions:
            if run := repeated(each.runs):
                raise UserError(
                    f"{run.label} has two runs of seed {run.seed} under the same conditions: give each "
                    'method a name of its own, as in compare({"mine": [...], "other": [...]}).'
                )
        names = {name for each in conditions for name in each.methods}
        if reference is not None and reference not in names:
            raise unknown("method among the runs", reference, names)
        return Compared(
            tuple(each.title for each in conditions),
            tuple(answer(each.methods, reference=reference) for each in conditions),
        )


def _row(condition: str, answer: Answer, each: Standing, measure: str) -> ComparedRow:
    """Return the row of one method and measure."""
    value, found = each.values[measure], each.differences.get(measure)
    low, high = (None, None) if found is None or found.interval is None else found.interval
    return {
        "condition": condition,
        "method": each.name,
        "measure": measure,
        "seeds": len(answer.seeds),
        "mean": None if value is None else value.mean,
        "std": None if value is None else value.std,
        "reference": answer.reference,
        "difference": None if found is None else found.difference,
        "low": low,
        "high": high,
        "p": None if found is None else found.adjusted,
        "settled": None if found is None else found.settled,
    }


def _cells(answer: Answer, *, differences: bool) -> list[list[str]]:
    """Return the rows of the table as texts, with the heading first; no rows if nothing is compared."""
    if not answer.standings:
        return []
    against = [f"against {answer.reference}", "seeds"] if differences and answer.others else []
    lines = [["in %", *(TITLES[measure] for measure in answer.main), *against]]
    for each in answer.standings:
        found = each.differences.get(answer.main[0])
        change = [points(found) if found else "", verdict(found)] if each.differences else ["", ""]
        values = [_value(each.values[measure]) for measure in answer.main]
        lines.append([each.name, *values, *change[: len(against)]])
    return lines


def _value(found: metrics.SeedsSummary | None) -> str:
    return "–" if found is None else metrics.plus_minus(found, scale=100)


def _best(answer: Answer, name: str, place: int) -> bool:
    """Say whether a method is the best by the measure in this column of numbers."""
    return place < len(answer.main) and answer.best.get(answer.main[place]) == name


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of text with aligned columns: names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
    ]
