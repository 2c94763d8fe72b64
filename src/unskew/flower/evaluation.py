"""Class-wise results: confusion counts at each client, and the results of the whole federation."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from unskew.errors import UserError, require
from unskew.losses.arguments import out_of_range
from unskew.losses.counts import LABELS, label_tensor, same_randomness_after, whole

if TYPE_CHECKING:
    from flwr.app import MetricRecord, RecordDict

CONFUSION = "confusion"
"""The key of a client's confusion counts: row by row, how many test samples of class i are predicted as j."""
EXAMPLES = "num-examples"
"""The key of the number of samples, by which Flower's strategies weight replies."""


def class_counts(
    net: nn.Module,
    loader: Iterable[Any],
    *,
    inputs: str | None = None,
    classes: int | None = None,
    ignore_index: int | None = None,
) -> dict[str, int | list[int]]:
    """Return how many samples of each class the model predicts as which class, for a client's MetricRecord.

    The record may have other entries too: `MetricRecord({"loss": value, **class_counts(net, loader)})`.
    Batches are (inputs, labels, ...) or mappings with the labels under "labels", "label", "targets", "target"
    or "y". If a mapping has more than inputs and labels, pass the key of the inputs as `inputs`. There are as
    many classes as the model has outputs; if a client's loader may be empty, pass their number as `classes`.
    Samples with the label `ignore_index` are not counted. The model runs on the device of its parameters, in
    evaluation mode, and is left in the mode it was in.
    """
    require(isinstance(net, nn.Module), f"net is a {type(net).__name__}: pass the model, a torch.nn.Module.")
    require(
        isinstance(loader, Iterable),
        f"{type(loader).__name__} is no loader: pass one that yields (inputs, labels).",
    )
    first = next(net.parameters(), None)
    device = torch.device("cpu") if first is None else first.device
    batches: Iterable[Any] = loader
    kept: AbstractContextManager[None] = nullcontext()
    if isinstance(loader, DataLoader):
        batches, kept = whole(loader), same_randomness_after(loader)
    confusion = None if classes is None else torch.zeros(classes, classes, dtype=torch.long)
    with torch.no_grad(), _evaluating(net), kept:
        for batch in batches:
            x, labels = _parts(batch, inputs)
            predicted, outputs = _predictions(net, x.to(device) if isinstance(x, Tensor) else x, len(labels))
            if confusion is None:
                confusion = torch.zeros(outputs, outputs, dtype=torch.long)
            if outputs != len(confusion):
                raise UserError(
                    f"the model has {outputs} outputs, where there are {len(confusion)} classes: "
                    f"pass classes={outputs}."
                )
            confusion += _counted(labels, predicted, outputs, ignore_index)
    if confusion is None:
        raise UserError(
            "the loader yields no batch: pass one with samples, or say how many classes there are, classes=."
        )
    return {EXAMPLES: int(confusion.sum()), CONFUSION: confusion.flatten().tolist()}


def classwise(replies: list[RecordDict], weighted_by_key: str, *, confusion: bool = False) -> MetricRecord:
    """Return the class-wise results of the federation from the replies of clients that call `class_counts`.
    Pass this function to a strategy as its `evaluate_metrics_aggr_fn`.

    The counts of all clients are summed, so the results are those on all their test samples together:
    "accuracy", "balanced-accuracy", "macro-f1", "worst-class" (its index), "worst-class-accuracy",
    "class-accuracy" and "class-examples" (lists, one number per class; the accuracy of a class without test
    samples is NaN) and, if `confusion` is true, "confusion" (row by row). All other metrics of the clients
    are averaged, as Flower does. A reply with counts that cannot be used is left out, with a warning in
    Flower's log; "replies-left-out" is the number of such replies.
    """
    # Imported here, since clients import this module and need none of these.
    import numpy as np
    from flwr.app import MetricRecord, RecordDict
    from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

    records = [next(iter(reply.metric_records.values())) for reply in replies]
    faults = [_fault(record.get(CONFUSION)) for record in records]
    lengths = Counter(
        len(record[CONFUSION]) for record, fault in zip(records, faults, strict=True) if not fault
    )
    if not lengths:
        raise UserError(
            f"no client sent counts that can be used ({faults[0] if faults else 'there is no reply'}): "
            "put class_counts(net, loader) into the MetricRecord of evaluate."
        )
    usual = lengths.most_common(1)[0][0]
    used = []
    for number, (record, fault) in enumerate(zip(records, faults, strict=True), 1):
        if not fault and len(record[CONFUSION]) != usual:
            fault = f"{CONFUSION} is of {math.isqrt(len(record[CONFUSION]))} classes, not {math.isqrt(usual)}"
        if fault:
            logging.getLogger("flwr").warning("reply %d of %d is left out: %s", number, len(records), fault)
        else:
            used.append(record)
    total = sum(np.array(record[CONFUSION], dtype=np.int64) for record in used)
    matrix = np.asarray(total).reshape(math.isqrt(usual), -1)
    found = class_metrics(matrix) | {"replies-left-out": len(records) - len(used)}
    if confusion:
        found[CONFUSION] = matrix.flatten().tolist()
    others = [
        MetricRecord({key: value for key, value in record.items() if key != CONFUSION}) for record in used
    ]
    averaged: dict[str, Any] = {}
    if sum(record[weighted_by_key] for record in others) > 0:
        averaged = dict(
            aggregate_metricrecords([RecordDict({"metrics": record}) for record in others], weighted_by_key)
        )
        averaged.pop(EXAMPLES, None)
    return MetricRecord({**averaged, **found})


