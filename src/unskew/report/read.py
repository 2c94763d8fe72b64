"""Run folders as values, from which figures, tables and pages are made. Needs no PyTorch.

Accuracies are fractions. A value that was NaN or did not exist is None, as in JSON.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from unskew import record
from unskew.errors import UserError
from unskew.notation import flatten, write_method

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class SavedRun:
    """One run folder."""

    path: Path
    label: str
    """What the method is called. Read from the folder alone, every hyperparameter is written out;
    `unskew.labelled_runs` leaves those out that have their defaults, and the folders of files."""
    seed: int
    experiment: dict[str, Any]
    """experiment.toml"""
    environment: record.Environment
    classes: tuple[str, ...]
    counts: NDArray[np.int64]
    """Label counts, [N, C]; if clients were drawn when they were needed, only of the first ones."""
    rounds: list[record.RoundRecord]
    """The complete lines of rounds.jsonl, in order; more come while the run is under way."""
    probes: list[record.ProbeRecord]
    """The complete lines of probes.jsonl; empty if probing is off."""
    summary: record.Summary | None
    """None while the run is under way, and if it was stopped."""
    failure: record.Failure | None
    """Why the run failed; None if it did not."""
    skew: str
    """The name of the skew; see `label`."""
    data: str
    """The name of the dataset; see `label`."""
    model: str
    """The name of the model; see `label`."""
    names: tuple[str, ...] = ()
    """The names of the clients, if they are sites with names."""
    samples: str = "samples"
    """The word for samples: images, texts, rows or samples."""
    data_sha256: str = ""
    """The hash of the data, since a file may have changed while its name stayed."""
    reference: str | None = None
    """The method that `compare --reference` named when the run was started."""

    @property
    def clients(self) -> int:
        """The number of clients."""
        return int(self.experiment["skew"].get("clients", len(self.counts)))

    @property
    def total_rounds(self) -> int:
        """The number of rounds that were asked for."""
        return int(self.experiment["budget"]["rounds"])

    @property
    def done(self) -> int:
        """The number of rounds that are finished."""
        return len(self.rounds)

    @property
    def finished(self) -> bool:
        return self.summary is not None

    @property
    def over(self) -> bool:
        """Whether no more rounds will come: the run has ended, or failed."""
        return self.finished or self.failure is not None

    @cached_property
    def tested(self) -> list[record.TestedRound]:
        """The rounds with an accuracy."""
        return [
            line for line in self.rounds if isinstance(line, record.TestedRound) and line.accuracy is not None
        ]

    @property
    def final(self) -> record.TestedRound | None:
        """The line of the run's model: the last one, or the one of the round that validation chose; None
        before any round was tested."""
        chosen = self.summary.validation.line if self.summary and self.summary.validation else None
        lines = [line for line in self.tested if line.round == chosen] or self.tested
        return lines[-1] if lines else None

    @property
    def conditions(self) -> str:
        """The conditions of the run in one line: data, skew, clients, cohort, model."""
        cohort = self.experiment["budget"]["cohort"]
        some = "" if cohort == "all" else f", {cohort} per round"
        return f"{self.data}, {self.skew}, {self.clients} clients{some}, {self.model}"


def read_run(path: Path) -> SavedRun:
    """Read the run in a folder, whether it has ended or not."""
    if not path.exists():
        raise UserError(f"there is no run folder {path}: check the path.")
    if not (path / "experiment.toml").is_file():
        raise UserError(f"{path} is not a run folder: give one that unskew run or compare has written.")
    experiment = _toml(path / "experiment.toml")
    partition = _parse(record.PARTITION, path / "partition.json")
    classes, counts = partition["dataset"]["classes"], partition["counts"]
    names = partition.get("names", [])
    # Clients on other machines that keep their label counts are known by name only.
    if not (counts or names) or any(len(row) != len(classes) for row in counts):
        raise _damaged(path / "partition.json", "its counts do not fit its classes")
    if not all(0 <= number < 1 << 53 for row in counts for number in row):
        raise _damaged(path / "partition.json", "its counts are no numbers of samples")
    if names and counts and len(names) != len(counts):
        raise _damaged(path / "partition.json", "its names do not fit its counts")
    probes, summary, failure = (path / name for name in ("probes.jsonl", "summary.json", "error.json"))
    run = SavedRun(
        path=path,
        label=write_method(cast(dict[str, Any], experiment["method"])),
        seed=experiment["seed"],
        experiment=cast(dict[str, Any], experiment),
        environment=_parse(record.ENVIRONMENT, path / "environment.json"),
        classes=tuple(classes),
        counts=np.array(counts, dtype=np.int64).reshape(-1, len(classes)),
        rounds=_lines(record.ROUND, path / "rounds.jsonl"),
        probes=_lines(record.PROBE, probes) if probes.exists() else [],
        summary=_parse(record.SUMMARY, summary) if summary.exists() else None,
        failure=_parse(record.FAILURE, failure) if failure.exists() else None,
        skew=experiment["skew"]["recipe"],
        data=experiment["data"]["name"],
        model=experiment["model"]["name"],
        names=tuple(names),
        samples=partition["dataset"].get("samples", "samples"),
        data_sha256=str(partition["dataset"].get("sha256", "")),
    )
    _check_classes(run)
    return run


def read_own_run(folder: Path) -> SavedRun:
    """Read a run that the same command wrote earlier; an error about damage says to remove its folder."""
    try:
        return read_run(folder)
    except UserError as error:
        why = str(error).rpartition(": ")[0] or str(error)
        raise UserError(f"{why}: remove {folder}, and it is run again.") from None


def read_runs(paths: Iterable[Path]) -> list[SavedRun]:
    """Read the runs in these folders, each of them once.

    A folder with run folders, such as one of compare, stands for all of them, and the folder of a search for
    the runs of its winners.
    """
    folders: list[Path] = []
    for path in paths:
        try:
            folders += _folders(path)
        except OSError as error:  # such as a name that is too long
            raise UserError(f"{path} cannot be read ({error.strerror}): check the path.") from None
    if not folders:
        raise UserError("no run is given: name the folder of at least one.")
    each = {folder.resolve(): folder for folder in folders}.values()
    references = {parent: _reference(parent) for parent in {path.parent for path in each}}
    return [replace(read_run(path), reference=references[path.parent]) for path in each]


def coming(paths: Iterable[Path]) -> list[int]:
    """Return the number of rounds of each run that a compare in these folders has not begun yet."""
    found: list[int] = []
    for path in paths:
        if (file := path / "plan.json").is_file():
            plan = _parse(record.PLAN, file)
            begun = [_exists(path / Path(run.folder).name / "rounds.jsonl") for run in plan.runs]
            found += [plan.rounds] * begun.count(False)
    return found


def _folders(path: Path) -> list[Path]:
    if (path / "experiment.toml").is_file() or not path.is_dir():
        return [path]  # a run, or a path that read_run refuses
    # rounds.jsonl is the last file made before the first round, so runs that are being set up are left out.
    found = {each.parent.name: each.parent for each in sorted(path.glob("*/rounds.jsonl"))}
    runs = {name: each for name, each in found.items() if (each / "experiment.toml").is_file()}
    if not runs and (path / "search.json").is_file():
        return _winners(path)
    if not runs:
        raise UserError(f"{path} holds no run: give a folder that unskew run or compare has written.")
    compare = path / "compare.json"
    if not compare.exists():
        return sorted(runs.values(), key=lambda each: (_started(each), each.name))
    whole = _parse(record.COMPARE, compare)
    order = {Path(each["run_dir"]).name: place for place, each in enumerate(whole["runs"])}
    return [runs[name] for name in sorted(runs, key=lambda name: (order.get(name, len(order)), name))]


def _reference(path: Path) -> str | None:
    """Return the reference that a compare in this folder was started with; None if it has none."""
    return _parse(record.PLAN, path / "plan.json").reference if (path / "plan.json").is_file() else None


def read_search(path: Path) -> record.Tuned:
    """Read the tune.json of a folder of `unskew tune`."""
    if not path.exists():
        raise UserError(f"there is no folder {path}: check the path.")
    if not (path / "search.json").is_file():
        for parent in (path.parent, path.parent.parent):
            if (parent / "search.json").is_file():
                raise UserError(f"{path} is only a part of the search in {parent}: give that folder.")
        raise UserError(f"{path} holds no search: give a folder that unskew tune has written.")
    if not (path / "tune.json").is_file():
        raise UserError(
            f"{path} holds a search that has not ended: resume it with unskew resume "
            f"{shlex.quote(str(path))}, or give the folders of single runs in it."
        )
    return _parse(record.TUNED, path / "tune.json")


def _winners(path: Path) -> list[Path]:
    """Return the run folders of each method's best trial in a folder of `unskew tune`."""
    tuned = read_search(path)
    best = {(each["method"], each["trial"]) for each in tuned["winners"]}
    found = [
        path / folder
        for each in tuned["all"]
        if (each["method"], each["trial"]) in best
        for folder in each["folders"]
    ]
    if not found:
        raise UserError(f"no trial of the search {path} has a score: give another folder.")
    return found


