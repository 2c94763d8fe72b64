"""The number of samples of each class in a loader or dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Subset

from unskew.errors import UserError
from unskew.losses.arguments import ClassCounts, out_of_range

LABELS = ("labels", "label", "targets", "target", "y")


def counts_of(
    loader: Iterable[Any] | Dataset[Any] | ClassCounts,
    classes: int | None = None,
    *,
    ignore_index: int | None = None,
) -> Tensor:
    """Count the samples of each class that a loader yields in one pass, int64 [classes] on the CPU.

    - `loader`: a loader or dataset that yields (inputs, labels, ...), or mappings with the labels under
      "labels", "label", "targets", "target" or "y". The last batch of a `DataLoader` is counted even if
      `drop_last` leaves it out, and no random state of PyTorch changes. A flat list, array or tensor is taken
      as the labels themselves, which is faster.
    - `classes`: the number of outputs of the model. None takes the number of names in `classes` of the
      loader's dataset; without these it counts up to the largest label, and so misses vacant classes after
      it.
    - `ignore_index`: samples with this label are left out.
    """
    if isinstance(loader, Tensor) or hasattr(loader, "__array_interface__") or _is_flat(loader):
        return _counted([label_tensor(loader)], classes, ignore_index)
    if isinstance(loader, Dataset) and not isinstance(loader, Iterable):
        loader = DataLoader(loader, batch_size=None)
    if not isinstance(loader, Iterable):
        raise UserError(f"{type(loader).__name__} is no loader: pass one that yields (inputs, labels).")
    if classes is None:
        classes = _named_classes(loader)
    if not isinstance(loader, DataLoader):
        return _counted((_labels_in(batch) for batch in loader), classes, ignore_index)
    with same_randomness_after(loader):
        return _counted((_labels_in(batch) for batch in whole(loader)), classes, ignore_index)


def _counted(batches: Iterable[Tensor], classes: int | None, ignore_index: int | None) -> Tensor:
    if classes is not None and classes < 1:
        raise UserError(f"classes is {classes}: pass the number of classes.")
    counts = torch.zeros(classes or 0, dtype=torch.long)
    for batch in batches:
        labels = batch.flatten().cpu().long()
        labels = labels if ignore_index is None else labels[labels != ignore_index]
        if not len(labels):
            continue
        low, high = (int(bound) for bound in labels.aminmax())
        if low < 0:
            raise UserError(
                f"a label is {low}: pass class indices from 0 on, or ignore_index={low} to leave such out."
            )
        if classes is not None and high >= classes:
            raise UserError(out_of_range(high, classes))
        found = torch.bincount(labels, minlength=len(counts))
        found[: len(counts)] += counts
        counts = found
    if not len(counts):
        raise UserError("there is no label to count: pass a loader with samples, or classes=.")
    return counts


def _is_flat(labels: object) -> bool:
    """Say whether a list holds labels, and not batches."""
    return (
        isinstance(labels, list | tuple)
        and len(labels) > 0
        and all(isinstance(label, int) for label in labels)
    )


def _labels_in(batch: object) -> Tensor:
    if isinstance(batch, Mapping):
        name = next((name for name in LABELS if name in batch), None)
        if name is None:
            raise UserError(
                f"the batches hold {', '.join(map(str, batch))}: pass the labels instead, counts_of(labels)."
            )
        return label_tensor(batch[name])
    if isinstance(batch, Sequence) and len(batch) >= 2:
        return label_tensor(batch[1])
    raise UserError(
        f"the batches are of type {type(batch).__name__}: pass a loader that yields (inputs, labels), "
        "or the labels themselves."
    )


def label_tensor(labels: Any) -> Tensor:
    try:
        found = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError):
        found = None
    if found is None or found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        kind = type(labels).__name__ if found is None else found.dtype
        raise UserError(f"labels are {kind}: pass class indices as integers.")
    if found.ndim > 1:
        raise UserError(f"the shape of labels is {tuple(found.shape)}: pass one class index per sample.")
    return found


def _named_classes(loader: object) -> int | None:
    dataset = getattr(loader, "dataset", None)
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    names = getattr(dataset, "classes", None)
    return len(names) if isinstance(names, Sequence) and not isinstance(names, str) and len(names) else None


def whole(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader that yields the same batches and also the last one, which `drop_last` leaves out."""
    batches = loader.batch_sampler
    iterated = isinstance(loader.dataset, IterableDataset)
    if iterated and loader.drop_last:
        size, sampler = loader.batch_size, None
    elif type(batches) is BatchSampler and batches.drop_last:
        size, sampler = batches.batch_size, batches.sampler
    else:
        return loader
    return DataLoader(
        loader.dataset,
        batch_size=size,
        sampler=sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
    )


@contextmanager
def same_randomness_after(loader: DataLoader[Any]) -> Iterator[None]:
    """Set PyTorch's random state, and that of the loader's own generators, back when the block ends."""
    samplers = [loader.sampler, getattr(loader.batch_sampler, "sampler", None)]
    own = {loader.generator, *(getattr(each, "generator", None) for each in samplers)}
    states = [(generator, generator.get_state()) for generator in own if generator is not None]
    with torch.random.fork_rng(devices=[]):
        yield
    for generator, state in states:
        generator.set_state(state)
