"""Control variates, dynamic regularisation, elastic consolidation, and gradients taken uphill."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

import unskew
from federations import flat, job, split
from unskew import Budget, Evaluation, Method, Trial, UserError, engines
from unskew.methods import (
    fedavg,
    fedavgm,
    fedcurv,
    feddyn,
    fedgf,
    fedprox,
    fedsam,
    mofedsam,
    scaffold,
    uniform,
)
from unskew.methods.assemble import assemble
from unskew.randomness import Purpose, stream
from unskew.rounds import initial_state, run_round
from unskew.testing import check_method
from unskew.types import Out, Scope, ServerState, Updates, View, Weights

METHODS = {
    "scaffold": scaffold(),
    "scaffold I": scaffold(option="I", server_lr=0.5),
    "feddyn": feddyn(),
    "feddyn by size": feddyn(mean_samples=300, serve="corrected"),
    "fedcurv": fedcurv(),
    "fedcurv by sample": fedcurv(samples=20, batch_size=1),
    "fedsam": fedsam(),
    "mofedsam": mofedsam(),
    "fedgf": fedgf(),
    "fedgf by threshold": fedgf(c="threshold"),
}


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (54, 28, 28), np.uint8), np.arange(54) % 3
    dataset = unskew.data.from_arrays(x, y, x[:20], y[:20], name="noise")
    return split(dataset, range(20), range(20, 53), [53])


def under(prefix, tensors):
    return {
        name.removeprefix(prefix + "/"): value
        for name, value in tensors.items()
        if name.startswith(prefix + "/")
    }


def same(one: Weights, other: Weights) -> bool:
    return all(
        torch.equal(value, (other.params | other.buffers)[name])
        for name, value in (one.params | one.buffers).items()
    )


# Quadratics: a linear model under squared error, whose minima are known.


def squared_error(view: View) -> torch.Tensor:
    target = one_hot(view.labels, view.out.logits.shape[1])
    return (view.out.logits - target).square().sum(dim=1).mean() / 2


class Quadratics:
    """Clients of different curvature and different minima, and the same problem in NumPy."""

    def __init__(self, sizes=(12, 12, 12, 12)) -> None:
        rng = np.random.default_rng(0)
        parts = []
        for k, n in enumerate(sizes):
            x = rng.normal(size=(n, 3)) * rng.uniform(0.6, 1.4, size=3)
            y = (rng.random(n) < (k + 1) / (len(sizes) + 1)).astype(np.int64)
            y[:2] = 0, 1
            parts.append((x.astype(np.float32), y))
        x, y = (np.concatenate(column) for column in zip(*parts, strict=True))
        dataset = unskew.data.from_arrays(x, y, x, y, name="quadratics")
        edges = np.cumsum([0, *sizes])
        self.federation = split(dataset, *(range(a, b) for a, b in pairwise(edges)))
        self.model = nn.Linear(3, 2)
        nn.init.zeros_(self.model.weight)
        nn.init.zeros_(self.model.bias)
        self.x = [np.hstack([a, np.ones((len(a), 1))]).astype(np.float64) for a, _ in parts]
        self.y = [np.eye(2)[b] for _, b in parts]

    def gradient(self, k, w):
        """Return the client's gradient at w, [4, 2]: three rows of weights and one of biases."""
        return self.x[k].T @ (self.x[k] @ w - self.y[k]) / len(self.x[k])

    def minimum(self, weight):
        hessian = sum(p * x.T @ x / len(x) for p, x in zip(weight, self.x, strict=True))
        rhs = sum(p * x.T @ y / len(x) for p, x, y in zip(weight, self.x, self.y, strict=True))
        return np.linalg.solve(hessian, rhs)

    def trial(self, **budget) -> Trial:
        settings = {"batch_size": 1000, "momentum": 0.0, "weight_decay": 0.0, "lr": 0.3, "epochs": 5}
        return Trial(
            self.federation,
            self.model,
            budget=Budget(**(settings | budget)),
            evaluation=Evaluation(every=10_000),
        )

    def train(self, method, **budget):
        return unskew.train(self.trial(**budget), Method(loss=squared_error) + method)


def matrix(params) -> np.ndarray:
    return np.vstack([params["weight"].numpy().T, params["bias"].numpy()]).astype(np.float64)


def distance(result, minimum) -> float:
    return float(np.abs(matrix(result.weights.params) - minimum).max())


# All of them


