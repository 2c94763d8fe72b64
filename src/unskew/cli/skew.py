"""`unskew skew`: which client holds which classes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from unskew.cli import options
from unskew.cli.flags import experiment_settings, given_flags
from unskew.cli.terminal import console
from unskew.data import Federation
from unskew.data.loading import absolute
from unskew.data.names import shortened
from unskew.errors import UserError
from unskew.experiment import Experiment, brief_skew, load_data, partition
from unskew.notation import short_data
from unskew.record import to_json
from unskew.report.figures import check_format, draw_partition, save
from unskew.skew_words import describe_skew

SHADES = " ░▒▓█"
MOST_ROWS = 100
MOST_COLUMNS = 12
"""With more classes than this, a class is one shaded character instead of a number."""


def skew(
    context: typer.Context,
    dataset: options.Dataset = None,
    skew: options.Skew = None,
    clients: options.Clients = None,
    seed: options.Seed = None,
    experiment: options.ExperimentFile = None,
    data: options.Data = None,
    out: Annotated[
        Path | None,
        options.option(
            "--out", "PATH", "Save the partition to this file, as JSON that --skew file:PATH reads."
        ),
    ] = None,
    figure: Annotated[
        Path | None, options.option("--figure", "PATH", "Draw the partition to this .png, .svg or .pdf file.")
    ] = None,
    json: options.Json = False,
    set_: options.Set = None,
) -> None:
    """Show which client holds which classes: sizes, vacant classes, entropy.

    A skew is NAME:PARAMETER,option=value, such as dirichlet:0.05,cap=false. The rules are iid,
    dirichlet:BETA, client-dirichlet:ALPHA, shards:S, sorted-shards:A, labels:K, quantity:S, classes:K,
    balanced and natural. longtail:FACTOR+, part:FRACTION+ and domains:6/4+ can stand before any of them.
    file:, flwr:, pfllib:, flbench: and niidbench:, followed by a path, read existing partitions.
    mine.py:function is your own rule. docs/skew.md explains them all.
    """
    for path, flag in ((out, "--out"), (figure, "--figure")):
        if path and path.exists():
            raise UserError(f"{path} is there already: choose another file with {flag}, or remove it.")
    if figure:
        check_format(figure)
    spec = Experiment(**experiment_settings(experiment, set_, **given_flags(context)))
    loaded = load_data(spec)
    federation = partition(spec, loaded)
    split = federation.partition
    (name,) = short_data([absolute(spec.data.name)]).values()
    title = f"{name}, {brief_skew(split.recipe)}, {federation.clients} clients, seed {split.seed}"
    if out:
        federation.save(out)
    if figure:
        try:
            save(draw_partition(split.counts, loaded.classes, federation.names, title=title), figure)
        except BaseException:
            if out:  # write both files or none
                out.unlink(missing_ok=True)
            raise
    if json:
        print(
            to_json(
                {
                    "dataset": spec.data.name,
                    "dataset_sha256": loaded.sha256,
                    "skew": split.recipe,
                    "seed": split.seed,
                    "clients": federation.clients,
                    "names": list(federation.names),
                    "classes": list(loaded.classes),
                    "counts": split.counts.tolist(),
                    "sizes": split.sizes.tolist(),
                    "vacant": split.vacant.tolist(),
                    "test_sizes": test_sizes(federation),
                    "entropy": split.entropy.tolist(),
                    "dropped": split.dropped,
                    "notes": [*loaded.notes, *split.notes],
                    "index_sha256": split.index_sha256,
                },
                indent=None,
            )
        )
        return
    screen = console()
    screen.print(f"{title}\n")
    screen.print(picture(federation))
    if federation.clients > MOST_ROWS:
        where = "drawn when they are needed" if loaded.train.drawn else "--json has them all"
        screen.print(f"and {federation.clients - MOST_ROWS} more clients: {where}")
    sizes, vacant = split.sizes, split.vacant
    known = describe_skew(
        split.counts, clients=federation.clients, samples=loaded.samples, names=federation.names
    )
    screen.print(f"\n{known}")
    screen.print(
        f"sizes {sizes.min()} to {sizes.max()}, median {np.median(sizes):g};  "
        f"vacant classes per client {vacant.mean():.1f} of {len(loaded.classes)};  "
        f"entropy {split.entropy.mean():.2f} nats on average;  dropped samples {split.dropped}"
    )
    for note in (*loaded.notes, *split.notes):
        screen.print(f"note: {note}")
    screen.print(f"partition {split.index_sha256[:16]}")
    for path in (out, figure):
        if path:
            screen.print(f"written: {path}", soft_wrap=True)


def picture(federation: Federation) -> Table:
    """Return a table with a row per client: its classes, its size, its number of vacant classes, its label
    entropy, and for clients with names also the classes that they lack."""
    split, classes = federation.partition, federation.dataset.classes
    counts, names = split.counts, federation.names
    held_out = test_sizes(federation)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column(
        "site" if names else "client", justify="left" if names else "right", overflow="ellipsis", max_width=24
    )
    numbers = len(classes) <= MOST_COLUMNS
    if numbers:
        for name in classes:
            table.add_column(Text(name, overflow="ellipsis", no_wrap=True), justify="right", max_width=8)
    else:
        table.add_column("samples of each class, against the client's largest")
    for title in ("size", "vacant", "entropy", *(["test"] if held_out else [])):
        table.add_column(title, justify="right")
    if names:
        table.add_column("lacks")
    most = max(int(counts.max()), 1)
    for client in range(min(len(counts), MOST_ROWS)):
        row = counts[client]
        if numbers:
            cells = [Text(str(n) if n else "·", style=_style(n / most)) for n in row]
        else:
            cells = [Text("".join(SHADES[_level(n / max(int(row.max()), 1))] for n in row))]
        size, vacant, entropy = split.sizes[client], split.vacant[client], split.entropy[client]
        lacks = [shortened(c for c, n in zip(classes, row, strict=True) if not n)] if names else []
        called = Text(names[client] if names else str(client))
        tested = [str(held_out[client])] if held_out else []
        table.add_row(called, *cells, str(size), str(vacant), f"{entropy:.2f}", *tested, *map(Text, lacks))
    return table


def test_sizes(federation: Federation) -> list[int]:
    """Return each client's number of own test samples; empty if clients have no names or share sites."""
    sites, names = federation.sites, federation.names
    if sites is None or not names:
        return []
    sizes = [0] * federation.clients
    for client, own in zip(sites.clients.tolist(), sites.test.sum(axis=1).tolist(), strict=True):
        if client >= 0:
            sizes[client] += own
    return sizes


def _level(share: float) -> int:
    return 0 if share == 0 else 1 + min(int(share * (len(SHADES) - 1)), len(SHADES) - 2)


def _style(share: float) -> str:
    """Return a style that is darker for a larger share, readable on light and dark terminals."""
    if share == 0:
        return "dim"
    blue = ("#dbe9f6", "#bad6eb", "#89bedc", "#539ecd", "#2b7bba", "#0b559f")
    level = min(int(share * len(blue)), len(blue) - 1)
    return f"{'black' if level < 3 else 'white'} on {blue[level]}"
