"""What a caller has set in PyTorch, and what a model of one's own does, changes no result unseen."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from federations import flat
from unskew import Budget, Trial, UserError, train
from unskew.attacks import Attack
from unskew.methods import METHODS, ccvr, centralised, fedavg, fedcurv, fedntd, scaffold

BRIEF = Budget(rounds=2, epochs=2, batch_size=8, lr=0.05)


class Recomputing(nn.Module):
    """Computes a part again in its backward pass, where `saves` says so."""

    def __init__(self, saves: bool) -> None:
        super().__init__()
        self.saves = saves
        self.first, self.second, self.last = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 10)

    def part(self, h):
        return self.second(h.relu()).relu()

    def forward(self, x):
        h = self.first(x.flatten(1))
        return self.last(checkpoint(self.part, h, use_reentrant=False) if self.saves else self.part(h))


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 10)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        h = self.first(x[:, 0])
        return self.last(self.attention(h, h, h, need_weights=False)[0].mean(1))


class Remembering(nn.Module):
    """Keeps a mean outside of its state."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)
        self.register_buffer("centre", torch.zeros(16), persistent=False)

    def forward(self, x):
        h = self.first(x.flatten(1))
        if self.training:
            self.centre.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return self.last((h - self.centre).relu())


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10))


def trained(federation, model, method=None, **conditions):
    return flat(train(Trial(federation, model, BRIEF, **{"engine": "loop", **conditions}), method).weights)


@pytest.mark.parametrize("method", [fedavg(), scaffold(option="I"), fedcurv()])
def test_activations_that_are_computed_again_are_those_of_the_clients_weights(skewed, method):
    plain, again = (
        trained(skewed, lambda saves=saves: Recomputing(saves), method) for saves in (False, True)
    )
    assert torch.equal(plain, again)


def test_attention_has_the_same_bits_where_steps_are_replayed(skewed):
    ways = ({"engine": "loop"}, {"engine": "pool", "workers": 2})
    one, other = (trained(skewed, Attentive, fedntd(), **way) for way in ways)
    assert torch.equal(one, other)


def test_what_a_model_keeps_outside_of_its_state_is_refused(skewed):
    with pytest.raises(
        UserError, match="'centre' of the model changes in training but is a buffer with pers"
    ):
        trained(skewed, Remembering)


def test_a_module_that_a_function_returns_is_left_alone(skewed):
    own = with_dropout().eval()
    before = own[1].weight.clone()
    trained(skewed, lambda: own)
    assert not own.training
    assert isinstance(own(torch.zeros(2, 64)), torch.Tensor)
    assert torch.equal(before, own[1].weight)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit.script
def test_a_scripted_model_is_refused(skewed):
    with pytest.raises(UserError, match="the model is a ScriptModule"):
        trained(skewed, lambda: torch.jit.script(with_dropout()))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PyTorch's old weight_norm
def test_a_model_that_cannot_be_copied_is_refused(skewed):
    with pytest.raises(UserError, match=r"use torch\.nn\.utils\.parametrizations where"):
        trained(skewed, lambda: nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(64, 10))))


@pytest.mark.parametrize("name", ["ccvr", "fedconcat", "balancefl"])
def test_a_last_layer_whose_weights_are_computed_is_not_exchanged(skewed, name):
    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(64, 10)))

    with pytest.raises(UserError, match="this one computes them from others: choose a plain linear layer"):
        trained(skewed, model, METHODS[name]())


def test_threads_of_the_caller_do_not_mix(skewed):
    alone = trained(skewed, with_dropout)
    with ThreadPoolExecutor(2) as threads:
        beside = list(threads.map(lambda _: trained(skewed, with_dropout), range(4)))
    assert all(torch.equal(alone, each) for each in beside)


@pytest.mark.parametrize("engine", ["loop", "pool"])
def test_autocast_and_inference_mode_of_the_caller_change_nothing(skewed, engine):
    plain = trained(skewed, with_dropout, engine=engine, workers=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(plain, trained(skewed, with_dropout, engine=engine, workers=2))
    with torch.inference_mode():
        assert torch.equal(plain, trained(skewed, with_dropout, engine=engine, workers=2))


def test_the_callers_default_type_and_precision_change_nothing_and_are_left_alone(skewed):
    plain = trained(skewed, "mlp-small")
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        assert torch.equal(plain, trained(skewed, "mlp-small"))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision(before)


def test_a_precision_that_no_trial_can_put_back_is_refused():
    """In a process of its own: PyTorch does not forget it."""
    script = """
import torch, unskew
torch.backends.cudnn.conv.fp32_precision = "ieee"
digits = unskew.federate(unskew.load("digits"), "iid", clients=2, seed=1)
try:
    unskew.train(unskew.Trial(digits, "mlp-small", unskew.Budget(rounds=1, epochs=1), engine="loop"))
except unskew.UserError as error:
    print(error)
"""
    if not hasattr(torch.backends, "fp32_precision"):
        pytest.skip("this PyTorch has one kind of precision settings")
    done = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, check=True)
    assert done.stdout.startswith("an fp32_precision of torch.backends was set")


def test_data_in_one_place_has_the_labels_that_clients_lie_about(skewed):
    honest, lied, moved = (
        train(Trial(skewed, "mlp-small", BRIEF, engine="loop", attack=attack), centralised())
        for attack in (Attack(), Attack("label-flip", 0.6), Attack("sign-flip", 0.6))
    )
    assert not torch.equal(flat(honest.weights), flat(lied.weights))
    assert torch.equal(flat(honest.weights), flat(moved.weights))
    assert "centralised: no client sends a model, so none attacked." in moved.notes


def test_a_state_to_start_from_is_looked_at(skewed):
    def trial(rounds: int, **more: object) -> Trial:
        return Trial(skewed, "mlp-small", Budget(rounds=rounds, epochs=1, **more), engine="loop")

    state = train(trial(1, optimizer_state="kept")).state
    with pytest.raises(UserError, match="is that after round 1, and the budget has 1: give it more rounds"):
        train(trial(1), start=state)
    with pytest.raises(UserError, match="is of clients with another optimiser"):
        train(trial(2, optimizer="adam", optimizer_state="kept", lr=0.001), start=state)
    assert len(train(trial(2, optimizer_state="kept"), start=state).rounds) == 1
    with pytest.raises(UserError, match="a method in stages begins at its beginning"):
        train(trial(2), ccvr(), start=state)
