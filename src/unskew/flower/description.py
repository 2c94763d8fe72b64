"""A node's description of itself: its clients, and the form and sizes of their data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from unskew.data.dataset import Split
from unskew.data.remote import Ints
from unskew.flower.form import dataset_of_form, form_of
from unskew.flower.records import from_record, to_record
from unskew.flower.site import Site

MOST_SAMPLES = 10**9
"""The most samples of one client: a node that reports more is refused."""


@dataclass(frozen=True, eq=False)
class Description:
    """What a node reports about its clients. Tuples have an entry for each client."""

    names: tuple[str, ...]
    numbers: tuple[int, ...]
    """The clients' numbers in the whole federation; empty if the node does not know them."""
    of: int
    """How many clients the whole federation has; 0 if the node does not know it."""
    samples: tuple[int, ...]
    """How many training samples each client has."""
    form: str
    """The form of the data, as `form_of` writes it."""
    counts: Mapping[str, Ints]
    """Each client's samples by class, [k, C], by what they are for: "counts" (training), "test" or
    "validation"."""


def description_content(site: Site, share: Sequence[str]) -> RecordDict:
    """Return the description of a node as records, with the class counts that `share` names."""
    federation = site.federation
    about: dict[str, Any] = {
        "names": list(site.names),
        "numbers": list(site.numbers),
        "of": site.of,
        "samples": federation.partition.sizes.tolist(),
        "form": form_of(federation.dataset),
    }
    C, counts = len(federation.dataset.classes), dict[str, Tensor]()
    if "counts" in share:
        counts["counts"] = federation.counts
    for kind, splits in (("test", site.tests), ("validation", site.validations)):
        if kind in share:
            counts[kind] = torch.stack([_class_counts(split, C) for split in splits])
    content = RecordDict({"site": ConfigRecord(about)})
    if counts:
        content["counts"] = to_record(counts)
    return content


def read_description(content: RecordDict, share: Sequence[str]) -> Description:
    """Return the description in an answer, which has to have the class counts that `share` names. One that
    cannot be used raises a KeyError, a TypeError, a ValueError or a UserError."""
    site = content.config_records["site"]
    names, numbers, samples = (tuple(site[name]) for name in ("names", "numbers", "samples"))
    if not names or len(names) != len(samples) or (numbers and len(numbers) != len(names)):
        raise ValueError("its clients do not have one name and one number each")
    if not all(type(each) is int and 0 <= each <= MOST_SAMPLES for each in (*samples, *numbers)):
        raise ValueError("its numbers of samples or clients are invalid")
    form, of = site["form"], site["of"]
    if not isinstance(form, str) or type(of) is not int:
        raise ValueError("its data have no form")
    records = content.array_records
    counts = (
        {name: value.numpy() for name, value in from_record(records["counts"]).items()}
        if "counts" in records
        else {}
    )
    if counts.keys() != set(share):
        raise ValueError("its counts are not those that were asked for")
    expected = len(names), len(dataset_of_form(form, "").classes)
    for table in counts.values():
        if table.shape != expected or table.dtype.kind != "i":
            raise ValueError("its counts have another shape or type")
        if (table < 0).any() or table.max(initial=0) > MOST_SAMPLES or table.sum() > MOST_SAMPLES:
            raise ValueError("its counts are negative or too large")
    return Description(tuple(map(str, names)), numbers, of, samples, form, counts)


def _class_counts(split: Split | None, classes: int) -> Tensor:
    labels = torch.zeros(0, dtype=torch.int64) if split is None else split.labels
    return torch.bincount(labels, minlength=classes)
