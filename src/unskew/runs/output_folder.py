"""Which folder a run may write to: a new one, or that of the same experiment unfinished."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from unskew import record
from unskew.data.federation import Federation
from unskew.errors import UserError
from unskew.experiment import Experiment, brief_skew, read
from unskew.lock import NAME as LOCK
from unskew.notation import flatten
from unskew.runs.write import writing

CHECKPOINTS = "checkpoints"
"""The folder of a run's checkpoints, in its own."""


LONGEST_NAME = 120  # of a run folder, before the time is added; file systems allow 255 bytes


def check_partition(path: Path, federation: Federation) -> None:
    """Refuse data, or a partition of it, other than what a run's partition.json describes."""
    try:
        there = record.PARTITION.parse(path.read_text(encoding="utf-8"))
    except (record.DamagedError, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged ({error}): run it again in another folder.") from None
    found = there["dataset"].get("sha256"), there.get("index_sha256")
    if found != (federation.dataset.sha256, federation.partition.index_sha256):
        raise UserError(
            f"the data or its partition is not what {path} says: bring back the data that the run began "
            "with, or begin anew with another --out."
        )


FINISHED, UNFINISHED, EMPTY = "finished", "unfinished", "empty"


def claim(path: Path) -> str:
    """Make the folder that a run will write to, or raise UserError with the reason why it cannot be used.
    Return whether it is EMPTY, or holds a run, comparison or search that is UNFINISHED or FINISHED."""
    with writing(path):
        if path.is_file():
            raise UserError(f"the output folder {path} is a file: choose another with --out.")
        path.mkdir(parents=True, exist_ok=True)
        names = {each.name for each in path.iterdir()} - {LOCK}
    if names & {"summary.json", "compare.json", "tune.json"}:
        return FINISHED
    if names & {"experiment.toml", "plan.json", "search.json"}:
        return UNFINISHED
    if any(not name.endswith(".part") for name in names):  # what a crash has left of a file is no file
        raise UserError(f"the output folder {path} is not empty: choose an empty or new one with --out.")
    return EMPTY


def is_begun(path: Path) -> bool:
    """Say whether a run's folder holds any result of training: a checkpoint or a finished round."""
    rounds = path / "rounds.jsonl"
    return any((path / CHECKPOINTS).glob("*")) or (rounds.exists() and rounds.stat().st_size > 0)


def is_edited(there: Experiment, asked: Experiment) -> bool:
    """Say whether two experiments differ in nothing but the content of the user's own method file."""
    edited = there.method.model_copy(update={"sha256": asked.method.sha256})
    return there.model_copy(update={"method": edited}).identity() == asked.identity()


def check_same(path: Path, asked: Experiment) -> None:
    """Refuse to continue an unfinished run as a different experiment, and say what differs. The user's own
    method file may have been edited as long as no result of training with it exists."""
    there = Experiment(**read(path / "experiment.toml"))
    if there.identity() != asked.identity() and (is_begun(path) or not is_edited(there, asked)):
        raise UserError(
            f"the unfinished run in {path} is another experiment ({differences(there, asked)}): choose "
            "another folder with --out, or ask for the same."
        )


def differences(there: Experiment, asked: Experiment) -> str:
    """Describe the settings that affect results and that differ between two experiments, as many as fit into
    a sentence."""
    mine, theirs = (dict(flatten(_briefly(each))) for each in (asked, there))
    found = differing_keys(theirs, mine)
    named = [
        f"{key} is {_short(theirs.get(key))} there and {_short(mine.get(key))} here" for key in found[:3]
    ]
    return ", ".join(named) + (f", and {len(found) - 3} more" if len(found) > 3 else "")


def differing_keys(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Return the names of the settings whose values differ."""
    return [key for key in dict.fromkeys([*one, *other]) if one.get(key) != other.get(key)]


def _briefly(experiment: Experiment) -> dict[str, Any]:
    settings = experiment.result_settings()
    with contextlib.suppress(UserError):  # of another version
        settings["skew"]["recipe"] = brief_skew(settings["skew"]["recipe"])
    return settings


def _short(value: object) -> str:
    return "not set" if value is None else str(value)


def free_folder(name: str, parent: Path = Path("runs")) -> Path:
    """Make a new folder, named after what runs in it and the time. It is made at once, so that no other run
    takes it."""
    stem = f"{slug(name)}-{datetime.now():%Y%m%d-%H%M%S}"
    folder, number = parent / stem, 1
    while True:
        with writing(folder), contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
        number += 1
        folder = parent / f"{stem}-{number}"


def slug(text: str) -> str:
    """Turn a text into a file name. A long one keeps its end, which tells runs apart."""
    text = re.sub(r"(?<=\de)\+(?=\d)", "", text)  # 1e+5 is 1e5, and not 1e-5
    return re.sub(r"[^A-Za-z0-9.=_-]+", "-", text)[-LONGEST_NAME:].strip("-.")