@pytest.mark.parametrize("name", METHODS)
def test_digits_under_heavy_skew(skewed, name):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=3, epochs=1, cohort=3))
    result = unskew.train(trial, METHODS[name])
    assert flat(result.weights).isfinite().all()
    assert not torch.equal(flat(result.weights), flat(engines.start(trial).initial))


@pytest.mark.parametrize("name", ["scaffold I", "feddyn by size", "fedcurv by sample", "fedgf by threshold"])
def test_laws_hold_for_other_options_too(name):
    """Check clients with one class, one sample and no sample, BatchNorm, and two classes, among others."""
    check_method(METHODS[name])


@pytest.mark.parametrize("name", METHODS)
def test_a_run_goes_on_from_where_it_stood(skewed, name):
    def trial(rounds):
        return Trial(skewed, "logistic", budget=Budget(rounds=rounds, epochs=1, cohort=3))

    whole = unskew.train(trial(4), METHODS[name])
    half = unskew.train(trial(2), METHODS[name])
    rest = unskew.train(trial(4), METHODS[name], start=half.state)
    assert same(whole.weights, rest.weights)


NEUTRAL = {
    "fedcurv": fedcurv(lam=0),
    "fedsam": fedsam(rho=0),
    "fedsam, two passes": fedsam(rho=1e-30),
    "mofedsam": mofedsam(rho=0, beta=1),
    "fedgf": fedgf(rho=0, rho_global=0, c=0),
    "fedgf, two passes": fedgf(rho=0, rho_global=0, c="threshold", threshold=1e9),
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_options_are_fedavg_bit_for_bit(images, name):
    """Check BatchNorm statistics too: they move once per step, however often a step uses its batch."""
    trial = Trial(images, "lenet5-bn", budget=Budget(rounds=2, epochs=1, batch_size=8))
    assert same(unskew.train(trial).weights, unskew.train(trial, NEUTRAL[name]).weights)


@pytest.mark.parametrize("name", ["fedcurv", "fedsam", "mofedsam", "fedgf"])
def test_neutral_options_draw_no_dropout(digits, name):
    def module():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.5), nn.Linear(32, 10))

    trial = Trial(split(digits, range(40), range(40, 60)), module, budget=Budget(rounds=2, epochs=1))
    assert same(unskew.train(trial).weights, unskew.train(trial, NEUTRAL[name]).weights)


@pytest.mark.parametrize("method", [scaffold(), scaffold(option="I"), fedcurv(lam=2.0)])
def test_the_first_round_is_that_of_fedavg_bit_for_bit(images, method):
    trial = Trial(images, "lenet5-bn", budget=Budget(rounds=1, batch_size=8))
    assert same(unskew.train(trial).weights, unskew.train(trial, method).weights)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (scaffold, {"option": "III"}),
        (scaffold, {"server_lr": 0}),
        (feddyn, {"alpha": 0}),
        (feddyn, {"mean_samples": -1}),
        (feddyn, {"serve": "best"}),
        (fedcurv, {"lam": -1}),
        (fedcurv, {"samples": 0}),
        (fedcurv, {"batch_size": 0}),
        (fedsam, {"rho": -0.1}),
        (mofedsam, {"rho": -0.1}),
        (mofedsam, {"beta": 0}),
        (fedgf, {"rho": -0.1}),
        (fedgf, {"rho_global": -0.1}),
        (fedgf, {"threshold": -1}),
        (fedgf, {"window": 0}),
        (fedgf, {"c": 1.5}),
        (fedgf, {"c": "often"}),
    ],
)
def test_options_out_of_range_are_refused(make, options):
    with pytest.raises(UserError, match=f"^{next(iter(options))} is .* but should be"):
        make(**options)


# SCAFFOLD


