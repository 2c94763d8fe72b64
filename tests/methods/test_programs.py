"""Methods in stages, and the controls: PKD, FedConcat, CCVR, centralised, local-only."""

from __future__ import annotations

import gc
import os
import weakref
from dataclasses import replace
from functools import partial, reduce
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import cross_entropy, linear, one_hot

import unskew
from federations import flat, split, task
from unskew import Budget, Checkpoints, Method, Trial, UserError, engines
from unskew.data.augment import normalise
from unskew.data.federation import Federation
from unskew.engines.cpu.pool import Pool
from unskew.engines.cuda.graphs import Graphs
from unskew.engines.loop import Loop
from unskew.method import Tally, plain_loss
from unskew.methods import METHODS, ccvr, centralised, fedavgm, fedconcat, fedprox, local_only, pkd
from unskew.methods.assemble import assemble
from unskew.methods.ccvr import merge, moments, virtual_features
from unskew.methods.fedconcat import ConcatModel, cluster, label_counts
from unskew.methods.pkd import only_classes, train_expert, warm_up
from unskew.metrics import Traffic
from unskew.notation import parse_class_groups
from unskew.parts.confusion import class_statistics, rates, summed
from unskew.parts.groups import cliques, components, mutual_confusion, stars, threshold, weak_groups
from unskew.program import Run
from unskew.types import Memory, Weights

PROGRAMS = ("pkd", "fedconcat", "ccvr", "centralised", "local-only")
SHORT = Budget(rounds=3, epochs=1, batch_size=16, lr=0.05, weight_decay=0)


@pytest.fixture(scope="module")
def skewed(digits):
    """Return four clients with up to 60 samples each, some classes rare or vacant."""
    return few(unskew.federate(digits, "dirichlet:0.3", clients=4, seed=1), 60)


@pytest.fixture(scope="module")
def noise():
    """Return images for networks with BatchNorm. One client has a single sample, one has none."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 28, 28), np.uint8), np.arange(60) % 3
    dataset = unskew.data.from_arrays(x, y, x[:20], y[:20], name="noise")
    return split(dataset, range(20), range(20, 53), [53], [])


def few(federation: Federation, samples: int) -> Federation:
    return split(federation.dataset, *(mine[:samples] for mine in federation.partition.indices))


def same(first: Weights, second: Weights) -> bool:
    one, other = first.params | first.buffers, second.params | second.buffers
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def inputs_of(split_, dataset):
    return normalise(split_.inputs, dataset.mean, dataset.std)


def filled(trial: Trial, weights: Weights) -> nn.Module:
    """Return the trial's model with these weights, in evaluation mode."""
    module = trial.build().eval()
    module.load_state_dict(weights.params | weights.buffers)
    return module


# Laws of every program


def make(name: str):
    """Make a program with short stages, for tests of what all programs have in common."""
    options = {
        "pkd": {"groups": "1/2;3/5/8", "warmup": 1, "expert_rounds": 1},
        "fedconcat": {"clusters": 2},
        "ccvr": {"samples": 10, "epochs": 1},
    }
    return METHODS[name].make(**options.get(name, {}))


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_round_is_told_once_and_in_order(name, skewed):
    trial = Trial(skewed, "mlp-small", SHORT, evaluation=unskew.Evaluation(every=2))
    told = []
    result = unskew.train(trial, make(name), on_round=told.append)
    assert [round.number for round in told] == [1, 2, 3]
    assert [round.number for round in told if round.test] == [2, 3]
    assert [a is b for a, b in zip(told, result.rounds, strict=True)] == [True] * 3
    assert result.final is told[-1].test
    assert np.array_equal(result.counts, skewed.counts.numpy())


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_learning_rate_decays_over_all_stages(name, skewed):
    trial = Trial(skewed, "mlp-small", SHORT.model_copy(update={"schedule": "exponential:0.5"}))
    assert [round.lr for round in unskew.train(trial, make(name)).rounds] == [0.05, 0.025, 0.0125]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_trial_gives_the_same_bits(name, skewed):
    trial = Trial(skewed, "mlp-small", SHORT)
    torch.manual_seed(7)
    first = unskew.train(trial, make(name))
    assert same(first.weights, unskew.train(trial, make(name)).weights)
    assert not same(first.weights, unskew.train(replace(trial, seed=2), make(name)).weights)


@pytest.mark.parametrize("name", PROGRAMS)
def test_defaults_train_skewed_digits(name, digits):
    trial = Trial(few(unskew.federate(digits, "dirichlet:0.05", clients=6, seed=1), 60), "mlp-small", SHORT)
    method, _ = assemble({name: {"expert_rounds": 2} if name == "pkd" else {}})
    result = unskew.train(trial, method)
    assert flat(result.weights).isfinite().all()
    assert len(result.rounds) == 3


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("name", PROGRAMS)
def test_hard_clients_and_few_rounds(name, rounds, digits):
    """Train clients with one class, one sample and none, with cohorts that miss all clients of a group or
    cluster in some rounds."""
    zeros = (digits.train.labels == 0).nonzero().flatten()[:20]
    federation = split(digits, zeros, [1], [], range(1000, 1030))
    budget = SHORT.model_copy(update={"rounds": rounds, "cohort": 2})
    result = unskew.train(Trial(federation, "mlp-small", budget), METHODS[name].make())
    assert flat(result.weights).isfinite().all()
    assert len(result.rounds) == rounds


@pytest.mark.parametrize("name", PROGRAMS)
def test_nobody_has_data(name, digits):
    result = unskew.train(Trial(split(digits, [], []), "mlp-small", SHORT), METHODS[name].make())
    assert flat(result.weights).isfinite().all()


