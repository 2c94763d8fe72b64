"""Compiled steps compute what the steps in Python compute."""

import shutil
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import batch_norm, conv2d, cross_entropy, linear, max_pool2d
from torch.utils._python_dispatch import TorchDispatchMode

from federations import flat
from unskew import Budget, Trial, engines, train
from unskew.engines.cuda import captured_step, evaluation
from unskew.engines.cuda.compile import (
    compile_step,
    compile_step_for_any_batch,
    decompose_convolutions,
    depthwise,
    depthwise_ops,
)
from unskew.engines.cuda.compile.decompositions import Decompositions
from unskew.engines.cuda.graphs import Graphs
from unskew.errors import UserError
from unskew.methods import METHODS
from unskew.testing import hard_trial, normed_model
from unskew.trial import weights_of

KERNELS = {"across": (3, 3), "flat": (1, 3), "down": (3, 3)}

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="PyTorch compiles for a CPU with g++"),
    pytest.mark.filterwarnings("ignore"),  # of the compiler, about itself
]


@pytest.fixture(autouse=True)
def quick_compiler():
    """Let the compiler make unoptimised CPU programs without vector instructions, in this process. They
    compute the same, and finding out how to use vectors was half of the compiler's time."""
    from torch._inductor import config  # here: it takes a second

    with config.patch({"cpp.vec_isa_ok": False, "compile_threads": 1, "aot_inductor.debug_compile": True}):
        yield


