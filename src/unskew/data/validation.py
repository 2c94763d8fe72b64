"""The validation set, on which no client trains: a part of each client's samples, or another dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path

import numpy as np
import torch

from unskew.data.arrays import Array, from_arrays, npz_arrays
from unskew.data.dataset import Dataset, Split
from unskew.data.loading import TABLES, load_one
from unskew.data.names import shortened
from unskew.data.partition import Ints, Partition
from unskew.data.partitions.pool import PartitionSeed
from unskew.data.table_dataset import from_csv
from unskew.data.tables import ColumnRoles, read_table
from unskew.errors import UserError, require
from unskew.notation import Item, Option, items, named, path_of, read_options

NONE = "none"


def parse(text: str) -> float | str | None:
    """Read a setting of validation: a share such as 0.1, the name of a dataset such as
    csv:val.csv,label=grade, or None for `none`."""
    text = text.strip()
    if text == NONE:
        return None
    try:
        share = float(text)
    except ValueError:
        return text
    return check_share(share)


def check_share(share: float) -> float:
    require(
        0 < share < 1,
        f"validation is {share:g} but should be a share of each client's samples between 0 and 1, such as "
        "0.1, a dataset such as csv:val.csv,label=COLUMN, or none.",
    )
    return share


def hold_out(partition: Partition, dataset: Dataset, share: float, seed: int) -> Partition:
    """Hold a share of each client's samples out for validation, and return the new partition. The choice
    depends only on the client's samples, the client's number and `seed`.

    The choice is stratified: the client's samples are put in a row, class after class and shuffled within
    each class, and one is taken from every stretch of 1 / share samples, at a random place that is the same
    in all stretches. So a class gives its share of the client's samples, randomly rounded up or down: over
    many clients, rare classes give their share too. At least one sample of each class stays in training."""
    check_share(share)
    if partition.validation:
        raise UserError(
            f"'{partition.recipe}' already has validation samples: leave validation out, or divide anew."
        )
    if dataset.train.drawn:
        raise UserError(
            f"the clients of '{dataset.name}' are drawn when they are needed, so no part of them can be held "
            "out: give a dataset as validation, or leave out drawn=true."
        )
    labels: Ints = dataset.train.labels.numpy()
    held: list[Ints] = []
    for client, rows in enumerate(partition.indices):
        chosen = _chosen(labels[rows], share, PartitionSeed(seed, client).stream("validation"))
        held.append(rows[chosen])
    if not any(map(len, held)):
        raise UserError(
            f"no client has enough samples to hold out {share:g} of them: raise the share, or give a dataset "
            "as validation."
        )
    return with_validation(partition, dataset, held)


def _chosen(labels: Ints, share: float, draw: np.random.Generator) -> Ints:
    """Choose validation samples among samples with these labels; return their positions, ascending."""
    order = draw.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    passed = np.floor(share * np.arange(len(labels) + 1) + draw.random())
    taken = order[np.diff(passed) > 0]
    spared = [
        mine[0]
        for c in np.unique(labels[taken])
        if len(mine := taken[labels[taken] == c]) == (labels == c).sum()
    ]
    return np.sort(np.setdiff1d(taken, spared))


def with_validation(partition: Partition, dataset: Dataset, held: Sequence[Ints]) -> Partition:
    """Return the partition with these samples of each client as its validation samples."""
    labels: Ints = dataset.train.labels.numpy()
    indices = tuple(rows[~np.isin(rows, mine)] for rows, mine in zip(partition.indices, held, strict=True))
    C = len(dataset.classes)
    counts = np.stack([np.bincount(labels[rows], minlength=C) for rows in indices])
    seen = np.bincount(labels[np.concatenate(held)], minlength=C)
    missing = [dataset.classes[c] for c in np.flatnonzero((counts.sum(axis=0) > 0) & (seen == 0))]
    notes = partition.notes
    if missing:
        notes = (
            *notes,
            f"Validation has no sample of {shortened(missing, 12)}: clients hold too few to give one away.",
        )
    return replace(partition, indices=indices, counts=counts, validation=tuple(held), notes=notes)


def validation_split(dataset: Dataset, partition: Partition) -> Split | None:
    """Return the validation samples, with the clients' numbers as owners; None if there are none."""
    if not partition.validation:
        return None
    rows = torch.from_numpy(np.concatenate(partition.validation))
    sizes = torch.tensor([len(mine) for mine in partition.validation])
    x, y = dataset.train.take(rows)
    domains = dataset.train.domains
    return Split(
        x,
        y,
        owners=torch.repeat_interleave(torch.arange(len(sizes)), sizes),
        domains=None if domains is None else domains[rows],
    )