@pytest.mark.parametrize("radius", [0.0, 0.2])
def test_scaffold_against_a_plain_loop(radius):
    """Compare under partial participation, momentum, weight decay, a decaying learning rate, unequal clients
    and server_lr; and together with FedSAM, whose way uphill the controls do not change."""
    problem = Quadratics(sizes=(12, 20, 6, 9))
    lr, decay, rho, wd, K, server_lr = 0.05, 0.9, 0.9, 0.01, 7, 0.8
    result = problem.train(
        scaffold(server_lr=server_lr) + fedsam(rho=radius),
        rounds=6,
        cohort=2,
        lr=lr,
        lr_decay=decay,
        momentum=rho,
        weight_decay=wd,
        epochs=K,
    )
    w, c = np.zeros((4, 2)), np.zeros((4, 2))
    controls = [np.zeros((4, 2)) for _ in range(4)]
    for t, done in enumerate(result.rounds):
        eta, change, update, samples = lr * decay**t, 0.0, 0.0, 0
        for k in done.cohort:
            local, velocity, weight, total = w.copy(), 0.0, 0.0, 0.0
            for _ in range(K):
                up = problem.gradient(k, local)
                there = local + radius * up / np.linalg.norm(up)
                grad = problem.gradient(k, there) - controls[k] + c + wd * local
                velocity = rho * velocity + grad
                local = local - eta * velocity
                weight = rho * weight + 1
                total += weight
            new = controls[k] - c + (w - local) / (eta * total)
            change = change + new - controls[k]
            controls[k] = new
            update = update + len(problem.x[k]) * (local - w)
            samples += len(problem.x[k])
        w, c = w + server_lr * update / samples, c + change / 4
    np.testing.assert_allclose(matrix(result.weights.params), w, rtol=1e-4, atol=1e-5)
    server = under("scaffold/c", result.state.server.memory)
    np.testing.assert_allclose(matrix(server), c, rtol=1e-4, atol=1e-5)
    for client, memory in result.state.memories.items():
        np.testing.assert_allclose(
            matrix(under("scaffold/c", memory)), controls[client], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("option", ["I", "II"])
def test_the_servers_control_is_the_mean_of_all_clients_controls(images, option):
    """Check the mean over all clients that have data, in every round, also those that have not taken part
    yet."""
    federation = split(images.dataset, range(20), [], range(20, 40), [40], range(41, 53))
    budget = Budget(rounds=6, epochs=1, batch_size=8, cohort=2)
    trial = Trial(federation, "lenet5-bn", budget=budget)
    method, engine = scaffold(option=option), engines.start(trial)
    state = initial_state(method, engine.initial)
    for _ in range(budget.rounds):
        state, _ = run_round(trial, method, engine, state)
        server = under("scaffold/c", state.server.memory)
        assert server.keys() == engine.initial.params.keys()  # and no statistics
        for name, value in server.items():
            own = [memory[f"scaffold/c/{name}"] for memory in state.memories.values()]
            torch.testing.assert_close(value, sum(own, torch.zeros_like(value)) / 4, rtol=1e-4, atol=1e-6)
    assert flat(server).norm() > 0


@pytest.mark.parametrize("option", ["I", "II"])
def test_after_one_full_batch_step_the_control_is_the_gradient(digits, option):
    budget = Budget(rounds=1, epochs=1, batch_size=1000, momentum=0, weight_decay=0, lr=0.1)
    trial = Trial(
        split(digits, range(30), range(30, 100)), "mlp-small", budget, evaluation=Evaluation(batch_size=13)
    )
    memories = unskew.train(trial, scaffold(option=option)).state.memories
    for client, rows in enumerate((slice(0, 30), slice(30, 100))):
        model = trial.build()
        x = (digits.train.inputs[rows].float() / 255 - digits.mean[0]) / digits.std[0]
        cross_entropy(model(x).logits, digits.train.labels[rows]).backward()
        for name, value in model.named_parameters():
            torch.testing.assert_close(
                memories[client][f"scaffold/c/{name}"], value.grad, rtol=1e-3, atol=1e-5
            )


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_divisor_is_the_effective_number_of_steps(digits, momentum):
    """Check that every control is 1 under a constant gradient of 1, however many steps a client takes."""

    def straight(view):
        return sum(value.sum() for value in view.params.values())

    budget = Budget(
        rounds=3, epochs=2, batch_size=10, lr=0.01, lr_decay=0.5, momentum=momentum, weight_decay=0
    )
    trial = Trial(split(digits, range(95), range(95, 120)), "logistic", budget=budget)
    result = unskew.train(trial, Method(loss=straight) + scaffold())
    for memory in result.state.memories.values():
        control = flat(under("scaffold/c", memory))
        torch.testing.assert_close(control, torch.ones_like(control), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (scaffold(), {}),
        (scaffold(), {"momentum": 0.5, "lr": 0.15}),
        (scaffold(), {"lr_decay": 0.97}),
        (feddyn(alpha=1.0), {}),
    ],
)
def test_many_local_steps_still_reach_the_global_minimum(method, settings):
    """Train two of four clients a round, five steps each."""
    problem = Quadratics()
    result = problem.train(method, rounds=50, cohort=2, **settings)
    assert distance(result, problem.minimum([1 / 4] * 4)) < 1e-3


def test_fedavg_stops_elsewhere():
    problem = Quadratics()
    assert distance(problem.train(fedavg(), rounds=50), problem.minimum([1 / 4] * 4)) > 0.03


