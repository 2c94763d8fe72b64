"""Run folders as values: what figures, tables and pages are made from. Needs no PyTorch.

Accuracies are fractions. What was NaN or did not exist is None, as JSON has it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from unskew.errors import UserError
from unskew.report import record

ELSEWHERE = {
    "seed", "engine", "device", "threads", "workers", "trace", "fast", "data.folder", "skew.seed",
    "evaluation.every", "evaluation.batch_size", "probe.every",
}  # fmt: skip
"""Settings in which runs of one method may differ and still be seeds of the same thing."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run folder."""

    path: Path
    label: str
    """The method as it can be typed. Read from the folder, every hyperparameter is written out;
    `unskew.cli.reading` leaves those out that have their defaults."""
    seed: int
    experiment: dict[str, Any]
    """experiment.toml"""
    environment: dict[str, Any]
    classes: tuple[str, ...]
    counts: NDArray[np.int64]
    """Label counts, [N, C]."""
    rounds: list[dict[str, Any]]
    """The whole lines of rounds.jsonl, in order: grows while the run is under way."""
    probes: list[dict[str, Any]]
    """The whole lines of probes.jsonl; empty where probing is off."""
    summary: dict[str, Any] | None
    """None while the run is under way, and where it was stopped."""
    skew: str
    """As it can be typed; see `label`."""

    @property
    def total_rounds(self) -> int:
        """Rounds asked for."""
        return int(self.experiment["budget"]["rounds"])

    @property
    def done(self) -> int:
        """Rounds finished."""
        return len(self.rounds)

    @property
    def finished(self) -> bool:
        return self.summary is not None

    @cached_property
    def tested(self) -> list[dict[str, Any]]:
        """The rounds with an accuracy."""
        return [line for line in self.rounds if line.get("accuracy") is not None]

    @property
    def conditions(self) -> str:
        """Under which the method ran, in one line: data, skew, clients, cohort, model."""
        cohort = self.experiment["budget"]["cohort"]
        some = "" if cohort == "all" else f", {cohort} per round"
        data, model = self.experiment["data"]["name"], self.experiment["model"]["name"]
        return f"{data}, {self.skew}, {len(self.counts)} clients{some}, {model}"


def read_run(path: Path) -> Run:
    """The run in this folder, finished or not."""
    if not path.exists():
        raise UserError(f"there is no run folder {path}: check the path.")
    if not (path / "experiment.toml").is_file():
        raise UserError(f"{path} is not a run folder: give one that unskew run or compare has written.")
    experiment = _checked(_EXPERIMENT, _toml(path / "experiment.toml"), path / "experiment.toml")
    partition = _checked(_PARTITION, _json(path / "partition.json"), path / "partition.json")
    classes, counts = partition["dataset"]["classes"], partition["counts"]
    if not counts or any(len(row) != len(classes) for row in counts):
        raise _damaged(path / "partition.json", "its counts do not fit its classes")
    probes, summary = path / "probes.jsonl", path / "summary.json"
    run = Run(
        path=path,
        label=_spell(experiment["method"]),
        seed=experiment["seed"],
        experiment=experiment,
        environment=_checked(_ENVIRONMENT, _json(path / "environment.json"), path / "environment.json"),
        classes=tuple(classes),
        counts=np.array(counts, dtype=np.int64),
        rounds=_lines(_ROUND, path / "rounds.jsonl"),
        probes=_lines(_PROBE, probes) if probes.exists() else [],
        summary=_checked(_SUMMARY, _json(summary), summary) if summary.exists() else None,
        skew=experiment["skew"]["recipe"],
    )
    _check_classes(run)
    return run


def read_runs(paths: Iterable[Path]) -> list[Run]:
    """The runs in these folders, each once. A folder of run folders, as compare makes it, stands for all of
    them."""
    folders = [folder for path in paths for folder in _folders(path)]
    if not folders:
        raise UserError("no run is given: name the folder of at least one.")
    return [read_run(path) for path in {folder.resolve(): folder for folder in folders}.values()]


def coming(paths: Iterable[Path]) -> list[int]:
    """The rounds of each run that a compare in these folders has still to begin."""
    found: list[int] = []
    for path in paths:
        if (file := path / "plan.json").is_file():
            plan = _checked(_PLAN, _json(file), file)
            found += [plan["rounds"] for name in plan["runs"] if not (path / name / "rounds.jsonl").exists()]
    return found


