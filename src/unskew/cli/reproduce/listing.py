"""`unskew reproduce --list`: all tables, or the published numbers of one."""

from __future__ import annotations

from unskew.cli.reproduce.datasets_here import DatasetsHere
from unskew.cli.terminal import Grid, console
from unskew.record import to_json
from unskew.reproduce import Cell, PublishedTable, papers, presentation


def list_tables(here: DatasetsHere, *, json: bool) -> None:
    """Print all tables and figures, with the number of cells that can be run here."""
    if json:
        print(
            to_json(
                {
                    table.id: {
                        "title": table.title,
                        "cells": len(table.cells),
                        "here": sum(not here.missing(cell) for cell in table.cells),
                        "not_runnable": table.not_runnable or None,
                    }
                    for paper in papers().values()
                    for table in paper.tables
                },
                indent=None,
            )
        )
        return
    screen = console()
    for paper in papers().values():
        rows = []
        for table in paper.tables:
            missing = [why for cell in table.cells if (why := here.missing(cell))]
            can = len(table.cells) - len(missing)
            rows.append([table.id, str(len(table.cells) or "-"), str(can or "-"), table.title])
        screen.print(f"{paper.title} ({paper.reference})", soft_wrap=True)
        screen.print(Grid(["table", "cells", "here", "what"], rows, words=1))
        screen.print()
    screen.print(
        "here: cells whose data is here. unskew reproduce --list TABLE shows the published numbers, and what "
        "a table lacks; unskew reproduce TABLE --cell PATTERN runs cells.",
        soft_wrap=True,
    )


def list_table(table: PublishedTable, here: DatasetsHere, *, json: bool) -> None:
    """Print the published numbers of a table, its notes, and why cells cannot be run here."""
    if json:
        print(
            to_json(
                {
                    "table": table.id,
                    "title": table.title,
                    "reports": table.reports,
                    "statistic": table.statistic,
                    "readings": list(table.readings),
                    "notes": list(table.notes),
                    "differences": list(table.differences),
                    "not_runnable": table.not_runnable or None,
                    "cells": [
                        {
                            "cell": cell.id,
                            "published": {
                                name: presentation.published_json(number)
                                for name, number in cell.published.items()
                            },
                            "missing": here.missing(cell) or None,
                            "assumed": list(cell.assumed),
                        }
                        for cell in table.cells
                    ],
                },
                indent=None,
            )
        )
        return
    screen = console()
    screen.print(f"{table.id}: {table.title}", soft_wrap=True)
    if table.reports:
        screen.print(f"reports {table.reports}", soft_wrap=True)
    by_place = {(cell.column, cell.row): cell for cell in table.cells}
    for name in table.measures if table.cells else ():
        rows = [
            [column, *(_number_in(by_place[column, row], name) for row in table.rows)]
            for column in table.columns
        ]
        screen.print()
        screen.print(Grid(["" if len(table.measures) == 1 else name, *table.rows], rows))
    screen.print()
    if table.cells:
        screen.print(f"cells are named row/column, such as {table.cells[0].id}", soft_wrap=True)
        screen.print(f"readings: {', '.join(table.readings)}; without --reading the first", soft_wrap=True)
    assumed = dict.fromkeys(each for cell in table.cells for each in cell.assumed)
    for note in (*table.notes, *(f"assumed: {each}" for each in assumed), *table.differences):
        screen.print(f"note: {note}", soft_wrap=True)
    lacking = dict.fromkeys(why for cell in table.cells if (why := here.missing(cell)))
    for why in lacking or ([table.not_runnable] if table.not_runnable else []):
        count = sum(here.missing(cell) == why for cell in table.cells)
        which = f" ({count} cell{'s' * (count > 1)})" * bool(count)
        screen.print(f"cannot be run{which}: {why}", soft_wrap=True)


def _number_in(cell: Cell, measure: str) -> str:
    number = cell.published.get(measure)
    return "-" if number is None else str(number)
