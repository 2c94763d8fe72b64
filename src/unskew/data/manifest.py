"""The manifest of a partition: a file with hashes of the data that it divides and of its own content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from unskew.data.bounded import check_regular
from unskew.data.dataset import Dataset
from unskew.data.drawn import DrawnSplit
from unskew.data.partition import Partition, drawn_partition, partition_of
from unskew.errors import UserError
from unskew.files import write_file
from unskew.version import VERSION


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    name: str
    sha256: str
    train: int
    test: int
    classes: list[str]
    samples: str | None = None
    """The word for samples, such as images; older files have none."""


class _Manifest(BaseModel):
    """The content of the file, in the file's order. `sha256` is the hash of all other fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    format: Literal["unskew-partition-1"]
    unskew: str
    recipe: str
    seed: int | None
    clients: int
    dataset: _Data
    notes: list[str]
    dropped: int
    tries: int
    index_sha256: str
    counts: list[list[int]]
    indices: list[list[int]] | None
    """None if clients are drawn when they are needed: the dataset's name says how."""
    names: list[str] | None = None
    """The names of the clients, if they have any."""
    validation: list[list[int]] | None = None
    """None, and left out of the file, if there are no validation samples."""
    sha256: str


def save(partition: Partition, dataset: Dataset, path: Path, names: Sequence[str] = ()) -> None:
    """Write the manifest, whole or not at all: recipe, seed, data, hashes, counts, notes and indices.

    With the indices it can be loaded even if no recipe can make it again. Clients that are drawn when they
    are needed have no indices. names: the names of the clients, if they have any."""
    manifest = _Manifest(
        format="unskew-partition-1",
        unskew=VERSION,
        recipe=partition.recipe,
        seed=partition.seed,
        clients=partition.clients,
        dataset=_Data(
            name=dataset.name,
            sha256=dataset.sha256,
            train=len(dataset.train),
            test=len(dataset.test),
            classes=list(dataset.classes),
            samples=dataset.samples,
        ),
        notes=list(partition.notes),
        dropped=partition.dropped,
        tries=partition.tries,
        index_sha256=partition.index_sha256,
        counts=partition.counts.tolist(),
        indices=None if dataset.train.drawn else [mine.tolist() for mine in partition.indices],
        names=list(names) or None,
        validation=[mine.tolist() for mine in partition.validation] or None,
        sha256="",
    )
    content = _content(manifest) | {"sha256": _digest(manifest)}
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, f"{{\n{lines}\n}}\n")
    except OSError as error:
        raise UserError(
            f"the partition cannot be saved as {path} ({error.strerror}): choose another file."
        ) from None


def load(path: Path, dataset: Dataset) -> Partition:
    """Load the partition in a manifest, after checking that the file is unchanged since it was saved and that
    it divides `dataset`. The recipe becomes `file:PATH`, and a note names the original recipe."""
    manifest = _read(Path(path))
    if manifest.sha256 != _digest(manifest):
        raise UserError(f"{path} was edited after it was saved: restore it, or make the partition anew.")
    mine, theirs = dataset, manifest.dataset
    if theirs.sha256 != mine.sha256 or tuple(theirs.classes) != mine.classes:
        raise UserError(
            f"{path} divides '{theirs.name}' ({theirs.train} training samples, {len(theirs.classes)} "
            f"classes, sha256 {theirs.sha256[:12]}…), but this is '{mine.name}' ({len(mine.train)} training "
            f"samples, {len(mine.classes)} classes, sha256 {mine.sha256[:12]}…): load the dataset it was "
            "made for."
        )
    origin = manifest.recipe + ("" if manifest.seed is None else f" with seed {manifest.seed}")
    made = () if manifest.recipe.startswith("file:") else (f"Made by {origin}.",)
    if isinstance(dataset.train, DrawnSplit):
        partition = drawn_partition(dataset.train, recipe=f"file:{path}", seed=manifest.seed)
        partition = replace(partition, notes=(*made, *partition.notes))
    else:
        partition = partition_of(
            manifest.indices or [],
            dataset,
            recipe=f"file:{path}",
            seed=manifest.seed,
            notes=(*made, *manifest.notes),
            tries=manifest.tries,
            validation=manifest.validation or (),
        )
    if partition.index_sha256 != manifest.index_sha256 or partition.counts.tolist() != manifest.counts:
        raise UserError(f"{path} contradicts itself (indices, counts, hash): make the partition anew.")
    return partition


def _read(path: Path) -> _Manifest:
    try:
        check_regular(path)
        content = json.loads(path.read_text(encoding="utf-8"))
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"there is no partition file {path}: check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the partition file {path} cannot be read: {error}.") from None
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path} is not a whole partition file (it breaks off or is damaged at line {error.lineno}): "
            "copy it again."
        ) from None
    except (ValueError, RecursionError):  # a number of thousands of digits, or lists nested too deeply
        raise UserError(f"{path} is not a partition file: make it again with `unskew skew --out`.") from None
    try:
        return _Manifest.model_validate(content)
    except ValidationError as error:
        where = ".".join(map(str, error.errors(include_url=False)[0]["loc"])) or "content"
        raise UserError(
            f"{path} is not a partition file of this version (its {where} is not right): make it again with "
            "`unskew skew --out`."
        ) from None


def _content(manifest: _Manifest) -> dict[str, Any]:
    """Return the manifest's fields without its hash, and without names, validation and the word for samples
    if these are None."""
    absent = {name for name in ("names", "validation") if getattr(manifest, name) is None}
    content = manifest.model_dump(exclude={"sha256", *absent})
    if manifest.dataset.samples is None:
        del content["dataset"]["samples"]
    return content


def _digest(manifest: _Manifest) -> str:
    content = _content(manifest)
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
