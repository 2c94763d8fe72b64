"""Server parts that trust no single client, by hand and under attack."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm

import unskew
from federations import flat, split
from unskew import Budget, Method, Trial, UserError, federate, load_model
from unskew.attacks import Attack
from unskew.methods import (
    METHODS,
    clip,
    dp,
    ema,
    fedavgm,
    fedlmd,
    geometric_median,
    krum,
    median,
    moon,
    nnm,
    scaffold,
    trimmed_mean,
    uniform,
)
from unskew.methods.assemble import assemble
from unskew.methods.dp import noisy_mean
from unskew.parts.accounting import epsilon
from unskew.testing import check_method, hard_trial, normed_model
from unskew.types import Server, ServerState, Updates, Weights

RULES = {
    "clip": clip(),
    "nnm+median": nnm() + median(),
    "median": median(),
    "trimmed-mean": trimmed_mean(),
    "krum": krum(),
    "multi-krum": krum(m=3),
    "geometric-median": geometric_median(),
}


def updates(delta, *, weight=None, buffers=None) -> Updates:
    """Make updates of clients whose whole model is two tensors: the first column of their rows, and the
    others."""
    rows = torch.tensor(delta, dtype=torch.float32)
    m = len(rows)
    return Updates(
        holders=m,
        weight=torch.tensor([1 / m] * m if weight is None else weight, dtype=torch.float64),
        delta={"bias": rows[:, 0], "w": rows[:, 1:]},
        buffers=buffers or {},
        steps=torch.ones(m, dtype=torch.int64),
        lr=0.1,
        momentum=0.0,
        reported={},
    )


def combined(method: Method, sent: Updates) -> list[float]:
    """Return the server's combination of the cohort's updates."""
    weights = Weights({name: torch.zeros_like(rows[0]) for name, rows in sent.delta.items()}, {})
    state = ServerState(weights, method.server.init(weights))
    delta = method.server.combine(state, method.server.revise(state, sent))
    return [delta["bias"].item(), *delta["w"].tolist()]


# By hand


@pytest.mark.parametrize(
    ("method", "delta", "expected"),
    [
        (median(), [[1, 10], [2, -5], [100, 0]], [2, 0]),
        (median(), [[1, 10], [2, -5], [100, 0], [4, 4]], [3, 2]),
        (trimmed_mean(), [[1, 9], [2, 8], [3, 7], [4, 6], [1e6, -1e6]], [3, 7]),
        (trimmed_mean(fraction=0.4), [[1, 9], [2, 8], [3, 7], [4, 6], [1e6, -1e6]], [3, 7]),
        (trimmed_mean(fraction=0), [[1, 0], [2, 0], [6, 3]], [3, 1]),
        # f = 1, so two neighbours: the scores are 3.25, 1.25, 2.5, 6.25 and far away.
        (krum(), [[0, 0], [1, 0], [1.5, 0], [3, 0], [100, 0]], [1, 0]),
        (krum(m=2), [[0, 0], [1, 0], [1.5, 0], [3, 0], [100, 0]], [1.25, 0]),
        (krum(m=9), [[0, 0], [1, 0], [1.5, 0], [3, 0], [4.5, 5]], [2, 1]),
        (krum(), [[7, 1]], [7, 1]),
        (geometric_median(), [[0, 0], [1, 0], [10, 0]], [1, 0]),
        (geometric_median(steps=50), [[0, 0], [6, 0], [3, math.sqrt(27)]], [3, math.sqrt(3)]),
        # f = 1: each with its nearest; 0 and 1 become 0.5, 10 becomes 5.5, and their mean is 6.5 / 3.
        (nnm(fraction=0.34), [[0, 0], [1, 0], [10, 0]], [6.5 / 3, 0]),
        (nnm(fraction=0.34) + median(), [[0, 0], [1, 0], [10, 0]], [0.5, 0]),
        # Norms 3, 4 and 50: the median is 4.
        (clip(), [[3, 0], [0, 4], [30, 40]], [(3 + 2.4) / 3, (4 + 3.2) / 3]),
        (clip(factor=2), [[3, 0], [0, 4], [30, 40]], [(3 + 4.8) / 3, (4 + 6.4) / 3]),
        (clip(bound=2), [[1, 0], [0, 4], [30, 40]], [(1 + 1.2) / 3, (2 + 1.6) / 3]),
        (clip(bound=100), [[0, 0], [0, 4], [30, 40]], [10, 44 / 3]),
        (clip(bound=5) + median(), [[1, 0], [0, 4], [30, 40]], [1, 4]),
    ],
)
def test_rules_in_numbers(method, delta, expected):
    assert combined(method, updates(delta)) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_the_geometric_median_is_where_the_pulls_cancel():
    delta = np.random.default_rng(0).normal(size=(7, 4))
    weight = np.array([4, 1, 1, 2, 1, 1, 2]) / 12
    found = combined(geometric_median(steps=200, weighting="size"), updates(delta, weight=weight))
    gap = delta - np.array(found)
    pull = weight[:, None] * gap / np.linalg.norm(gap, axis=1, keepdims=True)
    assert np.abs(pull.sum(axis=0)).max() < 1e-4
    assert combined(geometric_median(), updates(delta)) != pytest.approx(found, abs=1e-3)


def test_who_holds_more_weighs_more_where_a_rule_says_so():
    delta, weight = [[1, 0], [2, 0], [4, 0]], [0.8, 0.1, 0.1]
    assert combined(clip(bound=9), updates(delta, weight=weight)) == pytest.approx([1.4, 0])
    assert combined(geometric_median(weighting="size"), updates(delta, weight=weight)) == pytest.approx(
        [1, 0], abs=1e-4
    )
    for method in (median(), trimmed_mean(), geometric_median(), krum(m=3)):
        one, other = (combined(method, updates(delta, weight=each)) for each in (weight, None))
        assert one == other


@pytest.mark.parametrize("name", ["median", "trimmed-mean", "krum", "multi-krum", "geometric-median"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e38])
def test_a_row_that_is_not_finite_is_as_if_it_were_not_there(name, bad):
    honest = np.random.default_rng(1).normal(size=(5, 3)).tolist()
    spoilt = [*honest[:2], [0, bad, 0], *honest[2:]]
    plain = combined(RULES[name], updates(honest))
    assert combined(RULES[name], updates(spoilt)) == pytest.approx(plain, rel=1e-5)
    assert np.isfinite(combined(RULES[name], updates([[bad, 0, bad]] * 3))).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e38])
def test_a_row_that_is_not_finite_is_neither_mixed_nor_clipped(bad):
    assert combined(nnm(fraction=0), updates([[1, 2], [bad, 0]])) == pytest.approx([1, 2])
    assert combined(clip(bound=9), updates([[1, 2], [bad, 0]])) == pytest.approx([0.5, 1])
    assert combined(clip(), updates([[1, 2], [bad, 0]])) == pytest.approx([0.5, 1])


@pytest.mark.parametrize("name", RULES)
def test_no_client_alone_moves_the_statistics_of_batch_norm(name):
    """Check a client whose parameters look like the others', but whose statistics do not."""
    mean = torch.tensor([[1.0, 2.0], [1.2, 2.2], [-1e9, math.nan], [1.1, 2.1]])
    steps = torch.tensor([3, 4, 2**60, 5])
    sent = updates([[1, 0]] * 4, buffers={"mean": mean, "steps": steps})
    before = {"mean": torch.zeros(2), "steps": torch.tensor(0)}
    after = RULES[name].server.buffers(before, sent)
    assert after["mean"].tolist() == pytest.approx([1.1, 2.1])
    assert after["steps"] == 4
    lost = replace(sent, buffers={"mean": mean[2:3], "steps": steps[2:3]})
    assert RULES[name].server.buffers(before, lost)["mean"].tolist() == [0, 0]


