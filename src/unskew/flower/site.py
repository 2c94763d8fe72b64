"""The data of one node, which has one client or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from unskew.data.dataset import Dataset, Split
from unskew.data.federation import Federation
from unskew.data.partition import partition_of
from unskew.errors import UserError

MeanAndStd = tuple[Sequence[float], Sequence[float]]
"""A mean and a standard deviation for each channel of images, of pixels divided by 255."""


@dataclass(frozen=True, eq=False)
class Site:
    """A node's clients and their data."""

    federation: Federation
    """The node's own clients, numbered from 0, with their samples alone."""
    names: tuple[str, ...]
    """The names of the clients."""
    numbers: tuple[int, ...] = ()
    """The clients' numbers in the whole federation; empty if the node does not know them."""
    of: int = 0
    """How many clients the whole federation has; 0 if the node does not know it."""
    tests: tuple[Split | None, ...] = ()
    """The test samples of each client; None or an empty split if it has none."""
    validations: tuple[Split | None, ...] = ()
    """The validation samples of each client; None or an empty split if it has none."""


def scaled(data: Dataset, scale: MeanAndStd | None = None) -> Dataset:
    """Return the dataset with images scaled by `scale`, which all sites share, or by 0.5 for each channel. If
    each site scaled by its own mean and deviation, the same image would differ between sites."""
    if data.kind != "image":
        return data
    half = (0.5,) * data.inputs.shape[0]
    mean, std = (half, half) if scale is None else scale
    return replace(data, mean=tuple(mean), std=tuple(std))


def site_of(data: Dataset | Federation, name: str) -> Site:
    """Return a node with data of its own. A dataset is that of one client, called `name`; if its samples have
    named owners, each owner is a client. A federation keeps its clients."""
    if isinstance(data, Federation):
        names = data.names or tuple(f"{name}/{client}" for client in range(data.clients))
        return part_of(data, range(data.clients), names, known=False)
    if data.train.owners is not None and data.owners:
        owners = data.train.owners.numpy()
        rows = [np.flatnonzero(owners == number) for number in range(len(data.owners))]
        held = [(each, own) for each, own in zip(data.owners, rows, strict=True) if len(own)]
        partition = partition_of([own for _, own in held], data, recipe="natural")
        return part_of(
            Federation(data, partition), range(len(held)), tuple(each for each, _ in held), known=False
        )
    everything = partition_of([np.arange(len(data.train))], data, recipe="natural")
    return Site(Federation(data, everything), (name,), tests=(data.test,), validations=(None,))


def part_of(
    federation: Federation, clients: Sequence[int], names: Sequence[str] = (), *, known: bool = True
) -> Site:
    """Return a node with some clients of a federation, and their samples only. `known` says whether the
    federation is the whole one, whose client numbers the node then reports."""
    for client in clients:
        if not 0 <= client < federation.clients:
            raise UserError(
                f"partition-id is {client}, but there are {federation.clients} clients: count them from 0."
            )
    dataset, partition = federation.dataset, federation.partition
    rows = [partition.indices[client] for client in clients]
    inputs, labels = dataset.train.take(torch.from_numpy(np.concatenate(rows)))
    starts = np.cumsum([0, *map(len, rows)])
    train = Split(inputs, labels) if len(labels) else Split(dataset.test.inputs[:1], dataset.test.labels[:1])
    own = replace(dataset, train=train, owners=())
    mine = [np.arange(start, end) for start, end in pairwise(starts)]
    held = Federation(own, partition_of(mine, own, recipe=partition.recipe, seed=partition.seed))
    called = names or [federation.names[client] if federation.names else str(client) for client in clients]
    return Site(
        held,
        tuple(called),
        numbers=tuple(clients) if known else (),
        of=federation.clients if known else 0,
        tests=tuple(_own_test(federation, client) for client in clients),
        validations=tuple(_own_validation(federation, client) for client in clients),
    )


def _own_test(federation: Federation, client: int) -> Split | None:
    """Return the test samples of the sites whose training samples a client has, or None if test samples have
    no owners."""
    test, sites = federation.dataset.test, federation.sites
    if sites is None:
        return None
    mine = np.isin(sites.owners, np.flatnonzero(sites.clients == client))
    return _rows(test, mine)


def _own_validation(federation: Federation, client: int) -> Split | None:
    held = federation.validation
    return None if held is None or held.owners is None else _rows(held, held.owners.numpy() == client)


def _rows(split: Split, which: np.ndarray) -> Split:
    rows = torch.from_numpy(np.flatnonzero(which))
    domains = None if split.domains is None else split.domains[rows]
    return Split(split.inputs[rows], split.labels[rows], domains=domains)
