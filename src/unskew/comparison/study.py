"""The runs of methods under several settings and with several seeds, in one folder. `unskew compare` without
`--vary` is a study with one setting."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unskew.comparison.statistics import condition_json
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
    """The name of the method, different from the names of the others."""
    prepared: Prepared
    condition: str = ""
    """The name of its setting, different from the names of the others; empty if all runs share one
    setting."""

    @property
    def experiment(self) -> Experiment:
        return self.prepared.experiment

    @property
    def name(self) -> str:
        """The name of the run in the display of progress."""
        where = f" ({self.condition})" if self.condition else ""
        return f"{self.method}{where} seed {self.experiment.seed}"


@dataclass(frozen=True)
class ConditionResult:
    """The results of the methods under one setting."""

    condition: str
    experiment: Experiment
    """The experiment of one of the runs."""
    seeds: tuple[int, ...]
    runs: Mapping[str, Sequence[SavedRun]]
    """The finished runs of each method."""
    answer: Answer | None
    """None if no run has finished."""
    json: Mapping[str, Any]
    """The results as compare.json holds them."""


@dataclass(frozen=True)
class Study:
    """Runs of methods under settings, in the order in which they run."""

    cells: tuple[StudyCell, ...]
    reference: str | None = None
    """The method that the others are compared with; None if the user names none."""

    @property
    def conditions(self) -> list[str]:
        """The names of the settings."""
        return list(dict.fromkeys(cell.condition for cell in self.cells))

    @property
    def rounds(self) -> int:
        """The largest number of rounds among the runs."""
        return max(cell.experiment.budget.rounds for cell in self.cells)

    def planned(self, folder: Path) -> list[SweepRun]:
        """Return the runs, each with its own folder in `folder`."""
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
        """Write plan.json, or refuse if the folder holds the plan of other runs. The reference may change.
        `found` is what `runs.claim` says of the folder."""
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
        """Return the results under each setting, and the runs that failed. `ends` has the end of each planned
        run."""
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
            whole, answer = condition_json(
                mine[0].experiment, seeds, methods, failed[condition], self.reference
            )
            known = {method: list(each.values()) for method, each in methods.items() if each}
            results.append(ConditionResult(condition, mine[0].experiment, seeds, known, answer, whole))
        return results, [each for some in failed.values() for each in some]


def compare_json(results: Sequence[ConditionResult]) -> dict[str, Any]:
    """Return what compare.json holds: the results under one setting, or if there are several, the results
    under each by its name and one list of all runs."""
    if len(results) == 1:
        return dict(results[0].json)
    whole = {each.condition: dict(each.json) for each in results}
    runs = [run for each in whole.values() for run in each.pop("runs")]
    failed = [run for each in whole.values() for run in each.pop("failed")]
    return {"conditions": whole, "methods": {}, "runs": runs, "failed": failed}


def combinations(varied: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """Return every combination of one value of each setting; one empty combination if nothing varies."""
    return [dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values())]


def read_plan(folder: Path) -> Plan:
    """Read the plan.json of a folder."""
    path = folder / "plan.json"
    try:
        return PLAN.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, DamagedError) as error:
        raise UserError(
            f"{path} cannot be used ({error}): run the compare again in another folder."
        ) from None


def failed_before(folder: Path) -> bool:
    """Say whether a study in this folder has ended with failed runs, which may be run again."""
    try:
        return bool(COMPARE.parse((folder / "compare.json").read_text(encoding="utf-8")).get("failed"))
    except (OSError, UnicodeDecodeError, DamagedError):
        return False


def _is_another(run: Planned, there: Planned, folder: Path, runs: Sequence[Planned]) -> bool:
    """Say whether a run differs from the plan. The file of the user's own method may have been edited as long
    as none of the method's runs has begun to train."""
    if run.identity == there.identity:
        return False
    begun = any(is_begun(folder / each.folder) for each in runs if each.method == run.method)
    return begun or not is_edited(Experiment(**there.experiment), Experiment(**run.experiment))


def _difference(runs: Sequence[Planned], there: Mapping[str, Planned]) -> str:
    """Describe how the plan in the folder, `there`, differs from the runs that are asked for now."""
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
    """Return the beginning of the folders' names for each pair of setting and method, all different."""
    found: dict[tuple[str, str], str] = {}
    for condition, method in dict.fromkeys(cells):
        stem = "-".join(slug(part) for part in (condition, method) if part)
        name, number = stem, 2
        while name in found.values():
            name, number = f"{stem}-{number}", number + 1
        found[condition, method] = name
    return found
