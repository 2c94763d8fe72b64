"""A dataset in memory: loaded once and shared by all clients without copies."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from unskew import notebook
from unskew.data.columns import Columns
from unskew.data.words import Words
from unskew.errors import UserError
from unskew.notation import short_data
from unskew.types import Inputs


@dataclass(frozen=True, eq=False)
class Split:
    """Samples and their labels.

    inputs: images uint8 [n, channels, height, width]; tables float32 [n, features]; tokens int32 [n, length]
    labels: int64 [n]
    owners: the natural client of each sample (writer, site, generated client), int64 [n], if it is known;
        `Dataset.owners` may name them
    domains: the joined dataset that each sample came from, int64 [n], if several were joined
    """

    inputs: Tensor
    labels: Tensor
    owners: Tensor | None = None
    domains: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def drawn(self) -> bool:
        """Whether samples are drawn when needed, or are elsewhere, so that they are never all here."""
        return False

    @property
    def elsewhere(self) -> bool:
        """Whether samples are on other machines and cannot be read here."""
        return False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the clients, if samples are elsewhere."""
        return ()

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels of these rows."""
        return self.inputs[rows], self.labels[rows]

    def whole(self) -> Split:
        """Return a split with all samples in memory; raise a UserError if they are never all here."""
        return self

    def digest(self, into: hashlib._Hash) -> None:
        """Update a hash with these samples, or with what identifies them."""
        for tensor in (self.inputs, self.labels):
            into.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            into.update(tensor.contiguous().numpy().data)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A training and a test split over the same classes. They are checked when the dataset is made."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...] = ()
    """Mean of the training pixels divided by 255, per channel (images only; empty: no normalisation)."""
    std: tuple[float, ...] = ()
    """Their standard deviation, per channel."""
    vocabulary: int = 0
    """Number of token ids (texts only)."""
    domains: tuple[str, ...] = field(default=())
    """Names of the joined datasets, if several were joined."""
    owners: tuple[str, ...] = ()
    """Names of the owners of samples, such as sites, if known. `Split.owners` has positions in it."""
    columns: Columns | None = None
    """How columns became features (tables read from files only)."""
    words: Words | None = None
    """How texts became token ids (texts only)."""
    notes: tuple[str, ...] = ()
    """Decisions that were made when the data were read, one sentence each."""
    spec: str = field(default="", init=False)
    """The name it was loaded by with `unskew.load`; empty if it was made otherwise or by `replace`."""

    def __post_init__(self) -> None:
        check(self)

    def __repr__(self) -> str:
        """Describe the dataset in one line."""
        sizes = f"{len(self.train)} training and {len(self.test)} test samples"
        return f"Dataset({self.name!r}, {sizes} of {len(self.classes)} classes)"

    def _repr_html_(self) -> str:
        """Describe the dataset for a notebook."""
        shape = "x".join(map(str, self.inputs.shape))
        return notebook.facts(
            f"Dataset {self.name}",
            {
                "training": f"{len(self.train):,} {self.samples}",
                "test": f"{len(self.test):,} {self.samples}",
                "a sample": f"{self.kind} {shape}",
                f"{len(self.classes):,} classes": notebook.some(self.classes),
                "owners": notebook.some(self.owners),
                "domains": notebook.some(self.domains),
                "notes": " ".join(self.notes),
            },
        )

    @property
    def short_name(self) -> str:
        """Its name in tables and figures: the user's own files and folders are named without their path."""
        return short_data([self.name])[self.name]

    @property
    def kind(self) -> str:
        return self.inputs.kind

    @property
    def samples(self) -> str:
        """The word for its samples: images, texts, rows, or samples if they are something else."""
        if self.kind == "table" and len(self.inputs.shape) != 1:
            return "samples"
        return {"image": "images", "text": "texts", "table": "rows"}[self.kind]

    @property
    def inputs(self) -> Inputs:
        x = self.test.inputs
        shape = tuple(x.shape[1:])
        if x.dtype == torch.uint8:
            return Inputs("image", shape)
        return Inputs("text", shape, self.vocabulary) if self.vocabulary else Inputs("table", shape)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of both splits' inputs and labels as they are in memory. A split that is drawn when it is
        needed counts by how it is drawn."""
        digest = hashlib.sha256()
        for split in (self.train, self.test):
            split.digest(digest)
        return digest.hexdigest()


def check(dataset: Dataset) -> None:
    """Raise a UserError that names dataset, split and defect if the dataset is not valid."""
    C = len(dataset.classes)
    if C < 2:
        raise UserError(f"dataset '{dataset.name}' has {C} class(es): at least 2 are needed.")
    stored = [] if dataset.train.drawn else [("training", dataset.train)]
    for where, split in [*stored, ("test", dataset.test)]:
        name = f"the {where} split of '{dataset.name}'"
        _check_inputs(split, name, dataset.vocabulary)
        _check_labels(split, name, C)
        _check_owners(split, name, len(dataset.owners))
    if stored and dataset.train.inputs.shape[1:] != dataset.test.inputs.shape[1:]:
        raise UserError(
            f"'{dataset.name}' has training samples of shape {tuple(dataset.train.inputs.shape[1:])} and "
            f"test samples of shape {tuple(dataset.test.inputs.shape[1:])}: make them alike."
        )
    if stored and dataset.train.inputs.dtype != dataset.test.inputs.dtype:
        raise UserError(f"'{dataset.name}' has training and test inputs of different types: make them alike.")
    channels = dataset.test.inputs.shape[1] if dataset.test.inputs.dtype == torch.uint8 else 0
    if len(dataset.mean) != len(dataset.std) or len(dataset.mean) not in (0, channels):
        raise UserError(f"'{dataset.name}' needs one mean and one std per channel ({channels}).")
    if any(s <= 0 for s in dataset.std):
        raise UserError(f"'{dataset.name}' has a std of zero or less: give positive ones.")


def _check_inputs(split: Split, name: str, vocabulary: int) -> None:
    x, samples = split.inputs, len(split.labels)
    if len(x) != samples:
        raise UserError(f"{name} has {len(x)} samples but {samples} labels: give one label per sample.")
    if samples == 0:
        raise UserError(f"{name} is empty: at least one sample is needed.")
    if x.dtype not in (torch.uint8, torch.float32, torch.int32):
        kinds = "uint8 images, float32 tables or int32 tokens"
        raise UserError(f"{name} holds {x.dtype} inputs: use {kinds}.")
    if x.dtype == torch.uint8 and x.ndim != 4:
        raise UserError(f"{name} has images of shape {tuple(x.shape)}: use [n, channels, height, width].")
    if x.dtype != torch.uint8 and x.ndim != 2:
        raise UserError(f"{name} has rows of shape {tuple(x.shape)}: use [n, features].")
    if x.dtype == torch.float32 and not bool(torch.isfinite(x).all()):
        bad = int((~torch.isfinite(x)).any(dim=1).nonzero()[0])
        raise UserError(f"{name} has a NaN or infinite value in sample {bad}: fix or remove it.")
    if x.dtype == torch.int32 and (int(x.min()) < 0 or int(x.max()) >= vocabulary):
        raise UserError(f"{name} has token ids outside 0..{vocabulary - 1}: raise `vocabulary`.")


def _check_labels(split: Split, name: str, classes: int) -> None:
    y = split.labels
    if y.dtype != torch.int64 or y.ndim != 1:
        raise UserError(f"{name} has labels of type {y.dtype}, shape {tuple(y.shape)}: use int64 [n].")
    if int(y.min()) < 0 or int(y.max()) >= classes:
        bad = int(((y < 0) | (y >= classes)).nonzero()[0])
        raise UserError(
            f"{name} has label {int(y[bad])} at sample {bad}: labels must lie in 0..{classes - 1}."
        )


def _check_owners(split: Split, name: str, names: int) -> None:
    """Check the owners and domains of a split; `names` is the number of named owners, 0 without names."""
    for numbers in (split.owners, split.domains):
        if numbers is not None and numbers.shape != split.labels.shape:
            raise UserError(
                f"{name} has {len(numbers)} owners or domains for {len(split)} samples: give as many."
            )
    if names and split.owners is not None:
        low, high = int(split.owners.min()), int(split.owners.max())
        if low < 0 or high >= names:
            raise UserError(
                f"{name} has owner {low if low < 0 else high}, but {names} are named: number them from 0 on."
            )
