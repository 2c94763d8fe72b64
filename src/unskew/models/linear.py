"""Logistic regression and multilayer perceptrons.

`mlp` is the MNIST network of FedVLS (Guo et al., "Exploring Vacant Classes in Label-Skewed Federated
Learning", AAAI 2025): 784-200-200-C, ReLU. The released class takes a hidden width (100) and ignores it.
`mlp-small`, with one hidden layer of 64, is this library's own, for 8×8 digits and small tables.
`logistic` is the model of the FedProx synthetic data (Li et al., MLSys 2020), as FedLC uses it.

Deviations: none known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from unskew.errors import UserError
from unskew.models.net import Net, chain, linear_layer, vector_norm_layer
from unskew.types import Inputs


def logistic(inputs: Inputs, classes: int, norm: str) -> Net:
    return Net(nn.Flatten(), math.prod(inputs.shape), classes)


def mlp(inputs: Inputs, classes: int, norm: str, *, hidden: Sequence[int] = (200, 200)) -> Net:
    sizes = list(hidden) if isinstance(hidden, Sequence) else []
    if not sizes or not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise UserError(
            f"hidden is {hidden!r} but should list the width of each hidden layer, as [200, 200]."
        )
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    widths = [math.prod(inputs.shape), *sizes]
    for n, (before, after) in enumerate(pairwise(widths), start=1):
        layers[f"fc{n}"] = linear_layer(norm, before, after)
        layers[f"norm{n}"] = vector_norm_layer(norm, after)
        layers[f"relu{n}"] = nn.ReLU()
    return Net(chain(**layers), widths[-1], classes)


def mlp_small(inputs: Inputs, classes: int, norm: str, *, hidden: Sequence[int] = (64,)) -> Net:
    return mlp(inputs, classes, norm, hidden=hidden)
