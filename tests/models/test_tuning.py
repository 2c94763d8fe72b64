"""Parts of a model that stay as they are, LoRA's adapters, and weights to start from."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import unskew
from federations import flat, statistics_for
from pools import on_every_engine
from unskew import Budget, Trial, UserError
from unskew.engines.network import Network
from unskew.methods import METHODS
from unskew.models import Tuning
from unskew.models.lora import add_adapter, merge_adapters
from unskew.testing import hard_trial, normed_model
from unskew.train import train
from unskew.trial import weights_of

ALL_BUT_HEAD = Tuning(freeze=("3.*",))  # of normed_model
ADAPTERS = Tuning(lora=2)
REFUSES_A_FROZEN_HEAD = {"logit-adjustment-post-hoc", "balancefl", "ccvr"}


def frozen_in(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in module.named_parameters() if not value.requires_grad}


@pytest.mark.parametrize("tuning", [ALL_BUT_HEAD, ADAPTERS], ids=["body", "lora"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_leaves_frozen_weights_alone_or_says_that_it_needs_them(name, tuning):
    trial = hard_trial(normed_model, statistics=statistics_for(name))
    trial = replace(trial, tuning=tuning, budget=Budget(rounds=1, epochs=1, batch_size=16))
    if tuning is ALL_BUT_HEAD and name in REFUSES_A_FROZEN_HEAD:
        with pytest.raises(UserError, match="last layer"):
            train(trial, METHODS[name]())
        return
    before, after = frozen_in(trial.build()), train(trial, METHODS[name]()).weights
    assert flat(after).isfinite().all()
    if name == "fedgela":  # it has a last layer of its own
        before.pop("3.weight", None), before.pop("3.bias", None)
    kept = 0
    for where, value in before.items():
        assert where not in after.params
        for at, now in after.buffers.items():
            if at == where or at.endswith(f".{where}"):  # of one of several models side by side
                same = now if now.shape == value.shape else now[0]  # or of one of those that are stacked
                assert torch.equal(same, value)
                kept += 1
    assert kept >= len(before)


def assert_same(one, other):
    assert one.weights.params.keys() == other.weights.params.keys()
    for name, value in (one.weights.params | one.weights.buffers).items():
        assert torch.equal(value, (other.weights.params | other.weights.buffers)[name]), name
    assert [r.train_loss for r in one.rounds] == [r.train_loss for r in other.rounds]


def conv_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, stride=2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 1),
        nn.BatchNorm2d(4, affine=False),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


@pytest.mark.parametrize(
    "tuning", [Tuning(freeze=("0", "1")), Tuning(lora=3, lora_alpha=6), Tuning(train_only=("6",))], ids=str
)
def test_engines_give_the_same_bits(skewed, tuning, monkeypatch):
    pools = on_every_engine(monkeypatch)
    budget = Budget(rounds=2, epochs=1, batch_size=8)
    trial = Trial(skewed, conv_model, budget=budget, tuning=tuning, workers=2)
    by_loop = train(replace(trial, engine="loop"))
    assert_same(train(replace(trial, engine="pool")), by_loop)
    assert sum(pool.replayed for pool in pools) > 0
    assert_same(train(replace(trial, engine="graphs")), by_loop)


def test_only_trained_parameters_are_sent_and_kept(skewed):
    budget = Budget(rounds=2, epochs=1, batch_size=32)
    trial = Trial(skewed, conv_model, budget=budget, tuning=Tuning(lora=2))
    result = train(trial, unskew.methods.scaffold())
    adapters = 2 * 9 + 4 * 2 + 2 * 4 + 4 * 2  # A and B of both convolutions
    trained = 4 * (adapters + 64 * 10 + 10)
    holders = int((skewed.sizes > 0).sum())
    up, down = result.rounds[-1].traffic.up, result.rounds[-1].traffic.down
    statistics = 4 * 8 + 8  # of the BatchNorm after an adapter
    each = 2 * trained + statistics  # with scaffold's controls
    assert (up, down) == (each * holders, each * len(skewed.sizes))
    names = {f"{layer}.lora_{part}" for layer in "03" for part in "ab"} | {"6.weight", "6.bias"}
    state = result.state
    assert state.server.weights.params.keys() == names
    # A BatchNorm whose parameters are frozen keeps its statistics; the other follows an adapter.
    assert {name.partition(".")[0] for name in state.server.weights.buffers} == {"4"}
    assert all(name.rpartition("/")[2] in names for kept in state.memories.values() for name in kept)
    assert trial.notes[-1].startswith(f"{trained // 4:,} of the model's")


def test_an_adapter_changes_nothing_until_it_is_trained_and_can_be_merged():
    x = torch.randn(2, 4, 6, 6)
    for layer, y in (
        (nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular", bias=False), x),
        (nn.Linear(6, 5), x),
    ):
        plain = copy.deepcopy(layer)
        add_adapter(layer, 2, alpha=6)
        assert torch.equal(layer(y), plain(y))
        nn.init.normal_(layer.lora_b)
        assert not torch.allclose(layer(y), plain(y), atol=1e-2)
        merged = merge_adapters({f"l.{k}": v for k, v in layer.state_dict().items()}, {})
        assert merged.keys() == {f"l.{k}" for k in plain.state_dict()}
        plain.load_state_dict({k.removeprefix("l."): v for k, v in merged.items()})
        torch.testing.assert_close(plain(y), layer(y), rtol=1e-4, atol=1e-4)


def test_a_frozen_batch_norm_goes_by_its_running_statistics(skewed):
    trial = Trial(skewed, conv_model, tuning=Tuning(freeze=("0", "1")))
    network = Network(trial, torch.device("cpu"))
    weights = weights_of(network.train_module)
    assert not any(name.startswith("1.") for name in weights.buffers)
    assert "4.running_mean" in weights.buffers  # the layer before it is trained
    assert "1.running_mean" in network.frozen_tensors
    before = {name: value.clone() for name, value in network.frozen_tensors.items()}
    network.train(weights, torch.randn(8, 1, 8, 8))
    assert all(torch.equal(value, before[name]) for name, value in network.frozen_tensors.items())
    assert int(weights.buffers["4.num_batches_tracked"]) == 1
    whole = Network(replace(trial, tuning=Tuning(train_only=("6",))), torch.device("cpu"))
    assert not whole.normed  # a client's last sample may be alone in its batch
    assert weights_of(whole.train_module).buffers == {}


def test_training_goes_on_from_trained_weights(skewed, tmp_path):
    budget = Budget(rounds=2, epochs=1)
    first = Trial(skewed, "mlp-small", budget=budget)
    trained = train(first).weights
    tensors = trained.params | trained.buffers
    again = Trial(skewed, "mlp-small", budget=budget, seed=2, init=tensors)
    assert torch.equal(flat(weights_of(again.build())), flat(trained))
    assert again.notes[-1] == "started from the tensors given: all 4 tensors of the model are taken."
    # a head for other classes stays as it is drawn, and what the file lacks too
    other = Trial(
        skewed, "mlp-small", init={**tensors, "head.weight": torch.zeros(3, 64), "x": torch.ones(1)}
    )
    module, fresh = other.build(), Trial(skewed, "mlp-small").build()
    assert torch.equal(module.head.weight, fresh.head.weight)
    assert torch.equal(module.body.fc1.weight, trained.params["body.fc1.weight"])
    assert other.notes[-1] == (
        "started from the tensors given: 3 of 4 tensors are taken; of another shape, left at their initial "
        "values: head.weight; in the file alone: x."
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"tuning": Tuning(freeze=("nothing",))},
            "no parameter of the model is called 'nothing': it has body",
        ),
        ({"tuning": Tuning(freeze=("*",))}, "the model has nothing to train"),
        ({"tuning": Tuning(lora=2, lora_layers=("head.x",))}, "no layer that can have an adapter"),
        ({"tuning": Tuning(lora=2, lora_layers=("head",))}, "the last layer, 'head', is trained as a whole"),
        ({"init": {"other": torch.ones(3)}}, "has no weights for this model"),
        ({"init": {"module.head.weight": torch.ones(10, 64)}}, "rename its tensors without 'module.'"),
        ({"init": {"head.weight": torch.full((10, 64), torch.nan)}}, "values that are not finite"),
        ({"init": {"head.weight": [1, 2]}}, "something else than tensors"),
        ({"init": "nowhere.safetensors"}, "the weights nowhere.safetensors are not there"),
        ({"init": "weights.txt"}, "is no file of weights"),
    ],
)
def test_mistakes_get_one_sentence(skewed, settings, message):
    with pytest.raises(UserError, match=message) as error:
        Trial(skewed, "mlp-small", **settings).build()
    assert str(error.value).count(". ") == 0


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(UserError, match="both given"):
        Tuning(freeze=("a",), train_only=("b",))
    with pytest.raises(UserError, match="without lora"):
        Tuning(lora_layers=("a",))
    with pytest.raises(UserError, match="should be a rank"):
        Tuning(lora=-1)


def test_torch_files_are_read_without_running_code(skewed, tmp_path):
    module = Trial(skewed, "mlp-small", seed=5).build()
    torch.save({"state_dict": module.state_dict(), "epoch": 3}, tmp_path / "a.pt")
    taken = Trial(skewed, "mlp-small", init=tmp_path / "a.pt").build()
    assert torch.equal(taken.head.weight, module.head.weight)
    torch.save(module, tmp_path / "whole.pt")
    with pytest.raises(UserError, match="holds more than tensors, which could run code"):
        Trial(skewed, "mlp-small", init=tmp_path / "whole.pt")


@pytest.mark.parametrize("tuning", [Tuning(lora=4, lora_alpha=4), Tuning(lora=2, lora_alpha=16), Tuning()])
def test_weights_with_adapters_do_the_same_whatever_adapters_they_go_on_with(digits, tuning):
    federation = unskew.federate(digits, "iid", clients=2, seed=1)
    adapted = Tuning(lora=2, lora_alpha=3)
    trial = Trial(federation, "mlp-small", Budget(rounds=1, epochs=1), engine="loop", tuning=adapted)
    result = train(trial)
    started = replace(trial, init=result.weights.params | result.weights.buffers, tuning=tuning).build()
    before = trial.build()
    before.load_state_dict(result.weights.params | result.weights.buffers)
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(started(x).logits, before(x).logits)
