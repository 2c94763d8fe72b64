"""Server rules: momentum, adaptive optimisers, normalised and extrapolated averages, served averages."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import unskew
from federations import flat, split
from unskew import Budget, Method, Trial, UserError, engines
from unskew.methods import (
    ema,
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    fedexp,
    fednova,
    fedprox,
    fedyogi,
    scaffold,
    uniform,
)
from unskew.methods.assemble import assemble
from unskew.methods.unnormalised import unnormalised
from unskew.parts.steps import effective_steps
from unskew.rounds import initial_state, run_round
from unskew.testing import check_method
from unskew.types import ServerState, Updates, Weights

SERVERS = {
    "uniform": uniform(),
    "fedavgm": fedavgm(),
    "fedadam": fedadam(),
    "fedyogi": fedyogi(),
    "fedadagrad": fedadagrad(),
    "fednova": fednova(mu=0.1),
    "fedexp": fedexp(average=True),
    "ema": ema(),
}


def test_fedexp_over_the_whole_state_is_swamped_by_counters():
    """Check four clients that moved at right angles, and BatchNorm counters that went from 0 to 100 in all of
    them."""
    state = ServerState(Weights({"w": torch.zeros(4)}, {"tracked": torch.tensor(0)}), {})
    updates = Updates(
        holders=4,
        weight=torch.full((4,), 0.25, dtype=torch.float64),
        delta={"w": torch.eye(4)},
        buffers={"tracked": torch.full((4,), 100)},
        steps=torch.full((4,), 100),
        lr=0.1,
        momentum=0.0,
        reported={},
    )
    parameters = fedexp(epsilon=0).server.combine(state, updates)["w"]
    whole = fedexp(epsilon=0, norms="state").server.combine(state, updates)["w"]
    assert parameters.tolist() == [0.5] * 4  # m / 2 = 2 times the mean
    assert whole.tolist() == [0.25] * 4


def test_weights_over_all_data_shrink_the_step_by_what_stayed_away(digits):
    federation = split(digits, range(30), range(30, 90), range(90, 100))
    trial = Trial(federation, "logistic", budget=Budget(rounds=1, cohort=1, epochs=1))
    start = flat(dict(trial.build().named_parameters())).detach()
    mean = unskew.train(trial)
    printed = unskew.train(trial, unnormalised())
    share = [30, 60, 10][mean.rounds[0].trained[0]] / 100
    torch.testing.assert_close(flat(printed.weights) - start, share * (flat(mean.weights) - start))
    everyone = replace(trial, budget=Budget(rounds=1, epochs=1))
    torch.testing.assert_close(
        flat(unskew.train(everyone, unnormalised()).weights), flat(unskew.train(everyone).weights)
    )


@pytest.fixture(scope="module")
def images():
    """Return three clients of 20, 33 and 1 images, for models with BatchNorm."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (54, 28, 28), np.uint8), np.arange(54) % 3
    dataset = unskew.data.from_arrays(x, y, x[:20], y[:20], name="noise")
    return split(dataset, range(20), range(20, 53), [53])


def updates(delta, *, weight=None, steps=None, lr=0.1, momentum=0.0) -> Updates:
    """Make updates of clients whose whole model is one vector."""
    rows = torch.tensor(delta, dtype=torch.float32)
    m = len(rows)
    weight = [1 / m] * m if weight is None else weight
    return Updates(
        holders=m,
        weight=torch.tensor(weight, dtype=torch.float64),
        delta={"w": rows},
        buffers={},
        steps=torch.tensor([1] * m if steps is None else steps),
        lr=lr,
        momentum=momentum,
        reported={},
    )


def start(method: Method, size: int) -> ServerState:
    weights = Weights({"w": torch.zeros(size)}, {})
    return ServerState(weights, method.server.init(weights))


def aggregate(method: Method, state: ServerState, sent: Updates) -> ServerState:
    params, memory = method.server.move(state, method.server.combine(state, sent))
    after = Weights(params, state.weights.buffers)
    return ServerState(after, {**state.memory, **memory, **method.server.note(state, after, sent)})


def moves(method: Method, deltas) -> list[np.ndarray]:
    """Return the model after each round of one client that sends these updates."""
    state, path = start(method, len(deltas[0])), []
    for delta in deltas:
        state = aggregate(method, state, updates([delta]))
        path.append(state.weights.params["w"].numpy())
    return path


# All of them


@pytest.mark.parametrize("name", SERVERS)
def test_digits_under_heavy_skew(skewed, name):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=3, epochs=1, cohort=3))
    result = unskew.train(trial, SERVERS[name])
    assert flat(result.weights).isfinite().all()
    assert not torch.equal(flat(result.weights), flat(engines.start(trial).initial))


