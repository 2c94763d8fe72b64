"""The round: what averaging must do, whatever the model and the data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import unskew
from federations import flat, job, split
from unskew import Budget, Method, Trial, UserError, engines
from unskew.data.augment import normalise
from unskew.engines.cuda.graphs import Graphs
from unskew.engines.plan import epochs
from unskew.methods import fedavg, fedprox
from unskew.types import Memory, Server, Weights

pytestmark = pytest.mark.usefixtures("no_workers")


def one_step(**changes) -> Budget:
    """One full-batch step without momentum or decay: plain gradient descent."""
    settings = {"rounds": 1, "epochs": 1, "batch_size": 10_000, "lr": 0.5, "momentum": 0, "weight_decay": 0}
    return Budget(**(settings | changes))


def test_one_full_batch_step_each_is_one_centralised_step(digits):
    few, many = list(range(0, 40)), list(range(40, 200))
    trial = Trial(split(digits, few, many), "mlp-small", budget=one_step())
    model = trial.build()
    x = digits.train.inputs[:200].float() / 255
    x = (x - digits.mean[0]) / digits.std[0]
    cross_entropy(model(x).logits, digits.train.labels[:200]).backward()
    expected = {name: (p - 0.5 * p.grad).detach() for name, p in model.named_parameters()}
    result = unskew.train(trial)
    for name, value in result.weights.params.items():
        torch.testing.assert_close(value, expected[name])


def test_a_single_client_is_plain_training(digits):
    budget = Budget(rounds=2, epochs=2, batch_size=16, lr=0.1, momentum=0.9, weight_decay=1e-3)
    trial = Trial(split(digits, range(100)), "mlp-small", budget=budget)
    result = unskew.train(trial)

    model = trial.build()
    x, y = normalise(digits.train.inputs[:100], digits.mean, digits.std), digits.train.labels[:100]
    for t in range(2):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
        for epoch in epochs(trial.seed, t, 0, 100, budget):
            for rows in torch.from_numpy(epoch.rows).split(epoch.sizes):
                optimizer.zero_grad()
                cross_entropy(model(x[rows]).logits, y[rows]).backward()
                optimizer.step()
    for name, value in model.named_parameters():
        torch.testing.assert_close(result.weights.params[name], value.detach(), rtol=1e-4, atol=1e-5)


def test_larger_clients_weigh_more(digits):
    """Two clients of one class each: the average leans to the larger one."""
    zeros = (digits.train.labels == 0).nonzero().flatten().tolist()
    ones = (digits.train.labels == 1).nonzero().flatten().tolist()
    trial = Trial(split(digits, zeros[:100], ones[:10]), "mlp-small", budget=one_step(epochs=5))
    start = flat(trial_weights(trial))
    alone = [
        flat(unskew.train(replace(trial, federation=split(digits, part))).weights) - start
        for part in (zeros[:100], ones[:10])
    ]
    both = flat(unskew.train(trial).weights) - start
    torch.testing.assert_close(both, (100 * alone[0] + 10 * alone[1]) / 110, rtol=1e-4, atol=1e-6)


def trial_weights(trial):
    return Weights({name: p.detach() for name, p in trial.build().named_parameters()}, {})


def test_the_order_of_clients_does_not_matter(digits):
    """A full-batch step does not depend on batch order, so clients may be renumbered freely."""
    parts = [range(0, 50), range(50, 70), range(70, 170)]
    trial = Trial(split(digits, *parts), "mlp-small", budget=one_step(rounds=3))
    other = replace(trial, federation=split(digits, *parts[::-1]))
    torch.testing.assert_close(flat(unskew.train(trial).weights), flat(unskew.train(other).weights))


def test_the_same_trial_gives_the_same_bits_and_another_seed_others(digits):
    federation = unskew.federate(digits, "dirichlet:0.1", clients=5, seed=3)
    trial = Trial(federation, "mlp-small", budget=Budget(rounds=2, cohort=2))
    first, again = unskew.train(trial), unskew.train(trial)
    assert torch.equal(flat(first.weights), flat(again.weights))
    assert not torch.equal(flat(first.weights), flat(unskew.train(replace(trial, seed=2)).weights))


def test_the_callers_random_state_and_threads_are_left_alone(digits):
    trial = Trial(split(digits, range(50)), "mlp-small", budget=Budget(rounds=1))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    threads = torch.get_num_threads()
    unskew.train(trial)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_learning_rate_decays_by_the_round(digits):
    budget = Budget(rounds=3, lr=0.1, lr_decay=0.5)
    result = unskew.train(Trial(split(digits, range(30)), "mlp-small", budget=budget))
    assert [round.lr for round in result.rounds] == [0.1, 0.05, 0.025]


def test_clients_without_data_are_normal(digits):
    empty: list[int] = []
    trial = Trial(split(digits, range(50), empty, [60]), "mlp-small", budget=Budget(rounds=2))
    result = unskew.train(trial)
    assert result.rounds[0].cohort == [0, 1, 2]
    assert result.rounds[0].trained == [0, 2]
    alone = unskew.train(replace(trial, federation=split(digits, range(50), [60])))
    assert flat(result.weights).isfinite().all()
    assert alone.rounds[0].trained == [0, 1]


def test_a_round_in_which_nobody_has_data_changes_nothing(digits):
    trial = Trial(split(digits, [], []), "mlp-small", budget=Budget(rounds=2))
    result = unskew.train(trial)
    assert torch.equal(flat(result.weights), flat(trial_weights(trial)))
    assert np.isnan(result.rounds[0].train_loss)


def test_evaluation_period_and_the_last_round(digits):
    trial = Trial(
        split(digits, range(50)), "mlp-small", Budget(rounds=5), evaluation=unskew.Evaluation(every=2)
    )
    result = unskew.train(trial)
    assert [round.number for round in result.rounds if round.test] == [2, 4, 5]


def test_learning_works_and_every_class_is_reported(digits):
    federation = unskew.federate(digits, "iid", clients=5, seed=1)
    result = unskew.train(Trial(federation, "mlp-small", budget=Budget(rounds=10, lr=0.1)))
    assert result.accuracy["last"] > 0.9
    assert list(result.class_accuracy) == [str(digit) for digit in range(10)]
    assert result.groups["vacant"] is None or result.groups["vacant"] > 0.5
    assert result.final.confusion.sum() == len(digits.test)


# FedProx


def test_fedprox_without_its_term_is_fedavg_bit_for_bit(digits):
    federation = unskew.federate(digits, "dirichlet:0.1", clients=4, seed=1)
    trial = Trial(federation, "mlp-small", budget=Budget(rounds=2))
    plain, neutral = unskew.train(trial, fedavg()), unskew.train(trial, fedprox(mu=0))
    assert torch.equal(flat(plain.weights), flat(neutral.weights))


def test_the_first_step_of_fedprox_is_that_of_fedavg(digits):
    trial = Trial(split(digits, range(50), range(50, 90)), "mlp-small", budget=one_step())
    plain, prox = unskew.train(trial, fedavg()), unskew.train(trial, fedprox(mu=3.0))
    torch.testing.assert_close(flat(plain.weights), flat(prox.weights), rtol=0, atol=1e-7)


def test_fedprox_reaches_the_proximal_point():
    """With the local minimum reached, CE'(w) + mu (w - w0) = 0."""
    torch.manual_seed(0)
    x, y = torch.randn(40, 3), torch.randint(0, 2, (40,))
    dataset = unskew.data.from_arrays(x.numpy(), y.numpy(), x.numpy(), y.numpy(), name="small")
    module = nn.Linear(3, 2)
    mu = 0.5
    trial = Trial(split(dataset, range(40)), module, budget=one_step(epochs=300, lr=0.2))
    after = unskew.train(trial, fedprox(mu=mu)).weights.params
    leaves = {name: value.clone().requires_grad_() for name, value in after.items()}
    loss = cross_entropy(dataset.train.inputs @ leaves["weight"].T + leaves["bias"], dataset.train.labels)
    loss.backward()
    for name, value in leaves.items():
        pull = mu * (after[name] - dict(module.named_parameters())[name].detach())
        torch.testing.assert_close(value.grad + pull, torch.zeros_like(value), rtol=0, atol=1e-5)