def small_depthwise_model() -> nn.Module:
    """Return a model with BatchNorm and depthwise convolutions, with and without stride. Their kernels are
    small, because every weight of a kernel is a term of the program."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, (3, 1), padding=(1, 0), groups=8, bias=False),
        nn.ReLU(),
        nn.Conv2d(8, 8, (3, 2), stride=(1, 2), padding=1, groups=8, bias=False),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )


def compile_all(monkeypatch) -> None:
    """Compile steps on partial batches from the first round on, and tests from the second."""
    monkeypatch.setattr(captured_step, "MEASURED_ROUNDS", 0)
    for module in (captured_step, evaluation):
        monkeypatch.setattr(module, "worth_compiling", lambda seconds, takes: True)


@pytest.mark.parametrize("name", ["fedvls", "scaffold"])
def test_training_with_compiled_steps_stays_close(monkeypatch, name):
    """Compile steps on full and partial batches, and tests."""
    compile_all(monkeypatch)
    monkeypatch.setitem(engines.ENGINES, "graphs", engines.EngineType(Graphs))
    trial = hard_trial(normed_model, device="cpu", engine="loop")
    plain = train(trial, METHODS[name]())
    compiled = train(replace(trial, engine="graphs", fast=True), METHODS[name]())
    assert torch.allclose(flat(plain.weights), flat(compiled.weights), rtol=1e-4, atol=1e-5)
    for key, value in plain.weights.buffers.items():
        assert torch.allclose(value, compiled.weights.buffers[key], rtol=1e-4, atol=1e-5)
    assert plain.final.loss == pytest.approx(compiled.final.loss, rel=1e-3)


def test_training_by_adamw_in_compiled_steps_stays_close(monkeypatch, skewed):
    """Change the learning rate between the rounds."""
    monkeypatch.setitem(engines.ENGINES, "graphs", engines.EngineType(Graphs))
    settings = {"rounds": 2, "steps": 3, "batch_size": 20, "lr": 0.01, "weight_decay": 0.1}
    budget = Budget(**settings, optimizer="adamw:eps=1e-4", schedule="exponential:0.5")
    trial = Trial(skewed, "logistic", budget=budget, device="cpu", engine="loop")
    plain, compiled = train(trial), train(replace(trial, engine="graphs", fast=True))
    assert torch.allclose(flat(plain.weights), flat(compiled.weights), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rare", [False, True])
def test_training_with_depthwise_convolutions_stays_close(monkeypatch, skewed, rare):
    """Train one round only, because rounding errors grow with every step. Rare partial batches are not
    compiled."""
    if not rare:
        compile_all(monkeypatch)
    monkeypatch.setitem(engines.ENGINES, "graphs", engines.EngineType(Graphs))
    budget = Budget(rounds=1, epochs=1, batch_size=20, lr=0.01)
    trial = Trial(skewed, small_depthwise_model, budget=budget, device="cpu", engine="loop")
    start = flat(weights_of(trial.build()))
    plain = flat(train(trial, METHODS["fedvls"]()).weights)
    compiled = flat(train(replace(trial, engine="graphs", fast=True), METHODS["fedvls"]()).weights)
    assert (plain - compiled).norm() < 0.01 * (plain - start).norm()


def images(samples, generator):
    x = torch.randn(samples, 3, 11, 10, generator=generator, dtype=torch.float64)
    return x.contiguous(memory_format=torch.channels_last), torch.arange(samples) % 4


def descend(weights, x, y):
    """Take a gradient step on a stem of three channels with stride and padding, a pointwise convolution, two
    depthwise ones, pooling, and a convolution that is not decomposed."""
    leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
    h = conv2d(x, leaves["stem"], leaves["bias"], stride=(2, 1), padding=(2, 1)).relu()
    h = conv2d(h, leaves["point"]).relu()
    h = conv2d(h, leaves["deep"], leaves["shift"], stride=(1, 2), padding=(1, 2), groups=8).relu()
    h = max_pool2d(conv2d(h, leaves["wide"], padding=(0, 1), groups=8), (1, 2))
    loss = cross_entropy(conv2d(h, leaves["last"]).mean(dim=(2, 3)), y)
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    for value, gradient in zip(weights.values(), gradients, strict=True):
        value.sub_(gradient)


def test_decomposed_convolutions_give_the_same_gradients():
    generator = torch.Generator().manual_seed(1)
    shapes = {
        "stem": (6, 3, 5, 4), "bias": (6,), "point": (8, 6, 1, 1), "deep": (8, 1, 3, 3), "shift": (8,),
        "wide": (8, 1, 1, 3), "last": (4, 8, 3, 3),
    }  # fmt: skip
    weights = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()
    }

    def copied():
        return {name: value.clone() for name, value in weights.items()}

    x, y = images(5, generator)
    compiled = compile_step(descend, copied(), x, y)
    any_batch = compile_step_for_any_batch(descend, copied(), x, y, batch=(x, y))
    assert any_batch is not None
    assert all(any_batch.fits(samples) for samples in (2, 5, 9))
    uncompiled = decompose_convolutions(descend)
    for run, samples in (
        (compiled, 5),
        (any_batch.run, 5),
        (any_batch.run, 2),
        (any_batch.run, 9),
        (uncompiled, 3),
    ):
        x, y = images(samples, generator)
        expected, changed = copied(), copied()
        descend(expected, x, y)
        run(changed, x, y)
        for name, value in expected.items():
            assert not torch.equal(value, weights[name])
            assert torch.allclose(changed[name], value, rtol=1e-9, atol=1e-12), name


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("shape", "groups"), [((6, 3, 3, 3), 1), ((8, 3, 1, 1), 1), ((3, 1, 3, 3), 3)])
def test_gradients_have_the_strides_of_their_weights(shape, groups, layout):
    """Check the strides, because a fused optimiser refuses others. Gradients are in float64, because it is
    decomposed as bfloat16 is and every CPU has it."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 3, 6, 6, generator=generator).to(torch.float64, memory_format=torch.channels_last)
    weight = torch.randn(shape, generator=generator).to(torch.float64, memory_format=layout)
    gradients = []

    def step():
        leaf = weight.detach().requires_grad_()
        gradients.extend(torch.autograd.grad(conv2d(x, leaf, groups=groups).square().sum(), leaf))

    step()
    decompose_convolutions(step)()
    assert gradients[1].stride() == weight.stride()
    assert torch.allclose(*gradients)


def plain_depthwise(images, weights, kernel, stride, size, flipped):
    weight = (weights.flip(0) if flipped else weights).t().reshape(-1, 1, *kernel).to(images.dtype)
    rows, columns = (stride[n] * (size[n] - 1) + kernel[n] for n in range(2))
    seen = images.permute(0, 3, 1, 2)[:, :, :rows, :columns]
    return conv2d(seen, weight, stride=stride, groups=len(weight)).permute(0, 2, 3, 1).contiguous()