def by_method(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The seeds of each method, in order of appearance. Where runs of a method differ in more than the seed,
    what differs stands behind its name; where a seed is there twice, the folder's name."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    told: dict[str, list[Run]] = {}
    for label, members in groups.items():
        asked = [settings(run) for run in members]
        every = dict.fromkeys(key for each in asked for key in each)
        keys = [key for key in every if len({str(each.get(key)) for each in asked}) > 1]
        for run, mine in zip(members, asked, strict=True):
            differs = ", ".join(f"{key.rpartition('.')[2]}={mine.get(key)}" for key in keys)
            name = f"{label} ({differs})" if keys else label
            if any(run.seed == other.seed for other in told.get(name, [])):
                name = f"{name} [{run.path.name}]"
            told.setdefault(name, []).append(run)
    return told


def same_classes(runs: Sequence[Run]) -> tuple[str, ...]:
    """The classes, where all runs have the same."""
    for run in runs:
        if run.classes != runs[0].classes:
            raise UserError(f"{runs[0].path} and {run.path} have other classes: give runs on one dataset.")
    return runs[0].classes


def settings(run: Run) -> dict[str, object]:
    """The conditions of a run that make it more than another seed, by their path in the experiment, such as
    budget.lr. The method is not among them."""
    flat = dict(_flatten({key: value for key, value in run.experiment.items() if key != "method"}))
    return {key: value for key, value in flat.items() if key not in ELSEWHERE} | {"skew.recipe": run.skew}


def hyperparameters(run: Run) -> dict[str, object]:
    """Of the method, by their path in the experiment, such as method.mu; its name is method.name."""
    return dict(_flatten({"method": run.experiment["method"]}))


def _flatten(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _spell(method: Mapping[str, Any]) -> str:
    """A method's table as it can be typed: name:option=value, parts joined by +."""
    names = method["name"].split("+")
    given = {key: value for key, value in method.items() if key != "name"}
    parts = {names[0]: given} if len(names) == 1 else {name: given.get(name, {}) for name in names}
    return "+".join(
        f"{name}:{','.join(f'{key}={value}' for key, value in options.items())}" if options else name
        for name, options in parts.items()
    )


def _folders(path: Path) -> list[Path]:
    if (path / "experiment.toml").is_file() or not path.is_dir():
        return [path]  # a run, or for read_run to complain about
    # rounds.jsonl is the last file made before the first round: a run that is just being set up waits.
    found = {each.parent.name: each.parent for each in sorted(path.glob("*/rounds.jsonl"))}
    runs = {name: each for name, each in found.items() if (each / "experiment.toml").is_file()}
    if not runs:
        raise UserError(f"{path} holds no run: give a folder that unskew run or compare has written.")
    compare = path / "compare.json"
    if not compare.exists():
        return sorted(runs.values(), key=lambda each: (_started(each), each.name))
    whole = _checked(_COMPARE, _json(compare), compare)
    order = {Path(each["run_dir"]).name: place for place, each in enumerate(whole["runs"])}
    return [runs[name] for name in sorted(runs, key=lambda name: (order.get(name, len(order)), name))]


def _started(path: Path) -> str:
    """Of runs under way or of a folder with all kinds of runs, those that began first come first."""
    file = path / "environment.json"
    return str(_checked(_ENVIRONMENT, _json(file), file).get("started", ""))


_EXPERIMENT = TypeAdapter(record.Experiment)
_ENVIRONMENT = TypeAdapter(dict[str, Any])
_PARTITION = TypeAdapter(record.Partition)
_ROUND = TypeAdapter(record.Round)
_PROBE = TypeAdapter(record.Probe)
_SUMMARY = TypeAdapter(record.Summary)
_COMPARE = TypeAdapter(record.Compare)
_PLAN = TypeAdapter(record.Plan)


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


def _toml(path: Path) -> object:
    try:
        return tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise _damaged(path, str(error)) from None


def _json(path: Path) -> object:
    try:
        return json.loads(_text(path))
    except ValueError as error:
        raise _damaged(path, str(error)) from None


def _lines(kind: TypeAdapter[Any], path: Path) -> list[dict[str, Any]]:
    whole = _text(path).rpartition("\n")[0]  # the last line may be half-written
    lines: list[dict[str, Any]] = []
    for number, line in enumerate(whole.split("\n") if whole else [], 1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise _damaged(path, f"line {number}, {error}") from None
        lines.append(_checked(kind, value, path, f"line {number}, "))
    return lines


def _checked(kind: TypeAdapter[Any], value: object, path: Path, where: str = "") -> dict[str, Any]:
    """The value itself, once it has the shape it should have."""
    try:
        kind.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise _damaged(path, f"{where}{place + ': ' if place else ''}{first['msg']}") from None
    assert isinstance(value, dict)  # every kind is a table
    return value


def _check_classes(run: Run) -> None:
    """That what is given class by class is given for every class."""
    C = len(run.classes)
    for name, records in (("rounds.jsonl", run.rounds), ("probes.jsonl", run.probes)):
        for number, line in enumerate(records, 1):
            each = [line, *line["clients"]] if name == "probes.jsonl" else [line]
            for key in record.BY_CLASS:
                if any(len(part.get(key) or range(C)) != C for part in each):
                    raise _damaged(run.path / name, f"line {number}, {key} does not fit {C} classes")
    for key in record.BY_CLASS:
        rows = (run.summary or {}).get(key) or range(C)
        if len(rows) != C or any(isinstance(row, list) and len(row) != C for row in rows):
            raise _damaged(run.path / "summary.json", f"{key} does not fit {C} classes")


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"{path} is damaged ({what}): give another run, or run it again.")