def test_fedprox_keeps_clients_near_the_anchor(digits):
    federation = unskew.federate(digits, "dirichlet:0.1", clients=4, seed=1)
    trial = Trial(federation, "mlp-small", budget=Budget(rounds=1, lr=0.05))
    start = flat(trial_weights(trial))
    moves = [float((flat(unskew.train(trial, fedprox(mu=mu)).weights) - start).norm()) for mu in (0, 1, 10)]
    assert moves[0] > moves[1] > moves[2]


# The four slots


def test_memory_goes_in_and_comes_out_and_unsampled_clients_keep_theirs(digits):
    """A method that counts, at each client, the rounds it took part in, and reports them."""
    seen: dict[int, list[float]] = {}

    def init(weights, counts):
        return {"rounds": torch.zeros(()), "me": counts.sum().float()}

    def update(scope, end):
        kept = {"rounds": scope.memory["rounds"] + 1, "me": scope.memory["me"]}
        seen.setdefault(int(scope.memory["me"]), []).append(float(scope.memory["rounds"]))
        return kept, {"rounds": kept["rounds"]}

    trial = Trial(
        split(digits, range(10), range(10, 30), range(30, 60)),
        "mlp-small",
        budget=Budget(rounds=6, cohort=2),
        engine="loop",  # in this process, which looks on
    )
    result = unskew.train(trial, Method(memory=Memory(init, update=update)))
    took_part = {10: 0, 20: 0, 30: 0}
    for round in result.rounds:
        for client in round.trained:
            took_part[[10, 20, 30][client]] += 1
    assert seen == {size: list(map(float, range(times))) for size, times in took_part.items()}


