"""Tests that need a CUDA GPU: `make test-gpu` runs only the tests of this folder."""

import gc
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import conv2d

from federations import depthwise_model, flat, statistics_for
from unskew import Method, federate, load, train
from unskew.client_tensors import limits
from unskew.data import Augment, from_arrays
from unskew.engines.cuda import captured_step
from unskew.engines.cuda.compile import compile_step
from unskew.errors import UserError
from unskew.methods import METHODS
from unskew.parts.optimizers import AdamSettings, adam, fused_adam
from unskew.testing import check_method, hard_trial, normed_model
from unskew.trial import Budget, Evaluation, Trial, weights_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}
"""Between the graphs engine and the loop on one GPU. On an H200 the bits are the same."""


def trial_of(federation, model, **more) -> Trial:
    budget = Budget(rounds=3, epochs=2, batch_size=16, lr=0.05, lr_decay=0.9)
    return Trial(federation, model, budget=budget, device="cuda", **more)


def both(trial, method):
    return [train(replace(trial, engine=engine), method) for engine in ("loop", "graphs")]


def assert_close(trial, method, **tolerance) -> None:
    one, other = both(trial, method)
    assert torch.allclose(flat(one.weights), flat(other.weights), **(tolerance or TOLERANCE))
    assert one.final.loss == pytest.approx(other.final.loss, rel=1e-3)


