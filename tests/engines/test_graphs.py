"""The bookkeeping of the graphs engine without a GPU: steps run at once instead of being replayed, so it must
give the loop's very bits. What a GPU makes of it is tested in tests/gpu."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from unskew.engines.graphs import Graphs

from federations import flat, split
from unskew import engines, train
from unskew.engines import feed
from unskew.errors import UserError
from unskew.methods import METHODS
from unskew.trial import Budget, Trial


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setitem(engines.ENGINES, "graphs", engines.Kind(Graphs))


def trial_of(federation, model="mlp-small", **more) -> Trial:
    budget = Budget(rounds=3, cohort=4, epochs=2, batch_size=16, lr=0.05, lr_decay=0.9)
    return Trial(federation, model, budget=budget, device="cpu", **more)


def assert_same(trial, method) -> None:
    one, other = (train(replace(trial, engine=engine), method) for engine in ("loop", "graphs"))
    assert torch.equal(flat(one.weights), flat(other.weights))
    assert [r.train_loss for r in one.rounds] == [r.train_loss for r in other.rounds]
    assert [r.tallies for r in one.rounds] == [r.tallies for r in other.rounds]
    for name, value in one.weights.buffers.items():
        assert torch.equal(value, other.weights.buffers[name])
    for client, kept in one.state.memories.items():
        assert all(torch.equal(value, other.state.memories[client][name]) for name, value in kept.items())
    assert (one.final.confusion == other.final.confusion).all()
    assert one.final.loss == other.final.loss


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "moon", "fedsam", "fedvls", "fedcurv", "fpl", "pkd"])
def test_the_clients_share_lanes_and_lose_nothing(skewed, name):
    for lanes in (1, 3):
        assert_same(trial_of(skewed, workers=lanes), METHODS[name]())


@pytest.mark.parametrize("statistics", ["average", "local", "batch"])
def test_batch_norm_statistics_follow_the_trial(skewed, statistics):
    assert_same(trial_of(skewed, "resnet8", statistics=statistics), METHODS["fedavg"]())


def test_inputs_that_do_not_fit_are_fed_piece_by_piece(skewed, monkeypatch):
    monkeypatch.setattr(feed, "FEED", 1)
    trial = trial_of(skewed)
    trial = replace(trial, budget=replace_budget(trial, epochs=7, cohort="all"))
    assert_same(trial, METHODS["scaffold"]())


def test_a_kept_optimizer_goes_on_where_it_was(skewed):
    trial = trial_of(skewed)
    assert_same(replace(trial, budget=replace_budget(trial, optimizer="kept")), METHODS["fedprox"]())


def test_dropout_draws_the_loop_s_numbers(skewed):
    def model():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10))

    assert_same(trial_of(skewed, model), METHODS["fedavg"]())


def test_clients_without_data_and_smaller_than_a_batch(digits):
    federation = split(digits, range(40), [], range(100, 103), [300], range(200, 216))
    assert_same(trial_of(federation), METHODS["fedlc"]())


def test_what_two_rounds_do_at_once_is_counted_in_one_of_them(skewed):
    result = train(trial_of(skewed, engine="graphs"))
    assert sum(round.seconds for round in result.rounds) <= result.seconds


def test_without_a_gpu_the_engine_is_refused(skewed, monkeypatch):
    monkeypatch.undo()
    with pytest.raises(UserError, match="needs a CUDA GPU"):
        train(trial_of(skewed, engine="graphs"))


def replace_budget(trial: Trial, **changes) -> Budget:
    return Budget(**(trial.budget.model_dump() | changes))
