"""A partition: which client holds which training samples of a dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from unskew.data.dataset import Dataset
from unskew.data.drawn import DrawnSplit, Ranges
from unskew.errors import UserError

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
