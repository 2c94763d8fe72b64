"""`unskew data`: the datasets, and how to get them."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from unskew.cli import options
from unskew.cli.terminal import console
from unskew.cli.usage import Commands
from unskew.data.fetch import fetch, progress_bar
from unskew.data.sources import available, data_folder
from unskew.errors import UserError
from unskew.record import Json, to_json

app = typer.Typer(
    help="List the datasets, or download one.", cls=Commands, add_completion=False, rich_markup_mode=None
)


@app.callback(invoke_without_command=True)
def data(context: typer.Context, data: options.Data = None, json: options.Json = False) -> None:
    """List the datasets, and which of them are on this machine."""
    if context.invoked_subcommand:
        if json:
            raise UserError(f"{context.invoked_subcommand} has no --json: leave it out.")
        if data:
            raise UserError(f"options of {context.invoked_subcommand} come after its name: move them there.")
        return
    found = available(data)
    if json:
        rows: dict[str, Json] = {
            each.source.name: {"ready": each.ready, "folder": str(each.folder) if each.folder else None}
            for each in found
        }
        print(to_json({"data_folder": str(data_folder(data)), "datasets": rows}, indent=None))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("dataset", "what", "classes", "train", "test", "sample", "here"):
        right = title in ("classes", "train", "test")
        table.add_column(
            title, justify="right" if right else "left", no_wrap=title == "dataset", overflow="fold"
        )
    for each in found:
        source = each.source
        where = "bundled" if source.bundled else str(each.folder or "-")
        sizes = [f"{n:,}" if n else "-" for n in (source.train, source.test)]
        table.add_row(source.name, source.title, str(source.classes), *sizes, source.shape, where)
    screen = console()
    screen.print(table)
    screen.print(
        f"\nLooked for in {data_folder(data)} (--data, else UNSKEW_DATA, else the cache folder). "
        "`unskew data fetch NAME` downloads one.\n"
        "Your own: folder:PATH (one folder per class, or SITE/CLASS), csv:PATH,label=COLUMN,site=COLUMN, "
        "parquet: likewise, npz:PATH, leaf:PATH. Tables are scaled by the training rows of all sites, whose "
        "sums leave them; with scale=site by each site's own, and no number leaves it."
    )


@app.command("fetch")
def fetch_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A dataset that `unskew data` lists.")],
    data: options.Data = None,
    quiet: options.Quiet = False,
) -> None:
    """Download a dataset from its publisher.

    An interrupted download is resumed, and files are checked before they are put in place."""
    terminal = Console(stderr=True)
    if terminal.is_terminal and not quiet:
        with progress_bar(terminal) as report:
            folder = fetch(name, data, progress=report)
    else:
        folder = fetch(name, data)
    print(folder)
