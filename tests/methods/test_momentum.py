"""Momentum that is sent, models that are averaged, and a learning rate that falls within a round: FedACG,
FedCM, WIMA, FedSWA, FedMoSWA."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import unskew
from federations import flat, split
from pools import on_every_engine
from unskew import Budget, Method, Trial, UserError, engines
from unskew.methods import (
    ema,
    fedacg,
    fedavg,
    fedavgm,
    fedcm,
    fedlc,
    fedlmd,
    fedmoswa,
    fednova,
    fedprox,
    fedsam,
    fedswa,
    fedvls,
    logit_adjustment,
    mofedsam,
    scaffold,
    uniform,
    wima,
)
from unskew.rounds import initial_state, model_to_send, model_to_serve, run_round
from unskew.testing import check_method
from unskew.types import Weights


@pytest.fixture(scope="module")
def images():
    """Return three clients of 20, 33 and 1 images, for models with BatchNorm."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (54, 28, 28), np.uint8), np.arange(54) % 3
    dataset = unskew.data.from_arrays(x, y, x[:20], y[:20], name="noise")
    return split(dataset, range(20), range(20, 53), [53])


def small(images, **budget) -> Trial:
    return Trial(images, "lenet5-bn", budget=Budget(**({"rounds": 2, "epochs": 1, "batch_size": 8} | budget)))


def same(one: Weights, other: Weights) -> bool:
    return all(
        torch.equal(value, (other.params | other.buffers)[name])
        for name, value in (one.params | one.buffers).items()
    )


def under(prefix, tensors):
    parts = {n.removeprefix(prefix + "/"): v for n, v in tensors.items() if n.startswith(prefix + "/")}
    return flat(parts).tolist()


# Two clients that each pull a point (x, y) to their own (a, b), with the gradient (x - a, 2 (y - b))


class Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.at = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return x, self.at.expand(len(x), 2)


def pull(view):
    return ((view.out.logits - view.inputs).square() @ torch.tensor([0.5, 1.0])).mean()


def point_trial(goals=((2.0, 0.0), (0.0, 4.0)), **budget) -> Trial:
    goals, labels = np.array(goals, np.float32), np.arange(len(goals)) % 2
    dataset = unskew.data.from_arrays(goals, labels, goals, labels, name="goals")
    plain = {"rounds": 1, "steps": 1, "batch_size": 1, "lr": 0.5, "momentum": 0.0, "weight_decay": 0.0}
    return Trial(split(dataset, *([n] for n in range(len(goals)))), Point, budget=Budget(**(plain | budget)))


def states(trial: Trial, method: Method):
    """Yield the server's state after every round."""
    engine = engines.start(trial)
    state = initial_state(method, engine.initial)
    for _ in range(trial.budget.rounds):
        state, _ = run_round(trial, method, engine, state)
        yield state.server


def points(trial: Trial, method: Method, of=lambda method, state: state.weights):
    return [of(method, state).params["at"].tolist() for state in states(trial, method)]


def test_fedacg_in_numbers():
    trial, method = point_trial(rounds=2), Method(loss=pull) + fedacg(lam=0.5, beta=0)
    assert points(trial, method) == [[0.5, 2.0], [0.875, 2.0]]
    assert points(trial, method, model_to_serve) == [[0.5, 2.0], [0.875, 2.0]]
    assert points(trial, method, model_to_send) == [[0.75, 3.0], [1.0625, 2.0]]
    *_, last = states(trial, method)
    assert under("fedacg/momentum", last.memory) == [0.375, 0.0]


def test_fedcm_in_numbers():
    trial, method = point_trial(rounds=2), Method(loss=pull) + fedcm(alpha=0.5)
    assert points(trial, method) == [[0.25, 1.0], [0.5625, 2.0]]
    found = [under("fedcm/direction", state.memory) for state in states(trial, method)]
    assert found == [[-0.5, -2.0], [-0.625, -2.0]]


def test_wima_in_numbers():
    trial, method = point_trial(rounds=3), Method(loss=pull) + wima(window=2)
    path = points(trial, Method(loss=pull))
    assert path[:2] == [[0.5, 2.0], [0.75, 2.0]]
    assert points(trial, method) == path
    mean_of_last = np.mean(path[1:], axis=0).tolist()
    assert points(trial, method, model_to_serve) == [[0.5, 2.0], [0.625, 2.0], mean_of_last]


