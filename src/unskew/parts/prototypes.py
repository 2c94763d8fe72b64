"""The mean features of a client's classes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from unskew.types import View


def class_means(views: Iterable[View], classes: int) -> Tensor:
    """Return the mean feature of every class over a pass of a model, [C, d]; 0 for a class without
    samples."""
    totals, sizes = [], []
    for view in views:
        member = one_hot(view.labels, classes).double()
        # A product, because adding rows by index has no fixed order on a GPU.
        totals.append(member.T @ view.out.features.double())
        sizes.append(member.sum(0))
    size = torch.stack(sizes).sum(0).clamp(min=1)
    return (torch.stack(totals).sum(0) / size.unsqueeze(1)).float()
