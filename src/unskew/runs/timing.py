"""Where the time of a run goes."""

from __future__ import annotations

from unskew import record
from unskew.clock import Clock

FIRST_ROUND, ROUNDS, END = "first round", "rounds", "end"
"""The parts of a clock from the beginning of training on."""


def time_of(clock: Clock) -> record.Time:
    """Return how the time of a run was spent until now."""
    clock.mark(END)
    later = [clock.parts.get(name, 0.0) for name in (FIRST_ROUND, ROUNDS, END)]
    before = {name: spent for name, spent in clock.parts.items() if name not in (FIRST_ROUND, ROUNDS, END)}
    return record.Time(clock.total, before, *later)
