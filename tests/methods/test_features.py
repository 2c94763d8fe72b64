"""Methods that act on features: MOON, FedDecorr, FedMR, FPL, FedGELA, BalanceFL's augmentation."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy, mse_loss

import unskew
from federations import job, split, task
from unskew import Budget, Method, Trial, UserError, engines
from unskew.data.augment import normalise
from unskew.methods import (
    balancefl,
    fedavg,
    feddecorr,
    fedgela,
    fedmr,
    fedprox,
    fedsam,
    fedvls,
    fpl,
    moon,
)
from unskew.methods.assemble import assemble
from unskew.methods.fedgela import GelaModel, simplex
from unskew.methods.fpl import prototype_loss
from unskew.parts.finch import cluster_means, finch
from unskew.parts.prototypes import class_means
from unskew.program import Program
from unskew.record import FixedHead
from unskew.testing import check_method
from unskew.types import Memory, Out, Scope, ServerState, Updates, View, Weights


def of_class(dataset, *classes, n, skip=0):
    """Return the first n samples of each of these classes, after `skip` others."""
    where = [(dataset.train.labels == c).nonzero().flatten() for c in classes]
    return [i for rows in where for i in rows[skip : skip + n].tolist()]


def one_step(**changes):
    """Return a budget of one full-batch step without momentum or decay: plain gradient descent."""
    plain = {"rounds": 1, "epochs": 1, "batch_size": 10_000, "lr": 0.3, "momentum": 0, "weight_decay": 0}
    return Budget(**(plain | changes))


def inputs(dataset, rows):
    rows = torch.as_tensor(list(rows))
    return normalise(dataset.train.inputs[rows], dataset.mean, dataset.std), dataset.train.labels[rows]


def smooth_net():
    """Make a network without dead features, so that all correlations are defined."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))


