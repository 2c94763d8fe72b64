"""`unskew tune`: hyperparameters by validation, every method with the same number of trials."""

from __future__ import annotations

import copy
import hashlib
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from unskew import record
from unskew.cli import options
from unskew.cli.flags import experiment_settings, given_flags, refuse_unshared
from unskew.cli.progress import ProgressDisplay
from unskew.cli.setup import Loaded, set_up
from unskew.cli.terminal import Grid, console, say
from unskew.clock import Clock, process_age
from unskew.data.federation import Federation
from unskew.errors import Interrupted, UserError, unknown
from unskew.experiment import Experiment, MethodSpec, Prepared, absolute_method, method_table, read
from unskew.lock import locked
from unskew.record import to_json
from unskew.runs import EMPTY, claim, free_folder, slug, write_whole
from unskew.search import SAMPLERS, Search, Searched, TrialLine, called, describe, parse_over, trials_of
from unskew.sweep import how_to_resume
from unskew.tune import (
    Methods,
    Winner,
    experiment_of,
    needs_optuna,
    read_search,
    read_trials,
    run_search,
    winners,
)
from unskew.user_code import is_code

PLACES = "unskew.over"
DEFAULT_SHARE = 0.1
"""Of each client's samples, on which trials are compared where nothing else is said."""


class _Tune(TyperCommand):
    """Knows which method each --over stands behind."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with_value = {
            name
            for each in self.params
            for name in each.opts
            if name.startswith("-") and not getattr(each, "is_flag", False)
        }
        methods, places, rest = 0, list[int](), iter(args)
        for word in rest:
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
        int | None,
        typer.Option("--trials", metavar="NUMBER", help="Trials per method. [default: 20]"),
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(
            "--sampler", metavar="NAME", help=f"How the values of a trial are chosen: {', '.join(SAMPLERS)}."
        ),
    ] = "tpe",
    at_once: Annotated[
        int,
        typer.Option(
            "--at-once",
            metavar="NUMBER",
            help="Trials of a method that are chosen together, to run in parallel.",
        ),
    ] = 1,
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
    if sampler not in SAMPLERS:
        raise unknown("sampler", sampler, SAMPLERS)
    for flag, number in (("--trials", trials), ("--at-once", at_once)):
        if number is not None and number < 1:
            raise UserError(f"{flag} is {number} but should be at least 1.")
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
        trials=20 if trials is None else trials,
        seeds=[first.seed] if seeds is None else options.seed_list(seeds),
        sampler=sampler,
        at_once=at_once,
        experiment=base,
    )
    finish(out, search, clock, json=json, quiet=quiet)


def finish(folder: Path | None, search: Search, clock: Clock, *, json: bool, quiet: bool) -> None:
    """Do in a folder, by default a new one, what of this search is not done there, and show the winners."""
    needs_optuna(search)
    methods = _methods(search)
    planned = sum(trials_of(search, overs) for _, overs in methods.values())
    data = Loaded()

    def prepare(specs: Sequence[Experiment]) -> list[Prepared]:
        cells = set_up([("", spec) for spec in specs], clock, data, quiet=quiet)
        return [prepared for _, prepared in cells]

    # A value that a method refuses is known before anything is written.
    first, *_ = prepare(_extremes(search, methods))
    federation = first.trial.federation
    if federation.validation is None:
        raise UserError("a search needs validation data: give --validation 0.1.")
    settings = _portable(search.experiment, first.experiment)
    search = replace(search, experiment=settings, data_sha256=_digest(federation))
    folder = folder or free_folder("-".join(["tune", *methods]))
    found = claim(folder)
    with locked(folder):
        _agree(folder, found, search)
        done = read_trials(folder, search)
        whole = sum(not line.errors for lines in done.values() for line in lines)  # the others run again
        left = (planned - whole) * len(search.seeds)
        rounds = Experiment(**search.experiment).budget.rounds
        with ProgressDisplay(left * rounds, cells=left, quiet=quiet) as display:
            try:
                run_search(folder, search, methods, done, prepare, display)
            except KeyboardInterrupt:
                tried = [experiment_of(search, table, {}, 0) for table, _ in methods.values()]
                raise Interrupted(f"stopped; {how_to_resume(folder, tried)}") from None
        clock.mark("trials")
        won = winners(folder, search, methods, done)
        result = _tune_json(search, won, done, folder)
        write_whole(folder / "tune.json", to_json(result))
    if json:
        print(to_json(result, indent=None))
    else:
        _show(search, won, done, folder)
    for name, (table, _) in methods.items():
        if MethodSpec(**table).files() and len(_contents(folder, done[name])) > 1:
            say(
                f"note: {name} was edited during the search: its trials are of several versions, and their "
                "scores do not compare unless the change does not matter to them."
            )
    if not quiet:
        say(f"time: {clock.total:.1f} s")
    if missing := [name for name in methods if name not in {each.method for each in won}]:
        errors = [error.removesuffix(".") for line in done[missing[0]] for error in line.errors]
        why = errors[0] if errors else f"no {search.metric} is a finite number"
        raise UserError(f"no trial of {missing[0]} has a score ({why}): see {folder}.")


def _contents(folder: Path, trials: Iterable[TrialLine]) -> set[str]:
    """The contents of a method's own file that trials were run with, as hashes."""
    paths = [folder / run / "experiment.toml" for line in trials if not line.errors for run in line.folders]
    tables = [read(path).get("method", {}) for path in paths if path.exists()]
    return {table["sha256"] for table in tables if "sha256" in table}


