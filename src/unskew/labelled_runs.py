"""Reads run folders and gives their methods, skews, data and models short names that tell them apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from unskew.errors import UserError
from unskew.experiment import Experiment, MethodSpec, brief_skew
from unskew.methods import METHODS
from unskew.notation import method_parts, short_data, short_paths, short_texts, write_method, write_parts
from unskew.record import Tuned
from unskew.report.grouping import conditions_of, tell_apart
from unskew.report.read import SavedRun, read_runs, read_search


def read(paths: Iterable[Path]) -> list[SavedRun]:
    """Read runs. Their names leave out hyperparameters and options of skews that have their defaults, and
    the folders of files."""
    return shorten(read_runs(paths))


def read_begun(paths: Iterable[Path]) -> list[SavedRun]:
    """Read runs for tables. Refuse them if all of them failed before their first test."""
    runs = read(paths)
    if runs[0].failure and not any(map(_begun, runs)):
        reason = runs[0].failure.sentence.removesuffix(".")
        raise UserError(f"{runs[0].path} failed before its first test ({reason}): give another run.")
    return runs


def read_tested(paths: Iterable[Path]) -> list[SavedRun]:
    """Read runs for figures. Leave out those that failed before their first test."""
    return list(filter(_begun, read_begun(paths)))


def read_searched(folder: Path) -> tuple[Tuned, list[SavedRun]]:
    """Read the trials of a search, and the runs of its winners, for its figure."""
    return read_search(folder), read([folder])


def _begun(run: SavedRun) -> bool:
    return bool(run.tested) or not run.failure


def shorten(runs: Sequence[SavedRun]) -> list[SavedRun]:
    """Return runs with shorter names of methods, skews, data and models. Different ones keep different
    names."""
    parts = {part for run in runs for part in method_parts(_method_name(run))}
    files = short_paths(part for part in parts if part.endswith(".py"))
    labels = [_label(run, files) for run in runs]
    data = short_data(dict.fromkeys(run.data for run in runs))
    models = short_texts(dict.fromkeys(run.model for run in runs))
    skews = _skews(dict.fromkeys(run.skew for run in runs))
    return [
        replace(
            run,
            label=_full_label(run, files) if _ambiguous(run, label, runs, labels) else label,
            skew=skews[run.skew],
            data=data[run.data],
            model=models[run.model],
        )
        for run, label in zip(runs, labels, strict=True)
    ]


def method_labels(experiments: Sequence[Experiment]) -> list[str]:
    """Return labels that tell the methods of resolved experiments apart. If a method occurs with several
    settings, its label has those that differ. The same method with the same settings is refused."""
    files = short_paths(name for each in experiments for name in each.method.files())
    labels = [each.method.brief(files) for each in experiments]
    apart = tell_apart(labels, [conditions_of(each.model_dump(exclude_none=True)) for each in experiments])
    for index, label in enumerate(apart):
        if label in apart[:index]:
            raise UserError(
                f"{label} is named twice: name each method once, or give it other hyperparameters."
            )
    return apart


def _method_name(run: SavedRun) -> str:
    return str(run.experiment["method"]["name"])


def _label(run: SavedRun, files: Mapping[str, str]) -> str:
    """Return the short label of a run's method. For a method of the user's own, whose code is not run here,
    it has the hyperparameters that the run has recorded as changed."""
    try:
        method = MethodSpec(**run.experiment["method"])
        if method.parts().keys() <= METHODS.keys():
            return method.brief()
    except UserError:  # written by another version
        return run.label
    changed = run.environment.changed
    if changed is None:
        return _full_label(run, files)
    return write_parts({files.get(name, name): options for name, options in changed.items()})


def _full_label(run: SavedRun, files: Mapping[str, str]) -> str:
    """Return the label of a run's method with all hyperparameters, and the start of the hash of its file."""
    table = run.experiment["method"]
    names = [files.get(name, name) for name in method_parts(_method_name(run))]
    label = write_method(
        {files.get(key, key): value for key, value in table.items()} | {"name": "+".join(names)}
    )
    content = table.get("sha256")
    return f"{label} ({content[:8]})" if content else label


def _ambiguous(run: SavedRun, label: str, runs: Sequence[SavedRun], labels: Sequence[str]) -> bool:
    """Say whether a run with another method has the same label. This happens if a default has changed, or if
    files of the same name have other content."""
    same_label = (other for other, name in zip(runs, labels, strict=True) if name == label)
    return any(other.experiment["method"] != run.experiment["method"] for other in same_label)


def _skews(recipes: Iterable[str]) -> dict[str, str]:
    short = short_texts(recipes)
    brief = {recipe: _brief(text) for recipe, text in short.items()}
    names = list(brief.values())
    return {recipe: name if names.count(name) == 1 else short[recipe] for recipe, name in brief.items()}


def _brief(recipe: str) -> str:
    try:
        return brief_skew(recipe)
    except UserError:  # written by another version
        return recipe