def test_a_step_may_look_twice_at_a_batch_and_statistics_move_once(images):
    def twice(gradient, scope):
        def second(params, /, *, track=True):
            gradient(params, track=False)
            return gradient(params, track=track)

        return second

    trial = Trial(images, "lenet5-bn", budget=Budget(rounds=1, batch_size=8))
    once, again = unskew.train(trial), unskew.train(trial, Method(transform=twice))
    assert torch.equal(flat(once.weights), flat(again.weights))
    for name, value in once.weights.buffers.items():
        assert torch.equal(value, again.weights.buffers[name]), name


def test_the_teacher_is_the_anchor_in_evaluation_mode_and_leaves_no_trace(images):
    def objective(view):
        assert not view.teacher.logits.requires_grad
        return cross_entropy(view.out.logits, view.labels)

    trial = Trial(images, "lenet5-bn", budget=Budget(rounds=2, batch_size=8))
    plain, watched = unskew.train(trial), unskew.train(trial, Method(loss=objective))
    assert torch.equal(flat(plain.weights), flat(watched.weights))
    for name, value in plain.weights.buffers.items():
        assert torch.equal(value, watched.weights.buffers[name]), name


def test_a_teacher_may_normalise_by_the_clients_batch(images):
    """model.teacher=batch: at the first step teacher and student then agree."""
    gaps = []

    def loss(view):
        gaps.append(float((view.teacher.logits - view.out.logits.detach()).abs().max()))
        return cross_entropy(view.out.logits, view.labels)

    trial = Trial(images, "lenet5-bn", budget=Budget(rounds=1, epochs=1, batch_size=64), engine="loop")
    unskew.train(trial, Method(loss=loss))
    unskew.train(replace(trial, teacher="batch"), Method(loss=loss))
    assert gaps[0] > 1e-3
    assert gaps[3] < 1e-5
    for name, value in unskew.train(trial).weights.buffers.items():
        other = unskew.train(replace(trial, teacher="batch"), Method(loss=loss)).weights.buffers[name]
        assert torch.equal(value, other), name


