"""Carries out a search in a folder: a new one, or one to be resumed."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unskew import record
from unskew.cli.closing import work_time_line
from unskew.cli.progress import ProgressDisplay
from unskew.cli.setup import Loaded, set_up
from unskew.cli.terminal import say
from unskew.cli.tune.winners import note_edited_methods, show_winners, tune_json
from unskew.clock import Clock
from unskew.data.federation import Federation
from unskew.errors import Interrupted, UserError
from unskew.experiment import Experiment, MethodSpec, Prepared
from unskew.lock import locked
from unskew.methods.assemble import find
from unskew.record import to_json
from unskew.runs import EMPTY, claim, free_folder, write_whole
from unskew.sweep import how_to_resume
from unskew.tune.folder import (
    Methods,
    Prepare,
    experiment_of,
    needs_optuna,
    read_search,
    read_trials,
    run_search,
    winners,
)
from unskew.tune.search import Search, TrialLine, trials_of
from unskew.tune.space import called, parse_over


def finish_search(folder: Path | None, search: Search, clock: Clock, *, json: bool, quiet: bool) -> None:
    """Run the trials of a search that are not done in a folder, which may be new, and show the winners."""
    methods = _methods(search)
    planned = sum(trials_of(search, overs) for _, overs in methods.values())
    needs_optuna(search)
    loaded = Loaded()

    def prepare(specs: Sequence[Experiment]) -> list[Prepared]:
        cells = set_up([("", spec) for spec in specs], clock, loaded, quiet=quiet)
        return [prepared for _, prepared in cells]

    # Values that a method refuses are found before anything is written.
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

        def prepare_trials(specs: Sequence[Experiment]) -> list[Prepared]:
            clock.mark("trials")
            return prepare(specs)

        _run_left(folder, search, methods, planned, done, prepare_trials, quiet=quiet)
        clock.mark("trials")
        won = winners(folder, search, methods, done)
        result = tune_json(search, won, done, folder)
        write_whole(folder / "tune.json", to_json(result))
    if json:
        print(to_json(result, indent=None))
    else:
        show_winners(search, won, done, folder)
    note_edited_methods(folder, methods, done)
    if not quiet:
        say(work_time_line(clock, "trials"))
    if missing := [name for name in methods if name not in {each.method for each in won}]:
        errors = [error.removesuffix(".") for line in done[missing[0]] for error in line.errors]
        why = errors[0] if errors else f"no {search.metric} is a finite number"
        raise UserError(f"no trial of {missing[0]} has a score ({why}): see {folder}.")


def _run_left(
    folder: Path,
    search: Search,
    methods: Methods,
    planned: int,
    done: dict[str, list[TrialLine]],
    prepare: Prepare,
    *,
    quiet: bool,
) -> None:
    """Run the planned trials that are not in `done`, and again those that failed; add them to `done`."""
    whole = sum(not line.errors for lines in done.values() for line in lines)
    runs = (planned - whole) * len(search.seeds)
    rounds = Experiment(**search.experiment).budget.rounds
    with ProgressDisplay(runs * rounds, cells=runs, quiet=quiet) as display:
        try:
            run_search(folder, search, methods, done, prepare, display)
        except KeyboardInterrupt:
            tried = [experiment_of(search, table, {}, 0) for table, _ in methods.values()]
            raise Interrupted(f"stopped; {how_to_resume(folder, tried)}") from None


def _portable(settings: dict[str, Any], resolved: Experiment) -> dict[str, Any]:
    """Return settings that mean the same in every folder and on every machine.

    `resolved` is the experiment that they make here, with all paths and defaults.
    """
    absolute, whole = resolved.model_dump(), copy.deepcopy(settings)
    for table, key in (
        ("data", "name"), ("data", "folder"), ("skew", "recipe"), ("model", "name"), ("model", "init"),
    ):  # fmt: skip
        if whole.get(table, {}).get(key):
            whole[table][key] = absolute[table][key]
    return whole | {"validation": absolute["validation"], "precision": absolute["precision"]}


def _digest(federation: Federation) -> str:
    """Return a hash of all data that a search uses: training, test and validation samples."""
    digest = hashlib.sha256(federation.dataset.sha256.encode())
    if federation.validation is not None:
        federation.validation.digest(digest)
    return digest.hexdigest()


def _methods(search: Search) -> Methods:
    """Return the methods of a search with their ranges.

    Refuse a method without a range, or with two ranges for one setting.
    """
    found, settings = {}, Experiment(**search.experiment)
    for each in search.methods:
        for part in MethodSpec(**each.table).parts():
            find(part)  # refuses an unknown method
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
    """Return experiments with the ends of each range, which all other values lie between."""
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
    """Write the search to a new folder; refuse a folder that holds another search.

    A search with more trials than the one in the folder continues it.
    """
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
