"""Runs by the conditions that they ran under, and how these conditions differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from unskew.record import is_tunable
from unskew.report.grouping import by_method, settings
from unskew.report.read import SavedRun

CONDITION_KEYS = ("data.name", "skew.recipe", "skew.clients", "budget.cohort", "model.name")
"""Settings that are part of `SavedRun.conditions`."""


@dataclass(frozen=True, eq=False)
class Condition:
    """Runs that differ only in method, seed and the tuned settings of a method, so that they compare."""

    letter: str
    """A, B and so on; empty if there is only one condition."""
    title: str
    """Data, skew, clients, cohort and model. If there are several conditions, the letter comes before these,
    and everything else that differs comes after them."""
    differs: dict[str, str]
    """Texts for the settings that differ between conditions, by their names; empty if there is only one."""
    methods: dict[str, list[SavedRun]]
    """The runs of each method, by its name."""

    @property
    def short(self) -> str:
        """Only what differs from the other conditions; empty if there is only one."""
        return ", ".join(self.differs.values())

    @property
    def runs(self) -> list[SavedRun]:
        """All runs under this condition."""
        return [run for seeds in self.methods.values() for run in seeds]


def by_condition(runs: Sequence[SavedRun]) -> list[Condition]:
    """Group runs by their conditions, in order of appearance."""
    blocks = [
        part
        for block in _grouped(runs, lambda run: _settings_as_text(run, with_tuned=False))
        for part in (
            [block]
            if not _twice(block)
            else _grouped(block, lambda run: _settings_as_text(run, with_tuned=True))
        )
    ]
    firsts = [block[0] for block in blocks]
    if len(firsts) == 1:
        return [Condition("", firsts[0].conditions, {}, by_method(blocks[0]))]
    parts = [_parts(run) for run in firsts]
    varying = [key for key in CONDITION_KEYS if len({each[key] for each in parts}) > 1]
    conditions = []
    for number, (run, block, more) in enumerate(zip(firsts, blocks, _further(firsts), strict=True)):
        mark = letter(number)
        title = ", ".join([f"{mark}: {run.conditions}", *more.values()])
        differs = {key: parts[number][key] for key in varying} | more
        conditions.append(Condition(mark, title, differs, by_method(block)))
    return conditions


def in_common(runs: Sequence[SavedRun]) -> str:
    """Return the parts of `SavedRun.conditions` that are the same for all runs, in one line."""
    parts = [_parts(run) for run in runs]
    return ", ".join(parts[0][key] for key in CONDITION_KEYS if len({each[key] for each in parts}) == 1)


def tuned(run: SavedRun) -> dict[str, str]:
    """Return the settings of a run that may be tuned for each method, as `unskew tune` does."""
    return {name: str(value) for name, value in settings(run).items() if is_tunable(name)}


def notes_on_tuned(methods: Mapping[str, Sequence[SavedRun]]) -> list[str]:
    """Return a note on each tuned setting that differs between methods."""
    each = {name: tuned(runs[0]) for name, runs in methods.items() if runs}
    notes = []
    for setting in dict.fromkeys(setting for values in each.values() for setting in values):
        if len({values.get(setting) for values in each.values()}) > 1:
            chosen = ", ".join(f"{values.get(setting)} for {name}" for name, values in each.items())
            notes.append(f"{setting} was chosen for each method: {chosen}.")
    return notes


def letter(number: int) -> str:
    """Return the letter of a condition by its number: A, B, ... Z, AA, AB and so on."""
    return (letter(number // 26 - 1) if number >= 26 else "") + chr(ord("A") + number % 26)


def _parts(run: SavedRun) -> dict[str, str]:
    """Return the parts of `SavedRun.conditions` by setting."""
    cohort = run.experiment["budget"]["cohort"]
    some = "all in a round" if cohort == "all" else f"{cohort} per round"
    return dict(
        zip(CONDITION_KEYS, (run.data, run.skew, f"{run.clients} clients", some, run.model), strict=True)
    )


def _further(firsts: Sequence[SavedRun]) -> list[dict[str, str]]:
    """Return for each condition what differs other than `SavedRun.conditions`, such as "lr 0.1".

    Settings that follow from the model, and the hash of data that have different names, are left out.
    """
    each = [settings(run) for run in firsts]
    named = [{key: value for key, value in one.items() if key != "data.sha256"} for one in each]
    if len({str(sorted(one.items())) for one in named}) == len(each):
        each = named
    models = [run.experiment["model"]["name"] for run in firsts]

    def differs(key: str) -> bool:
        values = [str(one.get(key)) for one in each]
        by_model = set(zip(models, values, strict=True))
        with_model = key.startswith("model.") and len(by_model) == len(set(models))
        return key not in CONDITION_KEYS and len(set(values)) > 1 and not with_model

    keys = [key for key in dict.fromkeys(key for one in each for key in one) if differs(key)]
    return [{key: f"{key.rpartition('.')[2]} {one[key]}" for key in keys if key in one} for one in each]


def _grouped(runs: Sequence[SavedRun], key: Callable[[SavedRun], dict[str, str]]) -> list[list[SavedRun]]:
    groups: dict[tuple[tuple[str, str], ...], list[SavedRun]] = {}
    for run in runs:
        groups.setdefault(tuple(sorted(key(run).items())), []).append(run)
    return list(groups.values())


def _settings_as_text(run: SavedRun, *, with_tuned: bool) -> dict[str, str]:
    """Return the settings of a run as texts, with or without the ones that may be tuned for each method."""
    return {name: str(value) for name, value in settings(run).items() if with_tuned or not is_tunable(name)}


def _twice(runs: Sequence[SavedRun]) -> bool:
    """Say whether a method ran with several tuned settings, which then make conditions of their own."""
    return len({run.label for run in runs}) < len({(run.label, str(tuned(run))) for run in runs})
