"""`unskew methods`: the methods that can be trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unskew.cli.terminal import console
from unskew.methods import METHODS
from unskew.methods.assemble import assemble, find
from unskew.methods.card import NOT_STATED, Card

if TYPE_CHECKING:
    from unskew.method_costs import Observed


def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="A method to show: its reference, formula, hyperparameters, cost."
        ),
    ] = None,
) -> None:
    """List the methods, or show one."""
    screen = console()
    if name:
        show(name, screen)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("method", "what it does", "hyperparameters"):
        table.add_column(title, no_wrap=title == "method", overflow="fold")
    for each, card in METHODS.items():
        table.add_row(each, card.idea, ", ".join(f"{key}={value}" for key, value in card.options.items()))
    screen.print(table)
    screen.print("\nSeveral can be combined: fedlmd+fedprox. Your own: a file mine.py, or a name to import.")


def show(name: str, screen: Console) -> None:
    """Print a method's page, its hyperparameters and its costs."""
    card = find(name)
    costs, known = (card, "") if card.stated else _observe(card)
    screen.print(Text(card.page or card.idea))
    screen.print()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    options = ", ".join(f"{key}={value}" for key, value in card.options.items())
    table.add_row("hyperparameters", options or "none")
    table.add_row("extra forward passes", costs.passes)
    table.add_row("extra memory at a client", costs.memory)
    table.add_row("extra traffic", costs.traffic)
    more = {"nothing": "nothing else", NOT_STATED: "what is not stated"}.get(costs.sends, costs.sends)
    table.add_row("leaves the client", f"weights, number of samples, and {more}")
    if card.needs_sgd:
        table.add_row("optimiser", f"sgd alone, because {card.needs_sgd}")
    if known:
        table.add_row("how this is known", known)
    screen.print(table)


def _observe(card: Card) -> tuple[Card | Observed, str]:
    """Observe the costs of a method without a @card in a trial run; return them with how they are known."""
    from unskew.method_costs import observe

    made, _ = assemble({card.name: {}})
    try:
        seen = observe(made)
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(".")
        return card, f"it is not: the method has no @card, and a trial run of it ended with {said}"
    return seen, (
        "seen in a trial run of three rounds among clients of four classes, with these hyperparameters; the "
        "method has no @card that states it"
    )
