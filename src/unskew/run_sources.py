"""Runs for figures and comparisons in Python: from run folders, and from results in memory."""

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
"""A run folder, a folder of run folders such as `unskew compare` writes, or a result of `unskew.train`."""
RunSources = RunSource | Iterable[RunSource] | Mapping[str, RunSource | Iterable[RunSource]]
"""One or several of these, or several under names that the caller chooses, such as
{"fedavg": [first, second]}."""


@contextmanager
def gathered(sources: RunSources, *, failed: bool = False) -> Iterator[list[SavedRun]]:
    """Yield the runs of the sources. Results in memory are saved as run folders, which are removed at the end
    of the `with` block. A run that was given under a name has it as its label. `failed` includes runs that
    failed before their first test."""
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
        yield _labelled(runs, names) if isinstance(sources, Mapping) else runs


def _labelled(runs: list[SavedRun], names: Mapping[Path, str]) -> list[SavedRun]:
    """Return the runs with the names that the caller gave to them as labels. `names` has the name of each
    folder."""
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
    """Return one source as a list of one, several as they are."""
    if isinstance(given, str | Path | Result):
        return [given]
    if not isinstance(given, Iterable):
        raise _no_run(given)
    return list(given)


def _folder(source: RunSource, folder: Path) -> Path:
    """Return the run folder of a source. A result is saved in `folder`."""
    if isinstance(source, Result):
        return source.save(folder)
    if isinstance(source, str | Path):
        return Path(source)
    raise _no_run(source)


def _no_run(value: object) -> UserError:
    return UserError(
        f"{type(value).__name__} is no run: give what unskew.train returned, or the path of a run folder."
    )