@pytest.mark.parametrize("statistics", ["average", "local", "batch"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_batch_norm_under_every_policy(name, statistics, noise):
    budget = SHORT.model_copy(update={"rounds": 2, "batch_size": 8})
    program = pkd(groups="0/1", warmup=1, expert_rounds=1) if name == "pkd" else make(name)
    result = unskew.train(Trial(noise, "lenet5-bn", budget, statistics=statistics), program)
    assert flat(result.weights).isfinite().all()


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_take_a_method_as_their_base(name, skewed):
    trial = Trial(skewed, "mlp-small", SHORT)
    alone = unskew.train(trial, make(name))
    neutral, strong = (
        unskew.train(trial, make(name) + fedprox(mu=0)),
        unskew.train(trial, fedprox(mu=10) + make(name)),
    )
    assert same(alone.weights, neutral.weights)
    assert not same(alone.weights, strong.weights)


def count_engines(monkeypatch) -> list[Trial]:
    """Return a list to which the trial of every engine is added that is started from now on."""
    started: list[Trial] = []

    class Counted(Loop):
        def __init__(self, trial: Trial) -> None:
            started.append(trial)
            super().__init__(trial)

    monkeypatch.setitem(engines.ENGINES, "loop", engines.EngineType(Counted))
    return started


KEPT = SHORT.model_copy(update={"optimizer_state": "kept"})


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_base_that_needs_a_fresh_momentum_is_refused_before_anything_trains(name, skewed, monkeypatch):
    started, told = count_engines(monkeypatch), []
    method, _ = assemble({name: {}, "scaffold": {}})
    with pytest.raises(UserError, match=r"use budget\.optimizer_state=fresh"):
        unskew.train(Trial(skewed, "mlp-small", KEPT, engine="loop"), method, on_round=told.append)
    assert started == told == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_momentum_that_is_kept_is_kept_in_every_stage(name, skewed):
    fresh, kept = (
        unskew.train(Trial(skewed, "mlp-small", budget), make(name)).weights for budget in (SHORT, KEPT)
    )
    assert flat(kept).isfinite().all()
    assert not same(fresh, kept)


class KilledError(Exception):
    pass


@pytest.mark.parametrize("options", [{"groups": "1/2;3/5/8"}, {"rule": "topm", "looks": 2}])
def test_a_killed_pkd_goes_on_in_its_last_stage(options, skewed, monkeypatch, tmp_path):
    """Check that it gives the bits of an undisturbed run, without another round of warm-up or experts."""
    budget = SHORT.model_copy(update={"rounds": 5})
    trial = Trial(skewed, "mlp-small", budget, engine="loop")
    program = pkd(warmup=2, expert_rounds=2, **options)
    whole = unskew.train(trial, program)

    def stop_in_round_four(round):
        if round.number == 4:
            raise KilledError

    first = Checkpoints(tmp_path, trial, "it", every="every=1")
    with pytest.raises(KilledError):
        unskew.train(trial, program, on_round=stop_in_round_four, keeper=first)
    first.wait()
    trained = []

    class Watched(Loop):
        def fit(self, method, sent, shared, jobs, upcoming=()):
            trained.append(self.trial.federation.dataset.name)
            return super().fit(method, sent, shared, jobs, upcoming)

    monkeypatch.setitem(engines.ENGINES, "loop", engines.EngineType(Watched))
    told = []
    again = unskew.train(trial, program, on_round=told.append, keeper=Checkpoints(tmp_path, trial, "it"))
    assert trained == ["digits"] * 2
    assert [round.number for round in told] == [1, 2, 3, 4, 5]
    assert same(again.weights, whole.weights)
    assert same(again.state.server.weights, whole.state.server.weights)
    assert [round.number for round in again.rounds] == [1, 2, 3, 4, 5]
    for mine, theirs in zip(again.rounds, whole.rounds, strict=True):
        assert np.array_equal(mine.test.confusion, theirs.test.confusion)
        assert (mine.train_loss, mine.traffic, mine.tallies) == (
            theirs.train_loss,
            theirs.traffic,
            theirs.tallies,
        )
    assert (again.traffic, again.cost, again.notes) == (whole.traffic, whole.cost, whole.notes)


@pytest.mark.parametrize("engine", [Loop, Pool, Graphs])
def test_the_engines_of_experts_are_gone_when_these_teach(skewed, monkeypatch, engine):
    started = []

    def start(trial):
        made = engine(trial)
        started.append(weakref.ref(made))
        return made

    monkeypatch.setitem(engines.ENGINES, "loop", engines.EngineType(start))
    living: list[int] = []

    def on_round(round):
        living.append(sum(made() is not None for made in started))

    trial = Trial(skewed, "mlp-small", SHORT, engine="loop", device="cpu", workers=2)
    gc.disable()
    try:
        unskew.train(trial, pkd(warmup=1, expert_rounds=1, groups="0/1,2/3"), on_round=on_round)
    finally:
        gc.enable()
    assert len(started) == 3
    assert living == [1, 1, 1]


def test_two_stages_of_one_name_are_refused(skewed):
    run = Run(Trial(skewed, "mlp-small", SHORT), Method())
    run.value("one", dict)
    with pytest.raises(ValueError, match="two stages are named 'one'"):
        run.value("one", dict)


def test_an_error_in_a_stage_says_which_client_and_round(skewed):
    def loss(view):
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError) as raised:
        unskew.train(Trial(skewed, "mlp-small", SHORT, engine="loop"), make("pkd") + Method(loss=loss))
    assert raised.value.__notes__ == ["Client 0 failed in round 1, stage 'train'."]


def test_an_error_in_a_question_says_which_client_was_asked(skewed):
    def query(scope, look):
        return {"n": torch.tensor(1 // int(not torch.equal(scope.counts, skewed.counts[2])))}

    with pytest.raises(ZeroDivisionError) as raised:
        Run(Trial(skewed, "mlp-small", SHORT, engine="loop"), Method()).ask("question", query)
    assert raised.value.__notes__ == ["Client 2 failed after round 0, stage 'ask'."]


def test_two_programs_are_refused():
    with pytest.raises(UserError, match="each trains in stages of its own"):
        assemble({"pkd": {}, "ccvr": {}})


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_leaves_the_client_is_said(name):
    card = METHODS[name]
    assert card.idea.endswith(".")
    assert "Deviations:" in card.page
    assert card.sends != "nothing" or name == "local-only"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_model_of_ones_own(name, skewed):
    def own():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10, bias=False))

    for model in (own, own(), nn.Sequential(nn.Flatten(), nn.Linear(64, 10))):
        result = unskew.train(Trial(skewed, model, SHORT), make(name))
        assert flat(result.weights).isfinite().all()


def test_a_model_without_a_last_linear_layer_is_refused(skewed):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 5)

        def forward(self, x):
            return torch.cat([self.layer(x.flatten(1))] * 2, dim=1)

    for name in ("pkd", "fedconcat", "ccvr"):
        with pytest.raises(UserError, match="ends in a linear layer"):
            unskew.train(Trial(skewed, Twice(), SHORT), make(name))


# Weak groups


def test_the_cliques_of_the_pairs_printed_for_fashion_mnist():
    """Check T-shirt 0, pullover 2, coat 4 and shirt 6, which make the paper's two groups, both with the
    shirt."""
    assert cliques([(0, 6), (2, 6), (4, 6), (2, 4)]) == [(0, 6), (2, 4, 6)]
    assert components([(0, 6), (2, 6), (4, 6), (2, 4), (1, 3)]) == [(0, 2, 4, 6), (1, 3)]
    assert cliques([]) == components([]) == []


