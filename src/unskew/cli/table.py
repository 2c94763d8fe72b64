"""`unskew table`: a table that compares methods, for the terminal and for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from unskew.cli import options
from unskew.cli.terminal import Grid, console
from unskew.errors import UserError
from unskew.labelled_runs import read_begun
from unskew.report.measures import MEASURES
from unskew.report.table import MethodTable, tabulate
from unskew.report.table_cells import COLUMNS, TableCell
from unskew.report.table_text import WRITERS, starred
from unskew.runs import write_whole


def table(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="Run folders; a folder of `unskew compare` stands for all its runs."
        ),
    ],
    metric: Annotated[
        str,
        options.option(
            "--metric",
            "NAME",
            "Metric of the columns last and best and of --target: "
            f"{', '.join(name for name, each in MEASURES.items() if not each.lower)} or class:NAME.",
        ),
    ] = "accuracy",
    target: Annotated[
        str | None,
        options.option(
            "--target", "PERCENT", "Value to reach, for rounds to target.", "the best of the reference"
        ),
    ] = None,
    reference: Annotated[
        str | None,
        options.option(
            "--reference", "METHOD", "Method that the others are compared with.", "fedavg, or the first"
        ),
    ] = None,
    measures: Annotated[
        str | None,
        options.option(
            "--measures",
            "NAMES",
            "Measures to show, such as last,worst_class,vacant: names of --metric and "
            f"{', '.join(column.name for column in COLUMNS)}.",
        ),
    ] = None,
    rows: Annotated[
        str,
        options.option(
            "--rows",
            "WHAT",
            "What the rows are: method, condition, measure or a setting that differs, such as skew.",
            "method",
        ),
    ] = "method",
    columns: Annotated[
        str,
        options.option(
            "--columns",
            "WHAT",
            "What the columns are, with the same choices; unless measure, each cell has one measure.",
            "measure",
        ),
    ] = "measure",
    out: Annotated[
        list[Path] | None,
        options.option("--out", "PATH", "Write the table to this .md, .csv or .tex file; may be repeated."),
    ] = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Compare methods over their seeds, within each condition: mean ± standard deviation, with differences
    marked where the seeds support them."""
    for path in out or []:
        if path.suffix.lower() not in WRITERS:
            raise UserError(f"cannot write a table to '{path}': end its name in .md, .csv or .tex.")
    goal = None if target is None else _fraction(target)
    chosen = [] if measures is None else options.listed(measures)
    found = read_begun(runs)
    for path in out or []:
        options.check_output(path, overwrite)
    made = tabulate(
        found,
        metric=metric,
        target=goal,
        measures=chosen,
        rows=rows,
        columns=columns,
        reference=reference,
    )
    for path in out or []:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, WRITERS[path.suffix.lower()](made))
    show_table(made)
    for path in out or []:
        console().print(f"written: {path}", soft_wrap=True)


def show_table(made: MethodTable) -> None:
    """Print a table with its notes to the terminal."""
    screen = console()
    screen.print(f"{made.title}\n")
    for title, members in made.sections:
        body: list[list[str | Text]] = [[row.name, *map(_cell_text, row.cells)] for row in members]
        screen.print(Grid([made.heads[-1], *(head.line for head in made.columns)], body, title))
        screen.print()
    for note in (*made.footnotes, *made.notes):
        shown = note.replace("bold:", "bold, †:", 1) if note.startswith("bold:") else note
        screen.print(f"note: {shown}", soft_wrap=True)


def _cell_text(cell: TableCell) -> Text:
    """Return a cell as text, with a dagger where it is bold, since not every terminal shows bold."""
    return Text(f"{cell.text}†", "bold") if cell.is_best else Text(starred(cell))


def _fraction(text: str) -> float:
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 100:
        raise UserError(f"--target is {text} but should be a percentage above 0 and up to 100.")
    return percent / 100
