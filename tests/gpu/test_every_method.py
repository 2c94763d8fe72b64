"""Every method on a GPU in every precision, with and without `fast`, on models whose gradients have layouts
of all kinds, and with partial batches."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from federations import flat, statistics_for
from unskew import train
from unskew.engines.cuda import captured_step
from unskew.methods import METHODS
from unskew.trial import Budget, Trial

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


class Standardised(nn.Module):
    """Weights of mean 0 and variance 1 for every output channel."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        flat = weight.flatten(1)
        flat = (flat - flat.mean(1, keepdim=True)) / (flat.var(1, keepdim=True) * flat.shape[1] + 1e-4).sqrt()
        return flat.view_as(weight)


def standardised_model() -> nn.Module:
    """Return a user's own network, with parametrised weights."""
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, stride=2), nn.Conv2d(16, 32, 1)]
    for layer in layers:
        parametrize.register_parametrization(layer, "weight", Standardised())
    first, second, third = layers
    return nn.Sequential(
        first, nn.GroupNorm(4, 16), nn.ReLU(), second, nn.ReLU(), third, nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip


def trial_of(images, model, precision) -> Trial:
    model = standardised_model if model == "own" else model
    budget = Budget(rounds=2, epochs=1, batch_size=16, lr=0.01)
    return Trial(images, model, budget=budget, device="cuda", engine="graphs", precision=precision)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("model", ["cnn", "mobilenetv2", "own"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains(images, monkeypatch, name, model, precision):
    # The compiler takes half a minute for each: it has tests of its own. All else of `fast` is as it is.
    monkeypatch.setattr(captured_step, "compile_step", lambda step, *_: step)
    trial = replace(trial_of(images, model, precision), statistics=statistics_for(name))
    for fast in (False, True):
        result = train(replace(trial, fast=fast), METHODS[name]())
        assert bool(flat(result.weights).isfinite().all())


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("model", ["cnn", "mobilenetv2", "own"])
@pytest.mark.parametrize("name", ["fedvls", "feddyn", "fedsam", "scaffold"])
def test_methods_of_every_kind_are_compiled(images, monkeypatch, name, model, precision):
    """Compile steps on partial batches too."""
    monkeypatch.setattr(captured_step, "MEASURED_ROUNDS", 0)
    monkeypatch.setattr(captured_step, "worth_compiling", lambda seconds, takes: True)
    result = train(replace(trial_of(images, model, precision), fast=True), METHODS[name]())
    assert bool(flat(result.weights).isfinite().all())