def test_momentum_may_be_kept_between_a_clients_rounds(digits):
    """budget.optimizer_state=kept against one torch optimiser that lives on."""
    settings = {"rounds": 2, "epochs": 1, "batch_size": 200, "lr": 0.1, "momentum": 0.9, "weight_decay": 0}
    trial = Trial(split(digits, range(100)), "logistic", budget=Budget(**settings, optimizer_state="kept"))
    model = trial.build()
    x = normalise(digits.train.inputs[:100], digits.mean, digits.std)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        cross_entropy(model(x).logits, digits.train.labels[:100]).backward()
        optimizer.step()
    kept = unskew.train(trial).weights
    for name, value in model.named_parameters():
        torch.testing.assert_close(kept.params[name], value.detach())
    fresh = unskew.train(replace(trial, budget=Budget(**settings))).weights
    assert not torch.allclose(flat(fresh), flat(kept))


# BatchNorm statistics


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 28, 28), np.uint8), np.arange(60) % 3
    dataset = unskew.data.from_arrays(x, y, x[:20], y[:20], name="noise")
    return split(dataset, range(20), range(20, 53), [53])


def test_statistics_are_averaged_by_size_and_counters_by_maximum(images):
    trial = Trial(images, "lenet5-bn", budget=Budget(rounds=1, epochs=1, batch_size=8))
    whole = unskew.train(trial).weights.buffers
    parts = [
        unskew.train(replace(trial, federation=split(images.dataset, *alone))).weights.buffers
        for alone in ([range(20)], [[], range(20, 53)], [[], [], [53]])
    ]
    for name, value in whole.items():
        if value.is_floating_point():
            mean = sum(n * part[name] for n, part in zip((20, 33, 1), parts, strict=True)) / 54
            torch.testing.assert_close(value, mean)
        else:
            assert value == max(part[name] for part in parts)


def test_a_client_with_one_sample_uses_the_running_statistics(images):
    trial = Trial(split(images.dataset, [5]), "lenet5-bn", budget=Budget(rounds=1))
    result = unskew.train(trial)
    fresh = dict(trial.build().named_buffers())
    assert flat(result.weights).isfinite().all()
    assert all(torch.equal(value, fresh[name]) for name, value in result.weights.buffers.items())


def test_local_statistics_stay_with_their_client(images):
    trial = Trial(images, "lenet5-bn", budget=Budget(rounds=2, batch_size=8), statistics="local")
    result = unskew.train(trial)
    fresh = dict(trial.build().named_buffers())
    assert all(torch.equal(value, fresh[name]) for name, value in result.weights.buffers.items())
    averaged = unskew.train(replace(trial, statistics="average"))
    assert not torch.equal(flat(result.weights), flat(averaged.weights))


def test_batch_statistics_keep_nothing(images):
    trial = Trial(images, "lenet5-bn", budget=Budget(rounds=2, batch_size=8), statistics="batch")
    result = unskew.train(trial)
    assert result.weights.buffers == {}
    assert flat(result.weights).isfinite().all()


def test_frozen_parameters_stay_exactly_as_they_were(digits):
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    module[1].weight.requires_grad_(False)
    federation = unskew.federate(digits, "dirichlet:0.3", clients=7, seed=1)
    result = unskew.train(Trial(federation, module, budget=Budget(rounds=3)))
    assert "1.weight" not in result.weights.params
    assert torch.equal(result.weights.buffers["1.weight"], module[1].weight)
    server = result.state.server.weights
    assert "1.weight" not in server.params | server.buffers  # nobody sends or keeps them
    again = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    again.load_state_dict(result.weights.params | result.weights.buffers)
    x = normalise(digits.test.inputs, digits.mean, digits.std)
    right = (again(x).argmax(1) == digits.test.labels).float().mean()
    assert result.accuracy["last"] == pytest.approx(float(right))


