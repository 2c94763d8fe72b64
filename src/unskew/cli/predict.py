"""`unskew predict`: the classes that a trained model predicts for samples in files."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from unskew.cli import options
from unskew.cli.terminal import say
from unskew.errors import UserError
from unskew.model_files import WEIGHTS, load_model
from unskew.predictions import predict as predictions_of
from unskew.record import to_json
from unskew.runs import write_whole

STDOUT, SUFFIX = Path("-"), Path(WEIGHTS).suffix


def predict(
    run: options.TrainedRun,
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", help="A .csv, .parquet, .npz or .txt file, an image, or a folder of images."
        ),
    ],
    out: Annotated[
        Path,
        options.option("--out", "PATH", "The .csv file to write the table to; -: standard output.", "-"),
    ] = STDOUT,
    client: options.WhoseModel = None,
    site: options.WhoseRows = None,
    model: options.OwnModel = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Predict the classes of the samples in a file or folder, with the probability of every class."""
    if run.exists() and _is_run(data) and not _is_run(run):
        raise UserError(
            f"{run} is no run folder, and {data} is one: the run comes first, write unskew predict "
            f"{shlex.join([str(data), str(run)])}."
        )
    options.check_output(out, overwrite)
    trained = load_model(run, client=client, site=site, model=model)
    found = predictions_of(trained, data)
    if out != STDOUT:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, found.to_csv())
    elif not json:
        sys.stdout.write(found.to_csv())
    for note in found.notes:
        say(f"note: {note}")
    if json:
        print(
            to_json(
                {
                    "run": str(run),
                    "method": trained.method,
                    "round": trained.round,
                    "client": None if trained.client is None else trained.client.client,
                    "data": str(data),
                    "samples": len(found.names),
                    "classes": list(found.classes),
                    "counts": found.counts,
                    "out": None if out == STDOUT else str(out),
                    "notes": list(found.notes),
                },
                indent=None,
            )
        )
    elif out != STDOUT:
        counts = ", ".join(f"{name} {n}" for name, n in found.counts.items() if n)
        say(f"{len(found.names)} samples: {counts}")
        say(f"written: {out}")


def _is_run(path: Path) -> bool:
    return any((path / name).is_file() for name in ("experiment.toml", WEIGHTS)) or path.suffix == SUFFIX