def _started(path: Path) -> str:
    """Return when a run was started, by which runs without another order are sorted."""
    return _parse(record.ENVIRONMENT, path / "environment.json").started


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # no file can have such a name
        return False


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(
            f"the run folder {path.parent} lacks {path.name}: give another run, or run it again."
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise _damaged(path, "it is not text") from None


def _toml(path: Path) -> record.ExperimentRecord:
    try:
        settings = tomllib.loads(_text(path))
        list(flatten(settings))  # raises RecursionError if tables are nested too deeply
        return record.EXPERIMENT.check(settings)
    except (ValueError, RecursionError) as error:  # also tomllib.TOMLDecodeError and record.DamagedError
        raise _damaged(path, str(error)) from None


def _parse(kind: record.Format[T], path: Path) -> T:
    try:
        return kind.parse(_text(path))
    except record.DamagedError as error:
        raise _damaged(path, str(error)) from None


def _lines(kind: record.Format[T], path: Path) -> list[T]:
    whole = _text(path).rpartition("\n")[0]  # the last line may be half-written
    lines: list[T] = []
    for number, line in enumerate(whole.split("\n") if whole else [], 1):
        try:
            lines.append(kind.parse(line))
        except record.DamagedError as error:
            raise _damaged(path, f"line {number}, {error}") from None
    return lines


def _check_classes(run: SavedRun) -> None:
    """Check that lists with a value for each class have as many values as there are classes."""
    C = len(run.classes)
    rounds = [(f"line {number}, ", [line]) for number, line in enumerate(run.rounds, 1)]
    probes = [(f"line {number}, ", [line, *line.clients]) for number, line in enumerate(run.probes, 1)]
    sites = run.summary.sites.each if run.summary and run.summary.sites else []
    summary = [("", [run.summary, *sites])] if run.summary else []
    for name, parts in (("rounds.jsonl", rounds), ("probes.jsonl", probes), ("summary.json", summary)):
        for where, holders in parts:
            for key in record.BY_CLASS:
                for holder in holders:
                    rows = getattr(holder, key, range(C))
                    if len(rows) != C or any(isinstance(row, list) and len(row) != C for row in rows):
                        raise _damaged(run.path / name, f"{where}{key} does not fit {C} classes")
    for site in sites:
        for numbers in ([] if site.worst_class is None else [site.worst_class], *site.answered):
            if not all(0 <= number < C for number in numbers[:2]):
                raise _damaged(run.path / "summary.json", f"sites do not fit {C} classes")


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"{path} is damaged ({what}): give another run, or run it again.")
