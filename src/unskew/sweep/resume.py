"""What is left of a stopped run, and the command that resumes it."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from unskew.engines import FLOWER
from unskew.experiment import Experiment
from unskew.runs import CHECKPOINTS

CLIENT_FILES = "clients"
"""Folders in a run's folder while the run is under way: its checkpoints, and what clients keep."""


def remove_leftovers(path: Path) -> None:
    """Remove the files that a finished run does not need any more."""
    for name in (CHECKPOINTS, CLIENT_FILES):
        shutil.rmtree(path / name, ignore_errors=True)


def how_to_resume(path: Path, experiments: Iterable[Experiment], log: Sequence[str] = ()) -> str:
    """Say how to resume stopped runs, as the end of a sentence."""
    experiments = list(experiments)
    if any(each.engine == FLOWER for each in experiments):
        return f"resume with the same flwr run and federation.out={shlex.quote(str(path))}"
    return f"resume with: {resume_command(path, experiments, log)}"


def resume_command(path: Path, experiments: Iterable[Experiment], log: Sequence[str] = ()) -> str:
    """Return the command that resumes these experiments in a folder, with the same loggers."""
    code = dict.fromkeys(flag for each in experiments for flag in each.code())
    loggers = [f"--log {','.join(log)}"] if log else []
    return " ".join(["unskew resume", shlex.quote(str(path)), *code, *loggers])