def restless_net():
    """Make a network with BatchNorm and dropout, in which a second pass or a drawn random number leaves a
    trace."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, 10)
    )


def features_of(net, x):
    return net[:-1](x)


def descend(net, loss, lr=0.3):
    """Take one step of gradient descent on a copy."""
    net = copy.deepcopy(net)
    value = loss(net)
    grads = torch.autograd.grad(value, list(net.parameters()))
    with torch.no_grad():
        for parameter, grad in zip(net.parameters(), grads, strict=True):
            parameter -= lr * grad
    return net


def average(nets, weights):
    net = copy.deepcopy(nets[0])
    with torch.no_grad():
        for parameter, *others in zip(*(n.parameters() for n in [net, *nets]), strict=True):
            parameter.copy_(sum(w * other for w, other in zip(weights, others, strict=True)))
    return net


def assert_same_weights(result, net, **tolerance):
    tolerance = {"rtol": 1e-4, "atol": 1e-6} | tolerance
    for name, value in net.named_parameters():
        if value.requires_grad:
            torch.testing.assert_close(result.weights.params[name], value.detach(), **tolerance)


def assert_same_bits(one, other):
    for kind in ("params", "buffers"):
        first, second = getattr(one.weights, kind), getattr(other.weights, kind)
        assert first.keys() == second.keys()
        for name, value in first.items():
            assert torch.equal(value, second[name]), name


def differ(one, other):
    return any(
        not torch.equal(value, other.weights.params[name]) for name, value in one.weights.params.items()
    )


def scope_of(engine, client, weights=None):
    counts = engine.trial.federation.counts[client]
    return Scope(weights or engine.initial, counts, {}, {})


# ------------------------------------------------------------------------------ all of them

VARIANTS = {
    "moon": moon(mu=1.0),
    "moon, three previous models": moon(mu=1.0, buffer=3),
    "moon, projection": moon(mu=1.0, projection="moon"),
    "moon, FedVLS's projection": moon(mu=1.0, projection="fedvls"),
    "feddecorr": feddecorr(),
    "feddecorr, paper": feddecorr(form="paper"),
    "fedmr": fedmr(),
    "fedmr, prototypes": fedmr(mu1=0.01, mu2=1.0),
    "fpl": fpl(),
    "fpl, by size": fpl(average="size"),
    "fpl + fedvls": fpl() + fedvls(),
    "fedgela": fedgela(),
    "fedgela, l2": fedgela(normalise="l2", e_h=4.0),
    "fedgela, none": fedgela(normalise="none"),
    "fedgela + moon": fedgela() + moon(mu=1.0),
    "balancefl": balancefl(),
    "balancefl, official": balancefl(prob="official"),
    "balancefl, weak classes": balancefl(prob="weak-only", p=0.5),
}


@pytest.mark.parametrize("method", VARIANTS.values(), ids=VARIANTS)
def test_it_trains_digits_under_strong_skew(digits, method):
    federation = unskew.federate(digits, "dirichlet:0.05", clients=5, seed=1)
    trial = Trial(federation, "mlp-small", budget=Budget(rounds=3, cohort=3, epochs=1, lr=0.05))
    result = unskew.train(trial, method)
    assert all(value.isfinite().all() for value in result.weights.params.values())
    assert all(math.isfinite(round.train_loss) for round in result.rounds)
    assert result.accuracy["best_by_test"] > 0.2


@pytest.mark.parametrize("method", VARIANTS.values(), ids=VARIANTS)
def test_clients_with_one_class_one_sample_or_none(digits, method):
    several, one, lone = of_class(digits, 0, 1, 2, n=14), of_class(digits, 3, n=9), of_class(digits, 5, n=1)
    clients = (several, one, lone, [], of_class(digits, 6, 7, n=1))
    trial = Trial(split(digits, *clients), "mlp-small", budget=Budget(rounds=3, epochs=1, batch_size=8))
    result = unskew.train(trial, method)
    assert result.rounds[-1].trained == [0, 1, 2, 4]
    assert all(value.isfinite().all() for value in result.weights.params.values())


NEUTRAL = {
    "moon": moon(mu=0.0),
    "moon, two previous models": moon(mu=0.0, buffer=2),
    "feddecorr": feddecorr(beta=0.0),
    "feddecorr, paper": feddecorr(beta=0.0, form="paper"),
    "fedmr": fedmr(mu1=0.0),
    "balancefl": balancefl(p=0.0),
    "balancefl, weak classes": balancefl(prob="weak-only", p=0.0),
}


@pytest.mark.parametrize("method", NEUTRAL.values(), ids=NEUTRAL)
def test_without_its_weight_it_is_fedavg_bit_for_bit(digits, method):
    federation = unskew.federate(digits, "dirichlet:0.1", clients=3, seed=1)
    trial = Trial(federation, restless_net, budget=Budget(rounds=2, epochs=1))
    assert_same_bits(unskew.train(trial, fedavg()), unskew.train(trial, method))


@pytest.mark.parametrize(
    "method",
    [
        moon(mu=1.0, buffer=2),
        feddecorr(form="paper"),
        fedmr(mu1=0.01, mu2=1.0),
        fpl(average="size"),
        fpl() + fedvls(),
    ],
)
def test_other_options_keep_the_laws_too(method):
    check_method(method)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (moon, {"mu": -1.0}, "mu is -1.0 but should be 0 or more"),
        (moon, {"tau": 0.0}, "tau is 0.0 but should be above 0"),
        (moon, {"buffer": 0}, "buffer is 0 but should be at least 1"),
        (moon, {"projection": "mon"}, "did you mean 'moon'"),
        (feddecorr, {"beta": -0.1}, "beta is -0.1 but"),
        (feddecorr, {"form": "cod"}, "did you mean 'code'"),
        (fedmr, {"mu1": -1.0}, "mu1 is -1.0 but"),
        (fedmr, {"mu2": -1.0}, "mu2 is -1.0 but"),
        (fpl, {"tau": -1.0}, "tau is -1.0 but"),
        (fpl, {"average": "sizes"}, "did you mean 'size'"),
        (fedgela, {"temperature": 0.0}, "temperature is 0.0 but"),
        (fedgela, {"e_h": 0.0}, "e_h is 0.0 but"),
        (fedgela, {"normalise": "layer"}, "choose one of batch, l2, none"),
        (balancefl, {"p": 1.5}, "p is 1.5 but should be from 0 to 1"),
        (balancefl, {"prob": "oficial"}, "did you mean 'official'"),
    ],
)
def test_hyperparameters_out_of_range_are_refused(make, options, message):
    with pytest.raises(UserError, match=message):
        make(**options)


# ------------------------------------------------------------------------------ MOON


@pytest.mark.parametrize("buffer", [1, 2])
def test_moon_is_the_printed_loop(digits, buffer):
    """Train three clients, one per round. A client that takes part for the first time remembers the initial
    model."""
    parts = [range(0, 30), range(30, 70), range(70, 120)]
    mu, tau = 2.0, 0.4
    trial = Trial(split(digits, *parts), smooth_net, budget=one_step(rounds=6, cohort=1))
    result = unskew.train(trial, moon(mu=mu, tau=tau, buffer=buffer))

    start = smooth_net()
    now, previous = start, {client: [start] * buffer for client in range(3)}
    for round in result.rounds:
        (client,) = round.cohort
        x, y = inputs(digits, parts[client])

        def loss(net, x=x, y=y, anchor=now, negatives=previous[client]):
            h = features_of(net, x)
            near = torch.exp(cosine_similarity(h, features_of(anchor, x).detach()) / tau)
            far = [torch.exp(cosine_similarity(h, features_of(n, x).detach()) / tau) for n in negatives]
            return cross_entropy(net(x), y) - mu * torch.log(near / (near + sum(far))).mean()

        now = descend(now, loss)
        previous[client] = [now, *previous[client][:-1]]
    assert len({round.cohort[0] for round in result.rounds}) < len(result.rounds)  # somebody came again
    assert_same_weights(result, now)


def test_the_first_round_of_moon_is_fedavg_and_costs_log_two(digits):
    clients = (of_class(digits, 0, 1, 2, n=30), of_class(digits, 2, 3, n=20, skip=30), [5])
    trial = Trial(split(digits, *clients), restless_net, budget=Budget(rounds=1))
    plain, contrasted = unskew.train(trial), unskew.train(trial, moon(mu=3.0))
    assert_same_bits(plain, contrasted)
    extra = contrasted.rounds[0].train_loss - plain.rounds[0].train_loss
    assert extra == pytest.approx(3 * math.log(2), rel=1e-5)
    longer = replace(trial, budget=Budget(rounds=2))
    assert differ(unskew.train(longer), unskew.train(longer, moon(mu=3.0)))


def test_moon_keeps_the_clients_whole_model_and_sends_nothing(digits):
    trial = Trial(split(digits, range(50)), restless_net, budget=Budget(rounds=2))
    result = unskew.train(trial, moon(mu=1.0))
    kept = result.state.memories[0]  # a single client's model is the global one
    expected = {f"moon/0/params/{name}": value for name, value in result.weights.params.items()}
    expected |= {f"moon/0/buffers/{name}": value for name, value in result.weights.buffers.items()}
    assert kept.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(kept[name], value)
    engine = engines.start(trial)
    method = moon(mu=1.0)
    memory = method.memory.init(engine.initial, trial.federation.counts[0])
    (fit,) = engine.fit(method, engine.initial, {}, [job(trial.federation, 0, memory)])
    assert fit.reported == {}


@pytest.mark.parametrize(("projection", "hidden"), [("moon", 64), ("fedvls", 32)])
def test_moon_puts_its_projection_into_a_named_model(digits, projection, hidden):
    trial = Trial(split(digits, range(60), range(60, 90)), "mlp-small", budget=Budget(rounds=2, epochs=1))
    method = moon(mu=0.0, projection=projection)
    assert isinstance(method, Program)
    result = unskew.train(trial, method)
    assert result.weights.params["body.projection.fc1.weight"].shape == (hidden, 64)
    assert result.weights.params["body.projection.fc2.weight"].shape == (256, hidden)
    assert result.weights.params["head.weight"].shape == (10, 256)
    assert any("projection" in note for note in result.notes)
    projected = replace(trial, model_options={"projection": projection})
    assert_same_bits(unskew.train(projected), result)
    heard = []
    unskew.train(trial, method, on_round=heard.append)
    assert [round.number for round in heard] == [1, 2]


def test_moon_cannot_put_its_projection_into_your_module(digits):
    trial = Trial(split(digits, range(20)), smooth_net())
    with pytest.raises(UserError, match="named models only"):
        unskew.train(trial, moon(projection="moon"))
    assert isinstance(moon(), Method)


def test_moon_goes_together_with_other_methods(digits):
    trial = Trial(split(digits, range(60), range(60, 90)), "mlp-small", budget=Budget(rounds=2, epochs=1))
    assert_same_bits(
        unskew.train(trial, fedprox(mu=0.5)), unskew.train(trial, moon(mu=0.0) + fedprox(mu=0.5))
    )
    both, _ = assemble({"fedprox": {"mu": 0.0}, "moon": {"projection": "moon", "mu": 0.0}})
    assert_same_bits(
        unskew.train(replace(trial, model_options={"projection": "moon"})), unskew.train(trial, both)
    )


# ------------------------------------------------------------------------------ FedDecorr


@pytest.mark.parametrize("form", ["code", "paper"])
def test_feddecorr_is_the_printed_step(digits, form):
    trial = Trial(split(digits, range(80)), smooth_net, budget=one_step())
    result = unskew.train(trial, feddecorr(beta=0.7, form=form))
    x, y = inputs(digits, range(80))

    def loss(net):
        h = features_of(net, x)
        correlation = torch.corrcoef(h.T)
        d, batch = len(correlation), len(h)
        if form == "paper":
            return cross_entropy(net(x), y) + 0.7 * correlation.square().sum() / d**2
        off = correlation[~torch.eye(d, dtype=torch.bool)]
        return cross_entropy(net(x), y) + 0.7 * (batch - 1) ** 2 / batch * off.square().mean()

    assert_same_weights(result, descend(smooth_net(), loss))


def test_feddecorr_spreads_features(digits):
    trial = Trial(split(digits, range(100), range(100, 200)), smooth_net, budget=Budget(rounds=3))
    x, _ = inputs(digits, range(200))

    def off_diagonal(result):
        net = smooth_net()
        net.load_state_dict(result.weights.params)
        correlation = torch.corrcoef(features_of(net, x).detach().T)
        return float((correlation - torch.eye(12)).square().mean())

    assert off_diagonal(unskew.train(trial, feddecorr())) < 0.9 * off_diagonal(unskew.train(trial))


# ------------------------------------------------------------------------------ FedMR


def intra_term(h, y):
    """Compute the term class by class, standardised by hand."""
    total, samples = 0.0, 0
    for c in y.unique():
        rows = h[y == c]
        if len(rows) < 2:
            continue
        standard = (rows - rows.mean(0)) / rows.std(0)
        product = standard.T @ standard
        total = total + product[~torch.eye(len(product), dtype=torch.bool)].square().mean()
        samples += len(rows)
    return total / samples


def test_fedmr_is_the_printed_step(digits):
    rows = of_class(digits, 0, 1, 2, n=20) + of_class(digits, 9, n=1)
    trial = Trial(split(digits, rows), smooth_net, budget=one_step())
    x, y = inputs(digits, rows)
    expected = descend(
        smooth_net(), lambda net: cross_entropy(net(x), y) + 0.3 * intra_term(features_of(net, x), y)
    )
    assert_same_weights(unskew.train(trial, fedmr(mu1=0.3)), expected)


def test_fedmr_with_prototypes_is_the_printed_loop(digits):
    """Train two clients for two rounds. They have some classes in common, and neither has class 9."""
    parts = [of_class(digits, 0, 1, 2, n=12), of_class(digits, 2, 3, n=30, skip=12)]
    trial = Trial(split(digits, *parts), smooth_net, budget=one_step(rounds=2))
    result = unskew.train(trial, fedmr(mu1=0.0, mu2=0.8))

    data = [inputs(digits, part) for part in parts]
    sizes = [len(part) for part in parts]
    shares = [size / sum(sizes) for size in sizes]
    start = smooth_net()
    local = [descend(start, lambda net, x=x, y=y: cross_entropy(net(x), y)) for x, y in data]
    first = average(local, shares)
    prototypes = {
        c: torch.cat(
            [features_of(net, x)[y == c].detach() for net, (x, y) in zip(local, data, strict=True)]
        ).mean(0)
        for c in (0, 1, 2, 3)
    }  # the mean over all samples of a class, whoever has them

    def loss(net, x, y):
        h = features_of(net, x)
        margins = []
        for row, label in zip(h, y.tolist(), strict=True):
            own = (row - prototypes[label]).norm()
            others = [(row - g).norm() for c, g in prototypes.items() if c != label]
            margins.append(torch.stack([(own - other).clamp(min=0) for other in others]).mean())
        return cross_entropy(net(x), y) + 0.8 * torch.stack(margins).mean()

    second = average([descend(first, lambda net, x=x, y=y: loss(net, x, y)) for x, y in data], shares)
    assert_same_weights(result, second)
    assert differ(result, unskew.train(trial))


def test_fedmr_keeps_the_prototype_of_a_class_nobody_in_the_cohort_has(digits):
    """Train two clients that take turns. The prototype of a class stays while its client is away."""
    parts = [of_class(digits, 0, n=20), of_class(digits, 1, n=20)]
    trial = Trial(split(digits, *parts), smooth_net, budget=one_step(rounds=1, cohort=1))
    method = fedmr(mu2=1.0)
    after = {}
    for rounds in range(1, 9):
        result = unskew.train(replace(trial, budget=one_step(rounds=rounds, cohort=1)), method)
        memory = result.state.server.memory
        after[rounds] = (result.rounds[-1].cohort[0], memory["fedmr/known"], memory["fedmr/prototypes"])
    for rounds in range(2, 9):
        chosen, known, prototypes = after[rounds]
        _, known_before, before = after[rounds - 1]
        away = 1 - chosen
        assert known[chosen]
        assert known[away] == known_before[away]
        assert torch.equal(prototypes[away], before[away])
        assert not torch.equal(prototypes[chosen], before[chosen])
    assert after[8][1].tolist() == [True, True] + [False] * 8


def test_fedmr_sends_prototypes_only_when_they_are_used(digits):
    trial = Trial(split(digits, range(30)), smooth_net)
    engine = engines.start(trial)
    for method, names in ((fedmr(), set()), (fedmr(mu2=0.1), {"fedmr/prototypes", "fedmr/counts"})):
        (fit,) = engine.fit(method, engine.initial, {}, [job(trial.federation, 0)])
        assert fit.reported.keys() == names
    assert torch.equal(fit.reported["fedmr/counts"], trial.federation.counts[0])


# ------------------------------------------------------------------------------ FPL


def same_partition(one, other):
    return np.array_equal(one[:, None] == one, other[:, None] == other)


def around(*angles):
    return np.stack([[math.cos(a), math.sin(a)] for a in angles])


def test_finch_joins_first_neighbours_and_stops_before_everything_is_one():
    assert finch(around(1.0)).tolist() == [0]
    assert finch(around(0.0, 3.0)).tolist() == [0, 0]
    # Four pairs, of which two and two are near: the second partition is the coarsest with several clusters.
    points = around(0.0, 0.1, 0.5, 0.6, 2.0, 2.1, 2.5, 2.6) * np.arange(1, 9)[:, None]
    assert same_partition(finch(points), np.array([0, 0, 0, 0, 1, 1, 1, 1]))
    # A chain of neighbours is one cluster in the first partition, which is kept.
    assert set(finch(around(0.0, 1.0, 1.9, 2.7))) == {0}
    np.testing.assert_allclose(cluster_means(points, finch(points))[0], points[:4].mean(0))


@settings(max_examples=60)
@given(st.integers(2, 12), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_finch_depends_on_angles_only_and_leaves_nobody_alone(n, d, seed):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n, d + 1))
    labels = finch(points)
    assert np.bincount(labels).min() >= 2
    order = rng.permutation(n)
    assert same_partition(finch(points[order]), labels[order])
    rotation, _ = np.linalg.qr(rng.normal(size=(d + 1, d + 1)))
    assert same_partition(finch(3.0 * points @ rotation), labels)


def random_prototypes(seed, *, B=9, C=5, K=3, d=6, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    known = torch.rand(C, K, generator=g) < 0.6
    known[0] = False  # a class the server does not know
    known[1, 0] = True
    return (
        torch.randn(B, d, generator=g, dtype=dtype),
        torch.randint(0, C, (B,), generator=g),
        torch.randn(C, K, d, generator=g, dtype=dtype),
        known,
    )


@pytest.mark.parametrize("seed", range(5))
def test_prototype_loss_is_the_printed_one_sample_by_sample(seed):
    h, y, prototypes, known = random_prototypes(seed)
    tau, total = 0.3, torch.zeros((), dtype=torch.float64)
    for row, label in zip(h, y.tolist(), strict=True):
        own = [p for p, k in zip(prototypes[label], known[label], strict=True) if k]
        if not own:
            continue
        every = [p for c in range(5) for p, k in zip(prototypes[c], known[c], strict=True) if k]
        e_own = sum(torch.exp(cosine_similarity(row, p, dim=0) / tau) for p in own)
        e_all = sum(torch.exp(cosine_similarity(row, p, dim=0) / tau) for p in every)
        total += -torch.log(e_own / e_all) + mse_loss(row, torch.stack(own).mean(0))
    torch.testing.assert_close(prototype_loss(h, y, prototypes, known, tau=tau), total / len(y))


def test_prototype_loss_limits():
    h, y, prototypes, known = random_prototypes(1)
    one = prototypes[:, :1]
    everybody = torch.ones(5, 1, dtype=torch.bool)
    cosine = torch.stack([cosine_similarity(h, p) for p in one[:, 0]], 1)
    distance = (h - one[y, 0]).square().mean()
    torch.testing.assert_close(  # one prototype per class: cross-entropy over cosines
        prototype_loss(h, y, one, everybody, tau=0.02), cross_entropy(cosine / 0.02, y) + distance
    )
    alone = torch.tensor([[False], [False], [True], [False], [False]])
    twos = torch.full_like(y, 2)
    torch.testing.assert_close(  # only one class known: nothing to contrast with
        prototype_loss(h, twos, one, alone, tau=0.02), (h - one[2, 0]).square().mean()
    )
    at_home = one[2].expand_as(h)
    assert prototype_loss(at_home, twos, one, alone, tau=0.02) == 0
    rotation = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
    torch.testing.assert_close(
        prototype_loss(h @ rotation, y, prototypes @ rotation, known, tau=0.1),
        prototype_loss(h, y, prototypes, known, tau=0.1),
    )
    garbage = torch.where(known.unsqueeze(2), prototypes, torch.nan)
    assert torch.equal(
        prototype_loss(h, y, garbage, known, tau=0.1), prototype_loss(h, y, prototypes, known, tau=0.1)
    )


def test_prototype_loss_of_hard_batches_is_finite():
    h, y, prototypes, known = random_prototypes(2, dtype=torch.float32)
    nobody = torch.zeros_like(known)
    for features in (h, torch.zeros_like(h), 1e6 * h):
        leaf = features.clone().requires_grad_()
        (grad,) = torch.autograd.grad(prototype_loss(leaf, y, prototypes, known, tau=0.02), leaf)
        assert grad.isfinite().all()
    leaf = h.clone().requires_grad_()
    value = prototype_loss(leaf, y, prototypes, nobody, tau=0.02)
    (grad,) = torch.autograd.grad(value, leaf)
    assert value == 0
    assert not grad.any()
    h, y, prototypes, known = random_prototypes(3)
    leaf = h.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: prototype_loss(x, y, prototypes, known, tau=0.5), leaf)


def test_fpl_with_a_single_client_is_the_printed_loop(digits):
    """Train one client. Each of its classes has one prototype, its mean feature after training."""
    rows = range(90)
    trial = Trial(split(digits, rows), smooth_net, budget=one_step(rounds=3))
    result = unskew.train(trial, fpl(tau=0.1))
    x, y = inputs(digits, rows)
    now = descend(smooth_net(), lambda net: cross_entropy(net(x), y))
    for _ in range(2):
        h = features_of(now, x).detach()
        centres = torch.stack([h[y == c].mean(0) for c in range(10)])

        def loss(net, centres=centres):
            f = features_of(net, x)
            cosine = torch.stack([cosine_similarity(f, p.unsqueeze(0)) for p in centres], 1)
            return cross_entropy(net(x), y) + cross_entropy(cosine / 0.1, y) + mse_loss(f, centres[y])

        now = descend(now, loss)
    assert_same_weights(result, now)


def test_the_first_round_of_fpl_is_plain_and_averages_by_size_or_uniformly(digits):
    parts = [range(0, 20), range(20, 100)]
    trial = Trial(split(digits, *parts), smooth_net, budget=one_step())
    assert_same_bits(unskew.train(trial), unskew.train(trial, fpl()))
    local = []
    for part in parts:
        x, y = inputs(digits, part)
        local.append(descend(smooth_net(), lambda net, x=x, y=y: cross_entropy(net(x), y)))
    assert_same_weights(unskew.train(trial, fpl(average="uniform")), average(local, [0.5, 0.5]))
    longer = replace(trial, budget=one_step(rounds=2))
    assert differ(unskew.train(longer), unskew.train(longer, fpl()))


def test_the_server_of_fpl_clusters_what_the_last_cohort_sent():
    """Check six clients: two groups of three have class 0, one client has class 1, and none has class 2."""
    groups = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]).repeat_interleave(3, 0)
    sent = torch.zeros(6, 3, 3)
    sent[:, 0] = groups + 0.05 * torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    sent[4, 1] = torch.tensor([3.0, 2.0, 1.0])
    held = torch.tensor([[True, client == 4, False] for client in range(6)])
    state = ServerState(Weights({}, {}), {"fpl/prototypes": torch.ones(3, 3, 3), "other": torch.ones(1)})
    updates = Updates(
        holders=6,
        weight=torch.full((6,), 1 / 6, dtype=torch.float64),
        delta={},
        buffers={},
        steps=torch.ones(6, dtype=torch.int64),
        lr=0.1,
        momentum=0.0,
        reported={"fpl/prototypes": sent, "fpl/known": held},
    )
    noted = fpl().server.note(state, state.weights, updates)
    prototypes, known = noted["fpl/prototypes"], noted["fpl/known"]
    assert known.tolist() == [[True, True, False], [True, False, False], [False, False, False]]
    expected = torch.stack([sent[:3, 0].mean(0), sent[3:, 0].mean(0)])
    torch.testing.assert_close(prototypes[0, :2], expected)
    torch.testing.assert_close(prototypes[1, 0], sent[4, 1])
    assert fpl().server.share(replace(state, memory={**state.memory, **noted})).keys() == noted.keys()


def test_class_means_over_several_batches(digits):
    rows = of_class(digits, 0, 4, n=7)
    trial = Trial(split(digits, rows), smooth_net, evaluation=unskew.Evaluation(batch_size=3))
    engine = engines.start(trial)
    means = class_means(engine.look(task(trial.federation, 0), engine.initial), 10)
    x, y = inputs(digits, rows)
    h = features_of(smooth_net(), x).detach()
    for c in range(10):
        expected = h[y == c].mean(0) if c in (0, 4) else torch.zeros(12)
        torch.testing.assert_close(means[c], expected)


def test_fpl_goes_together_with_fedvls(digits):
    clients = (of_class(digits, 0, 1, 2, n=30), of_class(digits, 2, 3, n=20, skip=30), [5])
    trial = Trial(split(digits, *clients), "mlp-small", budget=Budget(rounds=1))
    both = fpl() + fedvls()
    assert_same_bits(unskew.train(trial, fedvls()), unskew.train(trial, both))
    longer = replace(trial, budget=Budget(rounds=3))
    result = unskew.train(longer, both)
    assert differ(result, unskew.train(longer, fedvls()))
    assert differ(result, unskew.train(longer, fpl()))


# ------------------------------------------------------------------------------ FedGELA


@settings(max_examples=30)
@given(st.integers(2, 12), st.integers(0, 20), st.integers(0, 2**31))
def test_a_simplex_has_unit_vectors_at_equal_angles(C, more, seed):
    M = simplex(C + more, C, seed)
    expected = C / (C - 1) * (torch.eye(C) - 1 / C)
    torch.testing.assert_close(M @ M.T, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(M.sum(0), torch.zeros(C + more), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["batch", "l2", "none"])
@pytest.mark.parametrize("model", ["mlp-small", "own module", "own function"])
@pytest.mark.parametrize("clip", [0.0, 0.5, 20.0])
def test_fedgela_is_the_printed_step(digits, kind, model, clip):
    """Train a skewed client with 24 samples of class 0, 8 of class 1, and none of the others."""
    rows = of_class(digits, 0, n=24) + of_class(digits, 1, n=8)
    chosen = {"mlp-small": "mlp-small", "own module": smooth_net(), "own function": smooth_net}[model]
    trial = Trial(split(digits, rows), chosen, budget=one_step())
    result = unskew.train(trial, fedgela(temperature=0.5, normalise=kind, e_h=2.0, clip=clip))

    body = trial.build().body if model == "mlp-small" else smooth_net()[:-1]
    norm = nn.BatchNorm1d(64 if model == "mlp-small" else 12)
    frozen = [value for value in result.weights.buffers.values() if value.ndim == 2]
    (M,) = frozen
    x, y = inputs(digits, rows)

    def features():
        h = body(x)
        if kind == "batch":
            return norm(h)
        return math.sqrt(2.0) * h / h.norm(dim=1, keepdim=True) if kind == "l2" else h

    phi = torch.tensor([10 * 24 / 32, 10 * 8 / 32] + [0.0] * 8)
    logits = torch.stack([phi[c] * (features() @ M[c]) / 0.5 for c in range(10)], 1)
    trained = [*body.parameters()] + ([*norm.parameters()] if kind == "batch" else [])
    for p, g in zip(trained, torch.autograd.grad(cross_entropy(logits, y), trained), strict=True):
        p.grad = g
    if clip:
        norm_before = nn.utils.clip_grad_norm_(trained, clip)
        assert norm_before > 0.5
    expected = [(p - 0.3 * p.grad).detach() for p in trained]
    assert len(result.weights.params) == len(expected)
    for value, wanted in zip(result.weights.params.values(), expected, strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-4, atol=1e-6)


def test_fedgela_clips_what_other_methods_make_of_a_gradient(digits):
    """Combine it with FedSAM: the gradient uphill is scaled, and the step is as long as the bound."""
    rows = of_class(digits, 0, n=24) + of_class(digits, 1, n=8)
    trial = Trial(split(digits, rows), "mlp-small", budget=one_step())
    start = GelaModel(trial, FixedHead("none", 1.0))()
    moves = {}
    for clip in (0.0, 0.01):
        method = fedgela(normalise="none", clip=clip) + fedsam(rho=0.5)
        after = unskew.train(trial, method).weights.params
        moves[clip] = torch.cat(
            [(value - start.get_parameter(n).detach()).flatten() for n, value in after.items()]
        )
    assert moves[0.01].norm() == pytest.approx(0.3 * 0.01, rel=1e-3)
    assert torch.nn.functional.cosine_similarity(moves[0.0], moves[0.01], dim=0) > 0.999
    with pytest.raises(UserError, match="clip is -1"):
        fedgela(clip=-1.0)


def test_the_classifier_of_fedgela_never_moves_and_follows_the_seed(digits):
    trial = Trial(
        split(digits, range(40), range(40, 100)), "mlp-small", budget=Budget(rounds=2, weight_decay=0.1)
    )
    results = [unskew.train(replace(trial, seed=seed), fedgela()) for seed in (1, 2)]
    heads = [result.weights.buffers["head.weight"] for result in results]
    for seed, head in zip((1, 2), heads, strict=True):
        start = GelaModel(replace(trial, seed=seed), FixedHead("batch", 1.0))()
        assert torch.equal(head, start.head.weight)
        assert "head.weight" not in results[0].weights.params
    assert not torch.allclose(heads[0], heads[1])
    same_body = GelaModel(trial, FixedHead("none", 1.0))().body.body
    for name, value in trial.build().body.named_parameters():
        assert torch.equal(value, dict(same_body.named_parameters())[name])


def test_a_balanced_client_of_fedgela_trains_what_is_tested(digits):
    """Check that equal class shares scale nothing, so that the loss at temperature 1 is that of the global
    logits."""
    rows = of_class(digits, *range(10), n=6)
    trial = Trial(split(digits, rows), "mlp-small", budget=one_step())
    fixed = replace(trial, model=GelaModel(trial, FixedHead("l2", 1.0)))
    scaled = unskew.train(trial, fedgela(temperature=1.0, normalise="l2"))
    plain = unskew.train(fixed)
    assert_same_weights(scaled, with_weights(fixed.build(), plain.weights))
    assert scaled.final.loss == pytest.approx(plain.final.loss, rel=1e-5)


def with_weights(module, weights):
    module.load_state_dict(weights.params | weights.buffers)
    return module


def test_fedgela_is_tested_without_the_clients_scales(digits):
    rows = of_class(digits, 0, n=24) + of_class(digits, 1, n=8)
    trial = Trial(split(digits, rows), "mlp-small", budget=one_step())
    result = unskew.train(trial, fedgela(normalise="none"))
    model = with_weights(GelaModel(trial, FixedHead("none", 1.0))(), result.weights).eval()
    x = normalise(digits.test.inputs, digits.mean, digits.std)
    with torch.no_grad():
        h = model.body(x)
        expected = cross_entropy(h @ model.head.weight.T, digits.test.labels)
    assert result.final.loss == pytest.approx(float(expected), rel=1e-5)


def test_fedgela_takes_a_bare_linear_layer_and_says_what_it_cannot_take(digits):
    table = unskew.data.from_arrays(
        np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32),
        np.arange(40) % 4,
        np.random.default_rng(1).normal(size=(8, 6)).astype(np.float32),
        np.arange(8) % 4,
        name="table",
    )
    result = unskew.train(Trial(split(table, range(40)), nn.Linear(6, 4), budget=one_step()), fedgela())
    assert set(result.weights.params) == {"norm.weight", "norm.bias"}
    trial = Trial(split(digits, range(20)), "logistic", budget=one_step())
    with pytest.raises(UserError, match="only layer of this model that is trained"):
        unskew.train(trial, fedgela(normalise="l2"))
    with pytest.raises(UserError, match="has 8 for 10"):
        unskew.train(replace(trial, model="mlp-small", model_options={"hidden": [8]}), fedgela())
    with pytest.raises(UserError, match="ends in a linear layer"):
        unskew.train(replace(trial, model=nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())), fedgela())
    with pytest.raises(UserError, match="cannot be combined"):
        fedgela() + fedvls()


def test_fedgela_says_that_its_model_is_another(digits):
    trial = Trial(split(digits, range(20)), "mlp-small", budget=one_step())
    assert any("last layer is fixed" in note for note in unskew.train(trial, fedgela()).notes)


# ------------------------------------------------------------------------------ BalanceFL


class Watching:
    """The passes of a view, which remember the input of the classifier."""

    def __init__(self):
        self.features = None

    def frozen(self, weights, inputs):
        raise AssertionError("no pass is expected")

    def classify(self, params, features):
        self.features = features
        return features[:, :3]


def prepared(trial, method, client=0, weights=None):
    engine = engines.start(trial)
    scope = scope_of(engine, client, weights)
    return method.memory.prepare(scope, partial(engine.look, task(trial.federation, client)))


def scatter(h, y):
    """Compute the scatter within classes, sample by sample."""
    total = torch.zeros(h.shape[1], h.shape[1], dtype=torch.float64)
    for c in y.unique():
        rows = h[y == c].double()
        for row in rows - rows.mean(0):
            total += torch.outer(row, row)
    return total


@pytest.mark.parametrize("n", [3, 25])
def test_the_factor_is_that_of_the_scatter_within_classes(digits, n):
    """Check it also with fewer samples than dimensions."""
    rows = [*of_class(digits, 0, 1, n=n), *of_class(digits, 5, n=1)]
    trial = Trial(split(digits, rows), smooth_net, evaluation=unskew.Evaluation(batch_size=4))
    factor = prepared(trial, balancefl())["balancefl/factor"]
    x, y = inputs(digits, rows)
    expected = scatter(features_of(smooth_net(), x).detach(), y) / len(rows)
    assert factor.shape == (12, 12)
    torch.testing.assert_close((factor.T @ factor).double(), expected, rtol=1e-4, atol=1e-6)


def augmented(memory, h, y, method):
    passes = Watching()
    scope = Scope(Weights({}, {}), torch.tensor([4, 2, 1]), memory, {})
    torch.manual_seed(0)
    method.loss(View(scope, h, y, {}, Out(h, h[:, :3]), passes))
    return passes.features - h


def test_deviations_have_the_covariance_and_the_frequency_that_were_asked_for():
    g = torch.Generator().manual_seed(1)
    factor = torch.randn(4, 4, generator=g)
    y = torch.arange(3).repeat(20_000)
    h = torch.randn(len(y), 4, generator=g)
    memory = {"balancefl/factor": factor, "balancefl/prob": torch.tensor([1.0, 0.25, 0.0])}
    deviation = augmented(memory, h, y, balancefl())
    moved = deviation.abs().sum(1) > 0
    assert moved[y == 0].all()
    assert not moved[y == 2].any()
    assert moved[y == 1].float().mean() == pytest.approx(0.25, abs=0.02)
    covariance = torch.cov(deviation[moved].T)
    torch.testing.assert_close(covariance, factor.T @ factor, rtol=0.05, atol=0.1)
    torch.testing.assert_close(deviation[moved].mean(0), torch.zeros(4), rtol=0, atol=0.05)


def test_features_that_do_not_vary_are_not_moved(digits):
    """Train on one sample per class: without variation within classes this is plain training, bit for bit."""
    trial = Trial(
        split(digits, of_class(digits, *range(6), n=1)), "mlp-small", budget=Budget(rounds=2, batch_size=4)
    )
    assert_same_bits(unskew.train(trial), unskew.train(trial, balancefl()))


def test_the_official_rule_spares_the_most_frequent_class_and_balanced_clients(digits):
    rows = of_class(digits, 0, n=20) + of_class(digits, 1, n=5)
    trial = Trial(split(digits, rows), "mlp-small", budget=Budget(rounds=2, epochs=1))
    chance = prepared(trial, balancefl(prob="official"))["balancefl/prob"]
    assert chance[:2].tolist() == [0.0, 0.75]
    balanced = replace(trial, federation=split(digits, of_class(digits, *range(10), n=8)))
    plain = unskew.train(balanced)
    assert_same_bits(plain, unskew.train(balanced, balancefl(prob="official")))
    assert differ(plain, unskew.train(balanced, balancefl()))
    assert differ(unskew.train(trial), unskew.train(trial, balancefl(prob="official")))


def test_weak_classes_are_those_the_received_model_knows_less_well(digits):
    rows = of_class(digits, 0, 1, 2, 3, 7, n=15)
    trial = Trial(split(digits, rows), smooth_net, budget=one_step(epochs=4))
    weights = unskew.train(trial).weights
    chance = prepared(trial, balancefl(prob="weak-only", p=0.5), weights=weights)["balancefl/prob"]
    net = with_weights(smooth_net(), weights)
    x, y = inputs(digits, rows)
    right = net(x).argmax(1) == y
    recall = {c: float(right[y == c].float().mean()) for c in (0, 1, 2, 3, 7)}
    mean = sum(recall.values()) / 5
    expected = [0.5 if c in recall and recall[c] < mean else 0.0 for c in range(10)]
    assert chance.tolist() == expected
    assert 0 < sum(expected) < 2.5


def test_deviations_depend_on_the_client_not_on_who_ran_before(digits):
    trial = Trial(split(digits, range(0, 30), range(30, 60), range(60, 90)), restless_net)
    engine = engines.start(trial)
    jobs = [job(trial.federation, client) for client in range(3)]
    method = balancefl()
    forward = engine.fit(method, engine.initial, {}, jobs)
    backward = engine.fit(method, engine.initial, {}, jobs[::-1])[::-1]
    for one, other in zip(forward, backward, strict=True):
        assert all(torch.equal(v, other.weights.params[name]) for name, v in one.weights.params.items())
        assert one.memory == {}  # nothing outlives the round
        assert one.reported == {}


def test_balancefl_goes_together_with_terms_and_not_with_another_loss(digits):
    assert isinstance(balancefl() + moon(mu=1.0), Method)
    assert (balancefl(p=0.0) + moon()).memory != Memory()
    with pytest.raises(UserError, match="classification loss"):
        balancefl() + fedvls()
