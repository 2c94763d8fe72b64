"""What a probe says of a round, against models that are trained and tested by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from federations import flat, split
from unskew import Budget, Evaluation, Method, Probe, Trial, UserError, methods, metrics, train
from unskew.data.augment import normalise
from unskew.engines import start
from unskew.engines.job import Job, completed
from unskew.engines.ray.payload import pack, unpack
from unskew.rounds import initial_state, sample_cohort
from unskew.types import Server

pytestmark = pytest.mark.usefixtures("no_workers")

BUDGET = Budget(rounds=3, epochs=1, lr=0.1)


def by_class(trial: Trial, weights) -> np.ndarray:
    """Class accuracies on the test set, in plain PyTorch."""
    dataset = trial.federation.dataset
    model = trial.build().eval()
    model.load_state_dict(weights.params | weights.buffers)
    with torch.no_grad():
        answers = model(normalise(dataset.test.inputs, dataset.mean, dataset.std)).logits.argmax(1)
    right, labels = (answers == dataset.test.labels).numpy(), dataset.test.labels.numpy()
    return np.array([right[labels == c].mean() for c in range(len(dataset.classes))])


@pytest.fixture(scope="module")
def probed(skewed):
    """A trial of one round, probed."""
    return Trial(
        skewed, "mlp-small", BUDGET.model_copy(update={"rounds": 1}), engine="loop", probe=Probe(every=1)
    )


@pytest.fixture(scope="module")
def by_hand(probed):
    """The models of that round: received, each client's, and their mean."""
    engine = start(probed)
    tasks = sample_cohort(probed, 0)
    local = [
        fit.weights
        for fit in completed(engine.fit(Method(), engine.initial, {}, [Job(task) for task in tasks]))
    ]
    return engine.initial, local, train(replace(probed, probe=Probe())).weights


def test_each_client_is_seen_before_after_and_after_averaging(probed, by_hand):
    received, local, aggregated = by_hand
    [round] = train(probed).rounds
    assert [effect.client for effect in round.probe.clients] == round.trained == [0, 1, 2, 3, 4]
    for effect, mine in zip(round.probe.clients, local, strict=True):
        np.testing.assert_array_equal(effect.before, by_class(probed, received))
        np.testing.assert_array_equal(effect.after, by_class(probed, mine))
        np.testing.assert_array_equal(effect.aggregated, by_class(probed, aggregated))


def test_groups_are_the_clients_own(probed, by_hand):
    received, local, aggregated = by_hand
    [round] = train(probed).rounds
    before, after = by_class(probed, received), by_class(probed, aggregated)
    drops = []
    for client, mine in enumerate(local):
        counts, own = probed.federation.counts[client].numpy(), by_class(probed, mine)
        effect = round.probe.clients[client]
        vacant = effect.groups["vacant"]
        assert (vacant is None) == bool((counts > 0).all())
        if vacant is not None:
            assert vacant.before == pytest.approx(before[counts == 0].mean())
            assert vacant.after == pytest.approx(own[counts == 0].mean())
            assert vacant.aggregated == pytest.approx(after[counts == 0].mean())
            drops.append(vacant.before - vacant.after)
        share = counts / counts.sum()
        assert effect.in_local == pytest.approx(share @ own)
        assert effect.out_local == pytest.approx((1 - share) @ own / 9)
    assert round.probe.groups["vacant"].drop == pytest.approx(np.mean(drops))
    means = np.mean([by_class(probed, mine) for mine in local], axis=0)
    np.testing.assert_allclose(round.probe.local_class_accuracy, means)


def test_drift_is_measured_from_both_models(probed, by_hand):
    received, local, aggregated = by_hand
    [round] = train(probed).rounds
    moves = np.stack([(flat(mine).double() - flat(received).double()).numpy() for mine in local])
    step = (flat(aggregated).double() - flat(received).double()).numpy()
    for name, own in {"received": moves, "aggregated": moves - step}.items():
        expected = (own**2).sum() / (own.sum(axis=0) ** 2).sum()
        assert round.probe.drift[name] == pytest.approx(expected, rel=1e-3)
    assert round.probe.drift["received"] >= 1 / len(local)


def test_deviation_is_fedlcs_bound_over_the_clients_own_data(probed, by_hand):
    _, local, _ = by_hand
    [round] = train(probed).rounds
    dataset, seen = probed.federation.dataset, 0
    for effect, mine in zip(round.probe.clients, local, strict=True):
        rows = probed.federation.indices(effect.client)
        model = probed.build().eval()
        model.load_state_dict(mine.params | mine.buffers)
        with torch.no_grad():
            out = model(normalise(dataset.train.inputs[rows], dataset.mean, dataset.std))
        p, h = out.logits.double().softmax(1).numpy(), out.features.double().numpy()
        y = dataset.train.labels[rows].numpy()
        n = np.bincount(y, minlength=10)
        found = []
        for j in np.flatnonzero(n * 10 >= n.sum()):
            for r in np.flatnonzero((n > 0) & (n * 10 < n.sum())):
                own, other = h[y == r].mean(0), h[y == j].mean(0)
                bound = (1 - p[y == r, r].mean()) * (own @ own) / (p[y == j, r].mean() * (own @ other))
                found.append(n[j] / n[r] > bound)
        assert effect.deviation == (pytest.approx(np.mean(found)) if found else None)
        seen += len(found)
    assert seen