@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda p: p[0] < p[1])))
def test_cliques_are_all_maximal_sets_of_paired_classes(pairs):
    def complete(group):
        return all(pair in pairs for pair in combinations(group, 2))

    every = [g for size in range(2, 8) for g in combinations(range(7), size) if complete(g)]
    maximal = [g for g in every if not any(set(g) < set(other) for other in every)]
    assert cliques(pairs) == sorted(maximal)


CONFUSED = np.array(
    [
        [0.60, 0.01, 0.02, 0.01, 0.36],
        [0.01, 0.96, 0.01, 0.01, 0.01],
        [0.02, 0.01, 0.70, 0.21, 0.06],
        [0.01, 0.02, 0.24, 0.70, 0.03],
        [0.30, 0.01, 0.05, 0.04, 0.60],
    ]
)
"""0 and 4 are taken for one another, and 2 and 3."""


def test_rules_find_the_pairs_that_stand_out():
    mutual = mutual_confusion(CONFUSED)
    assert mutual[0, 4] == mutual[4, 0] == 0.30
    # In order: 0.30, 0.21, 0.05, 0.03, 0.02, then 0.01. The largest ratio is from 0.21 to 0.05.
    assert threshold(mutual, "gap") == 0.05
    assert threshold(mutual, "topm", pairs=1) == 0.21
    assert threshold(mutual, "topm", pairs=100) == 0
    assert threshold(mutual, "explicit", theta=0.4) == 0.4
    values = mutual[np.triu_indices(5, k=1)]
    assert threshold(mutual, "zscore", kappa=1.5) == pytest.approx(values.mean() + 1.5 * values.std())
    uniform = np.full((5, 5), 0.2)
    assert threshold(mutual_confusion(uniform), "gap") == np.inf


def test_the_worst_groups_are_kept():
    accuracy = np.array([0.6, 0.99, 0.9, 0.8, 0.5])
    assert weak_groups(CONFUSED, accuracy, keep=5) == [(0, 4), (2, 3)]
    assert weak_groups(CONFUSED, accuracy, keep=1) == [(0, 4)]
    assert weak_groups(CONFUSED, accuracy, keep=5, rule="explicit", theta=0.9) == []
    assert weak_groups(CONFUSED, accuracy, keep=5, grouping="star") == [(0, 4), (2, 3), (2, 3, 4)]
    assert weak_groups(CONFUSED, accuracy, keep=5, grouping="components") == [(0, 4), (2, 3)]


def test_a_star_is_around_a_class_and_one_within_another_is_left_out():
    accuracy = np.array([0.6, 0.99, 0.9, 0.8, 0.5])
    # Around 4: 0 and 2 are above 0.045. Around 0: 4, which lies within. Around 3: 2. Around 2: 3 and 4.
    assert stars(CONFUSED, accuracy, 0.045) == [(0, 2, 4), (2, 3), (2, 3, 4)]


def test_classes_without_samples_are_in_no_group():
    probability, accuracy = CONFUSED.copy(), np.array([0.6, 0.99, 0.9, 0.8, np.nan])
    probability[4] = np.nan
    for rule in ("gap", "zscore", "topm", "explicit"):
        for grouping in ("cliques", "components", "star"):
            groups = weak_groups(probability, accuracy, keep=9, rule=rule, grouping=grouping, kappa=1)
            assert not any(4 in group for group in groups)
            assert any({2, 3} <= set(group) for group in groups)
    assert weak_groups(np.full((3, 3), np.nan), np.full(3, np.nan), keep=2) == []


def test_statistics_are_the_sums_a_client_sees(skewed, digits):
    trial = Trial(skewed, "mlp-small", SHORT, evaluation=unskew.Evaluation(batch_size=7))
    engine = engines.start(trial)
    looks = [engine.look(task(skewed, k), engine.initial) for k in range(4)]
    sent = sum(class_statistics(look, 10) for look in looks)
    rows = np.concatenate(skewed.partition.indices)
    with torch.no_grad():
        logits = trial.build().eval()(inputs_of(digits.train, digits)[rows]).logits.double()
    y = digits.train.labels[rows]
    expected = torch.stack([logits.softmax(1)[y == c].sum(0) for c in range(10)])
    right = one_hot(y[logits.argmax(1) == y], 10).sum(0)
    torch.testing.assert_close(sent[:, :10], expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(sent[:, 10], skewed.counts.sum(0).double())
    assert torch.equal(sent[:, 11], right.double())


def test_groups_are_found_from_sums(digits):
    """Check that only rates count, however many samples a class has."""
    samples = torch.tensor([10.0, 1000.0, 20.0, 7.0, 300.0])
    right = samples * torch.tensor([0.6, 0.99, 0.9, 0.8, 0.5])
    sums = torch.cat([torch.from_numpy(CONFUSED) * samples[:, None], samples[:, None], right[:, None]], dim=1)
    assert weak_groups(*rates(sums), keep=2) == [(0, 4), (2, 3)]


# PKD


def test_groups_may_be_given():
    assert parse_class_groups("0/6,2/4/6") == parse_class_groups("0/6; 6/4/2") == [(0, 6), (2, 4, 6)]
    assert parse_class_groups("") == []
    for text, why in (
        ("0", "two classes or more"),
        ("0/x", "two classes or more"),
        ("0/0", "names a class twice"),
        ("0/6,6/0", "names a group twice"),
    ):
        with pytest.raises(UserError, match=why):
            pkd(groups=text)


@pytest.mark.parametrize(
    "options",
    [
        {"groups": "3/5/8,4/7/9", "lam": 0},
        {"rule": "explicit", "theta": 1.0},
    ],
)
def test_pkd_without_weight_or_groups_is_fedavg_bit_for_bit(options, skewed):
    trial = Trial(skewed, "mlp-small", SHORT)
    result = unskew.train(trial, pkd(warmup=1, expert_rounds=2, **options))
    plain = unskew.train(trial)
    assert same(result.weights, plain.weights)
    for mine, theirs in zip(result.rounds, plain.rounds, strict=True):
        assert np.array_equal(mine.test.confusion, theirs.test.confusion)
        assert mine.train_loss == theirs.train_loss
    assert any("no weak group" in note for note in result.notes) == ("theta" in options)


def test_experts_leave_no_trace_in_randomness_or_statistics(noise):
    """Check that the expert's passes change nothing for dropout and BatchNorm."""

    def model():
        body = nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.BatchNorm1d(16), nn.Dropout(0.5))
        return nn.Sequential(body, nn.Linear(16, 3))

    trial = Trial(noise, model, SHORT.model_copy(update={"batch_size": 8}))
    result = unskew.train(trial, pkd(groups="0/1,1/2", lam=0, warmup=1, expert_rounds=1))
    assert same(result.weights, unskew.train(trial).weights)