@pytest.mark.parametrize("method", [fednova(mu=0.1), fedexp(average=True), fedavgm(dampening=0.7) + ema()])
def test_laws_hold_for_other_options_too(method):
    check_method(method)


@pytest.mark.parametrize("name", SERVERS)
def test_statistics_of_batch_norm_are_averaged_as_ever(images, name):
    """Check that no rule changes them: after a round from the same model they are those of FedAvg, bit for
    bit."""
    trial = Trial(images, "lenet5-bn", budget=Budget(rounds=1, epochs=1, batch_size=8))
    plain, other = unskew.train(trial).weights, unskew.train(trial, SERVERS[name]).weights
    assert plain.buffers.keys() == other.buffers.keys()
    assert all(torch.equal(value, other.buffers[name]) for name, value in plain.buffers.items())


@pytest.mark.parametrize("name", SERVERS)
def test_a_run_goes_on_from_where_it_stood(skewed, name):
    """Check that all that a rule remembers is in the state."""
    budget = Budget(rounds=4, epochs=1, cohort=3)
    trial = Trial(skewed, "logistic", budget=budget)
    whole = unskew.train(trial, SERVERS[name])
    half = unskew.train(Trial(skewed, "logistic", budget=Budget(rounds=2, epochs=1, cohort=3)), SERVERS[name])
    rest = unskew.train(trial, SERVERS[name], start=half.state)
    assert torch.equal(flat(whole.weights), flat(rest.weights))


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (fedavgm, {"beta": 1.0}),
        (fedavgm, {"server_lr": 0}),
        (fedavgm, {"dampening": -0.1}),
        (fedadam, {"beta1": -0.1}),
        (fedadam, {"beta2": 1}),
        (fedyogi, {"tau": 0}),
        (fedyogi, {"beta2": 1}),
        (fedadagrad, {"server_lr": -1}),
        (fednova, {"mu": -1}),
        (fedexp, {"epsilon": -1}),
        (fedexp, {"weighting": "sizes"}),
        (ema, {"decay": 1}),
    ],
)
def test_options_out_of_range_are_refused(make, options):
    with pytest.raises(UserError, match=f"^{next(iter(options))} is .* but should be"):
        make(**options)


# Uniform


def test_uniform_counts_clients_and_not_samples(digits):
    parts = [range(100), range(100, 110)]
    budget = Budget(rounds=1, epochs=1)
    trial = Trial(split(digits, *parts), "logistic", budget=budget)
    alone = [
        flat(unskew.train(Trial(split(digits, *part), "logistic", budget=budget)).weights)
        for part in ([parts[0]], [[], parts[1]])
    ]
    mean = flat(unskew.train(trial, uniform()).weights)
    torch.testing.assert_close(mean, (alone[0] + alone[1]) / 2, rtol=1e-5, atol=1e-6)


# FedAvgM


def test_fedavgm_without_momentum_is_fedavg(skewed):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=2, epochs=1))
    plain, neutral = unskew.train(trial), unskew.train(trial, fedavgm(beta=0))
    assert torch.equal(flat(plain.weights), flat(neutral.weights))


def test_fedavgm_in_numbers():
    # v = 1, 0.5 + 2 = 2.5, 1.25 - 1 = 0.25; twice their sums.
    path = moves(fedavgm(beta=0.5, server_lr=2.0), [[1.0], [2.0], [-1.0]])
    np.testing.assert_allclose(np.ravel(path), [2.0, 7.0, 7.5])


@pytest.mark.parametrize(("dampening", "limit"), [(0.0, 10.0), (0.9, 1.0)])
def test_the_velocity_of_a_constant_update_settles(dampening, limit):
    path = moves(fedavgm(beta=0.9, dampening=dampening), [[1.0]] * 200)
    assert path[-1] - path[-2] == pytest.approx(limit, rel=1e-4)


# FedOpt

SECOND = {
    fedadam: lambda v, d: 0.99 * v + 0.01 * d**2,
    fedyogi: lambda v, d: v - 0.01 * d**2 * np.sign(v - d**2),
    fedadagrad: lambda v, d: v + d**2,
}


@pytest.mark.parametrize("make", SECOND)
def test_adaptive_servers_against_the_formulas(make):
    deltas = np.random.default_rng(0).normal(scale=0.1, size=(6, 5))
    beta1, tau, lr = (0.0 if make is fedadagrad else 0.9), 1e-3, 0.05
    w, m, v = np.zeros(5), np.zeros(5), np.full(5, tau**2)
    expected = []
    for d in deltas:
        m, v = beta1 * m + (1 - beta1) * d, SECOND[make](v, d)
        w = w + lr * m / (np.sqrt(v) + tau)
        expected.append(w)
    np.testing.assert_allclose(moves(make(server_lr=lr), deltas.tolist()), expected, rtol=1e-4, atol=1e-7)


