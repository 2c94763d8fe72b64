"""The words around a table of methods: its footnotes, and notes for the user who makes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from unskew import metrics
from unskew.notation import span
from unskew.report.conditions import notes_on_tuned
from unskew.report.measures import Measure
from unskew.report.skew_words import skew_in_words
from unskew.report.table_cells import BY_VALIDATION, Column, ConditionCells, is_tested


def footnotes(
    blocks: Sequence[ConditionCells], columns: Sequence[Column], measure: Measure, target: float | None
) -> tuple[str, ...]:
    """Return what a reader of the table has to know, one sentence each."""
    notes = [*_about_marks(blocks, columns), _about_numbers(blocks)]
    for each in blocks:
        where = _under(each, blocks)
        if each.when is None:
            notes.append(
                f"{where}no round was tested in all runs: each is at its own last, and none is marked."
            )
        elif each.when.round is not None:
            notes.append(
                f"{where}not all runs have ended: the numbers are of round {each.when.round}, the last that "
                "all reached."
            )
    notes += (_about_seeds(each, _under(each, blocks)) for each in blocks if _seeds_differ(each))
    for each in blocks:
        seeds = {run.seed for run in each.condition.runs}
        first = f" (seed {each.condition.runs[0].seed})" if len(seeds) > 1 else ""
        where = _under(each, blocks)
        notes.append(f"{where}{skew_in_words(each.condition.runs[0])}{first}.")
        notes += (f"{where}{note}" for note in notes_on_tuned(each.condition.methods))
    shown = {column.name for column in columns}
    parts = []
    if shown & {"rounds_to_target", "speed_up"}:
        who = _references(blocks)
        own = f"the best {measure.title} of {who} on the same seed"
        goal = own if target is None else f"{measure.title} of {100 * target:g} %"
        parts.append(f"target: {goal}; speed-up: against {who}")
    if "cost" in shown:
        parts.append("U: the computation of a FedAvg round")
    return (*notes, *([f"{'; '.join(parts)}."] if parts else []))


def notes_to_user(blocks: Sequence[ConditionCells]) -> tuple[str, ...]:
    """Return notes on runs that failed or have not ended, for the user who makes the table."""
    runs = [run for each in blocks for run in each.condition.runs]
    notes = [f"{run.path} failed: {run.failure.sentence}" for run in runs if run.failure]
    under_way = [str(run.path) for run in runs if not run.over]
    if under_way:
        notes.append(f"not finished: {', '.join(under_way)}.")
    return tuple(notes)


def describe_cells(column: Column, measure: Measure) -> str:
    """Name the one measure that all cells of a table show, with its unit."""
    about = column.name in (BY_VALIDATION.name, "last", "best_by_test", "mean_last_10")
    unit = " %" if column.scale == 100 else ""
    return f"{measure.title}{unit}, {column.title}" if about else f"{column.title}{unit}"


def _about_numbers(blocks: Sequence[ConditionCells]) -> str:
    """Say over how many seeds and rounds the numbers are."""
    runs = [run for each in blocks for run in each.condition.runs]
    seeds = {len(members) for each in blocks for members in each.condition.methods.values()}
    rounds = {run.total_rounds for run in runs}
    over = "one seed" if seeds == {1} else f"{span(seeds)} seeds"
    spread = "" if seeds == {1} else "mean ± standard deviation over "
    return f"{spread}{over}, {span(rounds)} round{'s' * (rounds != {1})}."


def _about_marks(blocks: Sequence[ConditionCells], columns: Sequence[Column]) -> Iterable[str]:
    """Explain the marks, or say why there are none."""
    several = [each for each in blocks if len(each.cells) > 1]
    if not several or not any(is_tested(column) for column in columns):
        return
    marked = [
        (column, cell.mark)
        for each in several
        for cells in each.cells.values()
        for column, cell in zip(columns, cells, strict=True)
        if cell.mark
    ]
    if any(each.when and len(each.answer.seeds) >= metrics.FEWEST for each in several):
        within, who = " of its condition" if len(blocks) > 1 else "", _references(several)
        nothing = (
            "" if any(not column.exact for column, _ in marked) else "; no difference here is significant"
        )
        yield (
            f"bold: better than every other method{within} by paired t-tests at 5 %, {who} included; *: "
            f"differs from {who} at 5 % after Holm's correction{nothing}."
        )
    else:
        yield "the methods are not told apart: that takes three seeds that they have in common."
    if any(column.exact for column, _ in marked):
        yield "traffic and cost, in which there is no chance, are bold where they are lowest."


def _under(each: ConditionCells, blocks: Sequence[ConditionCells]) -> str:
    """Begin a sentence with the condition that it is about, if there are several."""
    return f"under {each.condition.short}: " if len(blocks) > 1 else ""


def _references(blocks: Sequence[ConditionCells]) -> str:
    names = dict.fromkeys(each.reference for each in blocks)
    return next(iter(names)) if len(names) == 1 else f"the reference ({', '.join(names)})"


def _seeds(each: ConditionCells) -> dict[str, list[int]]:
    """Return the seeds that the cells of each method are made from."""
    return {name: sorted(run.seed for run in runs) for name, runs in each.shown.items()}


def _seeds_differ(each: ConditionCells) -> bool:
    return len({str(own) for own in _seeds(each).values()}) > 1


def _about_seeds(each: ConditionCells, where: str) -> str:
    seeds = "; ".join(f"{name} {', '.join(map(str, own)) or 'none'}" for name, own in _seeds(each).items())
    number = len(each.answer.seeds)
    marks = (
        f"; marks are of seeds {', '.join(map(str, each.answer.seeds))}" if number >= metrics.FEWEST else ""
    )
    return f"{where}the methods have different seeds: {seeds}{marks}."