def test_every_kth_round_and_the_last(skewed):
    trial = Trial(skewed, "logistic", Budget(rounds=7, epochs=1), probe=Probe(every=3))
    result = train(trial)
    assert [round.number for round in result.rounds if round.probe] == [3, 6, 7]
    assert result.probe_seconds == sum(round.probe.seconds for round in result.rounds if round.probe) > 0
    assert train(replace(trial, probe=Probe())).probe_seconds is None


STAGED = {
    "fedavg": methods.fedavg,
    "fedvls+scaffold": lambda: methods.fedvls() + methods.scaffold(),
    "moon": methods.moon,
    "balancefl": methods.balancefl,  # draws
    "ema": methods.ema,
    "pkd": lambda: methods.pkd(warmup=1, expert_rounds=1, groups="1/8,3/9"),
    "fedconcat": methods.fedconcat,
    "ccvr": lambda: methods.ccvr(samples=20),
    "local-only": methods.local_only,
    "centralised": methods.centralised,
}


@pytest.fixture(scope="module", params=STAGED)
def name(request):
    """Each method: on one engine after the other, before the next method comes."""
    return request.param


@pytest.fixture(scope="module")
def plain(skewed, name):
    """Trained on the loop without a probe, which is what every engine gives."""
    return train(Trial(skewed, "mlp-small", BUDGET, engine="loop"), STAGED[name]())


@pytest.mark.parametrize("engine", ["loop", "pool"])
def test_probing_changes_no_bit(skewed, engine, name, plain):
    trial = Trial(skewed, "mlp-small", BUDGET, engine=engine, workers=2, probe=Probe(every=1))
    seen = train(trial, STAGED[name]())
    assert torch.equal(flat(plain.weights), flat(seen.weights))
    for one, other in zip(plain.rounds, seen.rounds, strict=True):
        np.testing.assert_array_equal(one.test.confusion, other.test.confusion)
        assert one.probe is None
        assert one.traffic == other.traffic
        assert (other.probe is None) == (name in ("local-only", "centralised"))


def test_engines_find_the_same(skewed):
    trial = Trial(skewed, "mlp-small", BUDGET, engine="loop", probe=Probe(every=2))
    one, other = (train(replace(trial, engine=engine, workers=2)) for engine in ("loop", "pool"))
    for mine, theirs in zip(one.rounds, other.rounds, strict=True):
        assert (mine.probe is None) == (theirs.probe is None)
        if mine.probe:
            assert mine.probe.drift == theirs.probe.drift
            for a, b in zip(mine.probe.clients, theirs.probe.clients, strict=True):
                np.testing.assert_array_equal(a.after, b.after)
                assert (a.client, a.groups, a.deviation) == (b.client, b.groups, b.deviation)


def test_the_next_global_model_is_what_clients_receive_not_what_is_served(skewed):
    trial = Trial(skewed, "mlp-small", BUDGET, engine="loop", probe=Probe(every=1))
    averaged = train(trial, methods.ema(decay=0.9))
    plain = train(trial)
    for served, given in zip(averaged.rounds, plain.rounds, strict=True):
        np.testing.assert_array_equal(served.probe.clients[0].aggregated, given.probe.clients[0].aggregated)
    last = averaged.rounds[-1]
    served = metrics.class_accuracy(last.test.confusion)
    assert not np.array_equal(last.probe.clients[0].aggregated, served)
    for now, then in zip(plain.rounds, plain.rounds[1:], strict=False):
        np.testing.assert_array_equal(now.probe.clients[0].aggregated, then.probe.clients[0].before)


def normed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))


@pytest.mark.parametrize("statistics", ["average", "local", "batch"])
def test_statistics_of_batchnorm_follow_the_runs_policy(skewed, statistics):
    trial = Trial(skewed, normed, BUDGET, engine="loop", statistics=statistics, probe=Probe(every=3))
    result = train(trial)
    effect = result.rounds[-1].probe.clients[0]
    engine = start(trial)
    anchor = train(replace(trial, budget=BUDGET.model_copy(update={"rounds": 2}))).state
    for received in (anchor.server.weights, replace(anchor.server.weights, buffers=engine.initial.buffers)):
        expected = metrics.class_accuracy(engine.evaluate(received).result().confusion)
        if statistics != "average" or received is anchor.server.weights:
            np.testing.assert_array_equal(effect.before, expected)


