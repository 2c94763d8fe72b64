"""A dataset in memory: loaded once, shared by every client, never copied per client."""

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
    owners: the natural client of each sample (writer, site, generated client), int64 [n], where known;
        `Dataset.owners` may name them
    domains: which of several joined datasets each sample came from, int64 [n], where there are several
    """

    inputs: Tensor
    labels: Tensor
    owners: Tensor | None = None
    domains: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def drawn(self) -> bool:
        """Whether samples are drawn when they are needed, or elsewhere, and never all there."""
        return False

    @property
    def elsewhere(self) -> bool:
        """Whether samples are on other machines, and nobody here may take them."""
        return False

    @property
    def names(self) -> tuple[str, ...]:
        """What the clients are called whose samples are elsewhere."""
        return ()

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs and labels of these rows."""
        return self.inputs[rows], self.labels[rows]

    def whole(self) -> Split:
        """The split with all its samples; a UserError where they are only drawn when they are needed."""
        return self

    def digest(self, into: hashlib._Hash) -> None:
        """Add to a hash what tells these samples from others."""
        for tensor in (self.inputs, self.labels):
            into.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            into.update(tensor.contiguous().numpy().data)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A training and a test split over the same classes. Checked when made: see `UserError` messages."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...] = ()
    """Of the training pixels divided by 255, per channel (images only; empty: no normalisation)."""
    std: tuple[float, ...] = ()
    vocabulary: int = 0
    """Number of token ids (text only)."""
    domains: tuple[str, ...] = field(default=())
    """Names of the joined datasets, where there are several."""
    owners: tuple[str, ...] = ()
    """Names of those who own samples, such as sites, where they are known: `Split.owners` counts in this
    order."""
    columns: Columns | None = None
    """How the columns of a table became features (tables read from files only)."""
    words: Words | None = None
    """How texts became token ids (texts only)."""
    notes: tuple[str, ...] = ()
    """What was decided when the data were read, one sentence each."""
    spec: str = field(default="", init=False)
    """What `unskew.load` made it of; empty where it was made otherwise or changed by `replace`."""

    def __post_init__(self) -> None:
        check(self)

    def __repr__(self) -> str:
        """What it is, in one line."""
        sizes = f"{len(self.train)} training and {len(self.test)} test samples"
        return f"Dataset({self.name!r}, {sizes} of {len(self.classes)} classes)"

    def _repr_html_(self) -> str:
        """What it is, for a notebook."""
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
        """What it is called in tables and figures: files and folders of one's own by their names alone."""
        return short_data([self.name])[self.name]

    @property
    def kind(self) -> str:
        return self.inputs.kind

    @property
    def samples(self) -> str:
        """What samples are called: images, texts, rows, or samples where they are something else."""
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
        """Over both splits' inputs and labels, as they are in memory; of a split that is drawn when it is
        needed, over how it is drawn."""
        digest = hashlib.sha256()
        for split in (self.train, self.test):
            split.digest(digest)
        return digest.hexdigest()


def check(dataset: Dataset) -> None:
    """Raise a UserError that names the dataset, the split and the defect."""
    C = len(dataset.classes)
    if C < 2:
        raise UserError(f"dataset '{dataset.name}' has {C} class(es): at least 2 are needed.")
    stored = [] if dataset.train.drawn else [("training", dataset.train)]
    for where, split in [*stored, ("test", dataset.test)]:
        x, y, name = split.inputs, split.labels, f"the {where} split of '{dataset.name}'"
        if len(x) != len(y):
            raise UserError(f"{name} has {len(x)} samples but {len(y)} labels: give one label per sample.")
        if len(y) == 0:
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
        if x.dtype == torch.int32 and (int(x.min()) < 0 or int(x.max()) >= dataset.vocabulary):
            raise UserError(f"{name} has token ids outside 0..{dataset.vocabulary - 1}: raise `vocabulary`.")
        if y.dtype != torch.int64 or y.ndim != 1:
            raise UserError(f"{name} has labels of type {y.dtype}, shape {tuple(y.shape)}: use int64 [n].")
        if int(y.min()) < 0 or int(y.max()) >= C:
            bad = int(((y < 0) | (y >= C)).nonzero()[0])
            value = int(y[bad])
            raise UserError(f"{name} has label {value} at sample {bad}: labels must lie in 0..{C - 1}.")
        for what in (split.owners, split.domains):
            if what is not None and what.shape != y.shape:
                raise UserError(
                    f"{name} has {len(what)} owners or domains for {len(y)} samples: give as many."
                )
        if dataset.owners and split.owners is not None:
            low, high = int(split.owners.min()), int(split.owners.max())
            if low < 0 or high >= len(dataset.owners):
                raise UserError(
                    f"{name} has owner {low if low < 0 else high}, but {len(dataset.owners)} are named: "
                    "number them from 0 on."
                )
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
