"""A hyperparameter search in a folder: to run it, to resume it, and to write down its winners."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import tomli_w

from unskew.errors import UserError
from unskew.experiment import Experiment, Prepared, put, read
from unskew.record import DamagedError, Failure, to_json
from unskew.report.read import SavedRun
from unskew.runs import slug, write_whole
from unskew.sweep import SweepRun, Watcher, sweep
from unskew.tune.search import SEARCH, TRIAL, Search, TrialLine, best, choose, trials_of
from unskew.tune.space import Dimension, Value, default_values

Methods = Mapping[str, tuple[Mapping[str, Any], Sequence[Dimension]]]
"""The table in an experiment and the search space of each method, by the method's name."""
Prepare = Callable[[Sequence[Experiment]], list[Prepared]]
"""A function that makes experiments ready to run."""


def needs_optuna(search: Search) -> None:
    """Refuse a search that needs Optuna if that is not installed."""
    if search.sampler != "grid" and importlib.util.find_spec("optuna") is None:
        raise UserError(
            f"--sampler {search.sampler} needs Optuna: pip install 'unskew[tune]', or use --sampler grid."
        )


def experiment_of(
    search: Search, method: Mapping[str, Any], values: Mapping[str, Value], seed: int
) -> Experiment:
    """Return the experiment of a trial with one seed: the settings that all trials share, with the values of
    this one."""
    settings = copy.deepcopy({**search.experiment, "seed": seed, "method": method})
    for setting, value in values.items():
        table, _, rest = setting.partition(".")
        part, _, name = rest.rpartition(".")  # a part of a method may be a file, whose name has a dot
        put(settings, [table, *([part] if part else []), name], value)
    return Experiment(**settings)


def read_search(folder: Path) -> Search:
    """Read the search.json of a folder."""
    path = folder / "search.json"
    try:
        search = SEARCH.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, DamagedError) as error:
        raise UserError(f"{path} cannot be used ({error}): tune again in another folder.") from None
    search.experiment.setdefault("precision", "fp32")  # the default when searches did not write it down yet
    return search


def read_trials(folder: Path, search: Search) -> dict[str, list[TrialLine]]:
    """Read the trials that are done, by method. Reading ends at the first damaged line, such as a crash
    leaves behind: the runs of its trial are in the folder, so its line is written again."""
    found: dict[str, list[TrialLine]] = {each.method: [] for each in search.methods}
    path = folder / "trials.jsonl"
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
        try:
            trial = TRIAL.parse(line.decode())
            lines = found[trial.method]
        except (DamagedError, UnicodeDecodeError, KeyError):
            break
        if trial.number != len(lines):
            break
        lines.append(trial)
    return found


def run_search(
    folder: Path,
    search: Search,
    methods: Methods,
    done: dict[str, list[TrialLine]],
    prepare: Prepare,
    watch: Watcher,
) -> None:
    """Run all trials that are not `done` yet, and add their lines to `done` and to the folder. The next
    trials of all methods run together: side by side on a CPU or on a Ray cluster."""

    def run(trials: Sequence[tuple[str, int, dict[str, Value]]]) -> Iterator[TrialLine]:
        """Run trials given as method, number and values, and yield their lines."""
        runs = [(name, number, values, seed) for name, number, values in trials for seed in search.seeds]
        prepared = prepare([experiment_of(search, methods[run[0]][0], *run[2:]) for run in runs])
        folders = [f"{slug(name)}/trial-{number:03d}-seed{seed}" for name, number, _, seed in runs]
        cells = [
            SweepRun(each.replace("/", " "), folder / each, mine)
            for each, mine in zip(folders, prepared, strict=True)
        ]
        ends = sweep(cells, watch, more=True)
        for place, (name, number, values) in enumerate(trials):
            own = slice(place * len(search.seeds), (place + 1) * len(search.seeds))
            yield _line(name, number, values, folders[own], ends[own])

    # Trials that failed run again with the same values: the reason may be gone, such as a full disk.
    for line in run(
        [(line.method, line.number, line.values) for each in done.values() for line in each if line.errors]
    ):
        done[line.method][line.number] = line
    _write_trials(folder, done)
    planned = {name: trials_of(search, space) for name, (_, space) in methods.items()}
    while any(len(done[name]) < planned[name] for name in methods):
        chosen = [
            (name, number, values)
            for name, (_, space) in methods.items()
            for number, values in _next(search, space, done[name], planned[name])
        ]
        for line in run(chosen):
            done[line.method].append(line)
        _write_trials(folder, done)


def _next(
    search: Search, space: Sequence[Dimension], done: Sequence[TrialLine], planned: int
) -> Iterator[tuple[int, dict[str, Value]]]:
    """Yield the numbers and values of a method's next trials. If a damaged file has lost some of the trials
    that were chosen together, choose these again from the same earlier trials, so that their values are the
    same."""
    first = len(done) - len(done) % search.at_once
    chosen = choose(search, space, done[:first], min(search.at_once, planned - first))
    yield from list(enumerate(chosen, first))[len(done) - first :]


def _line(
    method: str,
    number: int,
    values: dict[str, Value],
    folders: list[str],
    ends: Sequence[SavedRun | Failure],
) -> TrialLine:
    """Return the line of a trial whose runs, one for each seed, have ended or failed."""
    scores = [None if isinstance(end, Failure) else score_of(end) for end in ends]
    known = [score for score in scores if score is not None]
    return TrialLine(
        method,
        number,
        values,
        mean(known) if len(known) == len(scores) else None,
        scores,
        folders,
        [end.sentence for end in ends if isinstance(end, Failure)],
    )


def score_of(run: SavedRun) -> float | None:
    """Return the metric of a finished run's best round on the validation data."""
    assert run.summary is not None  # since the run has ended
    assert run.summary.validation is not None  # since every search has validation data
    return run.summary.validation.value


def _write_trials(folder: Path, done: Mapping[str, list[TrialLine]]) -> None:
    """Write all lines anew in the order of their numbers, so that a search that was stopped ends with the
    same file."""
    lines = sorted((line for each in done.values() for line in each), key=lambda line: line.number)
    write_whole(folder / "trials.jsonl", "".join(f"{to_json(line, indent=None)}\n" for line in lines))


@dataclass(frozen=True)
class Winner:
    """The best trial of a method."""

    method: str
    trial: TrialLine
    default: TrialLine | None
    """The trial with the values that the method has without a search."""
    experiment: Path
    """The path of its experiment file."""
    at_edge: list[str]
    """Settings whose best value lies at the edge of what was tried."""


def winners(
    folder: Path,
    search: Search,
    methods: Methods,
    done: Mapping[str, Sequence[TrialLine]],
) -> list[Winner]:
    """Return the best trial of every method that has one, and write the experiment file of each."""
    found = []
    for name, (_, space) in methods.items():
        won = best(search, done[name])
        if won is None:
            continue
        path = folder / "best" / f"{slug(name)}.toml"
        path.parent.mkdir(exist_ok=True)
        settings = read(folder / won.folders[0] / "experiment.toml")
        if search.experiment.get("skew", {}).get("seed") is None:  # then it follows the seed of the run
            settings["skew"].pop("seed", None)
        write_whole(path, tomli_w.dumps(settings))
        default = default_values(space)
        plain = next((line for line in done[name] if line.values == default), None)
        edges = [each.setting for each in space if each.at_edge(won.values[each.setting])]
        found.append(Winner(name, won, plain, path, edges))
    return found