def test_what_scaffold_minimises_counts_clients_and_not_samples():
    problem = Quadratics(sizes=(40, 8, 12))
    alike, by_size = problem.minimum([1 / 3] * 3), problem.minimum([40 / 60, 8 / 60, 12 / 60])
    assert np.abs(alike - by_size).max() > 0.05
    for method in (scaffold(), scaffold() + uniform()):
        assert distance(problem.train(method, rounds=25), alike) < 1e-3


def test_scaffold_beside_a_calibrated_loss_and_a_server_optimiser(skewed):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=2, epochs=1))
    method, _ = assemble({"fedlc": {}, "scaffold": {}})
    assert flat(unskew.train(trial, method).weights).isfinite().all()
    base, more = scaffold() + fedavgm(beta=0.5), scaffold() + fedavgm(beta=0.5) + fedprox(mu=0)
    assert same(unskew.train(trial, base).weights, unskew.train(trial, more).weights)
    with pytest.raises(UserError, match="each has its own correction of client drift"):
        assemble({"scaffold": {}, "feddyn": {}})


def test_option_one_says_what_it_differentiates(skewed):
    trial = Trial(skewed, "logistic", budget=Budget(rounds=1, epochs=1))
    assert any("cross-entropy" in note for note in unskew.train(trial, scaffold(option="I")).notes)


# FedDyn


def test_the_servers_state_is_the_mean_of_the_clients_gradients(images):
    federation = split(images.dataset, range(20), [], range(20, 40), [40], range(41, 53))
    trial = Trial(federation, "lenet5-bn", budget=Budget(rounds=5, epochs=1, batch_size=8, cohort=2))
    state = unskew.train(trial, feddyn(alpha=0.2)).state
    h = under("feddyn/h", state.server.memory)
    assert h.keys() == state.server.weights.params.keys()
    for name, value in h.items():
        own = [memory[f"feddyn/g/{name}"] for memory in state.memories.values()]
        torch.testing.assert_close(value, sum(own, torch.zeros_like(value)) / 4, rtol=1e-4, atol=1e-6)
    assert flat(h).norm() > 0


def test_a_first_round_of_feddyn_is_one_of_fedprox_at_the_clients(skewed):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=1, epochs=1))
    engine = engines.start(trial)
    counts = skewed.counts
    dyn, prox = feddyn(alpha=0.3), fedprox(mu=0.3)
    for client in range(5):
        memory = dyn.memory.init(engine.initial, counts[client])
        (one,) = engine.fit(dyn, engine.initial, {}, [job(skewed, client, memory)])
        (other,) = engine.fit(prox, engine.initial, {}, [job(skewed, client)])
        assert same(one.weights, other.weights)
        assert torch.equal(one.loss, other.loss)


def test_at_a_local_minimum_the_memory_is_the_gradient():
    problem = Quadratics()
    method, engine = Method(loss=squared_error) + feddyn(alpha=0.5), engines.start(problem.trial(epochs=60))
    memories = [method.memory.init(engine.initial, problem.federation.counts[k]) for k in range(4)]
    for t in range(2):  # the second time from what was remembered
        jobs = [job(problem.federation, k, memories[k], t) for k in range(4)]
        fits = engine.fit(method, engine.initial, {}, jobs)
        memories = [fit.memory for fit in fits]
        for k, fit in enumerate(fits):
            gradient = problem.gradient(k, matrix(fit.weights.params))
            np.testing.assert_allclose(matrix(under("feddyn/g", fit.memory)), gradient, atol=1e-4)


def test_feddyn_can_weigh_clients_by_their_size():
    problem = Quadratics(sizes=(40, 8, 12))
    alike, by_size = problem.minimum([1 / 3] * 3), problem.minimum([40 / 60, 8 / 60, 12 / 60])
    assert distance(problem.train(feddyn(alpha=0.5), rounds=30), alike) < 1e-3
    assert distance(problem.train(feddyn(alpha=0.5, mean_samples=20), rounds=30), by_size) < 1e-3


