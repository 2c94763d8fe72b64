"""The server of a federation: gathers the nodes, trains by a method, and writes a run folder."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

from flwr.serverapp import Grid

from unskew.data.remote import remote_federation
from unskew.data.validation import parse as parse_validation
from unskew.engines import FLOWER
from unskew.errors import UserError
from unskew.experiment import Experiment, load_data, prepare
from unskew.flower.engine import FederatedRun
from unskew.flower.form import dataset_of_form
from unskew.flower.link import Link
from unskew.flower.run_config import FederationSpec
from unskew.flower.server_log import LogWatch, log, percent, what_clients_send
from unskew.flower.settings import FlowerSettings
from unskew.report.read import SavedRun as FinishedRun
from unskew.runs import free_folder
from unskew.sweep import execute


def serve(grid: Grid, experiment: Experiment, spec: FederationSpec, settings: FlowerSettings) -> FinishedRun:
    """Train an experiment across the nodes of a federation, write a run folder, and return its content. If
    `spec.out` has an unfinished run of this experiment, resume it after its last round."""
    test_at_sites, validates = spec.test == "sites", experiment.validation != "none"
    if experiment.probe.every:
        raise UserError("a probe looks at clients' models one by one, which stay theirs: set probe.every=0.")
    if isinstance(parse_validation(experiment.validation), str):
        raise UserError(
            f"validation is '{experiment.validation}', but clients on other machines validate on a share of "
            "their own samples: give one, such as 0.1."
        )
    asked = {"counts": spec.label_counts == "share", "test": test_at_sites, "validation": validates}
    share = [name for name, wanted in asked.items() if wanted]
    test = None if test_at_sites else load_data(experiment).test  # before the wait: it may be refused
    link = Link(grid, share=share, timeout=spec.timeout, say=log)
    form, clients = link.gather(spec.nodes, spec.wait)
    like = dataset_of_form(form, experiment.data.name)
    seed = experiment.seed if experiment.skew.seed is None else experiment.skew.seed
    recipe = experiment.skew.recipe if link.numbered else "natural"
    federation = remote_federation(like, clients, seed=seed, recipe=recipe, test=test)
    here = experiment.model_copy(update={"engine": FLOWER, "device": "cpu", "fast": False})
    prepared = prepare(here, like, federation)
    for sentence in what_clients_send(settings, spec, test_at_sites=test_at_sites):
        log(sentence)
    folder = Path(spec.out).expanduser() if spec.out else free_folder("-".join(prepared.experiment.words()))
    words = f"{folder.resolve()} {prepared.experiment.identity()} {federation.partition.index_sha256}"
    link.run = hashlib.sha256(words.encode()).hexdigest()[:32]
    make_run = partial(FederatedRun, link=link, settings=settings, test_at_sites=test_at_sites)
    try:
        finished = execute(prepared, folder, LogWatch(prepared.experiment.budget.rounds), make_run=make_run)
    except UserError as error:
        raise UserError(str(error).replace("with --out", "with federation.out")) from error.__cause__
    link.end()
    for sentence in _outcome(finished):
        log(sentence)
    log(f"the run folder is {folder.resolve()}")
    return finished


def _outcome(run: FinishedRun) -> list[str]:
    """Return lines on the final model: its accuracy on every class and at every site, and the run's notes."""
    summary = run.summary
    assert summary is not None
    by_class = zip(run.classes, summary.class_accuracy, strict=True)
    lines = ["accuracy by class: " + ", ".join(f"{name} {percent(value)}" for name, value in by_class)]
    if summary.sites is not None:
        each = ", ".join(f"{site.name} {percent(site.accuracy)}" for site in summary.sites.each)
        lines.append(f"accuracy by site: {each}")
    return lines + [f"note: {note}" for note in summary.notes]