def test_clients_without_data_are_not_probed(digits):
    empty: list[int] = []
    federation = split(digits, range(50), empty, [60])
    trial = Trial(federation, "logistic", Budget(rounds=1), probe=Probe(every=1))
    found = train(trial).rounds[0].probe
    assert [effect.client for effect in found.clients] == [0, 2]
    nobody = train(replace(trial, federation=split(digits, empty, empty))).rounds[0].probe
    assert nobody.clients == []
    assert nobody.groups == {"majority": None, "minority": None, "vacant": None}
    assert nobody.drift == {"received": None, "aggregated": None}
    assert np.isnan(nobody.local_class_accuracy).all()


def test_a_model_that_diverged_is_probed_all_the_same(skewed):
    def move(state, delta):
        return {name: value / 0 for name, value in delta.items()}, {}

    trial = Trial(skewed, "mlp-small", Budget(rounds=1, epochs=1), probe=Probe(every=1))
    found = train(trial, Method(server=Server(move=move))).rounds[-1].probe
    assert len(found.clients) == 5
    assert np.isnan(found.drift["aggregated"])


def test_fedconcat_measures_each_client_against_its_cluster(skewed):
    trial = Trial(
        skewed, "mlp-small", Budget(rounds=2, epochs=1, lr=0.1), engine="loop", probe=Probe(every=1)
    )
    first, last = (round.probe for round in train(trial, methods.fedconcat(clusters=2)).rounds)
    assert [effect.client for effect in first.clients] == [0, 1, 2, 3, 4]
    assert len({tuple(effect.aggregated) for effect in first.clients}) == 2
    assert first.drift == {"received": None, "aggregated": None}
    assert len({tuple(effect.aggregated) for effect in last.clients}) == 1
    assert last.drift["received"] > 0


def test_a_period_below_zero_is_refused():
    with pytest.raises(UserError, match="every is -1 but should be at least 0"):
        Probe(every=-1)


def test_a_result_with_probes_can_be_sent(skewed):
    result = train(Trial(skewed, "logistic", Budget(rounds=1, epochs=1), probe=Probe(every=1)))
    [there] = unpack(pack(replace(result, trial=None))).rounds
    [here] = result.rounds
    assert there.traffic == here.traffic
    assert there.probe.drift == here.probe.drift
    np.testing.assert_array_equal(there.probe.clients[3].after, here.probe.clients[3].after)


def strict(path: Path) -> list[dict]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_a_run_folder_has_a_line_for_every_probe(unskew, tmp_path):
    arguments = ["--rounds", "5", "--epochs", "1", "--clients", "4", "--quiet", "--set", "probe.every=2"]
    answer = unskew("run", "--method", "fedvls", *arguments, "--out", "run", "--json")
    assert answer.code == 0, answer.err
    folder, summary = tmp_path / "run", json.loads(answer.out.splitlines()[-1])
    probes = strict(folder / "probes.jsonl")
    rounds = {line["round"]: line for line in strict(folder / "rounds.jsonl")}
    assert [line["round"] for line in probes] == [2, 4, 5]
    assert summary["probe_seconds"] == pytest.approx(sum(line["seconds"] for line in probes))
    for line in probes:
        assert set(line) == {"round", "seconds", "clients", "groups", "local_class_accuracy", "drift"}
        assert [each["client"] for each in line["clients"]] == rounds[line["round"]]["trained"]
        for each in line["clients"]:
            assert each["aggregated"] == rounds[line["round"]]["class_accuracy"]
            for stages in filter(None, each["groups"].values()):
                assert stages["drop"] == pytest.approx(stages["before"] - stages["after"])
        assert set(line["drift"]) == {"received", "aggregated"}
    again = unskew("run", "run/experiment.toml", "--quiet", "--json", "--out", "again")
    assert json.loads(again.out)["weights_sha256"] == summary["weights_sha256"]
    assert len(strict(tmp_path / "again" / "probes.jsonl")) == 3


def test_tests_and_probes_have_periods_of_their_own(skewed):
    trial = Trial(
        skewed,
        "logistic",
        Budget(rounds=4, epochs=1),
        Evaluation(every=3),
        probe=Probe(every=2),
        engine="loop",
    )
    rounds = train(trial).rounds
    assert [round.test is not None for round in rounds] == [False, False, True, True]
    assert [round.probe is not None for round in rounds] == [False, True, False, True]
    tested = train(replace(trial, evaluation=Evaluation())).rounds[1].test
    expected = metrics.class_accuracy(tested.confusion)
    np.testing.assert_array_equal(rounds[1].probe.clients[0].aggregated, expected)


def test_the_state_that_training_goes_on_from_is_probed_too(skewed):
    trial = Trial(skewed, "logistic", Budget(rounds=2, epochs=1), engine="loop", probe=Probe(every=2))
    engine = start(trial)
    state = initial_state(Method(), engine.initial, round=1)
    [round] = train(trial, start=state).rounds
    assert round.number == 2
    assert round.probe is not None