def test_fedswa_in_numbers():
    trial = point_trial(rounds=2, steps=2)
    found = points(trial, Method(loss=pull) + fedswa(rho=0.5, alpha=1.5))
    assert found == [[1.03125, 3.0], [0.9990234375, 1.5]]


def test_fedmoswa_in_numbers():
    trial, method = point_trial(rounds=2), Method(loss=pull) + fedmoswa(alpha=1, gamma=0.2)
    np.testing.assert_allclose(points(trial, method)[-1], [0.35, 0.4], rtol=1e-6)
    found = [under("fedmoswa/c", state.memory) for state in states(trial, method)]
    np.testing.assert_allclose(found, [[-0.2, -0.8], [-0.26, -0.64]], rtol=1e-6)


# Against a plain loop in NumPy, with all that a budget has


GOALS = np.array([[2.0, 0.0], [0.0, 4.0], [-1.0, 1.0], [3.0, 2.0]])
CURVE = np.array([1.0, 2.0])
SETTINGS = {"rounds": 6, "cohort": 2, "steps": 4, "lr": 0.05, "lr_decay": 0.9}


def local(w, k, *, lrs, momentum, decay, shift=0.0, own=1.0, prox=0.0):
    """Take a client's steps with the gradient own CURVE (w - goal) + shift + 2 prox (w - start)."""
    start, velocity = w, 0.0
    for lr in lrs:
        grad = own * CURVE * (w - GOALS[k]) + 2 * prox * (w - start) + shift + decay * w
        velocity = momentum * velocity + grad
        w = w - lr * velocity
    return w


def reach(lrs, momentum):
    velocity = total = 0.0
    for lr in lrs:
        velocity = momentum * velocity + 1
        total += lr * velocity
    return total


@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("name", ["fedacg", "fedcm", "fedswa", "fedmoswa"])
def test_against_a_plain_loop(name, momentum):
    made = {
        "fedacg": fedacg(lam=0.6, beta=0.3),
        "fedcm": fedcm(alpha=0.3),
        "fedswa": fedswa(rho=0.2, alpha=1.3),
        "fedmoswa": fedmoswa(rho=0.2, alpha=1.3, gamma=0.4),
    }
    decay = 0.01
    trial = point_trial(GOALS, momentum=momentum, **{**SETTINGS, "weight_decay": decay})
    result = unskew.train(trial, Method(loss=pull) + made[name])
    w, m, D, c, controls = np.zeros(2), np.zeros(2), np.zeros(2), np.zeros(2), np.zeros((4, 2))
    for t, done in enumerate(result.rounds):
        lr, K = SETTINGS["lr"] * SETTINGS["lr_decay"] ** t, SETTINGS["steps"]
        lrs = [lr] * K
        if name in ("fedswa", "fedmoswa"):
            lrs = [lr * (1 - 0.8 * j / K) for j in range(K)]
        common = {"lrs": lrs, "momentum": momentum, "decay": decay}
        if name == "fedacg":
            start = w + 0.6 * m
            m = 0.6 * m + np.mean([local(start, k, prox=0.3, **common) - start for k in done.cohort], axis=0)
            w = w + m
        elif name == "fedcm":
            ends = [local(w, k, own=0.3, shift=0.7 * D, **common) for k in done.cohort]
            D = np.mean([(w - end) / reach(lrs, momentum) for end in ends], axis=0)
            w = np.mean(ends, axis=0)
        else:
            controlled = name == "fedmoswa"
            ends = [local(w, k, shift=c - controls[k] if controlled else 0, **common) for k in done.cohort]
            if controlled:
                for k, end in zip(done.cohort, ends, strict=True):
                    controls[k] = controls[k] - c + (w - end) / reach(lrs, momentum)
                c = c + 0.4 * np.mean([controls[k] - c for k in done.cohort], axis=0)
            w = w + 1.3 * (np.mean(ends, axis=0) - w)
    np.testing.assert_allclose(result.weights.params["at"].numpy(), w, rtol=1e-5, atol=1e-6)


