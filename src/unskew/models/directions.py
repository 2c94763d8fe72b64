"""Vectors scaled to length 1, and features scaled to one length."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Below this norm a vector has no direction (the bound of torch.nn.functional.cosine_similarity).
_SMALLEST_NORM = 1e-8


def directions(x: Tensor) -> Tensor:
    """Return every row with length 1. A row without direction becomes 0 and receives no gradient, which a
    division by its length would make huge: features behind a ReLU may well be all 0."""
    square = x.square().sum(-1, keepdim=True)
    long = square > _SMALLEST_NORM**2
    return torch.where(long, x / torch.where(long, square, 1.0).sqrt(), 0.0)


class Sphere(nn.Module):
    """Gives every feature vector the same length. One without direction becomes 0."""

    def __init__(self, length: float) -> None:
        super().__init__()
        self.length = length

    def forward(self, x: Tensor) -> Tensor:
        return self.length * directions(x)
