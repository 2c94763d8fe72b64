"""Weight standardisation: layers that compute with their weights centred and scaled, filter by filter.

    W'_o = scale · (W_o - mean(W_o)) / (std(W_o) + 1e-5)

over the inputs and the kernel of output o, with the unbiased standard deviation (Qiao, Wang, Liu, Shen and
Yuille, arXiv 1903.10520; for federated learning FedWSQ, arXiv 2506.23516). W itself is trained, sent and
averaged. Only its direction has an effect, so its length sets how far a step turns it, and weight decay
shortens it.

`scale` is gain / sqrt(fan-in) unless it is given (Brock, De and Smith, ICLR 2021): outputs then keep the
variance of the inputs, which networks without another normalisation need. If GroupNorm follows, the scale
cancels, except for the 1e-5 that GroupNorm adds to the variance: FedWSQ takes 0.001, and the variance of a
first layer's outputs is then not far above 1e-5.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPSILON = 1e-5

RELU_GAIN = math.sqrt(2 / (1 - 1 / math.pi))
"""1 divided by the standard deviation of ReLU(z) for a standard normal z."""


def standardise(weight: Tensor, scale: float) -> Tensor:
    """Return weights [outputs, ...] shifted and scaled so that those of every output have mean 0 and standard
    deviation `scale`. Constant ones become 0."""
    over = tuple(range(1, weight.ndim))
    centred = weight - weight.mean(dim=over, keepdim=True)
    std: Tensor = torch.linalg.vector_norm(centred, dim=over, keepdim=True) / math.sqrt(weight[0].numel() - 1)
    return centred * (scale / (std + EPSILON))


class StandardisedConv2d(nn.Conv2d):
    """A convolution that computes with its standardised weights."""

    scale: float

    def standardised(self) -> Tensor:
        return standardise(self.weight, self.scale)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self._conv_forward(x, self.standardised(), self.bias)
        return y


class StandardisedLinear(nn.Linear):
    """A linear layer that computes with its standardised weights."""

    scale: float

    def standardised(self) -> Tensor:
        return standardise(self.weight, self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.standardised(), self.bias)


STANDARDISED = (StandardisedConv2d, StandardisedLinear)


def make_standardised(layer: nn.Conv2d | nn.Linear, gain: float) -> None:
    """Turn a plain layer into one that computes with its standardised weights. A layer whose outputs have a
    single weight each stays as it is: without its mean nothing would be left."""
    fan_in = math.prod(layer.weight.shape[1:])
    if fan_in > 1:
        layer.__class__ = StandardisedConv2d if isinstance(layer, nn.Conv2d) else StandardisedLinear
        assert isinstance(layer, STANDARDISED)
        layer.scale = gain / math.sqrt(fan_in)


@torch.no_grad()
def make_plain(module: nn.Module) -> None:
    """Turn standardised layers into plain ones that compute the same, for use but not for training."""
    for part in module.modules():
        if isinstance(part, STANDARDISED):
            part.weight = nn.Parameter(part.standardised())
            for name in part._parameters.keys() - {"weight", "bias"}:  # an adapter, now part of the weight
                delattr(part, name)
            plain: type[nn.Module] = nn.Conv2d if isinstance(part, nn.Conv2d) else nn.Linear
            part.__class__ = plain  # type: ignore[assignment]
