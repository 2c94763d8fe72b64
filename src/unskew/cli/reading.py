"""Run folders as the commands show them: with names as short as they can be typed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from unskew.errors import UserError
from unskew.experiment import MethodSpec, brief_skew
from unskew.methods import METHODS
from unskew.report.read import Run, read_runs


def read(paths: Iterable[Path]) -> list[Run]:
    """`read_runs`, without the hyperparameters and the options of a skew that have their defaults."""
    return [shorten(run) for run in read_runs(paths)]


def read_tested(paths: Iterable[Path]) -> list[Run]:
    """The same for tables and figures, without runs that failed before their first test."""
    runs = read(paths)
    kept = [run for run in runs if run.tested or not run.failure]
    if not kept and runs[0].failure:
        reason = runs[0].failure.sentence.removesuffix(".")
        raise UserError(f"{runs[0].path} failed before its first test ({reason}): give another run.")
    return kept


def shorten(run: Run) -> Run:
    """The same run with a shorter label and skew."""
    return replace(run, label=_label(run), skew=_skew(run))


def _label(run: Run) -> str:
    """A method of a person's own file keeps all: its defaults may have changed since, and the file is not run
    for a name."""
    try:
        method = MethodSpec(**run.experiment["method"])
        return method.brief() if method.parts().keys() <= METHODS.keys() else run.label
    except UserError:  # written by another version
        return run.label


def _skew(run: Run) -> str:
    try:
        return brief_skew(run.skew)
    except UserError:  # likewise
        return run.skew
