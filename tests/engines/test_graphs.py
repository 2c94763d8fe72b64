"""The bookkeeping of the graphs engine without a GPU. Steps run at once instead of being replayed, so the
bits must be the loop's. tests/gpu tests the engine on a GPU."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from federations import flat, short_method, split
from unskew import Method, engines, federate, load, train
from unskew.engines.cuda import prefetch
from unskew.engines.cuda.graphs import Graphs
from unskew.engines.job import completed
from unskew.errors import UserError
from unskew.methods import METHODS
from unskew.rounds import initial_state, run_round, sample_cohort
from unskew.trial import Budget, Trial
from unskew.types import Memory


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setitem(engines.ENGINES, "graphs", engines.EngineType(Graphs))


def trial_of(federation, model="mlp-small", **more) -> Trial:
    budget = Budget(rounds=3, cohort=4, epochs=2, batch_size=16, lr=0.05, lr_decay=0.9)
    return Trial(federation, model, budget=budget, device="cpu", **more)


def assert_same(trial, method, slots=(0,)) -> None:
    """Check that the graphs engine gives the bits of the loop with these numbers of slots; 0: as many as it
    chooses."""
    one = train(replace(trial, engine="loop"), method)
    for number in slots:
        assert_equal(one, train(replace(trial, engine="graphs", workers=number), method))


def assert_equal(one, other) -> None:
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
def test_the_clients_share_slots_and_lose_nothing(skewed, name):
    assert_same(trial_of(skewed), short_method(name), slots=(1, 3))


@pytest.mark.parametrize("statistics", ["average", "local", "batch"])
def test_batch_norm_statistics_follow_the_trial(skewed, statistics):
    def model():
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10)
        )

    assert_same(trial_of(skewed, model, statistics=statistics), METHODS["fedavg"]())


def test_a_residual_network_is_the_loop_s_too(skewed):
    trial = trial_of(skewed, "resnet8")
    assert_same(
        replace(trial, budget=replace_budget(trial, rounds=1, cohort=2, epochs=1)), METHODS["fedavg"]()
    )


def test_inputs_that_do_not_fit_are_fed_piece_by_piece(skewed, monkeypatch):
    monkeypatch.setattr(prefetch, "MOST_BYTES", 1)
    trial = trial_of(skewed)
    trial = replace(trial, budget=replace_budget(trial, epochs=7, cohort="all"))
    assert_same(trial, METHODS["scaffold"]())


@pytest.mark.parametrize("fits", [True, False])
def test_the_same_clients_can_be_trained_again(skewed, monkeypatch, fits):
    """Train as in a retry, with and without inputs for the next round that were made meanwhile."""
    if not fits:
        monkeypatch.setattr(prefetch, "MOST_BYTES", 1)
    trial, method = trial_of(skewed), METHODS["fedavg"]()
    loop, graphs = (engines.start(replace(trial, engine=name)) for name in ("loop", "graphs"))
    jobs = [engines.Job(task) for task in sample_cohort(trial, 0)]
    expected = completed(loop.fit(method, loop.initial, {}, jobs))
    for upcoming in ([], [], sample_cohort(trial, 1), sample_cohort(trial, 1), []):
        again = completed(graphs.fit(method, graphs.initial, {}, jobs, upcoming))
        for one, other in zip(expected, again, strict=True):
            assert torch.equal(flat(one.weights), flat(other.weights))


def test_a_round_can_be_stepped_twice_from_one_state(skewed):
    trial, method = trial_of(skewed, engine="graphs"), METHODS["fedavg"]()
    engine = engines.start(trial)
    state, _ = run_round(trial, method, engine, initial_state(method, engine.initial))
    (one, first), (other, second) = (run_round(trial, method, engine, state) for _ in range(2))
    assert torch.equal(flat(one.server.weights), flat(other.server.weights))
    assert first.train_loss == second.train_loss


def test_inputs_for_the_next_round_are_those_of_who_trains_in_it(skewed):
    """Let the announced clients train next, and others."""
    trial, method = trial_of(skewed), METHODS["fedavg"]()
    loop, graphs = (engines.start(replace(trial, engine=name)) for name in ("loop", "graphs"))
    for round in (0, 1, 0, 2, 2, 1):
        jobs = [engines.Job(task) for task in sample_cohort(trial, round)]
        one = completed(loop.fit(method, loop.initial, {}, jobs))
        other = completed(graphs.fit(method, graphs.initial, {}, jobs, sample_cohort(trial, round + 1)))
        for mine, theirs in zip(one, other, strict=True):
            assert torch.equal(flat(mine.weights), flat(theirs.weights))


def test_more_clients_than_a_cohort_can_be_trained(skewed):
    trial, method = trial_of(skewed), METHODS["fedavg"]()
    trial = replace(trial, budget=replace_budget(trial, cohort=1))
    everyone = [engines.Job(engines.Task(k, 0, skewed.holding(k))) for k in range(skewed.clients)]
    one, other = (
        completed(engine.fit(method, engine.initial, {}, everyone))
        for engine in (engines.start(replace(trial, engine=name)) for name in ("loop", "graphs"))
    )
    for mine, theirs in zip(one, other, strict=True):
        assert torch.equal(flat(mine.weights), flat(theirs.weights))


def test_a_client_that_fails_is_a_value_and_the_others_train_on(skewed):
    def update(scope, end):
        if scope.counts.sum() == skewed.sizes.max():
            raise ZeroDivisionError("no")
        return {}, {}

    trial, method = trial_of(skewed), Method(memory=Memory(update=update))
    everyone = [engines.Job(engines.Task(k, 2, skewed.holding(k))) for k in range(skewed.clients)]
    for name in ("loop", "pool", "graphs"):
        engine = engines.start(replace(trial, engine=name))
        outcomes = engine.fit(method, engine.initial, {}, everyone)
        failed = [outcome for outcome in outcomes if isinstance(outcome, engines.Failed)]
        assert [(f.client, f.round, f.stage) for f in failed] == [(int(skewed.sizes.argmax()), 2, "update")]
        with pytest.raises(ZeroDivisionError) as caught:
            completed(outcomes)
        assert f"Client {failed[0].client} failed in round 3, stage 'update'." in caught.value.__notes__


def test_a_kept_optimizer_goes_on_where_it_was(skewed):
    trial = trial_of(skewed)
    assert_same(replace(trial, budget=replace_budget(trial, optimizer_state="kept")), METHODS["fedprox"]())


@pytest.mark.parametrize("fits", [True, False])
@pytest.mark.parametrize(
    "budget",
    [
        {"steps": 11},
        {"epochs": 1.3, "schedule": "cosine:warmup=1"},
        {"steps": 3, "optimizer": "adamw"},
        {"epochs": 1, "optimizer": "adam", "optimizer_state": "kept", "schedule": "step:at=1/2"},
    ],
    ids=str,
)
def test_a_round_is_as_long_and_as_fast_as_the_budget_says(digits, monkeypatch, budget, fits):
    if not fits:
        monkeypatch.setattr(prefetch, "MOST_BYTES", 1)
    federation = split(digits, range(40), [], range(100, 103), [300], range(200, 216))
    budget = Budget(rounds=3, batch_size=16, lr=0.01, **budget)
    assert_same(replace(trial_of(federation), budget=budget), METHODS["fedprox"](), slots=(1, 3))


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


def test_clients_drawn_when_they_are_needed_train_alike(monkeypatch):
    federation = federate(load("synthetic:1,1,clients=12,cap=150,drawn=true"), "natural", clients=0, seed=0)
    assert_same(trial_of(federation, "logistic"), METHODS["scaffold"](), slots=(3,))
    monkeypatch.setattr(prefetch, "MOST_BYTES", 2 * 60 * 4 * 200)  # a round does not fit: piece by piece
    assert_same(trial_of(federation, "logistic"), METHODS["scaffold"](), slots=(3,))


def test_what_clients_keep_may_come_from_disk(skewed, tmp_path):
    where = {"client_memory": 0, "client_files": tmp_path}
    memory = train(trial_of(skewed, engine="graphs"), METHODS["scaffold"]())
    assert_equal(memory, train(trial_of(skewed, engine="graphs", **where), METHODS["scaffold"]()))
    assert list(tmp_path.iterdir())