def plain_weight_gradient(images, grad, parts, start, stride, size):
    def pixels(of, top, left, stride):
        rows, columns = (stride[n] * (size[n] - 1) + 1 for n in range(2))
        return of[:, top : top + rows : stride[0], left : left + columns : stride[1]].float()

    given = pixels(grad, *start, (1, 1))
    taps = [pixels(images, i, j, stride) for i in range(3) for j in range(3)]
    sums = torch.stack([(given * tap).sum(dim=(0, 1, 2)) for tap in taps])
    return torch.cat([sums[None], sums.new_zeros(parts - 1, *sums.shape)])


def test_gpu_operators_are_called_with_what_gives_the_same_gradients(monkeypatch):
    """Replace the Triton kernels by plain PyTorch; tests on a GPU check the kernels themselves."""
    depthwise_ops.depthwise.register_kernel("cpu")(plain_depthwise)
    depthwise_ops.weight_gradient_in_parts.register_kernel("cpu")(plain_weight_gradient)
    monkeypatch.setattr(depthwise, "on_gpu", lambda _: True)
    generator = torch.Generator().manual_seed(1)
    weights = {name: torch.randn(8, 1, *size, generator=generator) for name, size in KERNELS.items()}

    def step(gradients, weights, x):
        leaves = [value.detach().requires_grad_() for value in (*weights.values(), x)]
        h = conv2d(leaves[-1], leaves[0], stride=(1, 2), padding=(1, 2), groups=8).relu()
        h = conv2d(conv2d(h, leaves[1], padding=(0, 1), groups=8), leaves[2], stride=2, groups=8)
        for gradient, value in zip(gradients, torch.autograd.grad(h.square().sum(), leaves), strict=True):
            gradient.copy_(value)

    def given(samples):
        x = torch.randn(samples, 8, 11, 10, generator=generator)
        x = x.contiguous(memory_format=torch.channels_last)
        return [torch.zeros_like(value) for value in (*weights.values(), x)], weights, x

    example = given(5)
    any_batch = compile_step_for_any_batch(step, *example, batch=(example[0][-1], example[2]))
    assert any_batch is not None
    runs = (
        (compile_step(step, *example), 5),
        (any_batch.run, 2),
        (any_batch.run, 7),
        (decompose_convolutions(step), 3),
    )
    for run, samples in runs:
        gradients, _, x = given(samples)
        true = [torch.zeros_like(gradient) for gradient in gradients]
        run(gradients, weights, x)
        step(true, weights, x)
        for found, gradient in zip(gradients, true, strict=True):
            assert torch.allclose(found, gradient, rtol=1e-4, atol=1e-4 * float(gradient.abs().max()))


def test_a_decomposed_classifier_gives_the_same_gradients():
    """Use ten classes in bfloat16, for batches of any size."""
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(10, 40, generator=generator), torch.randn(10, generator=generator)

    def step(gradients, weight, bias, x, y):
        leaves = [value.detach().requires_grad_() for value in (weight, bias, x)]
        loss = cross_entropy(linear(leaves[2], *leaves[:2]).float(), y)
        for gradient, value in zip(gradients, torch.autograd.grad(loss, leaves[:2]), strict=True):
            gradient.copy_(value)

    def given(samples, kind):
        x = torch.randn(samples, 40, generator=generator).bfloat16().to(kind)
        held = [value.bfloat16().to(kind) for value in (weight, bias)]
        return [torch.zeros_like(value) for value in held], *held, x, torch.arange(samples) % 10

    example = given(20, torch.bfloat16)
    any_batch = compile_step_for_any_batch(step, *example, batch=example[3:])
    assert any_batch is not None
    for run, samples in ((compile_step(step, *example), 20), (any_batch.run, 3), (any_batch.run, 33)):
        assert run is not any_batch.run or any_batch.fits(samples)
        mine = given(samples, torch.bfloat16)
        run(*mine)
        true = [torch.zeros(10, 40), torch.zeros(10)]
        step(true, *(value.float() for value in mine[1:4]), mine[4])
        for found, gradient in zip(mine[0], true, strict=True):
            assert torch.allclose(found.float(), gradient, rtol=0.03, atol=0.01 * float(gradient.abs().max()))


