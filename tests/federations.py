"""What many tests are built from."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from unskew.data.federation import Federation
from unskew.data.partition import partition_of
from unskew.engines import Job, Task
from unskew.method import Method
from unskew.methods import METHODS
from unskew.program import Program
from unskew.trial import Statistics
from unskew.types import Params, Tensors, Weights


def split(dataset, *clients) -> Federation:
    """A federation whose clients hold exactly these samples."""
    indices = [np.asarray(mine, np.int64) for mine in clients]
    return Federation(dataset, partition_of(indices, dataset, recipe="test"))


def short_method(name: str) -> Method | Program:
    """A method by its name. Those that train beside the rounds do that for a shorter time than by default."""
    return METHODS[name](**SHORT.get(name, {}))


SHORT: dict[str, dict[str, Any]] = {"ccvr": {"samples": 20}, "pkd": {"expert_rounds": 3}}


def statistics_for(method: str) -> Statistics:
    """What becomes of BatchNorm statistics in tests of every method: dp does not let them be averaged."""
    return "batch" if method == "dp" else "average"


def flat(weights: Weights | Params) -> torch.Tensor:
    """All parameters as one vector, in the order of their names."""
    params = weights.params if isinstance(weights, Weights) else weights
    return torch.cat([value.flatten() for _, value in sorted(params.items())])


def depthwise_model(colours: int, classes: int) -> nn.Module:
    """With depthwise convolutions and BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(colours, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 32, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1, groups=32, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


def task(federation: Federation, client: int, round: int = 0) -> Task:
    """One client's round, on all that it holds."""
    return Task(client, round, federation.holding(client))


def job(federation: Federation, client: int, memory: Tensors | None = None, round: int = 0) -> Job:
    """The same, with what the client remembers."""
    return Job(task(federation, client, round), memory or {})