def test_fedadam_in_numbers():
    # m = 0.1, v = 0.99e-6 + 0.01: 0.01 * 0.1 / (0.1000049... + 0.001)
    (first,) = moves(fedadam(server_lr=0.01), [[1.0]])
    assert first[0] == pytest.approx(0.01 * 0.1 / (math.sqrt(0.99e-6 + 0.01) + 0.001), rel=1e-5)


@pytest.mark.parametrize("make", [fedadagrad, fedyogi])
def test_a_large_tau_gives_fedavg(make):
    """Check the case in which sqrt(v) and tau are both tau, so that the step is server_lr / (2 tau) times the
    update."""
    delta = [0.3, -2.0, 0.0]
    (moved,) = moves(make(tau=1e4, server_lr=2e4, beta1=0.0), [delta])
    np.testing.assert_allclose(moved, delta, rtol=1e-5)


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=12))
def test_the_second_moment_of_yogi_stays_positive(deltas):
    method = fedyogi()
    state = start(method, 1)
    for delta in deltas:
        state = aggregate(method, state, updates([[delta]]))
        assert state.memory["fedyogi/v/w"] > 0
        moved = state.weights.params["w"].isfinite()
        assert moved.all()


def test_yogi_and_adam_agree_where_the_second_moment_fits():
    """Check that both leave v as it is at v = Delta^2."""
    delta = torch.tensor([0.2, -0.7])
    for make, name in ((fedadam, "fedadam"), (fedyogi, "fedyogi")):
        state = start(make(), 2)
        state = ServerState(state.weights, {**state.memory, f"{name}/v/w": delta.square()})
        _, memory = make().server.move(state, {"w": delta})
        torch.testing.assert_close(memory[f"{name}/v/w"], delta.square())


@pytest.mark.parametrize("make", SECOND)
def test_the_model_moves_with_the_sign_of_the_first_moment(make):
    deltas = np.random.default_rng(1).normal(size=(5, 8))
    method, beta1 = make(), (0.0 if make is fedadagrad else 0.9)
    path = np.diff(np.array([np.zeros(8), *moves(method, deltas.tolist())]), axis=0)
    m = np.zeros(8)
    for moved, d in zip(path, deltas, strict=True):
        m = beta1 * m + (1 - beta1) * d
        assert (np.sign(moved) == np.sign(m)).all()


# FedNova


def test_effective_steps():
    counter = total = 0.0
    for _ in range(37):
        counter = 0.9 * counter + 1
        total += counter
    assert effective_steps(37, 0.9) == pytest.approx(total)
    assert effective_steps(37, 0.9) == pytest.approx(281.8248, abs=1e-4)
    assert effective_steps(9, 0.0) == 9
    assert effective_steps(1, 0.99) == pytest.approx(1)
    pulled = sum((1 - 0.02) ** j for j in range(50))
    assert effective_steps(50, 0.0, pull=0.02) == pytest.approx(pulled)
    assert effective_steps(50, 0.9, pull=1e-9) == pytest.approx(effective_steps(50, 0.9), rel=1e-5)


def test_fednova_with_equal_steps_is_fedavg(digits):
    trial = Trial(split(digits, range(60), range(60, 120)), "mlp-small", budget=Budget(rounds=2))
    plain, nova = unskew.train(trial), unskew.train(trial, fednova())
    torch.testing.assert_close(flat(plain.weights), flat(nova.weights), rtol=1e-6, atol=1e-6)


def test_steps_do_not_decide_what_a_client_counts():
    """Check one and nine steps along two unit gradients. FedAvg would move nine times as far along the
    second."""
    sent = updates([[-0.1, 0.0], [0.0, -0.9]], steps=[1, 9])
    combined = fednova().server.combine(start(fednova(), 2), sent)["w"]
    torch.testing.assert_close(combined, torch.tensor([-0.25, -0.25]))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_under_a_constant_gradient_unequal_clients_agree(digits, momentum):
    """Check clients that move in a straight line, the larger one further. Normalised, all updates are the
    same."""

    def straight(view):
        return sum(value.sum() for value in view.params.values())

    budget = Budget(rounds=1, epochs=2, batch_size=10, lr=0.01, momentum=momentum, weight_decay=0)
    trial = Trial(split(digits, range(100), range(100, 120)), "logistic", budget=budget)
    before = flat(engines.start(trial).initial)
    moved = flat(unskew.train(trial, Method(loss=straight) + fednova()).weights) - before
    steps = [effective_steps(K, momentum) for K in (20, 4)]
    expected = -0.01 * (100 * steps[0] + 20 * steps[1]) / 120
    torch.testing.assert_close(moved, torch.full_like(moved, expected), rtol=1e-4, atol=1e-6)


