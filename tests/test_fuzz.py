"""A small share of `python -m benchmarks.fuzz`: the same inputs on every machine."""

from __future__ import annotations

import pytest
from benchmarks.fuzz import kinds, trying

SLOW = {
    "experiment-command",
    "report",
    "model",
    *(kind for kind in kinds.KINDS if kind.startswith("figure-")),
}
KINDS = {kind: 6 for kind in kinds.KINDS if kind not in SLOW} | {
    "experiment": 25, "set": 40, "skew": 40, "method": 25, "manifest": 25, "records": 30,
    "niidbench-pickle": 25, "model": 4,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_and_hostile_input_is_read_or_refused_in_one_sentence(kind: str) -> None:
    tally = trying.explore(kind, KINDS[kind], seed=15)
    assert not tally.failures, {place: problem for place, (problem, _) in tally.failures.items()}
    assert tally.tried >= KINDS[kind]
    assert tally.refused > 0