def test_feddyn_may_weigh_the_mean_of_models_by_samples(digits):
    """Check FedNTD's form, which weighs by samples in the mean, but not in what the server remembers."""
    parts = [range(20), range(20, 100)]
    budget = Budget(rounds=1, epochs=1, batch_size=100, lr=0.1, momentum=0, weight_decay=0)
    trial = Trial(split(digits, *parts), "mlp-small", budget=budget)
    start = flat(engines.start(trial).initial)
    moves = [
        flat(unskew.train(replace(trial, federation=split(digits, part)), fedprox(mu=0.1)).weights) - start
        for part in parts
    ]
    for average, share in (("uniform", 0.5), ("size", 0.2)):
        result = unskew.train(trial, feddyn(alpha=0.1, serve="corrected", average=average))
        mean = share * moves[0] + (1 - share) * moves[1]
        expected = start + mean + (moves[0] + moves[1]) / 2  # and - h / alpha
        torch.testing.assert_close(flat(result.weights), expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(UserError, match="average is 'samples'"):
        feddyn(average="samples")


def test_feddyn_says_and_serves_the_mean_or_the_corrected_model(skewed):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=2, epochs=1, cohort=2))
    mean, corrected = (unskew.train(trial, feddyn(alpha=0.1, serve=serve)) for serve in ("mean", "corrected"))
    assert same(corrected.weights, corrected.state.server.weights)
    assert same(mean.state.server.weights, corrected.weights)
    correction = flat(under("feddyn/h", mean.state.server.memory)) / 0.1
    torch.testing.assert_close(flat(mean.weights) - correction, flat(corrected.weights), rtol=1e-4, atol=1e-6)
    assert any("mean of the clients" in note for note in mean.notes)
    assert not any("mean of the clients" in note for note in corrected.notes)


# FedCurv


def curved(digits, sizes, **options):
    """Return the method, the state after one round, and what each client sent in it."""
    edges = np.cumsum([0, *sizes])
    federation = split(digits, *(range(a, b) for a, b in pairwise(edges)))
    trial = Trial(federation, "logistic", budget=Budget(rounds=1, epochs=1))
    method, engine = fedcurv(**options), engines.start(trial)
    state = initial_state(method, engine.initial)
    jobs = [
        job(federation, k, method.memory.init(engine.initial, federation.counts[k]))
        for k in range(len(sizes))
    ]
    fits = engine.fit(method, engine.initial, method.server.share(state.server), jobs)
    state, _ = run_round(trial, method, engine, state)
    return method, state, fits


def consolidation(method, state, client, params) -> torch.Tensor:
    """Return the term that the method adds to the loss of a client at these parameters."""
    scope = Scope(
        state.server.weights, torch.ones(10), state.memories[client], method.server.share(state.server)
    )
    prepared = method.memory.prepare(scope, lambda weights, *, grad=False: iter(()))
    scope = Scope(scope.anchor, scope.counts, {**scope.memory, **prepared}, scope.shared)
    nothing = torch.zeros(1, 10)
    (term,) = method.terms
    return term(View(scope, nothing, nothing, params, Out(nothing, nothing), None))


def test_the_expanded_form_is_the_sum_of_quadratics_up_to_a_constant(digits):
    method, state, fits = curved(digits, (40, 30, 20), lam=0.7)
    generator = torch.Generator().manual_seed(0)
    for client in range(3):
        gaps = []
        for _ in range(3):
            w = {
                name: torch.randn(v.shape, generator=generator) for name, v in fits[0].weights.params.items()
            }
            full = sum(
                (fits[j].reported[f"fedcurv/u/{name}"] * (w[name] - fits[j].weights.params[name]) ** 2).sum()
                for j in range(3)
                if j != client
                for name in w
            )
            gaps.append(float(0.7 * full - consolidation(method, state, client, w)))
        assert gaps[0] == pytest.approx(gaps[1], rel=1e-3, abs=1e-3)
        assert gaps[0] == pytest.approx(gaps[2], rel=1e-3, abs=1e-3)


def test_one_other_client_pulls_to_its_own_model(digits):
    method, state, fits = curved(digits, (40, 30))
    w = {name: value.clone().requires_grad_() for name, value in fits[1].weights.params.items()}
    consolidation(method, state, 0, w).backward()
    for value in w.values():
        torch.testing.assert_close(value.grad, torch.zeros_like(value), rtol=0, atol=1e-6)
    away = {name: (value.detach() + 0.1).requires_grad_() for name, value in w.items()}
    consolidation(method, state, 0, away).backward()
    assert sum(value.grad.norm() for value in away.values()) > 0


def test_a_client_alone_is_not_held(digits):
    method, state, fits = curved(digits, (40,))
    assert consolidation(method, state, 0, fits[0].weights.params) == 0