def test_pkd_teaches_nothing_where_nothing_is_confused():
    """Train on classes that are far apart. Once every sample is right, the experts have no effect, whatever
    their weight."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = (10 * np.eye(3)[y] + rng.normal(size=(60, 3)) / 10).astype(np.float32)
    dataset = unskew.data.from_arrays(x, y, x, y, name="far apart")
    trial = Trial(split(dataset, range(30), range(30, 60)), "logistic", SHORT)
    warm = unskew.train(replace(trial, budget=SHORT.model_copy(update={"rounds": 1})))
    assert warm.accuracy["last"] == 1
    result = unskew.train(trial, pkd(groups="0/1/2", lam=100, warmup=1, expert_rounds=1))
    assert same(result.weights, unskew.train(trial).weights)


def test_pkd_teaches_where_classes_are_confused(skewed):
    trial = Trial(skewed, "mlp-small", SHORT)
    plain = unskew.train(trial)
    result = unskew.train(trial, pkd(groups="3/5/8,4/7/9", warmup=1, expert_rounds=2))
    assert np.array_equal(result.rounds[0].test.confusion, plain.rounds[0].test.confusion)
    assert not same(result.weights, plain.weights)


def test_one_step_of_the_last_stage_by_hand(digits):
    """Take one full-batch step of one client after a warm-up of one: CE + lam KL(expert || student) on the
    mistakes within the group. The expert is this client's own training on the group."""
    federation = split(digits, range(200))
    budget = Budget(rounds=2, epochs=1, batch_size=1000, lr=0.5, momentum=0, weight_decay=0)
    trial = Trial(federation, "mlp-small", budget)
    group, lam, T = (1, 4, 8), 2.0, 3.0
    x, y = inputs_of(digits.train, digits)[:200], digits.train.labels[:200]

    def descend(module, x, y, steps, term=lambda logits: 0.0):
        for _ in range(steps):
            module.zero_grad()
            logits = module(x).logits
            (cross_entropy(logits, y) + term(logits)).backward()
            with torch.no_grad():
                for p in module.parameters():
                    p -= 0.5 * p.grad
        return module

    mine = torch.isin(y, torch.tensor(group))
    place = {c: i for i, c in enumerate(group)}
    expert = replace(trial, federation=only_classes(federation, group)).build()
    descend(expert, x[mine], torch.tensor([place[int(c)] for c in y[mine]]), steps=3)

    def lesson(logits):
        losses = []
        for i in range(200):
            said = int(logits[i].argmax())
            if said != y[i] and said in group and int(y[i]) in group:
                p = (expert(x[i : i + 1]).logits[0].detach() / T).softmax(0)
                q = (logits[i, list(group)] / T).softmax(0)
                losses.append((p * (p / q).log()).sum())
        assert losses
        return lam * sum(losses) / len(losses)

    student = descend(descend(trial.build(), x, y, steps=1), x, y, steps=1, term=lesson)
    result = unskew.train(trial, pkd(groups="1/4/8", lam=lam, temperature=T, warmup=1, expert_rounds=3))
    for name, value in student.named_parameters():
        torch.testing.assert_close(result.weights.params[name], value.detach(), rtol=1e-4, atol=1e-5)


def test_an_expert_sees_its_classes_alone_and_labels_come_back(skewed):
    group = (2, 5, 7)
    part = only_classes(skewed, group)
    assert part.dataset.classes == ("2", "5", "7")
    assert torch.equal(part.counts, skewed.counts[:, list(group)])
    for client in range(skewed.clients):
        whole = skewed.indices(client)
        mine = whole[torch.isin(skewed.labels(client), torch.tensor(group))]
        assert torch.equal(torch.tensor(group)[part.labels(client)], skewed.dataset.train.labels[mine])
        assert torch.equal(part.dataset.train.inputs[part.indices(client)], skewed.dataset.train.inputs[mine])


def test_an_expert_knows_its_group(digits):
    federation = split(digits, range(0, 300), range(300, 600), [])
    trial = Trial(federation, "mlp-small", SHORT)
    group = (4, 7, 9)
    x, y = inputs_of(digits.test, digits), digits.test.labels
    mine = torch.isin(y, torch.tensor(group))
    expert = train_expert(Run(trial, Method()), group, rounds=5)
    answers = expert.answer(x[mine])
    assert not answers.requires_grad
    assert (torch.tensor(group)[answers.argmax(1)] == y[mine]).float().mean() > 0.9


def test_an_expert_may_start_from_the_warm_body(skewed):
    trial = Trial(skewed, "mlp-small", SHORT.model_copy(update={"lr": 1e-12}))
    warm = unskew.train(Trial(skewed, "mlp-small", SHORT)).weights
    x = inputs_of(skewed.dataset.test, skewed.dataset)[:5]
    fresh, body = (train_expert(Run(trial, Method()), (1, 2), 1, start).answer(x) for start in (None, warm))
    head = replace(trial, federation=only_classes(skewed, (1, 2))).build().head
    with torch.no_grad():
        expected = head(filled(trial, warm)(x).features)
    torch.testing.assert_close(body, expected)
    assert not torch.allclose(fresh, body)


def test_an_expert_that_diverges_is_left_out(skewed):
    trial = Trial(skewed, "mlp-small", SHORT.model_copy(update={"lr": 1e30}))
    assert train_expert(Run(trial, Method()), (1, 2), 2) is None


def test_the_base_keeps_its_memory_over_the_stages(skewed):
    def update(scope, end):
        return {"rounds": scope.memory["rounds"] + 1}, {}

    counting = Method(memory=Memory(lambda weights, counts: {"rounds": torch.zeros(())}, update=update))
    result = unskew.train(Trial(skewed, "mlp-small", SHORT), make("pkd") + counting)
    assert [float(kept["rounds"]) for kept in result.state.memories.values()] == [3.0] * 4


