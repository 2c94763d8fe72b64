"""`unskew tune`: hyperparameters by validation, every method with the same number of trials."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from unskew.cli import options
from unskew.cli.flags import experiment_settings, given_flags, refuse_unshared
from unskew.cli.tune.searching import finish_search
from unskew.clock import Clock, process_age
from unskew.errors import UserError, unknown
from unskew.experiment import Experiment, absolute_method, method_table
from unskew.notation import method_parts
from unskew.runs import slug
from unskew.tune.search import SAMPLERS, Search, Searched

PLACES = "unskew.over"
"""The key of the context's `meta` that has, for each --over, the number of methods before it."""
DEFAULT_SHARE = 0.1
"""The default share of each client's samples on which trials are compared."""
DEFAULT_TRIALS = 20


class _Tune(TyperCommand):
    """The command `tune`, which finds out the method that each --over follows."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with_value = {
            name
            for each in self.params
            for name in each.opts
            if name.startswith("-") and not getattr(each, "is_flag", False)
        }
        methods, places, rest = 0, list[int](), iter(args)
        for word in rest:
            if word == "--":  # only methods follow
                break
            name, sign, _ = word.partition("=")
            if name == "--over":
                places.append(methods)
            if not word.startswith("-"):
                methods += 1
            elif name in with_value and not sign:
                next(rest, None)
        ctx.meta[PLACES] = places
        return super().parse_args(ctx, args)


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("tune", cls=_Tune)
def tune(
    context: typer.Context,
    methods: Annotated[
        list[str],
        typer.Argument(metavar="METHOD", help="Methods of `unskew methods`, each followed by its --over."),
    ],
    over: Annotated[
        list[str] | None,
        options.option(
            "--over",
            "RANGE",
            "Range to search, for the method before it (before all methods: for all of them), such as "
            "mu=0.001..1:log, beta=1|2|3 or budget.lr=...; may be repeated.",
        ),
    ] = None,
    trials: Annotated[
        str | None, options.option("--trials", "NUMBER", "Trials per method.", DEFAULT_TRIALS)
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(
            "--sampler", metavar="NAME", help=f"How the values of a trial are chosen: {', '.join(SAMPLERS)}."
        ),
    ] = "tpe",
    at_once: Annotated[
        str,
        options.option(
            "--at-once", "NUMBER", "Trials of a method that are chosen together, to run in parallel."
        ),
    ] = "1",
    experiment: Annotated[
        Path | None,
        options.option("--experiment", "PATH", "An experiment file; options given here override it."),
    ] = None,
    dataset: options.Dataset = None,
    skew: options.Skew = None,
    clients: options.Clients = None,
    model: options.Model = None,
    init: options.Init = None,
    rounds: options.Rounds = None,
    cohort: options.Cohort = None,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    batch_size: options.BatchSize = None,
    lr: options.Lr = None,
    schedule: options.Schedule = None,
    optimizer: options.Optimizer = None,
    augment: options.Augment = None,
    validation: Annotated[
        str | None,
        options.option(
            "--validation",
            "SHARE|DATA",
            "Validation set that trials are compared on: a share of each client's samples, or data such as "
            "csv:PATH,label=COLUMN.",
            DEFAULT_SHARE,
        ),
    ] = None,
    stop: options.Stop = None,
    seeds: Annotated[
        str | None,
        options.option(
            "--seeds",
            "NUMBERS",
            "Seeds per trial, such as 1-3; its score is their mean.",
            "that of the experiment, else 1",
        ),
    ] = None,
    engine: options.Engine = None,
    device: options.Device = None,
    workers: options.Workers = None,
    precision: options.Precision = None,
    out: options.Out = None,
    data: options.Data = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    set_: options.Set = None,
) -> None:
    """Search hyperparameters of methods on validation data, each with the same number of trials, and write
    the winners' experiment files. The test set plays no part in the choice."""
    clock = Clock(process_age())
    clock.mark("imports")
    refuse_unshared(set_, seeds)
    places = context.meta[PLACES]
    texts: list[list[str]] = [[] for _ in range(len(methods) + 1)]
    for place, text in zip(places, over or [], strict=True):
        texts[place].append(text)
    for place, method in enumerate(methods):
        if _is_number(method) and texts[place]:
            values = [texts[place][-1], *itertools.takewhile(_is_number, methods[place:])]
            raise UserError(
                f"unknown method '{method}': several values of one --over are separated by bars, as in "
                f"--over '{'|'.join(values)}'."
            )
    if sampler not in SAMPLERS:
        raise unknown("sampler", sampler, SAMPLERS)
    number = DEFAULT_TRIALS if trials is None else _number("--trials", trials)
    together = _number("--at-once", at_once)
    if sampler == "grid" and trials is not None:
        raise UserError("--sampler grid tries all combinations: leave out --trials.")
    if len(set(map(slug, methods))) < len(methods):
        raise UserError("a method is named twice: name each once.")
    base = experiment_settings(experiment, set_, **given_flags(context))
    base.pop("method", None)
    if "validation" not in base and not str(base.get("skew", {}).get("recipe", "")).startswith("file:"):
        base["validation"] = DEFAULT_SHARE  # a partition in a file may bring its own
    first = Experiment(**base)
    search = Search(
        methods=[
            Searched(method, [*texts[0], *own], _table(method))
            for method, own in zip(methods, texts[1:], strict=True)
        ],
        trials=number,
        seeds=[first.seed] if seeds is None else options.seed_list(seeds),
        sampler=sampler,
        at_once=together,
        experiment=base,
    )
    finish_search(out, search, clock, json=json, quiet=quiet)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(flag: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise UserError(f"{flag} is '{text}' but should be a whole number, at least 1.")
    return int(text)


def _table(method: str) -> dict[str, Any]:
    """Return a method's table in an experiment, with an absolute path if the method is a file."""
    table = method_table(method)
    return table | {"name": "+".join(map(absolute_method, method_parts(table["name"])))}