def read_validation(word: str, dataset: Dataset, folder: Path | None = None) -> Split:
    """Load all samples of another dataset in the form of `dataset`: classes are matched by name, and the
    columns of a table are scaled as its training rows were."""
    kind, rest = named(word)
    if kind in TABLES:
        return _of_table(word, items(rest), dataset)
    if kind == "npz" and rest:
        path = path_of(items(rest)[0].text)
        arrays = npz_arrays(path)
        if not {"x", "y"} <= arrays.keys():
            raise UserError(f"{path} has no arrays x and y, which validation takes: name them so.")
        if dataset.columns is not None:
            raise UserError(
                f"{path} has plain numbers, and the columns of '{dataset.name}' were scaled by its training "
                "rows: give a table to validate on, csv:PATH,label=COLUMN."
            )
        both = (arrays["x"], _by_name(arrays["y"], dataset)) * 2
        other = from_arrays(*both, name=path.stem, classes=dataset.classes)
        return from_dataset(replace(other, test=replace(other.test, owners=None)), dataset, parts=1)
    return from_dataset(load_one(word, folder), dataset)


def _by_name(labels: Array, dataset: Dataset) -> Array:
    """Return labels that are whole numbers as names of classes, if any class has a number as its name;
    otherwise return them as they are, as positions of classes."""
    if labels.dtype.kind not in "iu" or not any(name.isdecimal() for name in dataset.classes):
        return labels
    return labels.astype(np.str_)


def from_dataset(other: Dataset, dataset: Dataset, parts: int = 2) -> Split:
    """Return all samples of `other` for the validation of `dataset`: its training and test split, or only the
    first `parts` of these two."""
    splits = [other.train.whole(), other.test][:parts]
    if other.columns is not None:
        raise UserError(
            f"the columns of '{other.name}' were scaled by its own rows, and not as those of "
            f"'{dataset.name}': give its file, csv:PATH,label=COLUMN."
        )
    if other.inputs != dataset.inputs:
        raise UserError(
            f"'{other.name}' holds {other.kind} samples of shape {list(other.inputs.shape)} and "
            f"'{dataset.name}' {dataset.kind} samples of shape {list(dataset.inputs.shape)}: validate on "
            "samples of the same kind."
        )
    number = {name: at for at, name in enumerate(dataset.classes)}
    present = sorted({c for split in splits for c in split.labels.tolist()})
    for c in present:
        if other.classes[c] not in number:
            raise _not_a_class(other.name, other.classes[c], dataset)
    to = torch.tensor([number.get(name, -1) for name in other.classes])
    return Split(
        torch.cat([split.inputs for split in splits]), to[torch.cat([split.labels for split in splits])]
    )


def refuse_test_samples(validation: Split, dataset: Dataset) -> None:
    """Refuse validation samples that contain more than half of the test samples. Some may be equal by chance,
    such as rows of a small table."""
    hashes = [
        {
            (hash(x.numpy().tobytes()), label)
            for x, label in zip(each.inputs, each.labels.tolist(), strict=True)
        }
        for each in (validation, dataset.test)
    ]
    if len(hashes[1] & hashes[0]) > 0.5 * len(hashes[1]):
        raise UserError(
            "most samples of the test set are also in the validation set, so that it would choose the model "
            "that it tests: validate on others, or on a share of the clients' samples."
        )


def _of_table(word: str, given: list[Item], dataset: Dataset) -> Split:
    if not given or not given[0].text:
        raise UserError(f"'{word}' has no path: write {named(word)[0]}:PATH,label=COLUMN.")
    path = path_of(given[0].text)
    if dataset.columns is None:
        raise UserError(
            f"'{dataset.name}' was not read from a table, so {path} cannot be scaled as it was: validate on "
            "a dataset of its kind, or on a share of the clients' samples."
        )
    for option in given[1:]:
        if option.key != "label" and option.key in signature(from_csv).parameters:
            raise UserError(
                f"{option.key} is given for {path}, whose columns are read as those of '{dataset.name}' are: "
                "leave it out."
            )
    label: str = read_options(named(word)[0], given[1:], {"label": Option(str, True)}, ["label"], "PATH,")[
        "label"
    ]
    columns = dataset.columns
    table = read_table(path, ColumnRoles(label, columns.site, columns.names, ()), is_test=True)
    if columns.scale == "site" and table.sites is None:
        where = f"the column '{columns.site}'" if columns.site else "a column for it"
        raise UserError(
            f"{path} does not say whose its rows are, and each site of '{dataset.name}' has a scale of its "
            f"own: add {where}, or use scale=all."
        )
    number = {name: at for at, name in enumerate(dataset.classes)}
    for text in table.labels:
        if text not in number:
            raise _not_a_class(str(path), text, dataset)
    rows = replace(table.rows, sites=table.sites, settled=True)
    inputs = torch.from_numpy(columns.apply(rows).astype(np.float32))
    return Split(inputs, torch.tensor([number[text] for text in table.labels]))


def _not_a_class(where: str, name: str, dataset: Dataset) -> UserError:
    return UserError(
        f"{where} has the class '{name}', and '{dataset.name}' has not ({shortened(dataset.classes)}): name "
        "classes as there, or remove it."
    )