def test_the_cost_in_rounds_of_fedavg(digits):
    """Check Eqs. 3-5 with the paper's numbers: LeNet-5 on 60000 images of 28×28, E = 5."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (100, 28, 28), np.uint8), np.arange(100) % 10
    dataset = unskew.data.from_arrays(x, y, x[:10], y[:10], name="balanced")
    trial = Trial(split(dataset, range(50), range(50, 100)), "lenet5", SHORT)
    macs = []

    def count(layer, args, output):
        each = layer.weight[0].numel()
        macs.append(output[0].numel() * each)

    module = trial.build()
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    module(torch.zeros(1, 1, 28, 28))
    assert sum(macs) == 416_520
    assert 5 * 60_000 * 3 * sum(macs) == pytest.approx(374.868e9)

    # Two groups of 2 and 3 of 10 classes: half a U per expert round.
    budget = SHORT.model_copy(update={"rounds": 2})
    result = unskew.train(replace(trial, budget=budget), pkd(groups="0/6,2/4/6", warmup=1, expert_rounds=3))
    assert any("3 rounds on 0.5 of the data: 1.5 U beyond the budget" in note for note in result.notes)
    assert 20 + 25 * 0.5 == 32.5


def test_confusion_may_be_averaged_over_rounds(skewed):
    """Check that the mean over a model and its successor differs from the last one alone."""
    trial = Trial(skewed, "mlp-small", SHORT)
    one, two, both = (
        warm_up(Run(trial, Method()), rounds, looks=looks)[2] for rounds, looks in ((1, 1), (2, 1), (2, 2))
    )
    torch.testing.assert_close(both, one + two)


def test_pkd_says_what_is_wrong(skewed):
    trial = Trial(skewed, "mlp-small", SHORT)
    for options, why in (
        ({"warmup": 3}, "warmup of 3 rounds leaves none"),
        ({"groups": "3/12"}, "class 12 but the classes are 0..9"),
    ):
        with pytest.raises(UserError, match=why):
            unskew.train(trial, pkd(**options))
    for options, why in (
        ({"lam": -1}, "lam is -1"),
        ({"temperature": 0}, "temperature is 0"),
        ({"warmup": -1}, "warmup is -1"),
        ({"expert_rounds": 0}, "expert_rounds is 0"),
        ({"rule": "gaps"}, "did you mean 'gap'"),
        ({"direction": "backward"}, "unknown direction"),
    ):
        with pytest.raises(UserError, match=why):
            pkd(**options)


# FedConcat


def clusters_of(trial: Trial, clusters: int, capacity: float = 0.0, epsilon: float = 0.0):
    """Return the cluster of each client, from the answers to the question for their labels."""
    answers = Run(trial, Method()).ask("label counts", partial(label_counts, epsilon))
    return cluster(trial, answers, clusters, capacity)


def test_the_summed_logits_of_the_clusters(skewed):
    """Check last layers that are put side by side without a round for a new one: the logits are the sum of
    each cluster's own."""
    trial = Trial(skewed, "mlp-small", SHORT)
    kinds = clusters_of(trial, 2)
    result = unskew.train(trial, fedconcat(clusters=2, encoder_rounds=3, head="concatenated"))
    x = inputs_of(skewed.dataset.test, skewed.dataset)[:50]
    alone = []
    for kind in range(2):
        members = [mine if kinds[k] == kind else [] for k, mine in enumerate(skewed.partition.indices)]
        weights = unskew.train(replace(trial, federation=split(skewed.dataset, *members))).weights
        alone.append(filled(trial, weights)(x).logits)
    whole = filled(replace(trial, model=ConcatModel(trial, 2)), result.weights)
    torch.testing.assert_close(whole(x).logits, alone[0] + alone[1])
    right = (
        whole(inputs_of(skewed.dataset.test, skewed.dataset)).logits.argmax(1)
    ) == skewed.dataset.test.labels
    assert result.accuracy["last"] == pytest.approx(float(right.float().mean()))


def test_one_cluster_is_fedavg_and_then_its_last_layer(skewed):
    trial = Trial(skewed, "mlp-small", SHORT)
    result = unskew.train(trial, fedconcat(clusters=1, encoder_rounds=2))
    plain = unskew.train(replace(trial, budget=SHORT.model_copy(update={"rounds": 2})))
    for mine, theirs in zip(result.rounds[:2], plain.rounds, strict=True):
        assert np.array_equal(mine.test.confusion, theirs.test.confusion)
        assert mine.train_loss == pytest.approx(theirs.train_loss)
    for name, value in plain.weights.params.items():
        assert torch.equal(result.weights.buffers[f"nets.0.{name}"], value)
    assert set(result.weights.params) == {"head.weight", "head.bias"}


def test_as_many_clusters_as_clients_is_local_training(skewed):
    trial = Trial(skewed, "mlp-small", SHORT)
    result = unskew.train(trial, fedconcat(clusters=4, encoder_rounds=3, head="concatenated"))
    local = unskew.train(trial, local_only()).weights.params
    kinds = clusters_of(trial, 4)
    assert sorted(kinds) == [0, 1, 2, 3]
    for client, kind in enumerate(kinds):
        for name, value in local.items():
            torch.testing.assert_close(result.weights.buffers[f"nets.{kind}.{name}"], value[client])


def test_equal_label_shares_make_one_cluster(digits):
    order = torch.argsort(digits.train.labels, stable=True)
    starts = torch.searchsorted(digits.train.labels[order], torch.arange(10))
    clients = [[int(order[s + i]) for s in starts for i in range(5 * k, 5 * k + 5)] for k in range(3)]
    trial = Trial(split(digits, *clients), "logistic", SHORT)
    result = unskew.train(trial, fedconcat(clusters=3))
    assert any("made 1 of 3 clusters" in note for note in result.notes)
    assert flat(result.weights).isfinite().all()


def test_like_clients_are_put_together(digits):
    y = digits.train.labels
    low, high = ((y < 5).nonzero().flatten(), (y >= 5).nonzero().flatten())
    trial = Trial(split(digits, low[:50], high[:60], low[50:200], high[60:100], []), "logistic", SHORT)
    kinds = clusters_of(trial, 2)
    assert kinds[0] == kinds[2] != kinds[1] == kinds[3]
    assert kinds[4] == -1


def test_clusters_may_be_limited_in_size(digits):
    """Check ten clients of which nine are alike: at most 1.2 * 10 / 2 = 6 are in a cluster."""
    y = digits.train.labels
    low, high = ((y < 5).nonzero().flatten(), (y >= 5).nonzero().flatten())
    clients = [low[20 * k : 20 * k + 20] for k in range(9)]
    trial = Trial(split(digits, *clients, high[:20]), "logistic", SHORT)
    assert sorted(np.bincount(clusters_of(trial, 2))) == [1, 9]
    assert sorted(np.bincount(clusters_of(trial, 2, capacity=1.2))) == [4, 6]


