"""A trained model's predictions on the samples of a file, and their table."""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew.errors import UserError
from unskew.report.escape import escape_csv
from unskew.sample_files import read_samples
from unskew.trained_model import TrainedModel

BATCH = 500
"""The most samples in a batch."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """A model's predictions, one for every sample."""

    called: str
    """The word for what names a sample: row, file or sample."""
    names: list[str]
    classes: tuple[str, ...]
    probabilities: NDArray[np.float32]
    """[n, classes]"""
    notes: tuple[str, ...]

    @property
    def predicted(self) -> list[str]:
        """The most probable class of each sample."""
        return [self.classes[at] for at in self.probabilities.argmax(axis=1).tolist()]

    @property
    def counts(self) -> dict[str, int]:
        """How many samples are predicted as each class."""
        found = Counter(self.predicted)
        return {name: found[name] for name in self.classes}

    def to_csv(self) -> str:
        """Return a table with a row for every sample: its name, its predicted class, and the probability of
        every class."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([self.called, "class", *(f"probability:{name}" for name in self.classes)])
        rows = zip(self.names, self.predicted, self.probabilities, strict=True)
        for name, predicted, probabilities in rows:
            writer.writerow([escape_csv(name), escape_csv(predicted), *map(str, probabilities)])
        return file.getvalue()


def _reached(model: TrainedModel) -> int:
    """Return a byte that some pixel of the training images has reached. It follows from their standard
    deviation, which is at most half of their range; -1 if that is not known."""
    return max((int(2 * 255 * each) for each in model.model_file.std), default=-1)


@torch.no_grad()
def predict(model: TrainedModel, path: Path) -> Predictions:
    """Return a model's predictions on the samples of a file or folder."""
    reader = read_samples(model, path)
    names, probabilities, largest = list[str](), list[Tensor](), 0
    for part in reader.parts:
        if model.core.is_image:
            largest = max(largest, int(part.inputs.max()))
        # A file may be sorted by class, so samples are shuffled if each batch is normalised by itself.
        order = torch.arange(len(part.names))
        if model.core.by_batch:
            order = torch.randperm(len(order), generator=torch.Generator().manual_seed(0))
        logits = torch.cat([model.core(part.inputs[rows]).logits for rows in torch.split(order, BATCH)])
        found = logits[order.argsort()].softmax(dim=1)
        if not bool(found.isfinite().all()):
            bad = int((~found.isfinite()).any(dim=1).nonzero()[0])
            raise UserError(
                f"the model gives no number for {reader.called} {part.names[bad]} of {path}: its values "
                "are out of all bounds, or the model's weights are; give others."
            )
        probabilities.append(found)
        names += part.names
    notes = reader.notes
    if model.core.is_image and len(names) > 1 and largest <= min(255 / 4, _reached(model) / 2):
        notes.append(
            f"the images have bytes of at most {largest}, and those in training reached {_reached(model)} or "
            "more: if yours have another range than 0..255, give whole numbers 0..255 or floats in 0..1."
        )
    if model.core.by_batch:
        notes.append(
            "the model normalises each batch by its own statistics: a prediction depends on the others "
            f"in its batch of up to {BATCH}."
        )
    return Predictions(
        reader.called, names, model.classes, torch.cat(probabilities).float().numpy(), tuple(notes)
    )
