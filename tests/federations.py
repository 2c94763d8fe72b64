"""What many tests are built from."""

from __future__ import annotations

import numpy as np
import torch

from unskew.data.federation import Federation
from unskew.data.manifest import partition_of
from unskew.types import Params, Weights


def split(dataset, *clients) -> Federation:
    """A federation whose clients hold exactly these samples."""
    indices = [np.asarray(mine, np.int64) for mine in clients]
    return Federation(dataset, partition_of(indices, dataset, recipe="test"))


def flat(weights: Weights | Params) -> torch.Tensor:
    """All parameters as one vector, in the order of their names."""
    params = weights.params if isinstance(weights, Weights) else weights
    return torch.cat([value.flatten() for _, value in sorted(params.items())])