def test_the_fisher_does_not_depend_on_the_order_in_which_samples_lie(digits):
    """Check it on samples in the order of their labels. Without shuffling, a batch would hold one class, its
    gradients would not cancel, and the Fisher would be many times as large."""
    mixed = list(range(300))
    by_label = sorted(mixed, key=lambda row: int(digits.train.labels[row]))
    sizes = []
    for rows in (mixed, by_label):
        budget = Budget(rounds=1, epochs=1, batch_size=300, lr=0.01)
        trial = Trial(split(digits, rows), "logistic", budget=budget, engine="loop")
        (memory,) = unskew.train(trial, fedcurv(samples=300, batch_size=30)).state.memories.values()
        sizes.append(float(flat(under("fedcurv/u", memory)).sum()))
    assert sizes[1] == pytest.approx(sizes[0], rel=0.25)


def test_clients_report_how_their_fisher_has_changed(digits):
    federation = split(digits, range(40), range(40, 90))
    trial = Trial(federation, "logistic", budget=Budget(rounds=2, epochs=1))
    method, engine = fedcurv(), engines.start(trial)
    state, _ = run_round(trial, method, engine, initial_state(method, engine.initial))
    shared = method.server.share(state.server)
    (fit,) = engine.fit(method, state.server.weights, shared, [job(federation, 1, state.memories[1], 1)])
    assert fit.reported.keys() == fit.memory.keys() == shared.keys()
    for name, change in fit.reported.items():
        torch.testing.assert_close(state.memories[1][name] + change, fit.memory[name])
    assert flat(fit.reported).norm() > 0


def test_the_fisher_is_the_mean_of_squared_batch_gradients(digits):
    _, _, (fit,) = curved(digits, (120,), samples=70, batch_size=25)
    model = nn.Linear(64, 10)
    names = dict(zip(model.state_dict(), sorted(fit.weights.params, reverse=True), strict=True))
    model.load_state_dict({mine: fit.weights.params[theirs] for mine, theirs in names.items()})
    x = ((digits.train.inputs[:120].float() / 255 - digits.mean[0]) / digits.std[0]).flatten(1)
    fisher = dict.fromkeys(names, 0.0)
    order = stream(Trial(split(digits, [0]), "logistic").seed, Purpose.LOOK_ORDER, 0, 0).permutation(120)
    for rows in np.split(order[:70], [25, 50]):
        model.zero_grad()
        cross_entropy(model(x[rows]), digits.train.labels[rows]).backward()
        fisher = {name: fisher[name] + value.grad**2 / 3 for name, value in model.named_parameters()}
    for mine, theirs in names.items():
        u, v = (fit.reported[f"fedcurv/{kind}/{theirs}"] for kind in "uv")
        torch.testing.assert_close(u, fisher[mine], rtol=1e-3, atol=1e-7)
        torch.testing.assert_close(v, u * fit.weights.params[theirs])


def test_the_server_keeps_the_sum_of_what_clients_last_computed(skewed):
    trial = Trial(skewed, "logistic", budget=Budget(rounds=4, epochs=1, cohort=2))
    method = fedcurv()
    state = unskew.train(trial, method).state
    shared = method.server.share(state.server)
    assert (
        shared.keys()
        == method.server.share(initial_state(method, engines.start(trial).initial).server).keys()
    )
    assert state.server.memory.keys() == shared.keys()  # two vectors, however many clients there are
    assert len(state.memories) > 2
    for name, value in shared.items():
        own = [memory[name] for memory in state.memories.values()]
        torch.testing.assert_close(value, sum(own), rtol=1e-5, atol=1e-8)
    for client, memory in state.memories.items():
        scope = Scope(state.server.weights, skewed.counts[client], memory, shared)
        prepared = method.memory.prepare(scope, lambda weights, *, grad=False: iter(()))
        assert all((value >= 0).all() for value in under("fedcurv/p", prepared).values())


# FedSAM


def bowl(A):
    """Return a function that gives loss and gradient of 1/2 w'Aw, and the list of points at which it was
    called."""
    points = []

    def gradient(params, /, *, track=True):
        points.append((params["w"].clone(), track))
        return params["w"] @ A @ params["w"] / 2, {"w": A @ params["w"]}

    return gradient, points


def nowhere(**shared) -> Scope:
    return Scope(Weights({}, {}), torch.ones(2), {}, shared)


def test_the_gradient_of_a_quadratic_is_taken_uphill():
    A = torch.tensor([[3.0, 1.0], [1.0, 2.0]])
    w = torch.tensor([0.5, -2.0])
    gradient, points = bowl(A)
    loss, grads = fedsam(rho=0.1).transform(gradient, nowhere())({"w": w})
    up = A @ w
    torch.testing.assert_close(grads["w"], A @ (w + 0.1 * up / up.norm()))
    torch.testing.assert_close(loss, w @ A @ w / 2)
    assert [track for _, track in points] == [True, False]
    assert (points[1][0] - w).norm() == pytest.approx(0.1, rel=1e-5)


