"""Standardised weights and normalised features on a GPU: captured, compiled, and the same as by the loop."""

from dataclasses import replace

import pytest
import torch

from federations import flat
from unskew import Budget, Trial, methods, train
from unskew.models import Tuning
from unskew.trial import weights_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

NETWORKS = [
    ("cnn", "ws", "plain"),
    ("cnn", "group+ws", "normalised"),
    ("resnet8", "ws", "unit"),
    ("resnet10", "group+ws", "plain"),  # 1×1 convolutions
    ("mobilenetv2", "ws", "normalised"),  # and depthwise ones, which keep their weights
    ("mlp", "group+ws", "normalised"),
]


def trial_of(images, network, **more) -> Trial:
    model, norm, features = network
    budget = Budget(rounds=2, epochs=1, batch_size=16, lr=0.01)
    options = {"features": features}
    return Trial(images, model, norm=norm, model_options=options, budget=budget, device="cuda", **more)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("network", NETWORKS, ids=" ".join)
def test_graphs_equal_the_loop(images, network, precision):
    trial = trial_of(images, network, precision=precision)
    for method in (methods.fedavg(), methods.fedvls()):
        one, other = (train(replace(trial, engine=engine), method) for engine in ("loop", "graphs"))
        assert torch.allclose(flat(one.weights), flat(other.weights), rtol=1e-5, atol=1e-6)
        assert one.final.loss == pytest.approx(other.final.loss, rel=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_adapters_inside_the_standardisation_equal_the_loop(images, precision):
    trial = trial_of(images, ("resnet8", "ws", "plain"), precision=precision, tuning=Tuning(lora=4))
    one, other = (train(replace(trial, engine=engine)) for engine in ("loop", "graphs"))
    assert torch.allclose(flat(one.weights), flat(other.weights), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("network", [NETWORKS[n] for n in (0, 1, 2, 4)], ids=" ".join)
def test_compiled_steps_stay_close(images, network, precision):
    """Check one round of few steps, because rounding errors grow with every step."""
    trial = trial_of(images, network, precision=precision, engine="graphs")
    trial = replace(trial, budget=Budget(rounds=1, epochs=1, batch_size=16, lr=0.001))
    start = flat(weights_of(trial.build()))
    plain, fast = (flat(train(replace(trial, fast=fast)).weights).cpu() for fast in (False, True))
    assert (plain - fast).norm() < (0.01 if precision == "fp32" else 0.1) * (plain - start).norm()
