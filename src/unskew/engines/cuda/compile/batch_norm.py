"""Batch normalisation as a factor and a summand for each channel."""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.engines.cuda.compile.context import Context, materialise, upcast


class BatchNorm:
    """Batch normalisation whose factors and summands are computed once for each channel, not for each
    value."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def forward(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the normalised values, the batch's mean and the inverse of its standard deviation."""
        if weight is None or bias is None:
            return NotImplemented  # type: ignore[no-any-return]
        values = upcast(x)
        if training:
            # Two sums take a third of the instructions of PyTorch's method. They are sums of differences from
            # one pixel, so that a mean far from zero costs no precision.
            pixel = values[(slice(1), slice(None), *[slice(1)] * (x.ndim - 2))]
            differences = values - pixel
            offset = differences.mean(_all_but_channels(x))
            var = (differences.square().mean(_all_but_channels(x)) - offset.square()).clamp_min(0)
            mean = materialise(offset + pixel.view(-1))
            if running_mean is not None and running_var is not None:
                count = x.numel() // x.shape[1]
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
                running_var.lerp_((var * count / (count - 1)).to(running_var.dtype), momentum)
        else:
            assert running_mean is not None
            assert running_var is not None
            mean, var = running_mean, running_var
        invstd = torch.rsqrt(var + eps)
        factor = materialise(weight * invstd)
        y = values * _per_channel(factor, x)
        y = (y + _per_channel(materialise(bias - mean * factor), x)).to(x.dtype)
        self._context.remember(invstd, "factor", factor)
        return (y, mean, invstd) if training else (y, x.new_empty(0), x.new_empty(0))

    def backward(
        self,
        grad: Tensor,
        x: Tensor,
        weight: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        mean: Tensor | None,
        invstd: Tensor | None,
        training: bool,
        eps: float,
        output_mask: list[bool],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of input, weight and bias. The gradient of the input is linear in the output's
        gradient and in the input, with three coefficients for each channel."""
        factor = None if invstd is None else self._context.recall(invstd, "factor")
        if not training or mean is None or invstd is None or weight is None or factor is None:
            return NotImplemented  # type: ignore[no-any-return]
        gradient, values, count = upcast(grad), upcast(x), x.numel() // x.shape[1]
        to_bias = gradient.sum(_all_but_channels(x))
        to_weight = (gradient * (values - _per_channel(mean, x))).sum(_all_but_channels(x)) * invstd
        by_input = materialise(-factor * invstd * to_weight / count)
        summand = materialise(-factor * to_bias / count - by_input * mean)
        to_input = gradient * _per_channel(factor, x) + values * _per_channel(by_input, x)
        to_input = (to_input + _per_channel(summand, x)).to(x.dtype)
        return to_input, to_weight.to(weight.dtype), to_bias.to(weight.dtype)


def _all_but_channels(x: Tensor) -> list[int]:
    return [0, *range(2, x.ndim)]


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    """Return one value for each channel in a shape that broadcasts to images."""
    return values.view(-1, *[1] * (x.ndim - 2))
