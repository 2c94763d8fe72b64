"""Steps made over by a compiler mean what they meant."""

import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, cross_entropy, linear, max_pool2d
from torch.nn.grad import conv2d_input

from federations import filtering_model, flat
from unskew import Budget, Trial, engines, train
from unskew.engines import graphs
from unskew.engines.cuda.compile import decompositions as rewrite
from unskew.engines.cuda.compile import depthwise_ops as kernels
from unskew.engines.cuda.compile.step import fuse, fuse_any_size
from unskew.engines.graphs import Graphs
from unskew.engines.cuda.compile.decompositions import in_other_words
from unskew.errors import UserError
from unskew.methods import METHODS
from unskew.testing import hard_trial, normed_model
from unskew.trial import weights_of

KERNELS = {"across": (3, 3), "flat": (1, 3), "down": (3, 3)}

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="PyTorch compiles for a CPU with g++"),
    pytest.mark.filterwarnings("ignore"),  # of the compiler, about itself
]


@pytest.mark.parametrize("name", ["fedvls", "scaffold"])
def test_training_with_compiled_steps_stays_close(monkeypatch, name):
    """Full batches, most of the others, and tests."""
    monkeypatch.setitem(engines.ENGINES, "graphs", engines.Kind(Graphs))
    trial = hard_trial(normed_model, device="cpu", engine="loop")
    plain = train(trial, METHODS[name]())
    fused = train(replace(trial, engine="graphs", fast=True), METHODS[name]())
    assert torch.allclose(flat(plain.weights), flat(fused.weights), rtol=1e-4, atol=1e-5)
    for key, value in plain.weights.buffers.items():
        assert torch.allclose(value, fused.weights.buffers[key], rtol=1e-4, atol=1e-5)
    assert plain.final.loss == pytest.approx(fused.final.loss, rel=1e-3)


@pytest.mark.parametrize("rare", [False, True])
def test_training_with_filters_of_each_channel_stays_close(monkeypatch, skewed, rare):
    """One round: rounding grows with every step. Partial batches are not compiled where they are rare."""
    if rare:
        monkeypatch.setattr(graphs, "PAYS", 2.0)
    monkeypatch.setitem(engines.ENGINES, "graphs", engines.Kind(Graphs))
    budget = Budget(rounds=1, epochs=1, batch_size=20, lr=0.01)
    trial = Trial(skewed, partial(filtering_model, 1, 10), budget=budget, device="cpu", engine="loop")
    start = flat(weights_of(trial.build()))
    plain = flat(train(trial, METHODS["fedvls"]()).weights)
    fused = flat(train(replace(trial, engine="graphs", fast=True), METHODS["fedvls"]()).weights)
    assert (plain - fused).norm() < 0.01 * (plain - start).norm()


def images(samples, generator):
    x = torch.randn(samples, 3, 11, 10, generator=generator, dtype=torch.float64)
    return x.contiguous(memory_format=torch.channels_last), torch.arange(samples) % 4


def descend(weights, x, y):
    """A stem of three channels with stride and padding, a pointwise layer, two that filter each channel,
    pooling, and one that stays as it is."""
    leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
    h = conv2d(x, leaves["stem"], leaves["bias"], stride=(2, 1), padding=(2, 1)).relu()
    h = conv2d(h, leaves["point"]).relu()
    h = conv2d(h, leaves["deep"], leaves["shift"], stride=(1, 2), padding=(1, 2), groups=8).relu()
    h = max_pool2d(conv2d(h, leaves["wide"], padding=(0, 1), groups=8), (1, 2))
    loss = cross_entropy(conv2d(h, leaves["last"]).mean(dim=(2, 3)), y)
    slopes = torch.autograd.grad(loss, list(leaves.values()))
    for value, slope in zip(weights.values(), slopes, strict=True):
        value.sub_(slope)