def test_noise_on_the_counts_is_drawn_from_the_seed(skewed):
    trial = Trial(skewed, "logistic", SHORT)
    one, other = (clusters_of(trial, 2, epsilon=0.01) for _ in range(2))
    assert np.array_equal(one, other)
    drawn = {tuple(clusters_of(replace(trial, seed=seed), 2, epsilon=0.001)) for seed in range(8)}
    assert len(drawn) > 1


def test_a_round_of_the_new_head_by_hand(digits):
    """Take a full-batch step at each client, on the features of both encoders. The average is uniform
    although one client has four times the other's data."""
    y = digits.train.labels
    parts = [(y < 5).nonzero().flatten()[:20], (y >= 5).nonzero().flatten()[:80]]
    budget = Budget(rounds=2, epochs=1, batch_size=1000, lr=0.5, momentum=0, weight_decay=0)
    trial = Trial(split(digits, *parts), "mlp-small", budget)
    result = unskew.train(trial, fedconcat(clusters=2, encoder_rounds=1, batches=0))
    whole = replace(trial, model=ConcatModel(trial, 2))
    start = whole.build().head
    features = filled(whole, result.weights)(inputs_of(digits.train, digits)).features.detach()
    steps = []
    for mine in parts:
        leaves = [p.detach().clone().requires_grad_() for p in start.parameters()]
        loss = cross_entropy(features[mine] @ leaves[0].T + leaves[1], y[mine])
        steps.append(torch.autograd.grad(loss, leaves))
    for i, name in enumerate(("head.weight", "head.bias")):
        expected = list(start.parameters())[i].detach() - 0.5 * (steps[0][i] + steps[1][i]) / 2
        torch.testing.assert_close(result.weights.params[name], expected)


