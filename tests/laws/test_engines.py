"""Every method gives the same bits on every engine that runs on a CPU."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from federations import flat, statistics_for
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
    return train(replace(trial, workers=2), METHODS[name]())


@pytest.fixture(scope="module", params=METHODS)
def name(request):
    """Each method: on one engine after the other, before the next method comes."""
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


def test_methods_give_the_same_bits_in_fresh_processes():
    """By one client after another and by four workers, and whatever order Python's sets have. Without names
    `benchmarks.hashes` tries all of them."""
    some = ["balancefl", "fedconcat", "moon", "pkd", "scaffold"]

    def start(hash_seed: str, *arguments: str) -> subprocess.Popen[str]:
        ask = ["--trials", "hard", *arguments, "--methods", *some]
        root = Path(__file__).parents[2]
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "benchmarks.hashes", *ask]
        return subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True)

    both = start("1"), start("2", "--engine", "pool", "--workers", "4")
    first, second = (process.communicate()[0] for process in both)
    assert first == second
    assert len(first.splitlines()) == len(some)
