"""`unskew report`: one page about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unskew import labelled_runs
from unskew.cli import options
from unskew.cli.terminal import console
from unskew.errors import UserError
from unskew.report.page import write_page
from unskew.report.read import coming


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folders, or folders of `unskew compare`.")
    ],
    out: Annotated[Path, options.option("--out", "PATH", "The .html file to write.")] = Path("report.html"),
    overwrite: options.Overwrite = False,
) -> None:
    """Write an interactive HTML report about runs: which methods gain, curves, clients, confusion. It opens
    without a network."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"cannot write the page to '{out}': end its name in .html.")
    found = labelled_runs.read(runs)
    options.check_output(out, overwrite)
    write_page(found, out, coming(runs))
    console().print(f"written: {out} ({out.stat().st_size / 1e6:.1f} MB)", soft_wrap=True)