@pytest.mark.parametrize("method", [krum(m=3), clip() + nnm() + median()])
def test_laws_hold_for_other_options_too(method):
    check_method(method)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (clip, {"bound": 0}),
        (clip, {"factor": 0}),
        (nnm, {"fraction": 0.5}),
        (trimmed_mean, {"fraction": -0.1}),
        (krum, {"fraction": 0.5}),
        (krum, {"m": 0}),
        (geometric_median, {"steps": 0}),
        (geometric_median, {"nu": 0}),
        (geometric_median, {"weighting": "sizes"}),
        (dp, {"clip": 0}),
        (dp, {"noise_multiplier": -1}),
        (dp, {"delta": 1}),
    ],
)
def test_options_out_of_range_are_refused(make, options):
    with pytest.raises(UserError, match=f"^{next(iter(options))} is .* but should be"):
        make(**options)


def test_a_factor_without_a_median_is_refused():
    with pytest.raises(UserError, match="leave it out with a bound"):
        clip(bound=1.0, factor=2.0)


# Under attack


@pytest.fixture(scope="module")
def alike(digits) -> unskew.Federation:
    return federate(digits, "iid", clients=10, seed=1)


@pytest.fixture(scope="module")
def honest(alike) -> float:
    """Return the accuracy of FedAvg without an attack."""
    return accuracy(alike, Method(), "none")


