"""`unskew advise`: which method to take."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from unskew.advice.advising import advise_on, check_classes, typed_skew
from unskew.advice.counts import notes_on, read_counts
from unskew.advice.evidence import evidence
from unskew.advice.recommendation import Advice
from unskew.cli import options
from unskew.cli.flags import experiment_settings, given_flags
from unskew.cli.terminal import console
from unskew.data import Dataset
from unskew.data.dataset import Split
from unskew.data.partitions import Natural, innermost, parse_skew
from unskew.data.sources import available, spelled
from unskew.errors import UserError
from unskew.experiment import Experiment, check_names, load_data, partition
from unskew.notation import flatten, named
from unskew.record import to_json


def advise(
    context: typer.Context,
    counts: Annotated[
        Path | None,
        typer.Argument(
            metavar="COUNTS",
            help="A CSV or JSON file with numbers of samples: a row per client, a column per class.",
        ),
    ] = None,
    dataset: options.Dataset = None,
    skew: options.Skew = None,
    clients: options.Clients = None,
    cohort: options.Cohort = None,
    model: options.Model = None,
    by: Annotated[
        str,
        options.option(
            "--by",
            "NAME",
            "Criterion: accuracy, worst (the worst class's accuracy) or vacant (that of vacant classes).",
        ),
    ] = "accuracy",
    seed: options.Seed = None,
    data: options.Data = None,
    json: options.Json = False,
    set_: options.Set = None,
) -> None:
    """Recommend a method, with the evidence: what was measured where labels are skewed similarly.

    Give --dataset and --skew, or a file of your clients' label counts. The answer names the measured setting
    it rests on, the difference to FedAvg with its interval, what it costs, and the command to try it; or it
    says that nothing similar was measured. docs/which-method.md has all measurements.
    """
    given = experiment_settings(None, set_, **given_flags(context))
    spec = Experiment(**given)
    check_names(model=spec.model.name)
    kept = {key: value for key, value in flatten(given) if key not in ("seed", "data.folder", "skew.seed")}
    if "budget.cohort" in kept:
        kept["budget.cohort"] = spec.budget.cohort
    found = _of_counts(counts, spec, kept, by) if counts else _of_partition(spec, kept, by)
    if json:
        print(to_json(found.to_json(), indent=None))
        return
    screen = console()
    for line in found.lines():
        command = line.startswith(("try it: ", "with a rate for each: "))
        screen.print(line if command else _wrapped(line, screen.width), soft_wrap=True)


def _wrapped(line: str, width: int) -> str:
    """Wrap a line to a width, with the continuation lines indented a little further."""
    start = len(line) - len(line.lstrip())
    return textwrap.fill(line, max(width, 40), subsequent_indent=" " * (start + 2) if start else "")


def _of_counts(path: Path, spec: Experiment, given: dict[str, Any], by: str) -> Advice:
    for key, flag in (("skew.recipe", "--skew"), ("skew.clients", "--clients")):
        if key in given:
            raise UserError(f"{path} tells who holds what: leave {flag} out.")
    if "data.name" in given:
        check_names(data=spec.data.name)
        given = given | {"data.name": spelled(spec.data.name)}
    found = read_counts(path)
    if "data.name" in given:
        check_classes(found, given["data.name"], str(path))
    cohort = _cohort(spec, len(found))
    return advise_on(found, given=given, cohort=cohort, by=by, notes=notes_on(found))


def _of_partition(spec: Experiment, given: dict[str, Any], by: str) -> Advice:
    if not {"data.name", "skew.recipe"} & given.keys():
        raise UserError("nothing is asked about: give --dataset and --skew, or a file of label counts.")
    dataset, samples, notes = _load(spec)
    federation = partition(spec, dataset)
    name = spelled(spec.data.name)
    given = given | {
        "data.name": name,
        "skew.recipe": typed_skew(federation.partition.recipe),
        "skew.clients": federation.clients,
    }
    return advise_on(
        federation.partition.counts,
        given=given,
        shown={"skew.recipe": federation.skew},
        cohort=_cohort(spec, federation.clients),
        clients=federation.clients,
        samples=samples,
        by=by,
        notes=notes,
    )


def _cohort(spec: Experiment, clients: int) -> int | None:
    if spec.budget.cohort == "all":
        return None
    if not 1 <= spec.budget.cohort <= clients:
        raise UserError(
            f"--cohort is {spec.budget.cohort} but should be 1 to {clients}, the number of clients."
        )
    return spec.budget.cohort


def _load(spec: Experiment) -> tuple[Dataset, str, list[str]]:
    """Load the dataset; return it with the word for its samples, and notes.

    If a dataset with measurements is not on this machine, its labels alone are made from its class sizes: a
    partition needs no more.
    """
    name = spelled(spec.data.name)
    measured = [setting.facts for setting in evidence() if setting.data == name]
    folder = Path(spec.data.folder) if spec.data.folder else None
    here = any(each.ready for each in available(folder) if each.source.name == named(name)[0])
    if here or not measured:
        loaded = load_data(spec)
        return loaded, loaded.samples, []
    if isinstance(innermost(parse_skew(spec.skew.recipe)), Natural):
        raise UserError(
            f"natural goes by the owners of samples, and {name} is not here: run `unskew data fetch "
            f"{named(name)[0]}`, or choose another skew."
        )
    facts = max(measured, key=lambda each: sum(each.class_sizes))
    labels = torch.arange(facts.classes).repeat_interleave(torch.tensor(facts.class_sizes))
    train, test = (Split(torch.zeros(len(each), 1), each) for each in (labels, torch.unique(labels)))
    dataset = Dataset(name, train, test, tuple(str(number) for number in range(facts.classes)))
    return dataset, facts.samples, [f"{name} is not here: who holds what was drawn from its class sizes."]
