"""Methods under several settings, over several seeds, in one folder. `unskew compare` is a study with one
setting."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unskew.comparison import comparison
from unskew.errors import UserError
from unskew.experiment import Experiment, Prepared
from unskew.labelled_runs import shorten
from unskew.record import COMPARE, PLAN, DamagedError, FailedRun, Failure, Plan, Planned, to_json
from unskew.report.answer import Answer
from unskew.report.read import SavedRun
from unskew.runs import EMPTY, differences, is_begun, is_edited, slug, write_whole
from unskew.sweep import SweepRun


@dataclass(frozen=True)
class StudyCell:
    """A run of a study: a method under a setting, with a seed."""

    method: str
    """What the method is called beside the others."""
    prepared: Prepared
    condition: str = ""
    """What its setting is called beside the others; empty where there is one for all."""

    @property
    def experiment(self) -> Experiment:
        return self.prepared.experiment

    @property
    def name(self) -> str:
        """What the run is called while it is under way."""
        where = f" ({self.condition})" if self.condition else ""
        return f"{self.method}{where} seed {self.experiment.seed}"


@dataclass(frozen=True)
class ConditionResult:
    """What the methods under one setting came to."""

    condition: str
    experiment: Experiment
    """The experiment of one of them."""
    seeds: tuple[int, ...]
    runs: Mapping[str, Sequence[SavedRun]]
    """The finished runs, by method."""
    answer: Answer | None
    """None where no run has finished."""
    json: Mapping[str, Any]
    """The whole result as compare.json holds it."""


@dataclass(frozen=True)
class Study:
    """Runs of methods under settings, in the order in which they run."""

    cells: tuple[StudyCell, ...]
    reference: str | None = None
    """The method that the others are compared with, where one is asked for."""

    @property
    def conditions(self) -> list[str]:
        """The names of its settings."""
        return list(dict.fromkeys(cell.condition for cell in self.cells))

    @property
    def rounds(self) -> int:
        """The most rounds that a run of it has."""
        return max(cell.experiment.budget.rounds for cell in self.cells)

    def planned(self, folder: Path) -> list[SweepRun]:
        """Its runs, each with a folder of its own."""
        starts = _distinct((cell.condition, cell.method) for cell in self.cells)
        return [
            SweepRun(
                cell.name,
                folder / f"{starts[cell.condition, cell.method]}-seed{cell.experiment.seed}",
                cell.prepared,
            )
            for cell in self.cells
        ]

    def agree_on_plan(self, folder: Path, found: str, planned: Sequence[SweepRun]) -> None:
        """Write down what is going to run, or check that it is what the folder says. The runs stay; what they
        are compared with may be another."""
        runs = [
            Planned(
                run.folder.name,
                run.identity,
                cell.method,
                cell.experiment.model_dump(exclude_none=True),
                cell.condition,
            )
            for run, cell in zip(planned, self.cells, strict=True)
        ]
        if found == EMPTY:
            write_whole(folder / "plan.json", to_json(Plan(runs, self.rounds, self.reference)))
            return
        if not (folder / "plan.json").exists():
            raise UserError(f"the output folder {folder} holds a run: choose another with --out.")
        before = read_plan(folder)
        there = {run.folder: run for run in before.runs}
        same = [run.folder for run in runs] == list(there)
        if not same or any(_is_another(run, there[run.folder], folder, runs) for run in runs):
            raise UserError(
                f"the output folder {folder} holds another compare ({_difference(runs, there)}): choose "
                "another with --out, or ask for the same."
            )
        if before.reference != self.reference or runs != before.runs:
            now = replace(before, runs=runs, reference=self.reference)
            write_whole(folder / "plan.json", to_json(now))

    def conclude(
        self, planned: Sequence[SweepRun], ends: Sequence[SavedRun | Failure]
    ) -> tuple[list[ConditionResult], list[FailedRun]]:
        """What the runs came to under each setting, and those that failed."""
        named = {run.path: run for run in shorten([end for end in ends if isinstance(end, SavedRun)])}
        finished: dict[str, dict[str, dict[int, SavedRun]]] = {}
        failed: dict[str, list[FailedRun]] = {condition: [] for condition in self.conditions}
        for cell, run, end in zip(self.cells, planned, ends, strict=True):
            of_method = finished.setdefault(cell.condition, {}).setdefault(cell.method, {})
            seed = cell.experiment.seed
            if isinstance(end, Failure):
                where = FailedRun(cell.method, seed, run.identity, str(run.folder), end.sentence)
                failed[cell.condition].append(where)
            else:
                of_method[seed] = named[end.path]
        results = []
        for condition, methods in finished.items():
            mine = [cell for cell in self.cells if cell.condition == condition]
            seeds = tuple(dict.fromkeys(cell.experiment.seed for cell in mine))
            whole, answer = comparison(mine[0].experiment, seeds, methods, failed[condition], self.reference)
            known = {method: list(each.values()) for method, each in methods.items() if each}
            results.append(ConditionResult(condition, mine[0].experiment, seeds, known, answer, whole))
        return results, [each for some in failed.values() for each in some]


def compare_json(results: Sequence[ConditionResult]) -> dict[str, Any]:
    """What compare.json holds: of one setting its comparison, of several each of them by name, and the runs
    of all."""
    if len(results) == 1:
        return dict(results[0].json)
    whole = {each.condition: dict(each.json) for each in results}
    runs = [run for each in whole.values() for run in each.pop("runs")]
    failed = [run for each in whole.values() for run in each.pop("failed")]
    return {"conditions": whole, "methods": {}, "runs": runs, "failed": failed}


def combinations(varied: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """Every choice of one value of each setting; one empty choice where nothing varies."""
    return [dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values())]


def read_plan(folder: Path) -> Plan:
    """What a study in this folder is going to run."""
    path = folder / "plan.json"
    try:
        return PLAN.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, DamagedError) as error:
        raise UserError(
            f"{path} cannot be used ({error}): run the compare again in another folder."
        ) from None


def failed_before(folder: Path) -> bool:
    """Whether runs of a study that has ended have failed, and may be tried again."""
    try:
        return bool(COMPARE.parse((folder / "compare.json").read_text(encoding="utf-8")).get("failed"))
    except (OSError, UnicodeDecodeError, DamagedError):
        return False


def _is_another(run: Planned, there: Planned, folder: Path, runs: Sequence[Planned]) -> bool:
    """Whether a run is not what a plan says. A method's own file may have been edited as long as nothing has
    come of training by it in any of the method's runs."""
    if run.identity == there.identity:
        return False
    begun = any(is_begun(folder / each.folder) for each in runs if each.method == run.method)
    return begun or not is_edited(Experiment(**there.experiment), Experiment(**run.experiment))


def _difference(runs: Sequence[Planned], there: Mapping[str, Planned]) -> str:
    """What is asked for now and differs from what a plan says."""
    names = {run.folder for run in runs}
    if missing := sorted(there.keys() - names):
        return f"with {missing[0]}"
    if more := sorted(names - there.keys()):
        return f"without {more[0]}"
    for run in runs:
        if run.identity != there[run.folder].identity:
            return differences(Experiment(**there[run.folder].experiment), Experiment(**run.experiment))
    return "in another order"


def _distinct(cells: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """What the folders of a method under a setting begin with."""
    found: dict[tuple[str, str], str] = {}
    for condition, method in dict.fromkeys(cells):
        stem = "-".join(slug(part) for part in (condition, method) if part)
        name, number = stem, 2
        while name in found.values():
            name, number = f"{stem}-{number}", number + 1
        found[condition, method] = name
    return found