def test_the_distance_does_not_depend_on_the_scale_of_the_loss():
    A, w = torch.tensor([[3.0, 1.0], [1.0, 2.0]]), torch.tensor([0.5, -2.0])
    uphill = []
    for scale in (1e-3, 1.0, 1e3):
        gradient, points = bowl(scale * A)
        fedsam(rho=0.1).transform(gradient, nowhere())({"w": w})
        uphill.append(points[1][0])
    torch.testing.assert_close(uphill[0], uphill[1])
    torch.testing.assert_close(uphill[2], uphill[1])


def test_without_a_gradient_there_is_no_uphill():
    gradient, points = bowl(torch.eye(2))
    _, grads = fedsam(rho=0.1).transform(gradient, nowhere())({"w": torch.zeros(2)})
    assert torch.equal(grads["w"], torch.zeros(2))
    assert torch.equal(points[1][0], torch.zeros(2))


def test_one_step_of_fedsam_in_a_round(digits):
    budget = Budget(rounds=1, epochs=1, batch_size=1000, lr=0.1, momentum=0, weight_decay=0.01)
    trial = Trial(split(digits, range(50)), "mlp-small", budget=budget)
    model = trial.build()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    x = (digits.train.inputs[:50].float() / 255 - digits.mean[0]) / digits.std[0]

    def grads():
        model.zero_grad()
        cross_entropy(model(x).logits, digits.train.labels[:50]).backward()
        return {name: value.grad.clone() for name, value in model.named_parameters()}

    first = grads()
    norm = flat(first).norm()
    with torch.no_grad():
        for name, value in model.named_parameters():
            value += 0.3 * first[name] / norm
    second = grads()
    after = unskew.train(trial, fedsam(rho=0.3)).weights.params
    for name, value in before.items():
        torch.testing.assert_close(after[name], value - 0.1 * (second[name] + 0.01 * value))


def test_sam_sees_the_whole_loss():
    """Check the second step, at which a proximal term has a gradient too and changes the direction uphill."""
    problem = Quadratics()
    result = problem.train(fedsam(rho=0.2) + fedprox(mu=2.0) + uniform(), rounds=1, epochs=2, lr=0.1)
    ends = []
    for k in range(4):
        w = np.zeros((4, 2))
        for _ in range(2):
            up = problem.gradient(k, w) + 2.0 * w
            there = w + 0.2 * up / np.linalg.norm(up)
            w = w - 0.1 * (problem.gradient(k, there) + 2.0 * there)
        ends.append(w)
    np.testing.assert_allclose(matrix(result.weights.params), np.mean(ends, axis=0), atol=1e-5)


def test_the_papers_combination_of_fedvls_and_fedsam_trains(skewed):
    method, _ = assemble({"fedvls": {}, "fedsam": {}})
    result = unskew.train(Trial(skewed, "mlp-small", budget=Budget(rounds=2, epochs=1)), method)
    assert flat(result.weights).isfinite().all()


@pytest.mark.parametrize("other", [mofedsam(), fedgf()])
def test_one_place_for_the_gradient(other):
    with pytest.raises(UserError, match="gradient transform"):
        fedsam() + other


# MoFedSAM


def test_without_momentum_mofedsam_is_fedsam(images):
    trial = Trial(images, "lenet5-bn", budget=Budget(rounds=2, epochs=1, batch_size=8))
    assert same(
        unskew.train(trial, fedsam(rho=0.05)).weights, unskew.train(trial, mofedsam(rho=0.05, beta=1)).weights
    )


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_direction_is_a_gradient_whatever_steps_and_learning_rate(digits, momentum):
    """Check D under a constant gradient of 1: it is beta, then beta + (1 - beta) beta, and so on."""

    def straight(view):
        return sum(value.sum() for value in view.params.values())

    budget = Budget(
        rounds=3, epochs=2, batch_size=10, lr=0.01, lr_decay=0.5, momentum=momentum, weight_decay=0
    )
    trial = Trial(split(digits, range(95), range(95, 120)), "logistic", budget=budget)
    result = unskew.train(trial, Method(loss=straight) + mofedsam(beta=0.8))
    direction = flat(under("mofedsam/direction", result.state.server.memory))
    expected = 0.8 + 0.2 * (0.8 + 0.2 * 0.8)
    torch.testing.assert_close(direction, torch.full_like(direction, expected), rtol=1e-4, atol=1e-4)


