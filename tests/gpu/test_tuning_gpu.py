"""Frozen parts and adapters on a GPU: captured, compiled, and the same as by the loop."""

from dataclasses import replace

import pytest
import torch

from federations import flat
from unskew import Budget, Trial, methods, train
from unskew.models import Tuning

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

TUNINGS = {
    "head": Tuning(train_only=("head",)),
    "body": Tuning(freeze=("head",)),
    "part": Tuning(freeze=("body.stem",)),
    "lora": Tuning(lora=4, lora_alpha=8),
}


def trial_of(images, tuning, model="resnet8", **more) -> Trial:
    budget = Budget(rounds=2, epochs=1, batch_size=16, lr=0.05)
    return Trial(images, model, budget=budget, device="cuda", tuning=tuning, **more)


def assert_frozen_is_as_it_was(trial, result) -> None:
    before = {name: value for name, value in trial.build().named_parameters() if not value.requires_grad}
    assert before
    for name, value in before.items():
        assert torch.equal(result.weights.buffers[name].cpu(), value)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", TUNINGS)
def test_graphs_equal_the_loop(images, kind, precision):
    trial = trial_of(images, TUNINGS[kind], precision=precision)
    for method in (methods.fedavg(), methods.scaffold(), methods.fedvls()):
        one, other = (train(replace(trial, engine=engine), method) for engine in ("loop", "graphs"))
        assert torch.allclose(flat(one.weights), flat(other.weights), rtol=1e-5, atol=1e-6)
        assert one.weights.buffers.keys() == other.weights.buffers.keys()
        for name, value in one.weights.buffers.items():
            assert torch.allclose(value, other.weights.buffers[name], rtol=1e-5, atol=1e-6)
        assert one.final.loss == pytest.approx(other.final.loss, rel=1e-3)
        assert_frozen_is_as_it_was(trial, other)


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["head", "lora"])
def test_compiled_steps_stay_close(images, kind, precision):
    trial = trial_of(images, TUNINGS[kind], precision=precision, engine="graphs")
    trial = replace(trial, budget=Budget(rounds=1, epochs=1, batch_size=16, lr=0.01))
    plain, fast = (train(replace(trial, fast=fast)) for fast in (False, True))
    start = flat({n: p.detach() for n, p in trial.build().named_parameters() if p.requires_grad})
    moved = (flat(plain.weights).cpu() - start).norm()
    assert (flat(plain.weights) - flat(fast.weights)).norm() < (0.01 if precision == "fp32" else 0.1) * moved
    assert_frozen_is_as_it_was(trial, fast)


def test_training_starts_from_given_weights(images):
    budget = Budget(rounds=1, epochs=1, batch_size=16)
    first = train(Trial(images, "resnet8", budget=budget, device="cuda"))
    start = first.weights.params | first.weights.buffers  # on the GPU
    trial = Trial(images, "resnet8", budget=budget, device="cuda", init=start, tuning=Tuning(lora=2))
    result = train(replace(trial, engine="graphs"))
    assert_frozen_is_as_it_was(trial, result)
    assert not torch.equal(result.weights.params["head.weight"], start["head.weight"])


def test_tests_use_the_frozen_statistics(images):
    """Test and train a BatchNorm in a frozen part with the statistics that it came with."""
    first = train(Trial(images, "resnet8", budget=Budget(rounds=2, epochs=1, batch_size=16), device="cuda"))
    start = first.weights.params | first.weights.buffers
    trial = Trial(
        images,
        "resnet8",
        budget=Budget(rounds=1, epochs=1, batch_size=16, lr=1e-30),
        device="cuda",
        engine="graphs",
        init=start,
        tuning=Tuning(train_only=("head",)),
    )
    result = train(trial)
    assert result.final.loss == pytest.approx(first.final.loss, rel=1e-5)
    statistics = [name for name in start if name.endswith("running_mean")]
    assert statistics
    assert all(torch.equal(result.weights.buffers[name], start[name]) for name in statistics)
