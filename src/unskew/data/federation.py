"""A dataset, and which client holds which of its samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew import notebook
from unskew.data.dataset import Dataset, Split
from unskew.data.manifest import save
from unskew.data.partition import Partition, cite
from unskew.data.partitions import Skew, parse_skew, partition, write_skew
from unskew.data.validation import (
    NONE,
    from_dataset,
    hold_out,
    parse,
    read_validation,
    refuse_test_samples,
    validation_split,
)
from unskew.errors import UserError
from unskew.notation import short_texts
from unskew.sites import Sites
from unskew.skew_words import describe_skew
from unskew.types import Population


@dataclass(frozen=True, eq=False)
class Holding:
    """The samples that one client trains on: rows of a training split, and their label counts."""

    rows: NDArray[np.int64]
    counts: Tensor
    """Label counts, int64 [C]; empty if the samples are elsewhere and their counts are not known."""

    def __len__(self) -> int:
        return len(self.rows)

    def same_as(self, other: Holding) -> bool:
        """Say whether both hold the same samples in the same order."""
        same_rows = self.rows is other.rows or np.array_equal(self.rows, other.rows)
        return same_rows and torch.equal(self.counts, other.counts)


def holding_of(dataset: Dataset, rows: NDArray[np.int64]) -> Holding:
    """Return a holding of these training samples of a dataset."""
    _, labels = dataset.train.take(torch.from_numpy(rows))
    return Holding(rows, torch.bincount(labels, minlength=len(dataset.classes)))


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """Clients that share a dataset: each holds some of its training samples, and all are tested on its test
    split."""

    dataset: Dataset
    partition: Partition
    validation: Split | None = None
    """Samples that no client trains on, for the choice of rounds. If they were held out of the clients'
    samples, their `owners` are the clients' numbers."""
    validated_on: str = NONE
    """Where the validation samples come from, as it was typed: a share of each client's samples, or a
    dataset. For samples that were given as an object, the name of its type."""

    def __repr__(self) -> str:
        """Describe dataset, clients and skew in two lines."""
        held = "" if self.validation is None else f", {len(self.validation):,} validation samples"
        return (
            f"Federation({self.dataset.short_name!r}, {self.skew!r}, clients={self.clients:,}, "
            f"seed={self.partition.seed}): {self.population.samples:,} {self.dataset.samples} of "
            f"{len(self.dataset.classes):,} classes{held}\n{self.skew_in_words}"
        )

    def _repr_html_(self) -> str:
        """Describe the same as HTML for a notebook, with a table of label counts if it is not too large."""
        counts, classes = self.partition.counts, self.dataset.classes
        facts = {
            "data": f"{self.dataset.short_name}, {self.population.samples:,} {self.dataset.samples} of "
            f"{len(classes):,} classes",
            "clients": f"{self.clients:,}",
            "skew": f"{self.skew}, seed {self.partition.seed}",
            "in words": self.skew_in_words,
            "validation": "" if self.validation is None else f"{len(self.validation):,} samples",
            "notes": " ".join(self.partition.notes),
        }
        if self.clients > notebook.MOST_ROWS or len(classes) > notebook.MOST_COLUMNS:
            return notebook.facts("Federation", facts)
        most = max(int(counts.max()), 1)
        names = self.names or tuple(str(client) for client in range(self.clients))
        rows: list[list[str | notebook.HtmlCell]] = [
            [name, *(notebook.HtmlCell(f"{n:,}" if n else "", n / most) for n in row), f"{sum(row):,}"]
            for name, row in zip(names, counts.tolist(), strict=True)
        ]
        return notebook.facts("Federation", facts, notebook.table(["client", *classes, "all"], rows))

    @cached_property
    def skew(self) -> str:
        """The skew string, without options that have their defaults and without folders."""
        try:
            text = write_skew(parse_skew(self.partition.recipe), brief=True)
        except UserError:  # the user's own partition
            text = self.partition.recipe
        return short_texts([text])[text]

    @cached_property
    def skew_in_words(self) -> str:
        """How skewed the labels are, such as "a client lacks 7.3 of 10 classes; half the clients hold
        under 60 images"."""
        counts, samples = self.partition.counts, self.dataset.samples
        return describe_skew(counts, clients=self.clients, samples=samples, names=self.names)

    @property
    def clients(self) -> int:
        return self.partition.clients

    @cached_property
    def counts(self) -> Tensor:
        """Samples per client and class, int64 [clients, classes]; only for the first clients if clients are
        drawn when they are needed."""
        return torch.from_numpy(self.partition.counts)

    @cached_property
    def sizes(self) -> Tensor:
        """Samples per client, int64 [clients]."""
        return torch.from_numpy(self.partition.sizes)

    @cached_property
    def population(self) -> Population:
        """What a server has to know about all clients together."""
        return Population(holders=int((self.sizes > 0).sum()), samples=int(self.sizes.sum()))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the clients, if each is one or several of the dataset's owners; empty if owners are
        not known, or if an owner's samples are divided among clients."""
        owners = self.dataset.train.owners
        if owners is None or not self.dataset.owners:
            return self.dataset.train.names
        held = [np.unique(owners.numpy()[mine]) for mine in self.partition.indices]
        if len(np.unique(np.concatenate(held))) < sum(map(len, held)):
            return ()
        return tuple("+".join(self.dataset.owners[each] for each in mine) for mine in held)

    @cached_property
    def sites(self) -> Sites | None:
        """The owners of the test samples, and their samples that clients train on; None if the data do not
        say who owns the test samples. Owners without any sample are left out."""
        dataset = self.dataset
        if dataset.test.owners is None or (dataset.train.owners is None and not dataset.train.drawn):
            return None
        tested = dataset.test.owners.numpy()
        sizes = None
        if dataset.train.owners is None:  # drawn when needed, or elsewhere: client k is owner k
            train, client = self.partition.counts, np.arange(len(self.partition.counts))
            if not len(train):  # the clients' label counts are not known
                train = np.zeros((self.clients, len(dataset.classes)), np.int64)
                client, sizes = np.arange(self.clients), self.partition.sizes
        else:
            train, client = self._owners_at_clients(1 + int(max(tested.max(), dataset.train.owners.max())))
        trained = train.any(axis=1) if sizes is None else sizes > 0
        there = np.flatnonzero(trained | (np.bincount(tested, minlength=len(train)) > 0))
        number = np.full(len(train), -1)
        number[there] = np.arange(len(there))
        return Sites(
            names=tuple(dataset.owners[each] if dataset.owners else str(each) for each in there.tolist()),
            train=train[there],
            clients=client[there],
            labels=dataset.test.labels.numpy(),
            owners=number[tested],
            sizes=None if sizes is None else sizes[there],
        )

    def _owners_at_clients(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the label counts of the samples of owners 0..number-1 that clients train on, [owners,
        classes], and the client that holds each owner's samples, -1 if none or several do."""
        train, C = self.dataset.train, len(self.dataset.classes)
        assert train.owners is not None
        rows = np.concatenate(self.partition.indices)
        holders = np.repeat(np.arange(self.clients), [len(mine) for mine in self.partition.indices])
        owners, labels = train.owners.numpy()[rows], train.labels.numpy()[rows]
        counts = np.bincount(owners * C + labels, minlength=number * C).reshape(number, C)
        first, last = np.full(number, self.clients), np.full(number, -1)
        np.minimum.at(first, owners, holders)
        np.maximum.at(last, owners, holders)
        return counts, np.where(first == last, first, -1)

    def holding(self, client: int) -> Holding:
        """Return the client's rows of the training split and its label counts."""
        rows = self.partition.indices[client]
        if client < len(self.counts):
            return Holding(rows, self.counts[client])
        if self.dataset.train.elsewhere:
            return Holding(rows, torch.zeros(0, dtype=torch.int64))
        return holding_of(self.dataset, rows)

    def indices(self, client: int) -> Tensor:
        """Return the client's rows of the training split, int64."""
        return torch.from_numpy(self.partition.indices[client])

    def labels(self, client: int) -> Tensor:
        """Return the labels of the client's samples, int64."""
        return self.dataset.train.take(self.indices(client))[1]

    def save(self, path: Path) -> None:
        """Write the partition's manifest, from which the skew `file:PATH` makes the same federation."""
        save(self.partition, self.dataset, path, self.names)

    def cite(self) -> str:
        """Return one line that identifies the partition in a paper."""
        return cite(self.partition, self.dataset)


def federate(
    dataset: Dataset,
    skew: str | Skew | Callable[..., object],
    clients: int,
    seed: int,
    *,
    validation: float | str | Dataset | Split | None = None,
) -> Federation:
    """Divide the training split among `clients` clients by a skew such as "dirichlet:0.1", or by a function
    of your own (labels, clients, rng) that returns the indices of each client.

    validation: the samples by which rounds are chosen. A share such as 0.1 is held out of each client's
    samples, by class, drawn with the partition's seed. Other samples can be given as a dataset, of which all
    are used, as its name such as "csv:val.csv,label=grade", or as a split that has the classes and columns of
    `dataset`."""
    if not isinstance(dataset, Dataset):
        raise UserError("federate needs a dataset: load one with unskew.load(name).")
    made = partition(dataset, skew, clients, seed)
    given = parse(validation) if isinstance(validation, str) else validation
    source = NONE if given is None else given if isinstance(given, str) else type(given).__name__
    if isinstance(given, Dataset):
        given = from_dataset(given, dataset)
    elif isinstance(given, str):
        given = read_validation(given, dataset)
    if isinstance(given, Split):
        replace(dataset, test=given)  # checks that the split fits the dataset
        refuse_test_samples(given, dataset)
        return Federation(dataset, made, given, source)
    if given is not None:
        if not isinstance(given, Real):
            raise UserError(
                f"validation is of type {type(given).__name__}: give a share, a dataset or its name."
            )
        made = hold_out(made, dataset, float(given), seed if made.seed is None else made.seed)
        source = repr(float(given))
    return Federation(dataset, made, validation_split(dataset, made), source)