def accuracy(federation, method, attack: str, model="logistic") -> float:
    budget = Budget(rounds=3, epochs=2, lr=0.1)
    trial = Trial(federation, model, budget=budget, attack=Attack.parse(attack), engine="loop")
    return unskew.train(trial, method).accuracy["last"]


@pytest.mark.parametrize("attack", ["sign-flip:scale=10", "noise:scale=10", "nan", "label-flip:fraction=0.3"])
def test_rules_withstand_what_the_mean_does_not(alike, honest, attack):
    assert honest > 0.88
    if attack.startswith("label-flip"):  # it costs the mean some, and not all
        assert accuracy(alike, Method(), attack) < honest - 0.015
    elif attack == "nan":  # whoever sends it is left out
        assert accuracy(alike, Method(), attack) > honest - 0.03
    else:
        assert accuracy(alike, Method(), attack) < 0.5
    fraction = 0.3 if attack.startswith("label-flip") else 0.2
    for method in (
        median(),
        trimmed_mean(fraction=fraction),
        krum(fraction=fraction, m=5),
        geometric_median(),
        nnm(fraction=fraction) + trimmed_mean(fraction=fraction),
    ):
        assert accuracy(alike, method, attack) > honest - 0.03


def test_clipped_attackers_pull_no_harder_than_others(alike):
    assert accuracy(alike, clip(), "sign-flip:scale=100") > 0.85


@pytest.mark.parametrize(
    "name", ["fedvls+median", "scaffold+clip", "fedlmd+krum+ema", "moon+nnm+trimmed-mean"]
)
def test_they_go_with_client_methods_and_servers(alike, name):
    method, _ = assemble({part: {} for part in name.split("+")})
    assert accuracy(alike, method, "sign-flip:scale=5") > 0.6


def test_statistics_of_batch_norm_survive_an_attack_on_them():
    """Check negative variances, which a mean would pass on."""
    trial = replace(hard_trial(normed_model), attack=Attack("sign-flip", fraction=0.2, scale=50.0))
    plain, robust = (unskew.train(trial, method).weights.buffers for method in (Method(), median()))
    assert (plain["1.running_var"] < 0).any()
    assert (robust["1.running_var"] > 0).all()


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (["median", "krum"], "aggregation rule"),
        (["trimmed-mean", "fednova"], "aggregation rule"),
        (["feddyn", "geometric-median"], "aggregation rule"),
        (["dp", "median"], "aggregation rule"),
        (["dp", "feddyn"], "aggregation rule"),
        (["dp", "pkd"], "stages of its own"),
    ],
)
def test_two_rules_for_one_thing_are_refused(parts, reason):
    for order in (parts, parts[::-1]):
        with pytest.raises(UserError, match=reason):
            assemble({part: {} for part in order})