def test_convolutions_in_other_words_give_the_same_gradients():
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
    fused = fuse(descend, copied(), x, y)
    sized = fuse_any_size(descend, copied(), x, y, batch=(x, y))
    assert sized is not None
    assert all(sized.fits(samples) for samples in (2, 5, 9))
    uncompiled = in_other_words(descend)
    for run, samples in ((fused, 5), (sized.run, 5), (sized.run, 2), (sized.run, 9), (uncompiled, 3)):
        x, y = images(samples, generator)
        expected, changed = copied(), copied()
        descend(expected, x, y)
        run(changed, x, y)
        for name, value in expected.items():
            assert not torch.equal(value, weights[name])
            assert torch.allclose(changed[name], value, rtol=1e-9, atol=1e-12), name


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("shape", "groups"), [((6, 3, 3, 3), 1), ((8, 3, 1, 1), 1), ((3, 1, 3, 3), 3)])
def test_slopes_of_weights_lie_as_the_weights_do(shape, groups, layout):
    """A fused optimiser refuses others."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 3, 6, 6, generator=generator).to(torch.bfloat16, memory_format=torch.channels_last)
    weight = torch.randn(shape, generator=generator).to(torch.bfloat16, memory_format=layout)
    slopes = []

    def step():
        leaf = weight.detach().requires_grad_()
        slopes.extend(torch.autograd.grad(conv2d(x, leaf, groups=groups).square().sum(), leaf))

    step()
    in_other_words(step)()
    assert slopes[1].stride() == weight.stride()
    assert torch.allclose(*slopes, rtol=0.05, atol=0.01 * float(slopes[0].abs().max()))


def weigh_plainly(images, weights, kernel, stride, size, turned):
    weight = (weights.flip(0) if turned else weights).t().reshape(-1, 1, *kernel).to(images.dtype)
    rows, columns = (stride[n] * (size[n] - 1) + kernel[n] for n in range(2))
    seen = images.permute(0, 3, 1, 2)[:, :, :rows, :columns]
    return conv2d(seen, weight, stride=stride, groups=len(weight)).permute(0, 2, 3, 1).contiguous()


def weigh_back_plainly(slopes, weights, kernel, stride, padding, size):
    weight = weights.t().reshape(-1, 1, *kernel).to(slopes.dtype)
    many = [(size[n] + 2 * padding[n] - kernel[n]) // stride[n] + 1 for n in range(2)]
    top, left = kernels.begin(kernel, stride, padding)
    given = slopes.permute(0, 3, 1, 2)[:, :, top : top + many[0], left : left + many[1]]
    shape = (len(slopes), len(weight), *size)
    images = conv2d_input(shape, weight, given, stride, padding, groups=len(weight))
    return images.permute(0, 2, 3, 1).contiguous()


def tap_slopes_plainly(images, slopes, parts, place, stride, size):
    def pixels(of, top, left, apart):
        rows, columns = (apart[n] * (size[n] - 1) + 1 for n in range(2))
        return of[:, top : top + rows : apart[0], left : left + columns : apart[1]].float()

    given = pixels(slopes, *place, (1, 1))
    taps = [pixels(images, i, j, stride) for i in range(3) for j in range(3)]
    sums = torch.stack([(given * tap).sum(dim=(0, 1, 2)) for tap in taps])
    return torch.cat([sums[None], sums.new_zeros(parts - 1, *sums.shape)])


def test_what_a_gpus_kernels_are_asked_for(monkeypatch):
    """With plain PyTorch in their place: that they do it, a GPU's own tests show."""
    kernels.weigh.register_kernel("cpu")(weigh_plainly)
    kernels.weigh_back.register_kernel("cpu")(weigh_back_plainly)
    kernels._in_parts.register_kernel("cpu")(tap_slopes_plainly)
    monkeypatch.setattr(rewrite, "_has_kernels", lambda _: True)
    generator = torch.Generator().manual_seed(1)
    weights = {name: torch.randn(8, 1, *size, generator=generator) for name, size in KERNELS.items()}

    def step(slopes, weights, x):
        leaves = [value.detach().requires_grad_() for value in (*weights.values(), x)]
        h = conv2d(leaves[-1], leaves[0], stride=(1, 2), padding=(1, 2), groups=8).relu()
        h = conv2d(conv2d(h, leaves[1], padding=(0, 1), groups=8), leaves[2], stride=2, groups=8)
        for slope, value in zip(slopes, torch.autograd.grad(h.square().sum(), leaves), strict=True):
            slope.copy_(value)

    def given(samples):
        x = torch.randn(samples, 8, 11, 10, generator=generator)
        x = x.contiguous(memory_format=torch.channels_last)
        return [torch.zeros_like(value) for value in (*weights.values(), x)], weights, x

    example = given(5)
    sized = fuse_any_size(step, *example, batch=(example[0][-1], example[2]))
    assert sized is not None
    runs = (fuse(step, *example), 5), (sized.run, 2), (sized.run, 7), (in_other_words(step), 3)
    for run, samples in runs:
        slopes, _, x = given(samples)
        true = [torch.zeros_like(slope) for slope in slopes]
        run(slopes, weights, x)
        step(true, weights, x)
        for found, slope in zip(slopes, true, strict=True):
            assert torch.allclose(found, slope, rtol=1e-4, atol=1e-4 * float(slope.abs().max()))


