"""Clients that attack: which they are, and what they send."""

from __future__ import annotations

import json

import pytest
import torch

import unskew
from federations import flat, split
from unskew import Budget, Method, Trial, engines
from unskew.attacks import Attack
from unskew.engines.cuda.graphs import Graphs
from unskew.methods import fedlc
from unskew.types import Weights

pytestmark = pytest.mark.usefixtures("no_workers")


def models(*values: float) -> dict[int, Weights]:
    return {
        client: Weights({"w": torch.full((3,), value)}, {"steps": torch.tensor(client)})
        for client, value in enumerate(values)
    }


def sent_by_attacker(attack: Attack) -> tuple[Weights, float]:
    """Return what the one attacker of four clients sends, and the value to which it trained."""
    sent = Weights({"w": torch.ones(3)}, {"steps": torch.tensor(0)})
    trained = models(2.0, 3.0, 4.0, 5.0)
    attacked = attack.changed(1, 0, 4, sent, trained)
    (client,) = attack.attackers(1, 4)
    assert attacked.keys() == {client}
    assert attacked[client].buffers["steps"] == client  # counters stay
    return attacked[client], 2.0 + client


def test_attacks_in_numbers():
    sent, trained = sent_by_attacker(Attack("sign-flip", 0.25, 10.0))
    assert sent.params["w"].tolist() == pytest.approx([1 - 10 * (trained - 1)] * 3)
    sent, _ = sent_by_attacker(Attack("nan", 0.25))
    assert sent.params["w"].isnan().all()
    sent, trained = sent_by_attacker(Attack("alie", 0.25, 1.5))
    honest = torch.tensor([value for value in (2.0, 3.0, 4.0, 5.0) if value != trained])
    expected = honest.mean() - 1.5 * honest.std(correction=0)
    assert sent.params["w"].tolist() == pytest.approx([expected.item()] * 3)
    one, other = (sent_by_attacker(Attack("noise", 0.25, scale))[0].params["w"] - 1 for scale in (1.0, 2.0))
    torch.testing.assert_close(2 * one, other)
    assert len(set(one.tolist())) == 3


def test_attackers_follow_from_the_seed():
    attack = Attack("nan", 0.29)
    assert len(attack.attackers(1, 100)) == 29
    assert attack.attackers(1, 100) == attack.attackers(1, 100)
    assert attack.attackers(1, 100) != attack.attackers(2, 100)
    assert Attack().attackers(1, 100) == frozenset()


def test_label_flip_trains_on_the_other_labels(digits):
    """Compare with clients whose data have the other labels, and so other label counts. The result reports
    the true counts."""
    federation = split(digits, range(100), range(100, 200))
    attack = Attack("label-flip", 0.5)
    (attacker,) = attack.attackers(1, 2)
    flipped = digits.train.labels.clone()
    mine = slice(100 * attacker, 100 * (attacker + 1))
    flipped[mine] = 9 - flipped[mine]
    wrong = unskew.data.from_arrays(
        digits.train.inputs.numpy(), flipped.numpy(), digits.test.inputs.numpy(), digits.test.labels.numpy(),
        name="digits",
    )  # fmt: skip
    budget = Budget(rounds=2, epochs=1)
    one = unskew.train(Trial(federation, "logistic", budget, attack=attack), fedlc())
    other = unskew.train(Trial(split(wrong, range(100), range(100, 200)), "logistic", budget), fedlc())
    torch.testing.assert_close(flat(one.weights), flat(other.weights))
    assert (one.counts == federation.counts.numpy()).all()


@pytest.mark.parametrize(
    "attack", ["noise:fraction=0.4,scale=0.1", "alie:fraction=0.4", "label-flip:fraction=0.4"]
)
def test_engines_give_the_same_bits_under_attack(skewed, attack, monkeypatch):
    monkeypatch.setitem(engines.ENGINES, "graphs", engines.EngineType(Graphs))
    results = [
        unskew.train(
            Trial(skewed, "logistic", Budget(rounds=2, epochs=1), attack=Attack.parse(attack), engine=engine)
        )
        for engine in ("loop", "graphs")
    ]
    assert torch.equal(*(flat(result.weights) for result in results))
    plain = unskew.train(Trial(skewed, "logistic", Budget(rounds=2, epochs=1), engine="loop"))
    assert not torch.equal(flat(plain.weights), flat(results[0].weights))


def test_local_statistics_are_not_attacked(digits):
    federation = split(digits, range(40), range(40, 80))
    trial = Trial(
        federation,
        "mlp-small",
        Budget(rounds=1, epochs=1),
        statistics="local",
        attack=Attack("sign-flip", 0.5),
    )
    assert unskew.train(trial, Method()).rounds


@pytest.mark.parametrize("text", ["none", "sign-flip:fraction=0.3,scale=10.0", "nan:fraction=0.1"])
def test_an_attack_is_written_as_it_is_read(text):
    assert str(Attack.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("signflip", "unknown attack 'signflip': did you mean 'sign-flip'?"),
        ("nan:fraction=2", "attack fraction is 2 but should be from 0 to 1."),
        ("noise:scale=-1", "attack scale is -1 but should be 0 or more."),
        ("noise:size=1", "unknown option of attack noise 'size'"),
        ("noise:scale=big", "attack noise scale is 'big' but should be a number."),
        ("none:scale=1", "attack none has no options"),
        ("noise:0.2", "'0.2' is out of place in the options of attack noise"),
    ],
)
def test_mistakes_are_explained(unskew, text, sentence):
    answer = unskew("run", "--attack", text, "--rounds", "1")
    assert answer.code == 2
    assert sentence in answer.err


def test_the_result_says_who_attacks(unskew):
    answer = unskew(
        "run", "--attack", "sign-flip:scale=3", "--rounds", "1", "--epochs", "1", "--json", "--out", "run"
    )
    assert answer.code == 0, answer.err
    summary = json.loads(answer.out.splitlines()[-1])
    told = sorted(Attack("sign-flip").attackers(1, 10))
    expected = f"clients that attack: {told[0]}, {told[1]}."
    assert any(note.endswith(expected) for note in summary["notes"])
    again = unskew("run", "run/experiment.toml", "--json", "--out", "again")
    assert json.loads(again.out.splitlines()[-1])["accuracy"] == summary["accuracy"]