def test_a_step_that_depends_on_the_size_is_not_taken_for_others():
    def step(weight, x):
        weight.add_(x.sum() / len(x))  # a number, not a size, to the tracer

    x = torch.ones(4)
    any_batch = compile_step_for_any_batch(step, torch.zeros(1), x, batch=(x,))
    assert any_batch is not None
    assert any_batch.fits(4)
    assert not any_batch.fits(3)


def test_a_step_for_any_batch_is_found_again(tmp_path, monkeypatch):
    """Compile it once: the next run takes it from the compiler's cache."""
    from torch._dynamo.utils import counters  # here: it takes a second

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def step(weight, x):
        weight.add_(torch.where(x > 0, x, 2 * x).flatten(1).sum(0))

    x = torch.randn(6, 2, 3)
    found = []
    for _ in range(2):
        before, weight = counters["aot_autograd"]["autograd_cache_hit"], torch.zeros(6)
        any_batch = compile_step_for_any_batch(step, weight.clone(), x, batch=(x,))
        any_batch.run(weight, x[:4])
        hits = counters["aot_autograd"]["autograd_cache_hit"] - before
        found.append((hits, [n for n in range(1, 100) if any_batch.fits(n)], weight.tolist()))
    (missed, *first), (hit, *second) = found
    assert (missed, hit) == (0, 1)
    assert first == second
    assert first[0][0] <= 2 < first[0][-1] == 99


def test_a_step_that_reads_values_is_refused():
    def step(weight, x):
        if float((weight * x).sum()) > 0:
            weight.add_(1)

    with pytest.raises(UserError, match=r"cannot be compiled .*: leave fast=true out"):
        compile_step(step, torch.ones(3), torch.ones(3))


@pytest.mark.parametrize("shape", [(6, 4, 5, 3), (8, 4), (2, 4, 1, 1)])
@pytest.mark.parametrize("training", [True, False])
def test_decomposed_batch_norm_gives_the_same(shape, training):
    """Normalise values far from zero, close to it and all the same, also after a ReLU."""
    norm = nn.BatchNorm2d(4) if len(shape) == 4 else nn.BatchNorm1d(4)
    across = (1, 4, *[1] * (len(shape) - 2))
    where = torch.tensor([1000.0, -3.0, 0.0, 0.5]).view(across)
    width = torch.tensor([1.0, 0.01, 5.0, 0.0]).view(across)
    generator = torch.Generator().manual_seed(1)
    x = where + width * torch.randn(shape, generator=generator)
    given = {name: torch.rand(4, generator=generator) + 0.5 for name in ("weight", "bias", "mean", "var")}
    asked = torch.randn(shape, generator=generator)

    def step(values, x, gradients):
        leaves = [values["weight"].detach(), values["bias"].detach(), x.detach()]
        for leaf in leaves:
            leaf.requires_grad_()
        buffers = {"running_mean": values["mean"], "running_var": values["var"]}
        y = torch.func.functional_call(
            norm.train(training), {"weight": leaves[0], "bias": leaves[1], **buffers}, (leaves[2],)
        )
        out = y.relu()
        gradients["out"].copy_(out.detach())
        for name, gradient in zip(
            ("weight", "bias", "x"), torch.autograd.grad((out * asked.to(x.dtype)).sum(), leaves), strict=True
        ):
            gradients[name].copy_(gradient)

    def fresh(kind):
        gradients = {"weight": torch.zeros(4), "bias": torch.zeros(4), "x": x.clone(), "out": x.clone()}
        return [
            {name: value.to(kind, copy=True) for name, value in each.items()} for each in (given, gradients)
        ]

    values, gradients = fresh(torch.float32)
    compiled = compile_step(step, dict(values), x.clone(), dict(gradients))
    values, gradients = fresh(torch.float32)
    compiled(values, x, gradients)
    expected, true = fresh(torch.float64)
    step(expected, x.double(), true)
    for name, value in (expected | true).items():
        found = (values | gradients)[name].double()
        assert torch.allclose(found, value, rtol=2e-3, atol=2e-3 * float(value.abs().max())), name