def _table(method: str) -> dict[str, Any]:
    """A method's table in an experiment, where its file, if it is one, is found from every folder."""
    table = method_table(method)
    return table | {"name": "+".join(map(absolute_method, table["name"].split("+")))}


def _portable(settings: dict[str, Any], resolved: Experiment) -> dict[str, Any]:
    """Settings that mean the same in every folder and on every machine."""
    absolute, whole = resolved.model_dump(), copy.deepcopy(settings)
    for table, key in (
        ("data", "name"), ("data", "folder"), ("skew", "recipe"), ("model", "name"), ("model", "init"),
    ):  # fmt: skip
        if whole.get(table, {}).get(key):
            whole[table][key] = absolute[table][key]
    return whole | {"validation": absolute["validation"], "precision": absolute["precision"]}


def _digest(federation: Federation) -> str:
    """A hash of all data that a search goes by: training, test and validation samples."""
    digest = hashlib.sha256(federation.dataset.sha256.encode())
    if federation.validation is not None:
        federation.validation.digest(digest)
    return digest.hexdigest()


def _methods(search: Search) -> Methods:
    found, settings = {}, Experiment(**search.experiment)
    for each in search.methods:
        overs = [parse_over(text, each.table, settings) for text in each.over]
        if not overs:
            raise UserError(
                f"{each.method} has nothing to search: write --over behind it, such as --over "
                "budget.lr=0.001..0.1:log."
            )
        names = [over.setting for over in overs]
        if twice := [name for name in names if names.count(name) > 1]:
            raise UserError(f"{called(twice[0])} is searched twice: give it one --over.")
        found[each.method] = each.table, overs
    return found


def _extremes(search: Search, methods: Methods) -> list[Experiment]:
    """Experiments with the values that all others lie between."""
    specs = []
    for table, overs in methods.values():
        middle = {over.setting: over.ends()[0] for over in overs}
        for over in overs:
            specs += [
                experiment_of(search, table, middle | {over.setting: end}, search.seeds[0])
                for end in over.ends()
            ]
    return specs


