"""Every method gives the same bits on every engine that runs on a CPU."""

import pytest
import torch

from federations import flat
from unskew import engines
from unskew.engines.cuda.graphs import Graphs
from unskew.methods import METHODS
from unskew.testing import hard_trial, normed_model
from unskew.train import train


@pytest.mark.parametrize("engine", ["pool", "graphs"])
@pytest.mark.parametrize("name", METHODS)
def test_engines_give_the_bits_of_the_loop(name, engine, monkeypatch):
    monkeypatch.setitem(engines.ENGINES, "graphs", engines.EngineType(Graphs))
    one, other = (
        train(hard_trial(normed_model, engine=engine), METHODS[name]()) for engine in ("loop", engine)
    )
    assert torch.equal(flat(one.weights), flat(other.weights))
    assert one.weights.buffers.keys() == other.weights.buffers.keys()
    assert all(torch.equal(value, other.weights.buffers[name]) for name, value in one.weights.buffers.items())
    assert [r.train_loss for r in one.rounds] == [r.train_loss for r in other.rounds]
    assert (one.final.confusion == other.final.confusion).all()
    assert one.final.loss == other.final.loss
