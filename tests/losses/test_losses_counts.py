"""Counting the labels of a loader."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from unskew.errors import UserError
from unskew.losses import counts_of

LABELS = torch.tensor([0, 3, 0, 0, 1, 3, 0])
DATA = TensorDataset(torch.zeros(7, 2), LABELS)
COUNTS = [4, 1, 0, 2, 0]


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield from DATA


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(DATA, batch_size=3),
        DataLoader(DATA, batch_size=3, shuffle=True, drop_last=True),
        DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 3, drop_last=True)),
        DataLoader(Stream(), batch_size=3, drop_last=True),
        DataLoader(DATA, batch_size=None),
        DATA,
        [(torch.zeros(4), LABELS[:4]), (torch.zeros(3), LABELS[4:])],
        [{"pixels": torch.zeros(7), "labels": LABELS}],
        LABELS,
        LABELS.to(torch.uint8),
        LABELS.numpy(),
        LABELS.tolist(),
        DataLoader([(np.zeros(2), int(y)) for y in LABELS], batch_size=2),
    ],
    ids=[
        "loader", "shuffled, last batch dropped", "sampler of batches", "stream", "no batches",
        "dataset", "list of batches", "mappings",
        "tensor", "bytes", "array", "list", "dataset of pairs",
    ],
)  # fmt: skip
def test_every_sample_is_counted_once(loader: object) -> None:
    found = counts_of(loader, classes=5)
    assert found.dtype == torch.long
    assert found.tolist() == COUNTS
    assert counts_of(loader).tolist() == COUNTS[:4]


class Named(Dataset):
    classes = ("cat", "dog", "eel", "fox", "gnu")

    def __getitem__(self, index: int) -> tuple[int, int]:
        return 0, int(LABELS[index])

    def __len__(self) -> int:
        return len(LABELS)


def test_a_dataset_that_names_its_classes_says_how_many_there_are() -> None:
    assert counts_of(DataLoader(Subset(Named(), [0, 2, 4]))).tolist() == [2, 1, 0, 0, 0]


def test_a_sampler_says_which_samples_are_the_clients() -> None:
    loader = DataLoader(DATA, batch_size=2, sampler=SubsetRandomSampler([1, 2, 5]), drop_last=True)
    assert counts_of(loader, 5).tolist() == [1, 0, 0, 2, 0]


def test_counting_leaves_the_order_of_the_batches_as_it_was() -> None:
    own = DataLoader(DATA, batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(1))
    shared = DataLoader(DATA, batch_size=2, shuffle=True)
    for loader in (own, shared):
        torch.manual_seed(0)
        before = [own.generator.get_state(), torch.get_rng_state()]
        counts_of(loader)
        assert torch.equal(own.generator.get_state(), before[0])
        assert torch.equal(torch.get_rng_state(), before[1])


def test_unlabelled_samples_may_be_left_out() -> None:
    labels = torch.cat([LABELS, torch.tensor([-1, -1])])
    assert counts_of(labels, 5, ignore_index=-1).tolist() == COUNTS
    assert counts_of(torch.tensor([-1]), 5, ignore_index=-1).tolist() == [0] * 5


@pytest.mark.parametrize(
    ("loader", "classes", "sentence"),
    [
        (torch.tensor([0, -1]), None, "a label is -1: .* ignore_index=-1"),
        (DATA, 3, "a label is 3, where there are 3 classes"),
        (DATA, 0, "classes is 0"),
        ([torch.zeros(3)], None, r"the batches are of type Tensor: .* \(inputs, labels\)"),
        ([{"pixels": 1}], None, r"the batches hold pixels: .* counts_of\(labels\)"),
        ([(0, torch.tensor([0.5]))], None, "labels are torch.float32"),
        ([(0, torch.zeros(2, 3, dtype=torch.long))], None, r"shape of labels is \(2, 3\)"),
        ([(0, ("cat", "dog"))], None, "labels are tuple: pass class indices"),
        ([], None, "no label to count"),
        (None, None, "NoneType is no loader"),
    ],
)
def test_what_cannot_be_counted_is_named(loader: object, classes: int | None, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        counts_of(loader, classes)
