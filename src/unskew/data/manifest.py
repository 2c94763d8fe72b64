"""A partition, and its manifest: a file with hashes of the data it divides and of its own content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError

from unskew.data.bounded import check_regular
from unskew.data.dataset import Dataset
from unskew.data.drawn import DrawnSplit, Ranges
from unskew.errors import UserError
from unskew.files import write_file
from unskew.version import VERSION

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Partition:
    """Which training samples each client holds: disjoint, and not necessarily all of them."""

    indices: Sequence[Ints]
    """One int64 array per client, into the training split."""
    counts: Ints
    """Samples per client and class, [clients, classes]; only for the first clients if clients are drawn when
    they are needed."""
    recipe: str
    """The skew string that makes this partition again, with every option written out."""
    seed: int | None
    """None if the partition was made elsewhere and its seed is not known."""
    notes: tuple[str, ...] = ()
    """What was not possible as asked and what was done instead, one sentence each."""
    dropped: int = 0
    """Training samples that no client holds."""
    tries: int = 1
    """The number of draws that were made to satisfy the recipe."""
    validation: tuple[Ints, ...] = ()
    """The validation samples of each client, which are not in `indices`; empty if there are none."""

    @property
    def clients(self) -> int:
        return len(self.indices)

    @cached_property
    def sizes(self) -> Ints:
        """Samples per client."""
        sizes: Ints = self.indices.sizes if isinstance(self.indices, Ranges) else self.counts.sum(axis=1)
        return sizes

    @cached_property
    def vacant(self) -> Ints:
        """The number of classes that each client in `counts` has no sample of."""
        vacant: Ints = (self.counts == 0).sum(axis=1)
        return vacant

    @cached_property
    def entropy(self) -> Floats:
        """The entropy of the labels of each client in `counts`, in nats (natural logarithm): 0 for one class
        or no sample, ln C at most."""
        shares = self.counts / np.maximum(self.counts.sum(axis=1, keepdims=True), 1)
        logs = np.log(shares, where=shares > 0, out=np.zeros_like(shares))
        entropy: Floats = np.maximum(-(shares * logs).sum(axis=1), 0.0)
        return entropy

    @cached_property
    def index_sha256(self) -> str:
        """SHA-256 over little-endian int64 numbers: the number of clients, then for every client the number
        of its samples and their indices in order. For clients that are `Ranges`, only the numbers of samples
        follow. Validation samples, if there are any, follow in the same way as the others."""
        digest = hashlib.sha256(np.array(self.clients, dtype="<i8").tobytes())
        if isinstance(self.indices, Ranges):
            digest.update(self.sizes.astype("<i8").tobytes())
            return digest.hexdigest()
        for mine in (*self.indices, *self.validation):
            digest.update(np.array(len(mine), dtype="<i8").tobytes())
            digest.update(mine.astype("<i8").tobytes())
        return digest.hexdigest()


def partition_of(
    indices: Sequence[npt.ArrayLike],
    dataset: Dataset,
    *,
    recipe: str,
    seed: int | None = None,
    notes: tuple[str, ...] = (),
    tries: int = 1,
    validation: Sequence[npt.ArrayLike] = (),
) -> Partition:
    """Make a partition of these indices into the training split, and of validation samples if there are any,
    after checking that they lie in the split and that no sample occurs twice."""
    labels: Ints = dataset.train.labels.numpy()
    C, arrays = len(dataset.classes), list[Ints]()
    if not len(indices):
        raise UserError(f"'{recipe}' names no client: at least one is needed.")
    counts = np.zeros((len(indices), C), dtype=np.int64)
    holder = np.full(len(labels), -1, dtype=np.int64)
    if validation and len(validation) != len(indices):
        raise UserError(
            f"'{recipe}' has validation samples of {len(validation)} clients, but has {len(indices)} clients."
        )
    for at, given in enumerate([*indices, *validation]):
        k, trains = at % len(indices), at < len(indices)
        arrays.append(mine := integers(given, recipe, k))
        if len(mine) and (mine.min() < 0 or mine.max() >= len(labels)):
            raise UserError(
                f"'{recipe}' gives client {k} the index {mine.max() if mine.min() >= 0 else mine.min()}, but "
                f"the training split of '{dataset.name}' has the indices 0..{len(labels) - 1}: use the "
                "dataset that was divided."
            )
        if trains:
            counts[k] = np.bincount(labels[mine], minlength=C)
        taken = mine[holder[mine] >= 0]
        if len(taken):
            other = int(holder[taken[0]])
            raise UserError(
                f"'{recipe}' gives sample {taken[0]} to client {other} and to client {k}: only one may."
            )
        holder[mine] = k
        if len(np.unique(mine)) != len(mine):
            raise UserError(f"'{recipe}' gives client {k} a sample twice: name each once.")
    dropped = int((holder < 0).sum())
    N = len(indices)
    return Partition(tuple(arrays[:N]), counts, recipe, seed, notes, dropped, tries, tuple(arrays[N:]))


def drawn_partition(split: DrawnSplit, *, recipe: str, seed: int | None = None) -> Partition:
    """Make the partition of a training split whose clients are drawn when they are needed."""
    known, clients = len(split.counts), len(split.rows)
    note = (
        f"Clients are drawn when they are needed: the test split and the majority, minority and vacant "
        f"classes are those of the first {known:,} of {clients:,}."
    )
    return Partition(split.rows, split.counts, recipe, seed, (note,) if known < clients else ())


def integers(values: npt.ArrayLike, recipe: str, client: int) -> Ints:
    """Convert a client's sample indices to an array; refuse anything else."""
    # Checked first, since NumPy gives every item of a list as much memory as the longest text in it.
    plain = not isinstance(values, list | tuple) or all(isinstance(each, int | np.integer) for each in values)
    array = np.asarray(values) if plain else np.array(None)
    if array.size == 0:
        return np.zeros(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UserError(f"'{recipe}' has no flat list of integers for client {client}: give sample indices.")
    return array.astype(np.int64)


def cite(partition: Partition, dataset: Dataset) -> str:
    """Return a line that identifies a partition in a paper: recipe, seed, data, and the indices' SHA-256."""
    seed = "" if partition.seed is None else f" seed {partition.seed}"
    return (
        f"{partition.recipe}{seed} on {dataset.name} (sha256 {dataset.sha256[:12]}…): "
        f"partition {partition.index_sha256[:12]}…"
    )


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