def test_a_client_makes_three_batches_a_round(skewed):
    """Check that three batches of one sample move the head, the same three samples however many a client
    has."""
    taken = []

    def loss(view):
        taken.append(len(view.labels))
        return cross_entropy(view.out.logits, view.labels)

    trial = Trial(skewed, "mlp-small", SHORT, engine="loop")
    unskew.train(trial, fedconcat(clusters=2, encoder_rounds=1) + Method(loss=loss))
    full = sum(-(-int(n) // 16) for n in skewed.sizes)
    assert taken[full:] == [16] * (2 * 4 * 3)


def test_counts_in_the_last_stage_are_those_of_the_samples_drawn(skewed):
    """Check that with two batches of 16 in the last stage, the counts of a loss are those of the samples that
    it sees."""
    told, seen = [], []

    def loss(view):
        told.append(view.scope.counts)
        seen.append(torch.bincount(view.labels, minlength=10))
        return cross_entropy(view.out.logits, view.labels)

    trial = Trial(skewed, "mlp-small", SHORT, engine="loop")
    unskew.train(trial, fedconcat(clusters=2, encoder_rounds=1, batches=2) + Method(loss=loss))
    encoders = sum(-(-int(n) // 16) for n in skewed.sizes)
    assert {tuple(counts.tolist()) for counts in told[:encoders]} == {
        tuple(row) for row in skewed.counts.tolist()
    }
    last = range(encoders, len(told), 2)
    assert len(last) == 2 * 4
    for i in last:
        assert torch.equal(told[i], told[i + 1])
        assert torch.equal(told[i], seen[i] + seen[i + 1])
        assert int(told[i].sum()) == 32


def test_every_engine_is_started_once(skewed, monkeypatch):
    """Check that there is one engine for the labels, one for each cluster, one that tests them together, one
    that reads the test set's features and one for the last layer, however many rounds there are."""
    started = count_engines(monkeypatch)
    numbers = []
    for rounds in (4, 12):
        started.clear()
        budget = SHORT.model_copy(update={"rounds": rounds})
        unskew.train(Trial(skewed, "mlp-small", budget, engine="loop"), fedconcat(clusters=2))
        numbers.append(len(started))
    assert numbers == [6, 6]


def test_encoders_are_frozen_and_tests_are_of_the_whole_model(noise):
    """Check with BatchNorm that its statistics stay as the clusters left them, and that the cached features
    are the model's."""
    budget = SHORT.model_copy(update={"batch_size": 8})
    trial = Trial(noise, "lenet5-bn", budget)
    short = unskew.train(trial, fedconcat(clusters=2, encoder_rounds=1))
    result = unskew.train(trial, fedconcat(clusters=2, encoder_rounds=1, head="concatenated"))
    assert all(torch.equal(short.weights.buffers[n], v) for n, v in result.weights.buffers.items())
    whole = engines.start(replace(trial, model=ConcatModel(trial, 2), norm=None))
    test = whole.evaluate(result.weights).result()
    assert np.array_equal(test.confusion, result.final.confusion)
    assert test.loss == pytest.approx(result.final.loss, rel=1e-5)


def test_fedconcat_says_what_is_wrong(skewed):
    trial = Trial(skewed, "mlp-small", SHORT)
    with pytest.raises(UserError, match="leaves none of the budget's 3 for its new last layer"):
        unskew.train(trial, fedconcat(encoder_rounds=3))
    told = []
    with pytest.raises(UserError, match="its own aggregation rule"):
        unskew.train(trial, fedconcat() + METHODS["fedexp"].make(), on_round=told.append)
    assert told == []
    for options, why in (
        ({"clusters": 0}, "clusters is 0"),
        ({"encoder_rounds": 0}, "encoder_rounds is 0"),
        ({"batches": -1}, "batches is -1"),
        ({"capacity": 0.5}, "capacity is 0.5"),
        ({"epsilon": -1}, "epsilon is -1"),
        ({"head": "randm"}, "did you mean 'random'"),
    ):
        with pytest.raises(UserError, match=why):
            fedconcat(**options)


# CCVR


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 1000))
def test_pooled_moments_are_those_of_all_samples(sizes, seed):
    """Check that they are exact, however samples are divided. A client with one sample has covariance 0, and
    counts."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(sum(sizes), 3)) + 5
    parts = np.split(x, np.cumsum(sizes)[:-1])
    pooled = reduce(merge, [moments(torch.from_numpy(part)) for part in parts])
    assert pooled.count == len(x)
    np.testing.assert_allclose(pooled.mean, x.mean(axis=0), rtol=1e-12)
    if len(x) > 1:
        np.testing.assert_allclose(pooled.covariance, np.cov(x.T), rtol=1e-10, atol=1e-12)
    diagonal = reduce(merge, [moments(torch.from_numpy(part), diagonal=True) for part in parts])
    torch.testing.assert_close(diagonal.covariance, pooled.covariance.diagonal())


def test_the_pooled_covariance_is_the_printed_sum():
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n, 4)) for n in (1, 2, 7)]
    n, mean = [len(p) for p in parts], [p.mean(axis=0) for p in parts]
    cov = [np.zeros((4, 4)), np.cov(parts[1].T), np.cov(parts[2].T)]
    total = sum(n)
    mu = sum(k * m for k, m in zip(n, mean, strict=True)) / total
    expected = (
        sum((k - 1) / (total - 1) * c for k, c in zip(n, cov, strict=True))
        + sum(k / (total - 1) * np.outer(m, m) for k, m in zip(n, mean, strict=True))
        - total / (total - 1) * np.outer(mu, mu)
    )
    pooled = reduce(merge, [moments(torch.from_numpy(part)) for part in parts])
    np.testing.assert_allclose(pooled.covariance, expected, rtol=0, atol=4e-16 * 10)


def test_one_client_has_the_ordinary_covariance():
    x = torch.randn(20, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    alone = moments(x)
    torch.testing.assert_close(alone.mean, x.mean(0))
    torch.testing.assert_close(alone.covariance, torch.cov(x.T))


@pytest.mark.parametrize("samples", [4, 50])
@pytest.mark.parametrize("diagonal", [False, True])
def test_virtual_features_have_the_moments_they_are_drawn_from(samples, diagonal):
    """Check also fewer samples than dimensions, whose covariance is singular."""
    generator = torch.Generator().manual_seed(0)
    found = moments(3 * torch.randn(samples, 6, generator=generator) + 2, diagonal=diagonal)
    drawn = moments(virtual_features(found, 40_000, 0.0, generator), diagonal=diagonal)
    torch.testing.assert_close(drawn.mean, found.mean, rtol=0, atol=0.15)
    torch.testing.assert_close(drawn.covariance, found.covariance, rtol=0.1, atol=0.5)


@pytest.mark.parametrize("diagonal", [False, True])
def test_shrinkage_ends_in_a_sphere_of_the_same_trace(diagonal):
    generator = torch.Generator().manual_seed(0)
    found = moments(
        torch.randn(30, 3, generator=generator) * torch.tensor([1.0, 2.0, 3.0]), diagonal=diagonal
    )
    drawn = moments(virtual_features(found, 40_000, 1.0, generator))
    trace = found.covariance.sum() if diagonal else found.covariance.trace()
    torch.testing.assert_close(drawn.covariance, trace / 3 * torch.eye(3).double(), rtol=0, atol=0.15)


def test_calibration_changes_the_last_layer_alone(skewed):
    trial = Trial(skewed, "mlp-small", SHORT)
    plain, result = unskew.train(trial), unskew.train(trial, ccvr(samples=20, epochs=2))
    for name, value in plain.weights.params.items():
        assert torch.equal(result.weights.params[name], value) == (not name.startswith("head."))
    assert same(result.state.server.weights, plain.weights)
    for mine, theirs in zip(result.rounds[:2], plain.rounds[:2], strict=True):
        assert np.array_equal(mine.test.confusion, theirs.test.confusion)
    after = engines.start(trial).evaluate(result.weights).result()
    assert np.array_equal(result.final.confusion, after.confusion)
    assert any(f"accuracy {plain.accuracy['last']:.4f} before" in note for note in result.notes)


def test_no_epochs_calibrate_nothing(skewed):
    trial = Trial(skewed, "mlp-small", SHORT)
    assert same(unskew.train(trial, ccvr(epochs=0)).weights, unskew.train(trial).weights)


def test_calibration_undoes_the_bias_of_a_skewed_head(digits):
    """Train a client of one class last and alone. The head has then forgotten all other classes, but the body
    has not."""
    federation = unskew.federate(digits, "dirichlet:0.1", clients=5, seed=2)
    budget = Budget(rounds=8, epochs=2, batch_size=16, lr=0.05, cohort=1)
    trial = Trial(federation, "mlp-small", budget)
    before, after = unskew.train(trial), unskew.train(trial, ccvr())
    assert after.accuracy["last"] > before.accuracy["last"] + 0.1


def test_a_class_of_one_sample_gets_no_virtual_features(digits):
    y = digits.train.labels
    rare = int((y == 9).nonzero()[0])
    trial = Trial(split(digits, (y < 9).nonzero().flatten()[:100], [rare]), "mlp-small", SHORT)
    result = unskew.train(trial, ccvr(samples=10, epochs=1))
    assert [note for note in result.notes if "drew no features" in note] == [
        "CCVR drew no features of 9: too few samples, or features not finite."
    ]


def test_a_training_that_diverges_is_told_and_not_calibrated(skewed):
    trial = Trial(skewed, "mlp-small", SHORT.model_copy(update={"lr": 1e30}))
    for program in (ccvr(), make("fedconcat"), local_only()):
        with pytest.raises(UserError, match=r"^training diverged in round \d.*try a smaller lr"):
            unskew.train(trial, program)


def test_ccvr_says_what_is_wrong(skewed):
    frozen = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10))
    frozen[2].requires_grad_(False)
    with pytest.raises(UserError, match="this one is frozen"):
        unskew.train(Trial(skewed, frozen, SHORT), ccvr())

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(64, 8), nn.Linear(8, 10)

        def forward(self, x):
            features = self.body(x.flatten(1))
            return 5 * features, self.head(features)

    with pytest.raises(UserError, match="linear layer of its features"):
        unskew.train(Trial(skewed, Scaled(), SHORT), ccvr())
    for options, why in (
        ({"samples": 0}, "samples is 0"),
        ({"epochs": -1}, "epochs is -1"),
        ({"shrinkage": 2}, "shrinkage is 2"),
        ({"covariance": "diag"}, "did you mean 'diagonal'"),
    ):
        with pytest.raises(UserError, match=why):
            ccvr(**options)


# Controls


def test_centralised_is_one_client_with_all_data(skewed):
    trial = Trial(skewed, "mlp-small", SHORT.model_copy(update={"cohort": 2}))
    result = unskew.train(trial, centralised())
    everything = np.concatenate(skewed.partition.indices)
    alone = unskew.train(replace(trial, federation=split(skewed.dataset, everything), budget=SHORT))
    assert same(result.weights, alone.weights)
    assert result.groups["vacant"] is not None  # of the clients, not of the pool


def test_local_only_is_every_client_alone(skewed):
    trial = Trial(skewed, "mlp-small", SHORT.model_copy(update={"cohort": 1}))
    result = unskew.train(trial, local_only())
    accuracies, confusion = [], 0
    for client, mine in enumerate(skewed.partition.indices):
        clients = [mine if k == client else [] for k in range(4)]
        alone = unskew.train(replace(trial, federation=split(skewed.dataset, *clients), budget=SHORT))
        accuracies.append(alone.accuracy["last"])
        confusion = confusion + alone.final.confusion
        for name, value in alone.weights.params.items():
            torch.testing.assert_close(result.weights.params[name][client], value)
    assert np.array_equal(result.final.confusion, confusion)
    assert result.accuracy["last"] == pytest.approx(np.mean(accuracies))
    assert result.rounds[0].trained == [0, 1, 2, 3]


def test_local_only_keeps_its_clients_optimisers(skewed):
    """Compare budget.optimizer_state=kept with each client trained alone, which keeps its own."""
    trial = Trial(skewed, "mlp-small", KEPT)
    kept = unskew.train(trial, local_only()).weights.params
    for client, mine in enumerate(skewed.partition.indices):
        clients = [mine if k == client else [] for k in range(4)]
        alone = unskew.train(replace(trial, federation=split(skewed.dataset, *clients))).weights
        for name, value in alone.params.items():
            torch.testing.assert_close(kept[name][client], value)


def test_local_only_keeps_the_parameters_that_nobody_trains(skewed):
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10))
    module[1].requires_grad_(False)
    weights = unskew.train(Trial(skewed, module, SHORT), local_only()).weights
    assert all(torch.equal(mine, module[1].weight) for mine in weights.buffers["1.weight"])
    assert len(weights.buffers["1.weight"]) == len(weights.params["2.weight"])


def test_local_only_holds_and_writes_the_parameters_that_nobody_trains_once(skewed, tmp_path):
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10))
    module[1].requires_grad_(False)
    result = unskew.train(Trial(skewed, module, SHORT), local_only())
    assert result.weights.buffers["1.weight"].untyped_storage().nbytes() == 64 * 8 * 4
    file = result.save(tmp_path / "run") / "model.safetensors"
    written, own = load_file(file), result.weights.params
    clients = len(own["2.weight"])
    assert (len(written["1.weight"]), len(written["2.weight"])) == (1, clients)

    x = skewed.dataset.test.inputs[:9]
    whole = {name: value.expand(clients, *value.shape[1:]).contiguous() for name, value in written.items()}
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    save_file(whole, tmp_path / "whole.safetensors", metadata)  # as such runs were written before
    for client in range(clients):
        models = [
            unskew.load_model(path, model=module, client=client)
            for path in (file, tmp_path / "whole.safetensors")
        ]
        inside = normalise(x, skewed.dataset.mean, skewed.dataset.std).flatten(1)
        logits = linear(module[1](inside), own["2.weight"][client], own["2.bias"][client])
        for model in models:
            torch.testing.assert_close(model(x), logits)


def test_local_only_counts_what_its_method_counts(skewed):
    def loss(view):
        view.tally("seen", view.labels.numel() + torch.zeros((), dtype=torch.int64))
        return plain_loss(view)

    counting = Method(loss=loss, tallies=(Tally("seen", "samples"),))
    result = unskew.train(Trial(skewed, "mlp-small", SHORT), local_only() + counting)
    assert all(round.tallies == {"seen": round.samples} for round in result.rounds)
    assert result.tallies == counting.tallies


def test_local_only_has_no_server(skewed):
    with pytest.raises(UserError, match="local-only has no server"):
        unskew.train(Trial(skewed, "mlp-small", SHORT), local_only() + fedavgm())


# On real data


@pytest.mark.skipif(not os.environ.get("UNSKEW_DATA"), reason="needs the FashionMNIST files in UNSKEW_DATA")
def test_the_printed_groups_of_fashion_mnist_are_found():
    """Check every rule on 15000 images, after a short warm-up."""
    dataset = unskew.load("fashion-mnist")
    federation = split(dataset, *(range(k, 15_000, 5) for k in range(5)))
    budget = Budget(rounds=50, epochs=1, batch_size=50, lr=0.01)
    trial = Trial(federation, "mlp", budget, evaluation=unskew.Evaluation(every=100))
    statistics = summed(warm_up(Run(trial, Method()), 3, looks=1)[2])
    for rule in ("gap", "zscore", "topm", "explicit"):
        groups = weak_groups(*rates(statistics), keep=9, rule=rule, theta=0.1)
        assert sorted(groups) == [(0, 6), (2, 4, 6)]


def test_questions_draw_random_numbers_of_their_own(skewed):
    trial = Trial(skewed, "logistic", budget=Budget(rounds=1), engine="loop", device="cpu")

    def draw(scope, look):
        return {"noise": torch.rand(3)}

    first, second = (Run(trial, Method()).ask(name, draw) for name in ("first", "second"))
    again = Run(trial, Method()).ask("first", draw)
    assert [answer["noise"].tolist() for answer in first] == [answer["noise"].tolist() for answer in again]
    numbers = {tuple(answer["noise"].tolist()) for answer in (*first, *second)}
    assert len(numbers) == 2 * skewed.clients


def test_a_question_that_exits_ends_with_an_error(skewed):
    def leave(scope, look):
        raise SystemExit(0)

    trial = Trial(skewed, "logistic", budget=Budget(rounds=1), engine="loop", device="cpu")
    with pytest.raises(RuntimeError, match=r"the code ended by SystemExit\(0\)") as raised:
        Run(trial, Method()).ask("question", leave)
    assert "Client 0 failed after round 0, stage 'ask'." in raised.value.__notes__


def test_a_question_that_fails_keeps_the_cause_of_its_error(skewed):
    def fail(scope, look):
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner

    trial = Trial(skewed, "logistic", budget=Budget(rounds=1), engine="loop", device="cpu")
    with pytest.raises(ValueError, match="outer") as raised:
        Run(trial, Method()).ask("question", fail)
    assert isinstance(raised.value.__cause__, KeyError)


def test_some_clients_can_be_asked(skewed):
    """Check that they answer in the order in which they are named, and that what they receive and answer is
    counted."""
    trial = Trial(skewed, "logistic", budget=Budget(rounds=1), engine="loop", device="cpu")
    run = Run(trial, Method())

    def size(scope, look):
        return {"size": scope.counts.sum()}

    answers = run.ask("sizes", size, run.engine().initial, clients=[3, 1])
    assert [int(answer["size"]) for answer in answers] == skewed.sizes[[3, 1]].tolist()
    model = sum(value.nbytes for value in run.engine().initial.params.values())
    assert run.stages[-1].traffic == Traffic(up=16, down=2 * model)