def class_metrics(matrix: Any) -> dict[str, Any]:
    """Return the class-wise results of a confusion matrix, [i, j]: samples of class i predicted as j."""
    from unskew import metrics

    by_class = metrics.class_accuracy(matrix)
    found: dict[str, Any] = {
        "accuracy": metrics.accuracy(matrix),
        "balanced-accuracy": metrics.balanced_accuracy(matrix),
        "macro-f1": metrics.macro_f1(matrix),
        "class-accuracy": by_class.tolist(),
        "class-examples": matrix.sum(axis=1).tolist(),
    }
    if matrix.any():
        worst = metrics.worst_class(by_class)
        found |= {"worst-class": worst, "worst-class-accuracy": float(by_class[worst])}
    return found


def _fault(counts: object) -> str | None:
    """Return why the counts of a reply cannot be used, or None if they can."""
    if not isinstance(counts, list):
        return f"it has no list '{CONFUSION}'"
    if not counts or math.isqrt(len(counts)) ** 2 != len(counts):
        return f"{CONFUSION} has {len(counts)} numbers, no square"
    if not all(type(count) is int and count >= 0 for count in counts):
        return f"{CONFUSION} has numbers that are no counts"
    return None


@contextmanager
def _evaluating(net: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _parts(batch: object, inputs: str | None) -> tuple[Any, Tensor]:
    if isinstance(batch, Mapping):
        name = next((name for name in LABELS if name in batch), None)
        held = ", ".join(map(str, batch))
        if name is None:
            raise UserError(f"the batches hold {held} and no labels: name these one of {', '.join(LABELS)}.")
        others = [key for key in batch if key != name]
        if inputs is None and len(others) != 1:
            raise UserError(f"the batches hold {held}: say which are the model's inputs, inputs=NAME.")
        if inputs is not None and inputs not in others:
            raise UserError(f"the batches hold {held} and no inputs '{inputs}': name one of these.")
        return batch[others[0] if inputs is None else inputs], label_tensor(batch[name])
    if isinstance(batch, Sequence) and not isinstance(batch, str) and len(batch) >= 2:
        return batch[0], label_tensor(batch[1])
    raise UserError(
        f"the batches are of type {type(batch).__name__} and have no labels: pass a loader that yields "
        "(inputs, labels)."
    )


def _predictions(net: nn.Module, inputs: Any, samples: int) -> tuple[Tensor, int]:
    """Return the predicted class of each sample, and the number of classes."""
    logits = net(inputs)
    if not isinstance(logits, Tensor):
        raise UserError(f"the model returns a {type(logits).__name__}: pass one that returns its logits.")
    if logits.ndim != 2 or len(logits) != samples or not logits.shape[1]:
        raise UserError(
            f"the model returns {tuple(logits.shape)} for {samples} labels: pass one that returns "
            "[samples, classes]."
        )
    return logits.argmax(1).cpu(), logits.shape[1]


def _counted(labels: Tensor, predicted: Tensor, classes: int, ignore_index: int | None) -> Tensor:
    labels = labels.flatten().cpu().long()
    if ignore_index is not None:
        keep = labels != ignore_index
        labels, predicted = labels[keep], predicted[keep]
    for label in labels[(labels < 0) | (labels >= classes)].tolist():
        raise UserError(out_of_range(label, classes))
    return torch.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)
