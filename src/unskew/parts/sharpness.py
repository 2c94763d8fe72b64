"""Gradients that are taken uphill of the parameters, as sharpness-aware methods do."""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.types import Gradient, Params

# Added to norms that may be zero, as in the published implementations of SAM.
SMALLEST_NORM = 1e-12


def norm(tensors: Params) -> Tensor:
    """Return the norm of all tensors together."""
    return torch.stack([value.square().sum() for value in tensors.values()]).sum().sqrt()


def moved(params: Params, direction: Params, distance: float) -> Params:
    """Move the parameters by a distance along a direction, or not at all if the direction is zero."""
    scale = distance / (norm(direction) + SMALLEST_NORM)
    return {name: value + scale * direction[name] for name, value in params.items()}


def uphill(gradient: Gradient, rho: float) -> Gradient:
    """Return a gradient function that takes the gradient at the point `rho` uphill, on the same batch. Loss
    and BatchNorm statistics are those of the point itself."""
    if not rho:  # not even a second draw of dropout
        return gradient

    def there(params: Params, /, *, track: bool = True) -> tuple[Tensor, Params]:
        loss, grads = gradient(params, track=track)
        _, grads = gradient(moved(params, grads, rho), track=False)
        return loss, grads

    return there
