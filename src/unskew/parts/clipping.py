"""Gradients whose norm is bounded."""

from __future__ import annotations

from torch import Tensor

from unskew.parts.sharpness import norm
from unskew.types import Gradient, GradientTransform, Params, Scope

# Added to the norm, as torch.nn.utils.clip_grad_norm_ does.
SMALLEST_NORM = 1e-6


def clipped(transform: GradientTransform, limit: float) -> GradientTransform:
    """Return a transform whose gradients are scaled down to a norm of `limit` if theirs is larger. The norm
    is over all parameters together."""

    def bounded(gradient: Gradient, scope: Scope) -> Gradient:
        plain = transform(gradient, scope)

        def scaled(params: Params, /, *, track: bool = True) -> tuple[Tensor, Params]:
            loss, grads = plain(params, track=track)
            scale = (limit / (norm(grads) + SMALLEST_NORM)).clamp(max=1.0)
            return loss, {name: scale * grad for name, grad in grads.items()}

        return scaled

    return bounded
