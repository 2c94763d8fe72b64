"""The pool engine as short tests need it."""

from __future__ import annotations

import math

import pytest

from unskew import engines
from unskew.engines.cpu.pool import Pool, check
from unskew.engines.cpu.traced_step import StepTracer
from unskew.engines.cuda.graphs import Graphs
from unskew.trial import Trial


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