def test_frozen_parameters_are_not_stacked_for_the_server(digits):
    seen = []

    def combine(state, updates):
        seen.append(updates.delta.keys() | updates.buffers.keys() | state.weights.params.keys())
        return updates.mean

    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Linear(16, 10))
    module[1].requires_grad_(False)
    federation = unskew.federate(digits, "dirichlet:0.3", clients=3, seed=1)
    trial = Trial(federation, module, budget=Budget(rounds=1), engine="loop")
    unskew.train(trial, Method(server=Server(combine=combine)))
    norm = {f"2.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
    assert seen == [norm | {"3.weight", "3.bias"}]


def test_dropout_depends_on_the_client_not_on_who_ran_before(digits):
    def module():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.5), nn.Linear(32, 10))

    parts = [range(0, 30), range(30, 60), range(60, 90)]
    trial = Trial(split(digits, *parts), module, budget=Budget(rounds=1))
    engine = engines.start(trial)
    jobs = [job(trial.federation, client) for client in range(3)]
    forward = engine.fit(Method(), engine.initial, {}, jobs)
    backward = engine.fit(Method(), engine.initial, {}, jobs[::-1])[::-1]
    for a, b in zip(forward, backward, strict=True):
        assert torch.equal(flat(a.weights), flat(b.weights))


# Errors


def breaks(where: str) -> Method:
    """A method with a programming error in one of the places where a client's round can fail."""

    def fail(*_):
        raise ZeroDivisionError("a mistake in the method")

    places = {
        "prepare": Method(memory=Memory(prepare=fail)),
        "train": Method(loss=fail),
        "update": Method(memory=Memory(update=fail)),
    }
    return places[where]


@pytest.mark.parametrize("engine", ["loop", "pool", "graphs"])
@pytest.mark.parametrize("stage", ["prepare", "train", "update"])
def test_an_error_in_a_client_says_which_client_round_and_stage(digits, monkeypatch, stage, engine):
    monkeypatch.setitem(engines.ENGINES, "graphs", engines.EngineType(Graphs))  # without a GPU too
    federation = split(digits, [], range(30), range(30, 60))
    trial = Trial(federation, "mlp-small", budget=Budget(rounds=3), engine=engine, workers=1)
    start = unskew.train(replace(trial, budget=Budget(rounds=1))).state
    with pytest.raises(ZeroDivisionError, match="a mistake in the method") as raised:
        unskew.train(trial, breaks(stage), start=start)
    assert f"Client 1 failed in round 2, stage '{stage}'." in raised.value.__notes__


@pytest.mark.parametrize("engine", ["loop", "graphs"])
def test_on_round_gets_the_rounds_before_one_that_fails(digits, monkeypatch, engine):
    def combine(state, updates):
        if state.round == 2:
            raise ZeroDivisionError("a mistake in the method")
        return updates.mean

    monkeypatch.setitem(engines.ENGINES, "graphs", engines.EngineType(Graphs))
    trial = Trial(split(digits, range(30)), "mlp-small", budget=Budget(rounds=3), engine=engine, device="cpu")
    numbers: list[int] = []
    with pytest.raises(ZeroDivisionError):
        unskew.train(
            trial, Method(server=Server(combine=combine)), on_round=lambda round: numbers.append(round.number)
        )
    assert numbers == [1, 2]


def test_an_error_of_the_users_keeps_its_one_sentence(digits):
    def rows(view):
        return view.out.logits

    trial = Trial(split(digits, range(30)), "mlp-small", engine="loop")
    with pytest.raises(UserError) as raised:
        unskew.train(trial, Method(terms=(rows,)))
    assert str(raised.value) == "the method's terms[0] ('rows') has shape [30, 10]: let it return one number."
