"""A bad client on a GPU, where a round begins before the numbers of the round before have arrived."""

import math
from dataclasses import replace

import pytest
import torch

from federations import flat
from unskew import Budget, Faults, Method, Trial, UserError, engines, train
from unskew.engines.check import ValueCheck
from unskew.engines.job import Fit, Job, Task
from unskew.method import plain_loss
from unskew.methods import METHODS
from unskew.rounds import initial_state, run_round, sample_cohort
from unskew.types import Memory, Weights

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

BUDGET = Budget(rounds=4, epochs=1, batch_size=16, lr=0.05, lr_decay=0.5)


@pytest.fixture
def trial(images) -> Trial:
    return Trial(images, "cnn", budget=BUDGET, device="cuda", engine="graphs")


def bad_client(trial: Trial) -> int:
    return int(trial.federation.sizes.argmax())


def breaking(trial: Trial, how, rounds) -> Method:
    """Return a method by which one client breaks its model, or fails, after its last step in some rounds."""
    counts = trial.federation.counts[bad_client(trial)]
    rates = [trial.budget.lr_at(round) for round in rounds]

    def update(scope, end):
        if end.lr in rates and torch.equal(scope.counts.cpu(), counts):
            how(end.weights.params)
        return {}, {}

    return Method(memory=Memory(update=update))


def nan(params):
    next(iter(params.values())).view(-1)[-1] = math.nan


def absurd(params):
    next(iter(params.values())).mul_(1e6)


def no_memory(params):
    torch.empty(2**50, dtype=torch.uint8, device="cuda")


def without(trial, method, rounds):
    """Return the last state if the client takes no part in some rounds."""
    engine, bad = engines.start(trial), bad_client(trial)

    def sampler(trial, round):
        return [task for task in sample_cohort(trial, round) if round not in rounds or task.client != bad]

    state = initial_state(method, engine.initial)
    while state.round < trial.budget.rounds:
        state, _ = run_round(trial, method, engine, state, sampler=sampler)
    return state


def assert_same(trial, method, result, rounds) -> None:
    state = without(trial, method, rounds)
    assert torch.equal(flat(result.state.server.weights), flat(state.server.weights))
    for name, value in state.server.memory.items():
        assert torch.equal(result.state.server.memory[name], value)
    for client, kept in state.memories.items():
        assert all(torch.equal(result.state.memories[client][name], value) for name, value in kept.items())


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fednova", "fedadam"])
@pytest.mark.parametrize("rounds", [[0], [1, 2], [3], [0, 1, 2, 3]], ids=str)
def test_training_goes_back_and_on_without_the_client(trial, name, rounds):
    method, rounds_seen = METHODS[name]() + breaking(trial, nan, rounds), []
    result = train(trial, method, on_round=rounds_seen.append)
    assert [round.number for round in rounds_seen] == [1, 2, 3, 4]
    assert [round.number - 1 for round in rounds_seen if round.faults] == rounds
    assert_same(trial, method, result, rounds)


@pytest.mark.parametrize(("how", "kind"), [(absurd, "norm"), (no_memory, "memory")])
def test_other_faults_of_a_client(trial, how, kind):
    trial = replace(trial, faults=Faults(max_norm=100))
    method = breaking(trial, how, [1])
    result = train(trial, method)
    assert [fault.kind for round in result.rounds for fault in round.faults] == [kind]
    assert_same(trial, method, result, [1])


@pytest.mark.parametrize("engine", ["graphs", "loop"])
def test_a_loss_in_the_captured_step(trial, engine):
    counts = trial.federation.counts[bad_client(trial)].cuda()

    def loss(view):
        return plain_loss(view) * torch.where((view.scope.counts == counts).all(), math.nan, 1.0)

    result = train(replace(trial, engine=engine), Method(loss=loss))
    assert all(round.faults[0].reason == "its loss holds NaN or infinite values" for round in result.rounds)
    assert_same(replace(trial, engine=engine), Method(loss=loss), result, range(4))


def test_pieces_of_inputs_and_going_back(trial, monkeypatch):
    from unskew.engines.cuda import prefetch

    monkeypatch.setattr(prefetch, "MOST_BYTES", 1)
    method = breaking(trial, nan, [1])
    assert_same(trial, method, train(trial, method), [1])


def test_too_few_and_none(trial):
    clients = int((trial.federation.sizes > 0).sum())
    with pytest.raises(UserError, match="round 2 stopped with"):
        train(replace(trial, faults=Faults(min_clients=clients)), breaking(trial, nan, [1]))
    with pytest.raises(UserError, match="try a smaller lr"):
        train(replace(trial, budget=BUDGET.model_copy(update={"lr": 1e30})))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_are_looked_at_without_waiting_and_none_is_missed(images, kind, value):
    job = Job(Task(0, 0, images.holding(0)))

    def fit_of(*places: int) -> Fit:
        tensors = {str(n): torch.full((n,), 3.0, dtype=kind, device="cuda") for n in (1, 70_000, 131_072)}
        for place in places:
            tensors["70000"][place] = value
        return Fit(Weights({}, {}), 1, 1, torch.ones((), device="cuda"), tensors, {})

    answers = [(job, fit_of()), *((job, fit_of(place)) for place in (0, 33_333, 65_536, 69_999))]
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.synchronize()
        try:
            torch.cuda.set_sync_debug_mode("error")
            check = ValueCheck(answers, Weights({}, {}))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        found = check.faults({name: each.cpu() for name, each in check.values.items()})
    assert len(found) == 4