def test_a_rule_of_ones_own_for_buffers_is_the_only_one():
    own = Method(server=Server(buffers=lambda before, updates: before))
    with pytest.raises(UserError, match="aggregation rule for buffers"):
        own + median()


def test_the_order_of_what_revises_updates_is_that_in_which_it_is_written():
    delta = [[1, 0], [0, 2], [30, 40], [2, 2], [1, 1]]
    one, other = (
        combined(method, updates(delta)) for method in (clip(bound=1) + nnm(), nnm() + clip(bound=1))
    )
    assert one != pytest.approx(other, rel=1e-3)


# Differential privacy


def private_trial(federation, **more) -> Trial:
    return Trial(federation, "logistic", **{"budget": Budget(rounds=3, epochs=1), "engine": "loop", **more})


def test_the_private_mean_in_numbers(alike):
    trial = private_trial(alike, budget=Budget(cohort=4))
    sent = updates([[3, 4], [0.3, 0.4], [math.nan, 1]])
    mean = noisy_mean(sent, trial, 0, clip=1.0, noise_multiplier=0.0)
    # Divided by the cohort, of which one had nothing to send.
    assert mean["bias"].item() == pytest.approx((0.6 + 0.3) / 4)
    assert mean["w"].tolist() == pytest.approx([(0.8 + 0.4) / 4])


def test_noise_follows_from_the_seed_and_the_round(alike):
    trial, sent = private_trial(alike), updates(torch.zeros(3, 20_001).tolist())

    def noise(trial, round):
        return noisy_mean(sent, trial, round, clip=0.5, noise_multiplier=4.0)["w"]

    first = noise(trial, 0)
    assert first.std().item() == pytest.approx(4.0 * 0.5 / 10, rel=0.03)
    assert abs(first.mean().item()) < 0.01
    assert torch.equal(first, noise(trial, 0))
    assert not torch.equal(first, noise(trial, 1))
    assert not torch.equal(first, noise(replace(trial, seed=2), 0))


def test_without_clipping_or_noise_it_is_the_plain_mean(alike):
    trial = private_trial(alike)
    private = unskew.train(trial, dp(clip=1e9, noise_multiplier=0))
    torch.testing.assert_close(flat(private.weights), flat(unskew.train(trial, uniform()).weights))
    assert any("no privacy" in note for note in private.notes)


def test_servers_work_on_the_private_mean(alike):
    trial = private_trial(alike)
    one = unskew.train(trial, fedlmd() + fedavgm() + dp(noise_multiplier=0.1) + ema())
    other = unskew.train(trial, dp(noise_multiplier=0.1) + ema() + fedavgm() + fedlmd())
    assert torch.equal(flat(one.weights), flat(other.weights))


def budgeted(**more) -> float:
    plain = {"noise_multiplier": 2.0, "rounds": 20, "cohort": 10, "clients": 10, "delta": 1e-5}
    return epsilon(**{**plain, "amplified": True, **more})


def test_epsilon_of_everybody_in_every_round_is_the_exact_one():
    """Compare with Balle and Wang's formula of one Gaussian mechanism, which is equivalent to all rounds
    together."""
    eps, mu = budgeted(), 2 * math.sqrt(20) / 2.0
    delta = norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * norm.cdf(-mu / 2 - eps / mu)
    assert delta == pytest.approx(1e-5, rel=1e-3)


def test_epsilon_grows_with_rounds_and_falls_with_noise_and_sampling():
    assert budgeted(rounds=10) < budgeted() < budgeted(rounds=40)
    assert budgeted(noise_multiplier=4.0) < budgeted()
    assert budgeted(clients=1000) < budgeted(clients=100) < budgeted()
    assert budgeted(clients=1000, amplified=False) == budgeted()