def test_a_model_keeps_its_buffers_in_place():
    norm = nn.BatchNorm1d(3)
    buffers = dict(norm.named_buffers())

    def step(buffers, x):
        torch.func.functional_call(norm, buffers, (x,))

    x = torch.arange(12.0).view(4, 3)
    compiled = compile_step(step, {name: value.clone() for name, value in buffers.items()}, x)
    mine = {name: value.clone() for name, value in buffers.items()}
    compiled(mine, x)
    assert torch.allclose(mine["running_mean"], 0.1 * x.mean(dim=0))
    assert mine["num_batches_tracked"] == 1


def operators(without):
    """Return the operators in the trace of a step in bfloat16 when these parts of `fast` are left out."""
    shapes = {
        "stem": (8, 3, 3, 3),
        "deep": (8, 1, 3, 3),
        "point": (8, 8, 1, 1),
        "scale": (8,),
        "last": (10, 8),
    }
    weights = {name: torch.ones(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}

    def step(weights, x):
        leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
        h = conv2d(conv2d(x, leaves["stem"], padding=1), leaves["deep"], padding=1, groups=8)
        h = conv2d(h, leaves["point"])
        h = batch_norm(h, None, None, leaves["scale"].float(), leaves["scale"].float(), training=True).relu()
        y = linear(max_pool2d(h, 2).mean(dim=(2, 3)), leaves["last"])
        return torch.autograd.grad(y.float().sum(), list(leaves.values()))

    x = torch.ones(4, 3, 8, 8, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    table = Decompositions(without=frozenset(without)).all
    traced = make_fx(step, decomposition_table=table, tracing_mode="fake")(weights, x)
    return Counter(str(node.target) for node in traced.graph.nodes if node.op == "call_function")


@pytest.mark.parametrize(
    ("part", "operator"),
    [
        ("depthwise", "aten.convolution"),
        ("pointwise", "aten.convolution"),
        ("stem", "aten.convolution"),
        ("batch_norm", "aten.native_batch_norm"),
        ("small_matmul", "aten.mm"),
    ],
)
def test_a_decomposition_can_be_left_out(part, operator):
    def many(counted):
        return counted[f"{operator}.default"], counted[f"{operator}_backward.default"]

    before, after = many(operators({})), many(operators({part}))
    assert sum(before) < sum(after)
    if operator == "aten.convolution":
        assert (before, after) == ((0, 0), (1, 1))  # the others of its kind stay decomposed


def test_the_environment_leaves_parts_out(monkeypatch):
    def step(weight, x):
        leaf = weight.detach().requires_grad_()
        weight.sub_(torch.autograd.grad(conv2d(x, leaf, groups=4).sum(), leaf)[0])

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, arguments=(), named=None):
            seen.add(str(operator))
            return operator(*arguments, **(named or {}))

    x = torch.ones(2, 4, 5, 5).contiguous(memory_format=torch.channels_last)
    for without, plain in (
        ("", False),
        ("stem, triton", False),
        ("stem,depthwise", True),
        ("uncompiled", True),
    ):
        monkeypatch.setenv("UNSKEW_FAST_WITHOUT", without)
        seen = set()
        with Seen():
            decompose_convolutions(step)(torch.ones(4, 1, 3, 3), x)
        assert ("aten.convolution.default" in seen) == plain, without
    monkeypatch.setenv("UNSKEW_FAST_WITHOUT", "any_batch")
    assert compile_step_for_any_batch(step, torch.ones(4, 1, 3, 3), x, batch=(x,)) is None


def test_an_unknown_part_in_the_environment_is_refused(monkeypatch):
    monkeypatch.setenv("UNSKEW_FAST_WITHOUT", "depthwise,batchnorm")
    for compile in (compile_step, partial(compile_step_for_any_batch, batch=())):
        with pytest.raises(UserError, match=r"UNSKEW_FAST_WITHOUT 'batchnorm': did you mean 'batch_norm'\?"):
            compile(lambda x: None, torch.ones(3))
