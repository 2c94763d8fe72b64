"""Rates at which a model takes classes for one another, from sums over their data that clients send."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from unskew.parts.groups import Floats, Group
from unskew.types import Tensors, View


def class_statistics(views: Iterable[View], classes: int) -> Tensor:
    """Sum over a client's samples of each class the model's probabilities, the number of samples and the
    number of right answers, [C, C + 2] in this order of columns."""
    total = torch.zeros(classes, classes + 2, dtype=torch.float64)
    for view in views:
        logits, y = view.out.logits.double(), view.labels
        right = (logits.argmax(1) == y).double()
        rows = torch.cat([logits.softmax(1), torch.ones_like(right)[:, None], right[:, None]], dim=1)
        total = total.to(rows.device) + one_hot(y, classes).double().T @ rows
    return total


def summed(statistics: Sequence[Sequence[Tensors]]) -> Tensor:
    """Add up the statistics that clients sent, after one round or several."""
    each = [answer["statistics"].cpu() for answers in statistics for answer in answers]
    total = torch.zeros_like(each[0])
    for statistic in each:
        total += statistic
    return total


def group_samples(answers: Sequence[Tensors], groups: Sequence[Group]) -> Tensor:
    """Count each client's samples of each group, [clients, groups], from the statistics that clients sent."""
    counts = torch.stack([answer["statistics"].cpu()[:, -2] for answer in answers]).long()
    columns = [counts[:, list(group)].sum(dim=1) for group in groups]
    return torch.stack(columns, dim=1) if columns else counts[:, :0]


def rates(statistics: Tensor) -> tuple[Floats, Floats]:
    """Return the mean probabilities [C, C] and the accuracy [C] of every class from the sum of the clients'
    statistics. They are NaN for classes without samples."""
    sums = statistics.numpy()
    samples = np.where(sums[:, -2] > 0, sums[:, -2], np.nan)
    return sums[:, :-2] / samples[:, None], sums[:, -1] / samples
