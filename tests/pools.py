"""The pool engine as short tests need it."""

from __future__ import annotations

import math

from unskew.engines.cpu.pool import Pool
from unskew.engines.cpu.traced_step import StepTracer
from unskew.trial import Trial


def eager_pool(trial: Trial) -> Pool:
    """A pool that traces steps as soon as can be, so that even short runs replay them."""
    return Pool(trial, StepTracer(after=1, comparisons=1, quick=math.inf))
