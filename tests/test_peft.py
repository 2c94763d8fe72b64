"""Models made with peft, where it is installed: only the adapters travel, and they are what ours are."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import unskew
from unskew import Budget, Trial
from unskew.models.lora import add_adapter


@pytest.fixture(scope="module")
def peft() -> Any:
    """Loaded when its tests begin: it takes seconds, and memory that every worker process would copy."""
    return pytest.importorskip("peft")


def adapted(peft: Any) -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["1"]), net)
    net[3].requires_grad_(True)
    return net


def test_only_the_adapters_of_a_peft_model_are_sent(peft, skewed):
    result = unskew.train(Trial(skewed, partial(adapted, peft), budget=Budget(rounds=1, epochs=1)))
    names = {"1.lora_A.default.weight", "1.lora_B.default.weight", "3.weight", "3.bias"}
    assert result.weights.params.keys() == names
    before = adapted(peft)
    assert result.rounds[0].traffic.up == 4 * (2 * 64 + 16 * 2 + 160 + 10) * int((skewed.sizes > 0).sum())
    assert before.state_dict().keys() == (result.weights.params | result.weights.buffers).keys()


@pytest.mark.parametrize("layer", [nn.Linear(6, 5), nn.Conv2d(6, 5, 3, stride=2, padding=1)], ids=str)
def test_adapters_are_those_of_peft(peft, layer):
    theirs = nn.Sequential(layer)
    ours = nn.Sequential(type(layer)(6, 5) if isinstance(layer, nn.Linear) else nn.Conv2d(6, 5, 3, 2, 1))
    ours.load_state_dict(theirs.state_dict())
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, lora_alpha=8, target_modules=["0"]), theirs)
    add_adapter(ours[0], 2, alpha=8)
    a, b = theirs[0].lora_A["default"].weight, theirs[0].lora_B["default"].weight
    assert (ours[0].lora_a.shape, ours[0].lora_b.shape) == (a.shape, b.shape)
    nn.init.normal_(b)
    with torch.no_grad():
        ours[0].lora_a.copy_(a)
        ours[0].lora_b.copy_(b)
    x = torch.randn(3, 6) if isinstance(layer, nn.Linear) else torch.randn(3, 6, 8, 8)
    torch.testing.assert_close(ours(x), theirs(x))
