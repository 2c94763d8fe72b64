"""`unskew watch`: the page of a run, live."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from unskew import labelled_runs
from unskew.cli import options
from unskew.errors import UserError
from unskew.report.serve import LiveRuns, ReportServer


def watch(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="A run folder, or a folder of `unskew compare`; it may still be running."
        ),
    ],
    port: Annotated[
        str | None, options.option("--port", "NUMBER", "Port to listen on; by default a free one.")
    ] = None,
    host: Annotated[
        str,
        options.option(
            "--host", "ADDRESS", "Address to listen on: 127.0.0.1 lets only this machine connect."
        ),
    ] = "127.0.0.1",
) -> None:
    """Serve the report of a run live, with progress and the time left. Ctrl-C ends it."""
    if port is not None and not (port.isdecimal() and int(port) <= 65535):
        raise UserError(f"--port is '{port}' but should be a number from 1 to 65535.")
    with (
        ReportServer(LiveRuns(runs, labelled_runs.read), host, int(port or 0)) as server,
        contextlib.suppress(KeyboardInterrupt),
    ):
        print(f"watching at {server.url} (Ctrl-C ends it)", flush=True)
        server.serve_forever()