def _agree(folder: Path, found: str, search: Search) -> None:
    """Write down what the search is, or check that it is the folder's."""
    if found == EMPTY:
        write_whole(folder / "search.json", to_json(search))
        return
    if not (folder / "search.json").exists():
        raise UserError(f"the output folder {folder} holds no search: choose another with --out.")
    there, asked = (record.plain(each) for each in (read_search(folder), search))
    for each in (there, asked):
        each["experiment"] = Experiment(**each["experiment"]).result_settings()
    more = asked["trials"] > there["trials"]
    there["trials"] = asked["trials"] if more else there["trials"]
    if differing := [key for key in asked if asked[key] != there[key]]:
        raise UserError(
            f"the output folder {folder} holds another search ({', '.join(differing)} differ): choose "
            "another with --out, or ask for the same."
        )
    if more:
        write_whole(folder / "search.json", to_json(search))


def _tune_json(
    search: Search, won: list[Winner], done: dict[str, list[TrialLine]], folder: Path
) -> dict[str, Any]:
    """What tune.json holds."""
    return {
        "metric": search.metric,
        "trials": {name: len(lines) for name, lines in done.items()},
        "seeds": search.seeds,
        "sampler": search.sampler,
        "winners": [
            {
                "method": each.method,
                "values": each.trial.values,
                "score": each.trial.score,
                "default_score": each.default and each.default.score,
                "trial": each.trial.number + 1,
                "experiment": str(each.experiment),
                "at_edge": each.at_edge,
            }
            for each in won
        ],
        "notes": list(_notes(won)),
        "all": [_trial_json(line) for lines in done.values() for line in lines],
        "run_dir": str(folder),
    }


def _trial_json(line: TrialLine) -> dict[str, Any]:
    """A trial in tune.json: its line of trials.jsonl, but counted from 1, as winners are."""
    whole = record.plain(line)
    return {"method": whole.pop("method"), "trial": whole.pop("number") + 1, **whole}


def _show(search: Search, won: list[Winner], done: dict[str, list[TrialLine]], folder: Path) -> None:
    screen = console()
    seeds = f"seed{'s' * (len(search.seeds) > 1)} {','.join(map(str, search.seeds))}"
    screen.print(f"the best trial of each method by {search.metric} on validation data, {seeds}\n")
    rows = []
    for each in won:
        failed = sum(line.score is None for line in done[each.method])
        rows.append(
            [
                each.method,
                _number(each.trial.score),
                "-" if each.default is None else _number(each.default.score),
                f"{each.trial.number + 1} of {len(done[each.method])}",
                str(failed),
                describe(each.trial.values),
            ]
        )
    screen.print(Grid(["method", search.metric, "untuned", "trial", "failed", "values"], rows))
    for note in _notes(won):
        screen.print(f"\nnote: {note}")
    if not won:
        return
    files = " ".join(shlex.quote(str(each.experiment)) for each in won)
    seed = max(search.seeds) + 1
    screen.print("\nthe winners on the test set, with seeds that the search has not seen:")
    own = [f" --method {shlex.quote(name)}" for name in dict.fromkeys(_code(search))]
    screen.print(f"  unskew compare {files}{''.join(own)} --seeds {seed}-{seed + 2}", soft_wrap=True)
    screen.print(f"\nsearch: {folder}", soft_wrap=True)


def _code(search: Search) -> Iterator[str]:
    """The files of methods of one's own, whose code a command has to name."""
    for each in search.methods:
        yield from filter(is_code, each.table["name"].split("+"))


def _notes(won: list[Winner]) -> Iterator[str]:
    """What to know before the winners are believed."""
    for each in won:
        for setting in each.at_edge:
            yield f"{called(setting)} of {each.method} is best at the edge of its range: widen it."
    searched = {
        each.method: {name for name in each.trial.values if not name.startswith("method.")} for each in won
    }
    for name in sorted(set[str]().union(*searched.values())):
        if others := [method for method, names in searched.items() if name not in names]:
            yield (
                f"{name} was not searched for {', '.join(others)}: for a fair comparison write its --over "
                "before the methods."
            )


def _number(score: float | None) -> str:
    return "-" if score is None else f"{score:.4f}"
