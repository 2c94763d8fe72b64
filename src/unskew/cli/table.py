"""`unskew table`: methods against each other, for the terminal and for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from unskew.cli import options
from unskew.cli.reading import read_tested
from unskew.cli.show import Grid, console
from unskew.errors import UserError
from unskew.report.measures import MEASURES
from unskew.report.table import WRITERS, Rank, tabulate
from unskew.runs import write_whole

STYLES: dict[Rank, str] = {"first": "bold", "second": "underline", "": ""}


def table(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders; one that compare wrote stands for all its runs."),
    ],
    metric: Annotated[
        str,
        options.option(
            "--metric",
            "NAME",
            "What last, best and the target are about: "
            f"{', '.join(name for name, each in MEASURES.items() if not each.lower)} or class:NAME.",
        ),
    ] = "accuracy",
    target: Annotated[
        str | None,
        options.option("--target", "PERCENT", "What to reach.", "the best of the first method"),
    ] = None,
    out: Annotated[
        list[Path] | None,
        options.option("--out", "PATH", "Write it to this .md, .csv or .tex file; may be repeated."),
    ] = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Compare methods over their seeds: the best value bold, the second underlined, mean ± std."""
    for path in out or []:
        if path.suffix.lower() not in WRITERS:
            raise UserError(f"cannot write a table to '{path}': end its name in .md, .csv or .tex.")
        options.check_output(path, overwrite)
    goal = None if target is None else _fraction(target)
    found = read_tested(runs)
    made = tabulate(found, metric=metric, target=goal)
    for path in out or []:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, WRITERS[path.suffix.lower()](made))
    screen = console()
    conditions = {run.conditions for run in found}
    if len(conditions) == 1:
        screen.print(f"{conditions.pop()}\n")
    rows: list[list[str | Text]] = [
        [row.method, *(Text(cell.text, STYLES[cell.rank]) for cell in row.cells)] for row in made.rows
    ]
    screen.print(Grid(["method", *(column.title for column in made.columns)], rows))
    screen.print()
    for note in made.notes:
        screen.print(f"note: {note}", soft_wrap=True)
    for path in out or []:
        screen.print(f"written: {path}", soft_wrap=True)


def _fraction(text: str) -> float:
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 100:
        raise UserError(f"--target is {text} but should be a percentage above 0 and up to 100.")
    return percent / 100
