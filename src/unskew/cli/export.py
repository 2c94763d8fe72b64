"""`unskew export`: a trained model for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from torch import Tensor

from unskew.cli import options
from unskew.cli.terminal import say
from unskew.errors import UserError
from unskew.experiment import DataSpec, Experiment, load_data, read
from unskew.export import WRITERS
from unskew.export import export as write_model
from unskew.model_files import load_model
from unskew.record import to_json
from unskew.runs import writing
from unskew.sample_files import read_samples
from unskew.trained_model import TrainedModel

CHECKED = 256
"""The number of samples that the exported model is checked on."""


def export(
    run: options.TrainedRun,
    to: Annotated[str, options.option("--to", "NAME", f"Format to write: {' or '.join(WRITERS)}.")],
    out: Annotated[Path, options.option("--out", "PATH", "The file to write.")],
    check: Annotated[
        Path | None,
        options.option(
            "--check",
            "DATA",
            "Samples to check the exported model on, as for predict.",
            "the test set of the run's data",
        ),
    ] = None,
    data: options.Data = None,
    client: options.WhoseModel = None,
    site: options.WhoseRows = None,
    model: options.OwnModel = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Export a trained model for other programs, and check it against the original on real inputs."""
    options.check_output(out, overwrite)
    trained = load_model(run, client=client, site=site, model=model)
    samples = _own_samples(trained, run, data) if check is None else _given_samples(trained, check)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        done = write_model(trained, to, out, samples[:CHECKED])
    if json:
        about = {"out": str(out), "to": to, "reads": done.inputs, "outputs": ["logits", "probabilities"]}
        print(
            to_json(
                {
                    **about,
                    "classes": list(trained.classes),
                    "checked": done.samples,
                    "difference": done.difference,
                },
                indent=None,
            )
        )
        return
    say(f"it reads {done.inputs}, and gives logits and probabilities of {len(trained.classes)} classes.")
    if trained.core.by_batch:
        say("note: it normalises a batch by its own statistics: give it two samples or more at a time.")
    say(f"largest difference from the original on {done.samples} samples: {done.difference:.1e}")
    say(f"written: {out}")


def _own_samples(model: TrainedModel, run: Path, data: Path | None) -> Tensor:
    """Load the test samples of the data that the model was trained on."""
    how = "give samples to check it on, with --check"
    try:
        settings = read((run if run.is_dir() else run.parent) / "experiment.toml")
        own = DataSpec(**settings["data"]) if isinstance(settings.get("data"), dict) else DataSpec()
        moved = own if data is None else own.model_copy(update={"folder": str(data)})
        samples = load_data(Experiment(data=moved)).test.inputs
    except UserError as error:
        raise UserError(
            f"the run's own data cannot be read ({str(error).removesuffix('.')}): {how}."
        ) from None
    if list(samples.shape[1:]) != model.model_file.inputs.shape:
        raise UserError(f"the run's own data are not what they were: {how}.")
    return samples


def _given_samples(model: TrainedModel, path: Path) -> Tensor:
    return next(read_samples(model, path).parts).inputs
