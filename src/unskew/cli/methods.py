"""`unskew methods`: what can be trained."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unskew.cli.show import console
from unskew.methods import METHODS
from unskew.methods.assemble import find


def methods(
    name: Annotated[
        str | None, typer.Argument(help="One method: its reference, formula, hyperparameters, cost.")
    ] = None,
) -> None:
    """List the methods, or show one."""
    screen = console()
    if name:
        show(name, screen)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("method", "what it does", "hyperparameters"):
        table.add_column(title, no_wrap=title == "method")
    for each, card in METHODS.items():
        table.add_row(each, card.idea, ", ".join(f"{key}={value}" for key, value in card.options.items()))
    screen.print(table)
    screen.print(
        "\nSeveral can be put together: fedlmd+fedprox. Your own: a file mine.py, or a name to import."
    )


def show(name: str, screen: Console) -> None:
    card = find(name)
    screen.print(Text(card.page or card.idea))
    screen.print()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    options = ", ".join(f"{key}={value}" for key, value in card.options.items())
    table.add_row("hyperparameters", options or "none")
    table.add_row("extra forward passes", card.passes)
    table.add_row("extra memory at a client", card.memory)
    table.add_row("extra traffic", card.traffic)
    more = "nothing else" if card.sends == "nothing" else card.sends
    table.add_row("leaves the client", f"weights, number of samples, and {more}")
    screen.print(table)