def test_the_divisor_of_fedmoswa_is_the_sum_of_the_learning_rates():
    """Check the first round, in which no client has a control yet: it is (w[0] - w[1]) / (lr (K (1 + rho) + 1
    - rho) / 2)."""
    trial = point_trial([(2.0, 0.0)] * 2, steps=5, lr=0.1)
    method = Method(loss=pull) + fedmoswa(rho=0.3, alpha=1)
    (state,) = states(trial, method)
    moved = -state.weights.params["at"].numpy()
    found = np.array(under("fedmoswa/c", state.memory)) / 0.2
    np.testing.assert_allclose(found, moved / (0.1 * (5 * 1.3 + 0.7) / 2), rtol=1e-5)


# What they are at the edges of their options

NEUTRAL = {
    "fedacg": fedacg(lam=0, beta=0),
    "fedcm": fedcm(alpha=1),
    "wima": wima(window=1),
    "fedswa": fedswa(rho=1, alpha=1),
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_options_are_fedavg_bit_for_bit(images, name):
    trial = small(images)
    assert same(unskew.train(trial).weights, unskew.train(trial, NEUTRAL[name]).weights)


@pytest.mark.parametrize(
    ("one", "other", "rounds"),
    [
        (fedacg(lam=0, beta=0.05), fedprox(mu=0.1), 2),
        (fedacg(lam=0.9, beta=0.05), fedprox(mu=0.1), 1),
        (fedcm(alpha=0.3), mofedsam(rho=0, beta=0.3), 3),
        (fedmoswa(), fedswa(), 1),
    ],
)
def test_equal_methods_are_equal_bit_for_bit(images, one, other, rounds):
    trial = small(images, rounds=rounds)
    assert same(unskew.train(trial, one).weights, unskew.train(trial, other).weights)


def test_fedmoswa_with_all_clients_and_neutral_options_is_scaffold():
    trial = point_trial(GOALS, rounds=5, steps=3, lr=0.1, momentum=0.5)
    ours, theirs = (
        unskew.train(trial, Method(loss=pull) + method)
        for method in (fedmoswa(rho=1, alpha=1, gamma=1), scaffold())
    )
    torch.testing.assert_close(flat(ours.weights), flat(theirs.weights), rtol=1e-5, atol=1e-6)


def test_where_updates_do_not_depend_on_the_start_fedacg_is_fedavgm():
    def straight(view):
        return (view.params["at"] * view.inputs.mean(dim=0)).sum()

    trial = point_trial(rounds=4, steps=2)
    ours, theirs = (
        points(trial, Method(loss=straight) + method)
        for method in (fedacg(lam=0.5, beta=0), fedavgm(beta=0.5))
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_what_fedacg_sends_moves_by_nesterovs_momentum():
    trial = point_trial(GOALS, rounds=5, steps=3, lr=0.1)
    method = Method(loss=pull) + fedacg(lam=0.8, beta=0)
    ours = points(trial, method, model_to_send)
    at, velocity = np.zeros(2), np.zeros(2)
    for sent_next in ours:
        ends = [local(at, k, lrs=[0.1] * 3, momentum=0.0, decay=0.0) for k in range(4)]
        grad = at - np.mean(ends, axis=0)
        velocity = 0.8 * velocity + grad
        at = at - (grad + 0.8 * velocity)
        np.testing.assert_allclose(sent_next, at, rtol=1e-5)


def test_a_wide_window_is_the_mean_of_all_models_and_never_trains(images):
    trial = small(images, rounds=3)
    wide, plain = (list(states(trial, method)) for method in (wima(window=9), fedavg()))
    for t, (state, other) in enumerate(zip(wide, plain, strict=True), start=1):
        assert same(state.weights, other.weights)
        mean = model_to_serve(wima(window=9), state)
        models = [each.weights for each in plain[:t]]
        for name, value in mean.params.items():
            expected = torch.stack([model.params[name] for model in models]).mean(dim=0)
            torch.testing.assert_close(value, expected)
        counters = {n: v for n, v in mean.buffers.items() if not v.is_floating_point()}
        assert counters
        assert all(torch.equal(value, models[-1].buffers[name]) for name, value in counters.items())


# Together with others


@pytest.mark.parametrize("average", [ema(decay=0.5), wima(window=3)])
def test_an_average_beside_fedacg_is_one_of_the_servers_models_and_not_of_those_sent(average):
    trial, method = point_trial(rounds=3), Method(loss=pull) + fedacg(lam=0.5, beta=0) + average
    path = points(trial, Method(loss=pull) + fedacg(lam=0.5, beta=0))
    assert points(trial, method) == path
    found, (one, two, three) = points(trial, method, model_to_serve), np.array(path)
    expected = (one + 2 * two + 4 * three) / 7 if "ema" in average.parts else (one + two + three) / 3
    np.testing.assert_allclose(found[-1], expected, rtol=1e-6)


@pytest.mark.parametrize(
    "method",
    [
        logit_adjustment(floor=0.01) + fedavgm() + ema(),
        logit_adjustment(floor=0.01) + fedacg() + ema(),
        fedlmd() + fedacg() + uniform() + wima(),
        fedvls() + fedcm() + fedavgm(),
        fedlc() + fedswa() + ema(),
    ],
)
def test_they_go_together_with_others(skewed, method):
    result = unskew.train(Trial(skewed, "mlp-small", budget=Budget(rounds=2, epochs=1, cohort=3)), method)
    assert flat(result.weights).isfinite().all()


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (fedacg(), fedavgm(), "server optimiser"),
        (wima(), ema(), "served model"),
        (fedcm(), fedsam(), "gradient transform"),
        (fedmoswa(), scaffold(), "drift"),
        (fedswa(), fedmoswa(), "learning-rate factor within a round"),
        (fedswa(alpha=1), fednova(), "counts on one that stays the same"),
        (fedcm(), fedswa(), "counts on one that stays the same"),
    ],
)
def test_what_excludes_what(one, other, message):
    for first, second in ((one, other), (other, one)):
        with pytest.raises(UserError, match=message):
            first + second


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (fedacg, {"lam": 1}),
        (fedacg, {"beta": -1}),
        (fedcm, {"alpha": 0}),
        (wima, {"window": 0}),
        (fedswa, {"rho": 2}),
        (fedswa, {"alpha": 0}),
        (fedmoswa, {"gamma": -1}),
    ],
)
def test_options_out_of_range_are_refused(make, options):
    with pytest.raises(UserError, match=f"^{next(iter(options))} is .* but should be"):
        make(**options)


