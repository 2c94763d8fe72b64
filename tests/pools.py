"""The pool engine as short tests need it, and a trial for it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from federations import split
from unskew import engines
from unskew.data.dataset import Dataset, Split
from unskew.engines.cpu.pool import Pool, check
from unskew.engines.cpu.traced_step import StepTracer
from unskew.engines.cuda.graphs import Graphs
from unskew.trial import Budget, Evaluation, Trial


def eager_pool(trial: Trial) -> Pool:
    """A pool that traces steps as soon as can be, so that even short runs replay them."""
    return Pool(trial, StepTracer(after=1, comparisons=1, quick=math.inf))


def on_every_engine(monkeypatch: pytest.MonkeyPatch) -> list[Pool]:
    """Let `pool` be an eager one and `graphs` run without a GPU; returns the pools that are started."""
    pools: list[Pool] = []

    def start(trial: Trial) -> Pool:
        pools.append(eager_pool(trial))
        return pools[-1]

    monkeypatch.setitem(engines.ENGINES, "pool", engines.EngineType(start, check))
    monkeypatch.setitem(engines.ENGINES, "graphs", engines.EngineType(Graphs))
    return pools


def normed_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(54, 4),
    )


def pictures_trial() -> Trial:
    """Return a trial with unequal clients on four classes of small pictures. One client has one sample, one
    has none."""
    rng = np.random.default_rng(0)
    prototypes = rng.integers(0, 200, (4, 1, 8, 8))

    def pictures(n: int) -> Split:
        labels = rng.integers(0, 4, n)
        noisy = prototypes[labels] + rng.integers(0, 56, (n, 1, 8, 8))
        return Split(torch.from_numpy(noisy.astype(np.uint8)), torch.from_numpy(labels))

    dataset = Dataset("pictures", pictures(80), pictures(50), ("a", "b", "c", "d"))
    rows = np.split(np.arange(80), [30, 31, 31, 52, 60])
    return Trial(
        split(dataset, *rows),
        normed_net,
        budget=Budget(rounds=2, epochs=2, batch_size=8, lr=0.05),
        evaluation=Evaluation(batch_size=16),
        device="cpu",
        engine="loop",
    )


def pooled(trial: Trial, workers: int = 2) -> Trial:
    return replace(trial, engine="pool", workers=workers)


def assert_same(one: object, other: object) -> None:
    """Check that two values are equal bit for bit, inside of dictionaries and lists too."""
    if isinstance(one, dict):
        assert isinstance(other, dict)
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert_same(value, other[name])
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert one.stride() == other.stride()
        assert torch.equal(one, other)
    else:
        np.testing.assert_array_equal(one, other)
