"""`unskew watch`: the page of a run, live."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from unskew import reading
from unskew.cli import options
from unskew.errors import UserError
from unskew.report.serve import LiveRuns, ReportServer


def watch(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="A run folder, or one of `unskew compare`; it may be under way."),
    ],
    port: Annotated[
        str | None, options.option("--port", "NUMBER", "Where to serve; by default a free port.")
    ] = None,
    host: Annotated[
        str,
        options.option("--host", "ADDRESS", "Who may look: 127.0.0.1 is this machine alone."),
    ] = "127.0.0.1",
) -> None:
    """Serve the page of `unskew report` live, with progress and the time left. Ctrl-C ends it."""
    if port is not None and not (port.isdecimal() and int(port) <= 65535):
        raise UserError(f"--port is '{port}' but should be a number from 1 to 65535.")
    with (
        ReportServer(LiveRuns(runs, reading.read), host, int(port or 0)) as server,
        contextlib.suppress(KeyboardInterrupt),
    ):
        print(f"watching at {server.url} (Ctrl-C ends it)", flush=True)
        server.serve_forever()