def test_fednova_knows_the_proximal_term_it_is_put_together_with():
    """Check a_k under a constant gradient and a pull: the update divided by it is the gradient again."""
    lr, mu, steps = 0.1, 0.5, [3, 12]
    distance = []
    for K in steps:
        w = 0.0
        for _ in range(K):
            w -= lr * (1 + mu * w)
        distance.append(w)
    sent = updates([[distance[0]], [distance[1]]], steps=steps, lr=lr)
    combined = fednova(mu=mu).server.combine(start(fednova(), 1), sent)["w"]
    assert combined.item() == pytest.approx(-lr * (3 + 12) / 2, rel=1e-5)


# FedExP


def extrapolation(delta, **options) -> float:
    sent = updates(delta)
    method = fedexp(**options)
    combined = method.server.combine(start(method, len(delta[0])), sent)["w"]
    mean = sent.mean["w"]
    return float(combined.norm() / mean.norm())


def test_clients_that_agree_are_averaged():
    assert extrapolation([[1.0, 2.0]] * 5, epsilon=0) == pytest.approx(1)


def test_orthogonal_updates_are_extrapolated_by_half_their_number():
    assert extrapolation(np.eye(8).tolist(), epsilon=0) == pytest.approx(4)
    assert extrapolation((100 * np.eye(8)).tolist()) == pytest.approx(4, rel=1e-4)


@given(st.integers(1, 6), st.integers(0, 1000))
def test_extrapolation_is_half_of_m_times_the_drift_diversity(m, seed):
    delta = np.random.default_rng(seed).normal(size=(m, 4))
    diversity = (delta**2).sum() / (delta.sum(axis=0) ** 2).sum()
    assert extrapolation(delta.tolist(), epsilon=0) == pytest.approx(max(1, m / 2 * diversity), rel=1e-3)


def test_fedexp_weighs_by_size_or_uniformly():
    sent = updates([[2.0, 0.0], [0.0, 2.0]], weight=[0.9, 0.1])
    by_size, alike = (
        fedexp(epsilon=0, weighting=weighting).server.combine(start(fedexp(), 2), sent)["w"]
        for weighting in ("size", "uniform")
    )
    # By size: 4 / (2 * (1.8^2 + 0.2^2)) is below 1. Alike: 4 / (2 * 2) = 1.
    torch.testing.assert_close(by_size, torch.tensor([1.8, 0.2]))
    torch.testing.assert_close(alike, torch.tensor([1.0, 1.0]))


@pytest.mark.parametrize("delta", [[[0.0], [0.0]], [[1.0], [-1.0]]])
def test_no_mean_is_no_step(delta):
    combined = fedexp(epsilon=0).server.combine(start(fedexp(), 1), updates(delta))["w"]
    assert combined.item() == 0


def test_a_large_epsilon_makes_fedexp_fedavg(skewed):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=2, epochs=1))
    plain, neutral = unskew.train(trial), unskew.train(trial, fedexp(epsilon=1e9))
    torch.testing.assert_close(flat(plain.weights), flat(neutral.weights), rtol=1e-6, atol=1e-6)
    assert not torch.equal(flat(plain.weights), flat(unskew.train(trial, fedexp(epsilon=0)).weights))


def test_fedexp_serves_the_mean_of_its_last_two_models(skewed):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=3, epochs=1))
    path = models(trial, fedexp())
    served = models(trial, fedexp(average=True), served=True)
    assert torch.equal(flat(served[0]), flat(path[0]))
    for t in (1, 2):
        torch.testing.assert_close(flat(served[t]), (flat(path[t - 1]) + flat(path[t])) / 2)


def models(trial, method, *, served=False) -> list[Weights]:
    """Return the model after each round."""
    engine = engines.start(trial)
    state, path = initial_state(method, engine.initial), []
    for _ in range(trial.budget.rounds):
        state, _ = run_round(trial, method, engine, state)
        path.append(method.server.serve(state.server) if served else state.server.weights)
    return path


# Exponential average