def assert_fast_stays_close(trial) -> None:
    """Check one round of few steps, because rounding errors grow with every step."""
    trial = replace(trial, budget=Budget(rounds=1, epochs=1, batch_size=16, lr=0.01))
    start = flat(weights_of(trial.build()))
    plain, fast = (
        flat(train(replace(trial, fast=fast), METHODS["fedvls"]()).weights).cpu() for fast in (False, True)
    )
    assert (plain - fast).norm() < (0.01 if trial.pick_precision() == "fp32" else 0.1) * (
        plain - start
    ).norm()


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
@pytest.mark.parametrize(("fast", "statistics"), [(False, "average"), (False, "batch"), (True, "average")])
def test_what_is_answered_on_the_samples_of_sites_equals_the_loop(fast, statistics):
    """Cover test samples that are shuffled before they become batches, and compiled tests."""
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(900, 5)), np.arange(900) % 4
    owned = from_arrays(rows, labels, owners=np.arange(900) // 300)
    trial = trial_of(federate(owned, "natural", clients=0, seed=1), normed_model, statistics=statistics)
    trial = replace(trial, evaluation=Evaluation(batch_size=50))
    one, other = train(replace(trial, engine="loop")), train(replace(trial, engine="graphs", fast=fast))
    for result in (one, other):
        for round in result.rounds:
            cells = owned.test.labels.numpy() * 4 + round.test.answers
            assert (np.bincount(cells, minlength=16).reshape(4, 4) == round.test.confusion).all()
    if not fast:
        assert one.site_spread == other.site_spread


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_captured_and_equals_the_loop(name):
    trial = hard_trial(normed_model, device="cuda", statistics=statistics_for(name))
    assert_close(trial, METHODS[name]())


@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_the_laws(name):
    check_method(
        METHODS[name](),
        draws=name == "balancefl",
        engine="graphs",
        device="cuda",
        statistics=statistics_for(name),
    )


@pytest.mark.parametrize("model", ["lenet5", "cnn", "resnet8", "resnet18", "cnn-pfl", "vgg9-mnist"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_every_kind_of_model_equals_the_loop(images, model, precision):
    for name in ("fedavg", "fedvls"):
        assert_close(trial_of(images, model, precision=precision), METHODS[name]())


def test_mobilenet_equals_the_loop(images):
    assert_close(trial_of(images, "mobilenetv2"), METHODS["fedvls"]())


def test_engines_that_are_gone_leave_no_memory(images):
    def taken() -> int:
        train(trial_of(images, "resnet8", engine="graphs"), METHODS["scaffold"]())
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    gc.disable()  # without its help
    try:
        first = taken()
        assert taken() <= first
    finally:
        gc.enable()


@pytest.mark.parametrize(("client_memory", "tier"), [(10, "host"), (0, "disk")])
def test_what_clients_keep_leaves_the_gpu_where_it_would_not_fit(images, monkeypatch, client_memory, tier):
    trial = replace(trial_of(images, "resnet8", engine="graphs"), budget=Budget(rounds=4, cohort=2, epochs=1))
    one = train(trial, METHODS["moon"]())
    assert one.state.memories.store.used["device"] > 0
    monkeypatch.setattr(limits, "DEVICE_SHARE", 0.0)
    other = train(replace(trial, client_memory=client_memory), METHODS["moon"]())
    used = other.state.memories.store.used
    assert used.pop(tier) > 0
    assert not any(used.values())
    assert torch.equal(flat(one.weights), flat(other.weights))
    for client, kept in one.state.memories.items():
        there = other.state.memories[client]
        assert all(torch.equal(value, there[name]) for name, value in kept.items())
        assert all(value.is_cuda and value.stride() == kept[name].stride() for name, value in there.items())


def test_clients_drawn_when_they_are_needed_equal_the_loop():
    data = load("synthetic:1,1,clients=50,cap=150,drawn=true")
    assert_close(trial_of(federate(data, "natural", clients=0, seed=0), "logistic"), METHODS["scaffold"]())


def test_every_round_is_timed_by_itself(images):
    """Cover that the host notices a round's end only after it has started the next one, except in the
    last."""
    result = train(trial_of(images, "resnet8", engine="graphs"), METHODS["fedavg"]())
    times = [round.seconds for round in result.rounds]
    assert all(time > 0 for time in times)
    assert sum(times) <= result.seconds


@pytest.mark.parametrize("statistics", ["average", "local", "batch"])
@pytest.mark.parametrize("name", ["scaffold", "fedlmd", "fedsam", "moon"])
def test_batch_norm_statistics_follow_the_trial(images, name, statistics):
    assert_close(trial_of(images, "resnet8", statistics=statistics), METHODS[name]())


BUDGETS = {
    "steps": {"steps": 9, "lr": 0.05},
    "part": {"epochs": 1.3, "lr": 0.05, "schedule": "cosine:warmup=1"},
    "adam": {"epochs": 2, "lr": 0.001, "optimizer": "adam", "weight_decay": 0.01},
    "adamw": {"steps": 9, "lr": 0.001, "optimizer": "adamw", "weight_decay": 0.1, "schedule": "step:at=1/2"},
    "kept": {"epochs": 1, "lr": 0.001, "optimizer": "adam", "optimizer_state": "kept"},
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model", ["cnn", "resnet8"])
@pytest.mark.parametrize("budget", BUDGETS)
def test_budgets_of_every_kind_equal_the_loop(images, budget, model, precision):
    trial = trial_of(images, model, precision=precision)
    trial = replace(trial, budget=Budget(rounds=3, batch_size=16, **BUDGETS[budget]))
    start, (one, other) = flat(weights_of(trial.build())), both(trial, METHODS["fedvls"]())
    if budget in ("steps", "part"):
        assert torch.allclose(flat(one.weights), flat(other.weights), **TOLERANCE)
    # Adam divides a gradient by its size, also one that is nothing but rounding: not every weight is close.
    mine, theirs = flat(one.weights).cpu(), flat(other.weights).cpu()
    assert (mine - theirs).norm() < (0.02 if precision == "fp32" else 0.2) * (mine - start).norm()
    for client, kept in one.state.optimizers.items():
        there = other.state.optimizers[client]
        assert all(value.dtype == torch.float32 for value in there.values())
        assert torch.equal(kept["steps"], there["steps"])


@pytest.mark.parametrize("decoupled", [False, True])
def test_the_fused_kernel_of_adam_does_the_same(decoupled):
    """Update parameters of both layouts, with a learning rate that changes."""
    generator = torch.Generator("cuda").manual_seed(1)
    shapes = {"image": (8, 4, 3, 3), "matrix": (5, 3), "number": ()}
    start = {name: torch.randn(shape, generator=generator, device="cuda") for name, shape in shapes.items()}
    settings, ends = AdamSettings(0.9, 0.999, 1e-8, 0.1, decoupled=decoupled), []
    for make in (adam, fused_adam):
        params = {name: value.clone() for name, value in start.items()}
        params["image"] = params["image"].contiguous(memory_format=torch.channels_last)
        lr = torch.tensor(0.01, device="cuda")
        rule = make(lr, settings)
        state = rule.init(params)
        for n in range(5):
            gradient = {name: (n - 1.5) * value.sin() for name, value in start.items()}
            rule.step(lambda at, gradient=gradient: (torch.zeros(()), gradient), params, state)
            lr.mul_(0.5)
        ends.append({**params, **state})
    torch.testing.assert_close(*ends)


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_adam_is_compiled_and_stays_close(images, optimizer, precision):
    """Train two rounds, the second with another learning rate in the same captured step."""
    settings = {"rounds": 2, "epochs": 1, "batch_size": 16, "lr": 0.001, "weight_decay": 0.1}
    budget = Budget(**settings, optimizer=optimizer, schedule="exponential:0.5")
    trial = replace(trial_of(images, "cnn", engine="graphs", precision=precision), budget=budget)
    start = flat(weights_of(trial.build()))
    plain, fast = (flat(train(replace(trial, fast=fast)).weights).cpu() for fast in (False, True))
    assert (plain - fast).norm() < (0.05 if precision == "fp32" else 0.3) * (plain - start).norm()


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
@pytest.mark.parametrize(
    ("model", "precision"),
    [
        ("cnn", "fp32"),
        ("cnn", "bf16"),
        ("resnet8", "bf16"),
        (partial(depthwise_model, 3, 4), "bf16"),
    ],
)
def test_the_fastest_kernels_stay_close(images, model, precision):
    assert_fast_stays_close(trial_of(images, model, engine="graphs", precision=precision))


def test_rare_batches_past_cudnn_stay_close(images, monkeypatch):
    monkeypatch.setattr(
        captured_step, "compile_step", lambda step, *_: step
    )  # full batches have tests of their own
    model = partial(depthwise_model, 3, 4)
    assert_fast_stays_close(trial_of(images, model, engine="graphs", precision="bf16"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("channels", "size", "stride"),
    [(20, (7, 5), (1, 1)), (64, (8, 8), (1, 1)), (33, (9, 6), (2, 1)), (96, (8, 16), (2, 2))],
)
def test_compiled_depthwise_convolutions_have_their_gradients(channels, size, stride, kind):
    generator = torch.Generator().manual_seed(1)
    # Numbers that need no rounding: a compiled step may take weights as they were before it.
    weight = torch.randn(channels, 1, 3, 3, generator=generator).to(kind).float()
    x = torch.randn(5, channels, *size, generator=generator).to(kind)

    def step(weight, x, to_weight, to_x):
        leaves = weight.to(x.dtype).detach().requires_grad_(), x.detach().requires_grad_()
        y = conv2d(leaves[1], leaves[0], stride=stride, padding=1, groups=channels).relu()
        for held, gradient in zip((to_weight, to_x), torch.autograd.grad(y.sum(), leaves), strict=True):
            held.copy_(gradient)

    def given(device, kind):
        images = x.to(device, kind, memory_format=torch.channels_last)
        return weight.to(device), images, torch.zeros_like(weight, device=device), torch.zeros_like(images)

    there, here = given("cuda", kind), given("cpu", torch.float64)
    compile_step(step, *there)(*there)
    step(*here)
    near = {"rtol": 1e-4, "atol": 1e-4} if kind == torch.float32 else {"rtol": 0.05, "atol": 0.1}
    for mine, theirs in zip(there[2:], here[2:], strict=True):
        assert torch.allclose(mine.cpu().double(), theirs.double(), **near)


def test_a_gpu_makes_the_pictures_of_a_cpu():
    """Allow for pixels whose interpolated value lies halfway between two numbers."""
    augment = Augment.parse("crop:4,flip,rotate:15,autoaugment,cutout:8")
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (2000, 3, 32, 32), dtype=torch.uint8, generator=generator)
    u = torch.rand(len(x), augment.draws, generator=generator)
    here, there = (augment.apply(each, u, (0.5,) * 3, (0.2,) * 3) for each in (x, x.cuda()))
    assert (here == there.cpu()).float().mean() > 0.999


def test_a_gpu_gives_what_a_cpu_gives(images):
    trial = trial_of(images, "lenet5", engine="graphs", precision="fp32")
    here, there = (
        train(replace(trial, device=device, engine=engine), METHODS["fedlc"]())
        for device, engine in (("cuda", "graphs"), ("cpu", "loop"))
    )
    assert torch.allclose(flat(here.weights).cpu(), flat(there.weights), rtol=1e-2, atol=1e-3)


def test_a_second_run_gives_the_same_bits(images):
    one, other = (train(trial_of(images, "resnet8", engine="graphs"), METHODS["fedavg"]()) for _ in range(2))
    assert torch.equal(flat(one.weights), flat(other.weights))


def test_a_step_that_waits_for_the_device_is_refused():
    def loss(view):
        return view.out.logits.mean() * float(view.out.logits.detach().sum())

    with pytest.raises(UserError, match=r"cannot capture this method's step .*use --engine loop"):
        train(hard_trial(engine="graphs", device="cuda"), Method(loss=loss))


def test_a_step_that_draws_on_the_cpu_is_refused():
    def loss(view):
        return view.out.logits.square().mean() * torch.rand(())

    with pytest.raises(UserError, match="draws random numbers on the CPU"):
        train(hard_trial(engine="graphs", device="cuda"), Method(loss=loss))
