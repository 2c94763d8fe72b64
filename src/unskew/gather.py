"""Runs to compare and to draw: from run folders, and from results in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from unskew.errors import UserError
from unskew.labelled_runs import read_begun, read_tested
from unskew.report.read import SavedRun
from unskew.result import Result

RunSource = str | Path | Result
"""A run folder, a folder of run folders as compare writes it, or what `unskew.train` returned."""
RunSources = RunSource | Iterable[RunSource] | Mapping[str, RunSource | Iterable[RunSource]]
"""One or several of these, or several under names of one's own, such as {"fedavg": [first, second]}."""


@contextmanager
def gathered(sources: RunSources, *, failed: bool = False) -> Iterator[list[SavedRun]]:
    """The runs, as long as they are needed: results become run folders for that time. Those that were given
    under a name have it as their label. With `failed`, also runs that failed before their first test."""
    named = sources if isinstance(sources, Mapping) else {"": sources}
    names: dict[Path, str] = {}
    with TemporaryDirectory(prefix="unskew-") as folder:
        for name, members in named.items():
            if not isinstance(name, str):
                raise UserError(f"{name!r} is no name for runs: give a text.")
            several = _several(members)
            if not several:
                raise UserError(f"no run is given{f' for {name}' * bool(name)}: give at least one.")
            for each in several:
                names[_folder(each, Path(folder) / str(len(names)))] = name
        runs = (read_begun if failed else read_tested)(names)
        yield _called(runs, names) if isinstance(sources, Mapping) else runs


def _called(runs: list[SavedRun], names: Mapping[Path, str]) -> list[SavedRun]:
    """The runs with the names that were given to them as labels."""
    labels: dict[str, str] = {}
    found = []
    for run in runs:
        name = names[run.path if run.path in names else run.path.parent]
        if labels.setdefault(name, run.label) != run.label:
            raise UserError(
                f"'{name}' stands for {labels[name]} and {run.label}: give each method a name of its own."
            )
        found.append(replace(run, label=name))
    return found


def _several(given: RunSource | Iterable[RunSource]) -> list[RunSource]:
    if isinstance(given, str | Path | Result):
        return [given]
    if not isinstance(given, Iterable):
        raise _no_run(given)
    return list(given)


def _folder(source: RunSource, folder: Path) -> Path:
    if isinstance(source, Result):
        return source.save(folder)
    if isinstance(source, str | Path):
        return Path(source)
    raise _no_run(source)


def _no_run(value: object) -> UserError:
    return UserError(
        f"{type(value).__name__} is no run: give what unskew.train returned, or the path of a run folder."
    )
