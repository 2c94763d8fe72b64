"""Tables of methods: mean ± standard deviation over seeds, marked if the seeds support a claim, under one
condition or under several next to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from unskew.errors import UserError
from unskew.report.conditions import by_condition, in_common
from unskew.report.measures import find, mean_of, series
from unskew.report.read import SavedRun
from unskew.report.standings import choose_reference
from unskew.report.table_cells import ConditionCells, cells_of, choose_columns, has_method
from unskew.report.table_layout import MEASURE, METHOD, ColumnHeader, Row, lay_out
from unskew.report.table_notes import describe_cells, footnotes, notes_to_user


@dataclass(frozen=True)
class MethodTable:
    """The table that `unskew table` shows."""

    title: str
    """The conditions of the whole table, in one line."""
    heads: tuple[str, ...]
    """What the rows are, such as method."""
    columns: tuple[ColumnHeader, ...]
    rows: tuple[Row, ...]
    footnotes: tuple[str, ...]
    """What a reader has to know, one sentence each."""
    notes: tuple[str, ...]
    """What else the user who makes the table should know."""

    @property
    def sections(self) -> list[tuple[str, list[Row]]]:
        """The rows by what they have in common other than their names, each group with its title."""
        each = groupby(self.rows, lambda row: ", ".join(filter(None, row.keys[:-1])))
        return [(title, list(rows)) for title, rows in each]


def tabulate(
    runs: Sequence[SavedRun],
    *,
    metric: str = "accuracy",
    target: float | None = None,
    measures: Sequence[str] = (),
    rows: str = METHOD,
    columns: str = MEASURE,
    reference: str | None = None,
) -> MethodTable:
    """Make a table of methods over their seeds, compared within each condition.

    `metric` is the one that best by validation, last, best by test, mean last 10 and the target are about.
    The target is a fraction; without one it is the best value of the reference on the same seed. Speed-up is
    relative to the reference too. A value that some seeds of a method lack, such as the rounds to a target
    that they do not reach, is not averaged over the other seeds.

    `rows` and `columns` say what the rows and columns are: method, condition, measure, a setting in which
    conditions differ, such as skew.recipe, or a hyperparameter. Whatever neither of them names is written at
    the beginning of each row.
    `measures` are names of COLUMNS or of MEASURES. Without any, the table has all of COLUMNS if measures are
    its rows or columns, and else the first.
    """
    measure = find(metric, runs)
    if measure.lower:
        raise UserError(f"of {metric} less is better: choose a metric for the table of which more is better.")
    if not any(run.tested for run in runs):
        series(next((run for run in runs if not run.failure), runs[0]), measure)  # raises the error
    conditions = by_condition(runs)
    shown = choose_columns(measures, runs, only_one=MEASURE not in (rows, columns))
    if reference is not None and not any(has_method(each, reference) for each in conditions):
        choose_reference(conditions[0].methods, reference)  # raises the error
    blocks = [cells_of(each, shown, measure, target, reference) for each in conditions]
    titles = [
        replace(each, title=_mean_title(blocks)) if each.name == "mean_last_10" else each for each in shown
    ]
    heads, headers, laid = lay_out(blocks, titles, rows, columns)
    title = in_common(runs) if len(conditions) > 1 else conditions[0].title
    if len(shown) == 1 and MEASURE not in (rows, columns):
        title = f"{describe_cells(titles[0], measure)}: {title}"
    return MethodTable(
        title, heads, headers, laid, footnotes(blocks, shown, measure, target), notes_to_user(blocks)
    )


def _mean_title(blocks: Sequence[ConditionCells]) -> str:
    """Return the title of the mean over the last rounds, which names how many there are."""
    return mean_of(
        [
            sum(
                each.when is None or not each.when.round or line.round <= each.when.round
                for line in run.tested
            )
            for each in blocks
            for runs in each.shown.values()
            for run in runs
        ]
    )