def told(federation, method, **more) -> float:
    """Return the epsilon in the notes of a result."""
    (note,) = [note for note in unskew.train(private_trial(federation, **more), method).notes if "ε" in note]
    return float(note.split("ε = ")[1].split(" ")[0])


def test_drawing_hides_nothing_where_clients_remember(alike):
    few = {"budget": Budget(rounds=3, epochs=1, cohort=2)}
    everybody, drawn = told(alike, dp()), told(alike, dp(), **few)
    assert drawn < everybody
    assert told(alike, moon() + dp(), **few) == everybody
    assert told(alike, dp(), **few, statistics="local") == everybody
    kept = Budget(rounds=3, epochs=1, cohort=2, optimizer_state="kept")
    assert told(alike, dp(), budget=kept) == everybody


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (scaffold(option="I"), "also report 'scaffold/change"),
        (METHODS["fedcurv"](), "also report 'fedcurv/u"),
        (METHODS["logit-adjustment"](prior="global"), "also report 'logit-adjustment/change'"),
        (METHODS["mofedsam"](), "number of local steps"),
        (clip(), "leave clip or nnm out"),
        (nnm(), "leave clip or nnm out"),
    ],
)
def test_what_would_leave_unprotected_is_refused(alike, method, reason):
    with pytest.raises(UserError, match=reason):
        unskew.train(private_trial(alike), method + dp())


def test_statistics_of_batch_norm_may_not_leave(digits):
    trial = hard_trial(normed_model)
    with pytest.raises(UserError, match=r"model\.statistics to local or batch"):
        unskew.train(trial, dp())
    for statistics in ("local", "batch"):
        assert unskew.train(replace(trial, statistics=statistics), dp()).rounds


def test_a_client_without_data_adds_nothing(digits):
    full, half = split(digits, range(40), range(40, 80)), split(digits, range(40), [])
    trials = [private_trial(each, budget=Budget(rounds=1, epochs=1)) for each in (full, half)]
    start = flat(dict(trials[0].build().named_parameters())).detach()
    method = dp(clip=1e-3, noise_multiplier=0)
    both, one = (flat(unskew.train(trial, method).weights) - start for trial in trials)
    assert one.norm().item() == pytest.approx(0.5e-3, rel=1e-2)
    assert both.norm().item() > 0.6e-3


def test_the_accountant_is_an_extra_that_is_asked_for_before_the_first_round(alike, monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    rounds = []
    with pytest.raises(UserError, match=r"pip install 'unskew\[dp\]'"):
        unskew.train(private_trial(alike), dp(), on_round=rounds.append)
    assert not rounds


def test_epsilon_is_printed_and_in_the_summary(unskew):
    answer = unskew("run", "--method", "fedprox+dp:clip=0.5", "--rounds", "2", "--epochs", "1", "--json")
    assert answer.code == 0, answer.err
    note = next(note for note in json.loads(answer.out.splitlines()[-1])["notes"] if "ε" in note)
    assert "at δ = 1e-05" in note
    assert "over 2 rounds of all 10 clients;" in note
    shown = unskew("run", "--method", "dp", "--rounds", "1", "--epochs", "1")
    assert "ε = " in shown.out


def test_a_private_model_does_not_tell_the_seed_that_its_noise_comes_from(unskew):
    seed = 3_141_592_653_589_793_238
    for method, told in (("dp", False), ("dp:noise_multiplier=0", True), ("fedavg", True)):
        words = f"run --method {method} --rounds 1 --epochs 1 --seed {seed} --out {method.replace(':', '-')}"
        assert unskew(*words.split(), "--quiet").code == 0
        model = load_model(method.replace(":", "-"))
        assert (model.model_file.seed == seed, model.model_file.identity is not None) == (told, told)
        files = [Path(method.replace(":", "-")) / name for name in ("model.json", "model.safetensors")]
        assert [str(seed).encode() in path.read_bytes() for path in files] == [told, told]
        assert (f"seed {seed}" in model._repr_html_()) == told