def test_a_classifier_in_other_words_gives_the_same_gradients():
    """Ten classes, in bfloat16, for batches of any size."""
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(10, 40, generator=generator), torch.randn(10, generator=generator)

    def step(slopes, weight, bias, x, y):
        leaves = [value.detach().requires_grad_() for value in (weight, bias, x)]
        loss = cross_entropy(linear(leaves[2], *leaves[:2]).float(), y)
        for slope, value in zip(slopes, torch.autograd.grad(loss, leaves[:2]), strict=True):
            slope.copy_(value)

    def given(samples, kind):
        x = torch.randn(samples, 40, generator=generator).bfloat16().to(kind)
        held = [value.bfloat16().to(kind) for value in (weight, bias)]
        return [torch.zeros_like(value) for value in held], *held, x, torch.arange(samples) % 10

    example = given(20, torch.bfloat16)
    sized = fuse_any_size(step, *example, batch=example[3:])
    assert sized is not None
    for run, samples in ((fuse(step, *example), 20), (sized.run, 3), (sized.run, 33)):
        assert run is not sized.run or sized.fits(samples)
        mine = given(samples, torch.bfloat16)
        run(*mine)
        true = [torch.zeros(10, 40), torch.zeros(10)]
        step(true, *(value.float() for value in mine[1:4]), mine[4])
        for found, slope in zip(mine[0], true, strict=True):
            assert torch.allclose(found.float(), slope, rtol=0.03, atol=0.01 * float(slope.abs().max()))


def test_a_step_that_depends_on_the_size_is_not_taken_for_others():
    def step(weight, x):
        weight.add_(x.sum() / len(x))  # a number, not a size, to the tracer

    x = torch.ones(4)
    sized = fuse_any_size(step, torch.zeros(1), x, batch=(x,))
    assert sized is not None
    assert sized.fits(4)
    assert not sized.fits(3)


def test_a_step_that_looks_at_values_is_refused():
    def step(weight, x):
        if float((weight * x).sum()) > 0:
            weight.add_(1)

    with pytest.raises(UserError, match=r"cannot be compiled .*: leave fast=true out"):
        fuse(step, torch.ones(3), torch.ones(3))


@pytest.mark.parametrize("shape", [(6, 4, 5, 3), (8, 4), (2, 4, 1, 1)])
@pytest.mark.parametrize("training", [True, False])
def test_normalisation_in_other_words_gives_the_same(shape, training):
    """Of values far from zero, close to it, and all the same; also what a ReLU leaves of them."""
    norm = nn.BatchNorm2d(4) if len(shape) == 4 else nn.BatchNorm1d(4)
    across = (1, 4, *[1] * (len(shape) - 2))
    where = torch.tensor([1000.0, -3.0, 0.0, 0.5]).view(across)
    width = torch.tensor([1.0, 0.01, 5.0, 0.0]).view(across)
    generator = torch.Generator().manual_seed(1)
    x = where + width * torch.randn(shape, generator=generator)
    given = {name: torch.rand(4, generator=generator) + 0.5 for name in ("weight", "bias", "mean", "var")}
    asked = torch.randn(shape, generator=generator)

    def step(values, x, slopes):
        leaves = [values["weight"].detach(), values["bias"].detach(), x.detach()]
        for leaf in leaves:
            leaf.requires_grad_()
        buffers = {"running_mean": values["mean"], "running_var": values["var"]}
        y = torch.func.functional_call(
            norm.train(training), {"weight": leaves[0], "bias": leaves[1], **buffers}, (leaves[2],)
        )
        out = y.relu()
        slopes["out"].copy_(out.detach())
        for name, slope in zip(
            ("weight", "bias", "x"), torch.autograd.grad((out * asked.to(x.dtype)).sum(), leaves), strict=True
        ):
            slopes[name].copy_(slope)

    def fresh(kind):
        slopes = {"weight": torch.zeros(4), "bias": torch.zeros(4), "x": x.clone(), "out": x.clone()}
        return [{name: value.to(kind, copy=True) for name, value in each.items()} for each in (given, slopes)]

    values, slopes = fresh(torch.float32)
    fused = fuse(step, dict(values), x.clone(), dict(slopes))
    values, slopes = fresh(torch.float32)
    fused(values, x, slopes)
    expected, true = fresh(torch.float64)
    step(expected, x.double(), true)
    for name, value in (expected | true).items():
        found = (values | slopes)[name].double()
        assert torch.allclose(found, value, rtol=2e-3, atol=2e-3 * float(value.abs().max())), name


def test_a_model_keeps_its_buffers_in_place():
    norm = nn.BatchNorm1d(3)
    buffers = dict(norm.named_buffers())

    def step(buffers, x):
        torch.func.functional_call(norm, buffers, (x,))

    x = torch.arange(12.0).view(4, 3)
    fused = fuse(step, {name: value.clone() for name, value in buffers.items()}, x)
    mine = {name: value.clone() for name, value in buffers.items()}
    fused(mine, x)
    assert torch.allclose(mine["running_mean"], 0.1 * x.mean(dim=0))
    assert mine["num_batches_tracked"] == 1