def test_the_served_model_is_the_bias_corrected_average(images):
    trial = Trial(images, "lenet5-bn", budget=Budget(rounds=4, epochs=1, batch_size=8))
    path, served = models(trial, fedavg()), models(trial, ema(decay=0.7), served=True)
    for name in (*path[0].params, *path[0].buffers):
        value = [(w.params | w.buffers)[name] for w in path]
        average = torch.zeros_like(value[0], dtype=torch.float64)
        for t in range(4):
            average = 0.7 * average + 0.3 * value[t].double()
            got = (served[t].params | served[t].buffers)[name]
            if value[t].is_floating_point():
                expected = (average / (1 - 0.7 ** (t + 1))).to(got)
                torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
            else:
                assert got == value[t]


def test_the_average_changes_what_is_served_and_not_what_is_trained(skewed):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=3, epochs=1))
    plain, averaged = unskew.train(trial), unskew.train(trial, ema())
    assert torch.equal(flat(plain.weights), flat(averaged.state.server.weights))
    assert not torch.equal(flat(plain.weights), flat(averaged.weights))
    assert not np.array_equal(plain.final.mean_probability, averaged.final.mean_probability)


def test_the_first_round_serves_the_trained_model(images):
    trial = Trial(images, "lenet5-bn", budget=Budget(rounds=1, epochs=1, batch_size=8))
    plain, averaged = unskew.train(trial), unskew.train(trial, ema(decay=0.99))
    assert torch.equal(flat(plain.weights), flat(averaged.weights))
    for name, value in plain.weights.buffers.items():
        assert torch.equal(value, averaged.weights.buffers[name])


def test_no_decay_is_no_average(skewed):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=3, epochs=1))
    assert torch.equal(flat(unskew.train(trial).weights), flat(unskew.train(trial, ema(decay=0)).weights))


def test_before_any_round_the_initial_model_is_served(digits):
    trial = Trial(split(digits, [], []), "mlp-small", budget=Budget(rounds=2))
    result = unskew.train(trial, ema() + fedadam())
    assert torch.equal(flat(result.weights), flat(engines.start(trial).initial))


# Put together


def test_combine_move_and_serve_compose(skewed):
    """Check that FedExP's update enters FedAvgM's velocity, and that the average is over the models that
    result."""
    trial = Trial(skewed, "logistic", budget=Budget(rounds=3, epochs=1))
    path = models(trial, fedexp() + fedavgm(beta=0.5))
    served = models(trial, fedexp() + fedavgm(beta=0.5) + ema(decay=0.6), served=True)
    again = models(trial, ema(decay=0.6) + fedavgm(beta=0.5) + fedexp(), served=True)
    average = torch.zeros_like(flat(path[0]))
    for t in range(3):
        average = 0.6 * average + 0.4 * flat(path[t])
        torch.testing.assert_close(flat(served[t]), average / (1 - 0.6 ** (t + 1)), rtol=1e-4, atol=1e-6)
        assert torch.equal(flat(served[t]), flat(again[t]))


def test_normalised_updates_through_an_adaptive_server():
    method = fednova() + fedadam()
    sent = updates([[-0.1, 0.0], [0.0, -0.9]], steps=[1, 9])
    state = aggregate(method, start(method, 2), sent)
    alone = aggregate(fedadam(), start(fedadam(), 2), updates([[-0.25, -0.25]]))
    torch.testing.assert_close(state.weights.params["w"], alone.weights.params["w"])


def test_server_rules_keep_client_methods_as_they_are(skewed):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=2, epochs=1))
    base = unskew.train(trial, fedprox(mu=0.1) + fedavgm(beta=0.5))
    more = unskew.train(trial, fedprox(mu=0.1) + fedavgm(beta=0.5) + ema(decay=0) + fedprox(mu=0))
    assert torch.equal(flat(base.weights), flat(more.weights))


@pytest.mark.parametrize("name", ["fedlmd+fedprox+fedavgm", "fedvls+fedexp", "fedlmd+ema", "fedlmd+uniform"])
def test_the_papers_combinations_train(skewed, name):
    method, _ = assemble({part: {} for part in name.split("+")})
    result = unskew.train(Trial(skewed, "mlp-small", budget=Budget(rounds=2, epochs=1)), method)
    assert flat(result.weights).isfinite().all()


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([fedavgm(), fedadam()], "server optimiser"),
        ([fednova(), fedexp()], "aggregation rule"),
        ([uniform(), fednova()], "aggregation rule"),
        ([fedexp(average=True), ema()], "served model"),
        ([scaffold(server_lr=0.5), fedavgm()], "server optimiser"),
    ],
)
def test_two_rules_for_one_thing_are_refused(parts, reason):
    with pytest.raises(UserError, match=reason):
        parts[0] + parts[1]
    with pytest.raises(UserError, match=reason):
        parts[1] + parts[0]