# A learning rate that changes within a round, as a slot


def halved(done: float) -> float:
    return 1.0 if done < 0.5 else 0.5


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_learning_rate_within_a_round_on_every_engine(skewed, optimizer, monkeypatch):
    on_every_engine(monkeypatch)
    budget = Budget(rounds=3, epochs=2, cohort=3, batch_size=16, optimizer=optimizer)
    trials = [
        Trial(skewed, "mlp-small", budget=budget, engine=engine, workers=2)
        for engine in ("loop", "pool", "graphs")
    ]
    loop, pool, graphs = (unskew.train(trial, Method(lr_factor=halved)) for trial in trials)
    assert same(loop.weights, pool.weights)
    assert same(loop.weights, graphs.weights)
    assert not same(loop.weights, unskew.train(trials[0]).weights)


def test_the_learning_rate_of_each_step_is_the_factors():
    def straight(view):
        return view.params["at"].sum()

    trial = point_trial(steps=4, lr=1.0)
    (state,) = states(trial, Method(loss=straight, lr_factor=lambda done: 1 + done))
    assert state.weights.params["at"].tolist() == [-(1 + 1.25 + 1.5 + 1.75)] * 2


@pytest.mark.parametrize("wrong", ["fast", -1.0, float("nan"), None])
def test_a_wrong_factor_is_said(wrong):
    with pytest.raises(UserError, match="lr_factor returns"):
        unskew.train(point_trial(), Method(loss=pull, lr_factor=lambda done: wrong))
    with pytest.raises(UserError, match=r"Method\.lr_factor is .* but should be a function"):
        Method(lr_factor=0.5)


def test_laws_hold_for_other_options_too():
    check_method(fedmoswa(rho=0, alpha=1) + ema())