def test_local_steps_lean_to_the_shared_direction():
    A, w = torch.tensor([[3.0, 1.0], [1.0, 2.0]]), torch.tensor([0.5, -2.0])
    shared = torch.tensor([10.0, 20.0])
    gradient, _ = bowl(A)
    scope = nowhere(**{"mofedsam/direction/w": shared})
    _, grads = mofedsam(rho=0.1, beta=0.7).transform(gradient, scope)({"w": w})
    _, sam = fedsam(rho=0.1).transform(gradient, nowhere())({"w": w})
    torch.testing.assert_close(grads["w"], 0.7 * sam["w"] + 0.3 * shared)
    assert torch.equal(shared, torch.tensor([10.0, 20.0]))


# FedGF


def test_without_its_global_point_fedgf_is_fedsam(images):
    trial = Trial(images, "lenet5-bn", budget=Budget(rounds=3, epochs=1, batch_size=8))
    sam = unskew.train(trial, fedsam(rho=0.05)).weights
    assert same(sam, unskew.train(trial, fedgf(rho=0.05, c=0)).weights)
    assert same(sam, unskew.train(trial, fedgf(rho=0.05, c="threshold", threshold=1e9)).weights)
    assert not same(sam, unskew.train(trial, fedgf(rho=0.05, c="threshold", threshold=0)).weights)


@pytest.mark.parametrize("options", [{}, {"c": "threshold"}])
def test_a_first_round_of_fedgf_is_one_of_fedsam(skewed, options):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=1, epochs=1))
    one, other = unskew.train(trial, fedsam(rho=0.1)), unskew.train(trial, fedgf(rho=0.1, **options))
    assert same(one.weights, other.weights)


def test_the_global_point_lies_at_its_distance_back_on_the_way(skewed):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=1, epochs=1))
    result = unskew.train(trial, fedgf(rho_global=0.25))
    before, after = flat(engines.start(trial).initial), flat(result.weights)
    away = flat(under("fedgf/point", result.state.server.memory)) - after
    assert away.norm() == pytest.approx(0.25, rel=1e-4)
    torch.testing.assert_close(away / 0.25, (before - after) / (before - after).norm(), rtol=1e-3, atol=1e-5)


def test_gradients_are_taken_between_the_two_points():
    A, w, point = torch.tensor([[3.0, 1.0], [1.0, 2.0]]), torch.tensor([0.5, -2.0]), torch.tensor([1.0, 1.0])
    for share in (0.0, 0.3, 1.0):
        gradient, points = bowl(A)
        scope = nowhere(**{"fedgf/point/w": point, "fedgf/c": torch.tensor(share)})
        _, grads = fedgf(rho=0.1).transform(gradient, scope)({"w": w})
        up = A @ w
        there = share * point + (1 - share) * (w + 0.1 * up / up.norm())
        torch.testing.assert_close(grads["w"], A @ there)
        assert [track for _, track in points] == [True, False]
    _, elsewhere = fedgf(rho=0.1).transform(gradient, scope)({"w": w + 5})
    torch.testing.assert_close(elsewhere["w"], grads["w"])  # with c = 1 the current point does not matter


def shares(method: Method, distances: list[float]) -> list[float]:
    """Return c after each of some rounds in which two clients strayed this far on average."""
    weights = Weights({"w": torch.zeros(2)}, {})
    state, path = ServerState(weights, method.server.init(weights)), []
    for far in distances:
        sent = Updates(
            holders=2,
            weight=torch.tensor([0.5, 0.5], dtype=torch.float64),
            delta={"w": torch.tensor([[0.5 * far, 0.0], [0.0, 1.5 * far]])},
            buffers={},
            steps=torch.tensor([1, 1]),
            lr=0.1,
            momentum=0.0,
            reported={},
        )
        state = ServerState(state.weights, {**state.memory, **method.server.note(state, weights, sent)})
        path.append(float(method.server.share(state)["fedgf/c"]))
        point = method.server.share(state)["fedgf/point/w"]
        assert torch.equal(point, torch.zeros(2))  # the model stood still, so there is no way back
    return path


def test_the_share_counts_the_rounds_in_which_clients_strayed():
    assert shares(fedgf(c="threshold", threshold=0.3), [0.4, 0.2, 0.2, 0.5]) == pytest.approx(
        [1, 1 / 2, 1 / 3, 1 / 2]
    )
    assert shares(fedgf(c="threshold", threshold=0.3, window=2), [0.4, 0.2, 0.2, 0.5]) == [1, 0.5, 0, 0.5]
    assert shares(fedgf(c=0.3), [0.4, 0.2]) == pytest.approx([0.3, 0.3])
