"""The federation of a server whose clients are on other machines: it knows how many samples each has."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew.data.dataset import Dataset, Split
from unskew.data.drawn import AbsentSplit, Ranges
from unskew.data.federation import Federation
from unskew.data.partition import Partition
from unskew.errors import UserError
from unskew.types import Inputs

Ints = NDArray[np.int64]


class RemoteSplit(AbsentSplit):
    """Training samples that stay on the clients' machines."""

    def __init__(self, sizes: Ints, names: Sequence[str] = ()) -> None:
        """Make a split of clients with these numbers of samples and these names."""
        vars(self).update(rows=Ranges(sizes), _names=tuple(names))

    rows: Ranges
    _names: tuple[str, ...]

    def __len__(self) -> int:
        return int(self.rows.sizes.sum())

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    @property
    def elsewhere(self) -> bool:
        return True

    def whole(self) -> NoReturn:
        raise UserError(
            "this needs clients' training samples in one place, and they are on other machines: choose "
            "another method."
        )

    def take(self, rows: Tensor) -> NoReturn:
        self.whole()

    def digest(self, into: hashlib._Hash) -> None:
        into.update(repr(self.names).encode())
        into.update(self.rows.sizes.astype("<i8").tobytes())


@dataclass(frozen=True, eq=False)
class RemoteClient:
    """What a server knows about the data of a client."""

    name: str
    samples: int
    """The number of its training samples."""
    test: Ints | None = None
    """The number of its own test samples of each class, [C]; None if the model is not tested there."""
    counts: Ints | None = None
    """The number of its training samples of each class, [C]; None if it does not share them."""
    validation: Ints | None = None
    """The number of its validation samples of each class, [C]; None if it has none."""


def stand_in(inputs: Inputs, counts: Sequence[Ints]) -> Split:
    """Make a split with as many samples of each owner and class as `counts` says, but without their inputs.
    Predictions that the owners' machines have counted by class can be assigned to its samples."""
    labels = np.concatenate([np.repeat(np.arange(len(each)), each) for each in counts])
    owners = np.repeat(np.arange(len(counts)), [int(each.sum()) for each in counts])
    kind = {"image": torch.uint8, "table": torch.float32, "text": torch.int32}[inputs.kind]
    nothing = torch.zeros(1, *inputs.shape, dtype=kind).expand(len(labels), *inputs.shape)
    return Split(nothing, torch.from_numpy(labels), torch.from_numpy(owners))


def remote_federation(
    like: Dataset,
    clients: Sequence[RemoteClient],
    *,
    seed: int | None,
    recipe: str = "natural",
    test: Split | None = None,
) -> Federation:
    """Make the federation as its server knows it.

    like: a dataset with the classes and the form of inputs of the clients' data.
    recipe, seed: how the data were divided, if they are parts of one dataset.
    test: the server's own test samples; without them the clients test the model."""
    sizes = np.array([client.samples for client in clients], np.int64)
    shared = [client.counts for client in clients if client.counts is not None]
    known = len(shared) == len(clients)
    counts = np.stack(shared) if known else np.zeros((0, len(like.classes)), np.int64)
    own_tests = [client.test for client in clients if client.test is not None]
    if test is None:
        if not sum(int(each.sum()) for each in own_tests):
            raise UserError(
                "no client has samples to test on, and neither has the server: give one of them some."
            )
        test = stand_in(like.inputs, own_tests)
    validating = [client.validation for client in clients if client.validation is not None]
    names = [client.name for client in clients]
    dataset = Dataset(
        name=like.name,
        train=RemoteSplit(sizes, names),
        test=test,
        classes=like.classes,
        mean=like.mean,
        std=like.std,
        vocabulary=like.vocabulary,
        owners=tuple(names),
        columns=like.columns,
        words=like.words,
    )
    note = "Label counts stay with the clients: their majority, minority and vacant classes are not known."
    partition = Partition(
        dataset.train.rows if isinstance(dataset.train, RemoteSplit) else (),
        counts,
        recipe=recipe,
        seed=seed,
        notes=() if known else (note,),
    )
    validation = stand_in(like.inputs, validating) if validating else None
    return Federation(dataset, partition, validation, "at the clients" if validating else "none")


def only_classes(federation: Federation, group: Sequence[int], samples: Ints, name: str) -> Federation:
    """Return the federation of the same clients with only their samples of the classes in `group`. `samples`
    has the number of these samples for each client."""
    dataset = federation.dataset
    assert isinstance(dataset.train, RemoteSplit)
    counts = federation.partition.counts[:, list(group)]
    test = Split(dataset.test.inputs[:1], torch.zeros(1, dtype=torch.int64))  # it is not used
    part = Dataset(
        name=name,
        train=RemoteSplit(samples, dataset.train.names),
        test=test,
        classes=tuple(dataset.classes[c] for c in group),
        mean=dataset.mean,
        std=dataset.std,
        vocabulary=dataset.vocabulary,
    )
    return Federation(part, Partition(Ranges(samples), counts, recipe=name, seed=None))
