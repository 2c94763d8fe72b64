"""Every method gives the same bits on every engine that runs on a CPU."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.hashes import TRIALS, hash_of

from federations import flat, short_method, statistics_for
from pools import on_every_engine
from unskew.methods import METHODS
from unskew.result import Result
from unskew.testing import hard_trial, normed_model
from unskew.train import train

NOT_REPLAYED = {
    "centralised": "it has one client, which trains in the process that asks",
    "local-only": "its clients train by themselves, each in the process that asks",
}
"""The methods of which no step is replayed on `pool`, and why."""


def train_by(name: str, engine: str) -> Result:
    trial = hard_trial(normed_model, engine=engine, statistics=statistics_for(name), validation=0.3)
    return train(replace(trial, workers=2), short_method(name))


@pytest.fixture(scope="module", params=METHODS)
def name(request):
    """Return each method in turn, so that all engines run it before the next method."""
    return request.param


@pytest.fixture(scope="module")
def by_loop(name):
    return train_by(name, "loop")


def assert_same_bits(one: Result, other: Result) -> None:
    assert torch.equal(flat(one.weights), flat(other.weights))
    assert one.weights.buffers.keys() == other.weights.buffers.keys()
    assert all(torch.equal(value, other.weights.buffers[name]) for name, value in one.weights.buffers.items())
    assert [r.train_loss for r in one.rounds] == [r.train_loss for r in other.rounds]
    for mine, theirs in zip(one.rounds, other.rounds, strict=True):
        assert (mine.test is None) == (theirs.test is None)
        if mine.test and theirs.test:
            assert (mine.test.confusion == theirs.test.confusion).all()
            assert mine.test.loss == theirs.test.loss
            assert (mine.validation.confusion == theirs.validation.confusion).all()
            assert mine.validation.loss == theirs.validation.loss
    assert one.validation.round == other.validation.round
    assert one.scores == other.scores


def test_pool_gives_the_bits_of_the_loop_by_replayed_steps(name, by_loop, monkeypatch):
    pools = on_every_engine(monkeypatch)
    assert_same_bits(by_loop, train_by(name, "pool"))
    assert (sum(pool.replayed for pool in pools) == 0) == (name in NOT_REPLAYED)


def test_graphs_gives_the_bits_of_the_loop(name, by_loop, monkeypatch):
    on_every_engine(monkeypatch)
    assert_same_bits(by_loop, train_by(name, "graphs"))


def test_methods_give_the_same_bits_in_a_fresh_process():
    """Compare the loop here with four workers there. Each process has another order of Python's sets.
    `benchmarks.hashes` without names compares all methods."""
    some = ["balancefl", "fedconcat", "moon", "pkd", "scaffold"]
    ask = ["--trials", "hard", "--engine", "pool", "--workers", "4", "--methods", *some]
    there = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.hashes", *ask],
        cwd=Path(__file__).parents[2],
        env={name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"},
        stdout=subprocess.PIPE,
        text=True,
    )
    trial = replace(TRIALS["hard"](), engine="loop")
    here = [f"{name} {hash_of(trial, METHODS[name]())}" for name in some]
    assert there.communicate()[0].splitlines() == here
