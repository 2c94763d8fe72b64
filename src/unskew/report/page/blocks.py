"""The page's data of runs under one condition: the answer, and the comparison of their methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unskew.notation import span
from unskew.record import Json
from unskew.report.answer import Answer, answer
from unskew.report.conditions import Condition
from unskew.report.differences import points, verdict
from unskew.report.grouping import by_method
from unskew.report.page.runs import number, over_seeds, seconds
from unskew.report.page.sites import site_table
from unskew.report.read import SavedRun
from unskew.report.standings import TITLES, choose_reference, runs_at_moment
from unskew.report.table import MethodTable, tabulate
from unskew.report.table_cells import BY_VALIDATION, COLUMNS, NONE, Column
from unskew.report.table_text import starred, to_csv

HELP = {
    "best_by_validation": "accuracy of the round that the validation samples chose, tested after that",
    "last": "accuracy after the last round",
    "best_by_test": "of the tested rounds; chosen on the test set, so never read it alone",
    "mean_last_10": "accuracy over the last ten tested rounds, of fewer over all",
    "worst_class": "accuracy of the final model on its worst class",
    "majority": "classes of which a client has at least an even share, mean over clients",
    "minority": "classes of which a client has less than an even share, mean over clients",
    "vacant": "classes of which a client has nothing, mean over clients",
    "rounds_to_target": "rounds until the reference's best accuracy on the same seed is reached",
    "speed_up": "how many times sooner than the reference its best accuracy is reached",
    "traffic": "between server and clients, up and down, the whole run",
    "cost": "computation in FedAvg rounds, of the whole run",
}
COSTS = 4
"""The number of the table's last columns, which are costs; the others are the comparison."""


def block_data(condition: Condition, methods: Sequence[int]) -> dict[str, Json]:
    """Return the data of one condition; `methods` has the numbers of its methods on the page."""
    seeds = condition.methods
    found = answer(seeds)
    reference = found.reference or choose_reference(seeds)
    tested = _tested(seeds, reference)
    made = tabulate(tested) if tested else None
    titles = {each.name: each.title for each in made.columns} if made else {}
    heads = [
        _head(column, titles.get(column.name, column.title))
        for column in (BY_VALIDATION, *COLUMNS)
        if column != BY_VALIDATION or column.name in titles
    ]
    return {
        "title": condition.title,
        "short": f"{condition.letter}: {condition.short}" if condition.letter else "",
        "sentence": found.sentence,
        "skew": found.skew,
        "notes": list(found.notes),
        "reference": reference if len(seeds) > 1 else None,
        "heads": heads[:-COSTS],
        "costs": heads[-COSTS:],
        "rows": _rows(seeds, found, reference, methods, made),
        "compared": TITLES[found.main[0]] if found.main else "accuracy",
        "forest": _forest(found),
        "csv": to_csv(made) if made else "",
        "classes": _class_table(seeds, found),
        "sites": site_table(seeds),
    }


def _head(column: Column, title: str) -> Json:
    return {"key": column.name, "title": title, "help": HELP[column.name], "lower": column.lower}


def _class_table(seeds: Mapping[str, Sequence[SavedRun]], answer: Answer) -> dict[str, Json] | None:
    """Return the accuracy of each class by each method over seeds; None if no common round was tested.

    The accuracies are of the final models, or of the compared round if not all runs have ended.
    """
    when, come = runs_at_moment(seeds, answer)
    tested = {name: runs for name, runs in come.items() if runs}
    if when is None or not tested:
        return None

    def values(run: SavedRun) -> Sequence[float | None]:
        if when.round is None and run.summary:
            return run.summary.class_accuracy
        return next(line for line in run.tested if line.round == when.round).class_accuracy

    classes = next(iter(seeds.values()))[0].classes
    return {
        "round": when.round,
        "rows": {
            name: [over_seeds([values(run)[c] for run in runs]) for c in range(len(classes))]
            for name, runs in tested.items()
        },
        "seeds": {name: len(runs) for name, runs in tested.items()},
    }


def _tested(seeds: Mapping[str, Sequence[SavedRun]], reference: str) -> list[SavedRun]:
    """Return the runs that were tested, the ones of the reference first."""
    names = [reference, *(name for name in seeds if name != reference)]
    return [run for name in names for run in seeds[name] if run.tested]


def _forest(answer: Answer) -> dict[str, Json] | None:
    """Return each method's differences to the reference by the main measures; None if nothing is compared."""
    if answer.reference is None or not answer.others:
        return None
    rows: list[Json] = []
    for each in answer.others:
        cells: list[Json] = []
        for measure in answer.main:
            found = each.differences[measure]
            interval = found.interval if found else None
            cells.append(
                {
                    "difference": number(found.difference) if found else None,
                    "interval": None if interval is None else [number(end) for end in interval],
                    "settled": bool(found and found.settled),
                    "text": points(found) if found else NONE,
                    "verdict": verdict(found),
                }
            )
        rows.append({"name": each.name, "cells": cells})
    return {
        "measures": [TITLES[measure] for measure in answer.main],
        "seeds": len(answer.seeds),
        "round": answer.round,
        "rows": rows,
    }


def _rows(
    seeds: Mapping[str, Sequence[SavedRun]],
    answer: Answer,
    reference: str,
    methods: Sequence[int],
    made: MethodTable | None,
) -> list[Json]:
    """Return the rows of the comparison, with the cells of `unskew table`."""
    _, come = runs_at_moment(seeds, answer)
    rows = zip(made.rows, by_method(_tested(seeds, reference)).values(), strict=True) if made else ()
    cells = {run.path: row.cells for row, members in rows for run in members}
    return [
        {
            "name": name,
            "method": method,
            "seeds": len(come[name]),
            "rounds": _rounds(runs),
            "cells": [
                [starred(cell), cell.is_best, None if cell.value is None else number(cell.value.mean)]
                for cell in next((cells[run.path] for run in runs if run.path in cells), ())
            ],
            "against": None if name == reference else _against(answer, name),
            "seconds": number(sum(map(seconds, runs)) / len(runs)),
        }
        for (name, runs), method in zip(seeds.items(), methods, strict=True)
    ]


def _rounds(runs: Sequence[SavedRun]) -> str:
    """Say how many rounds the runs have done, and of how many if they have not all ended."""
    done = span([run.done for run in runs])
    stopped = all(run.finished for run in runs)
    return done if stopped else f"{done} of {runs[0].total_rounds}"


def _against(answer: Answer, name: str) -> Json:
    """Return the paired difference by the first measure, as text with interval and star, and as a number."""
    change = next((each.differences[answer.main[0]] for each in answer.others if each.name == name), None)
    if change is None:
        return [NONE, None]
    return [points(change) + "*" * change.settled, number(change.difference)]
