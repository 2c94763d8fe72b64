"""The networks are the published ones: their sizes, their shapes, their options."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from unskew.errors import UserError
from unskew.models import (
    MODELS,
    batch_statistics,
    build,
    count_parameters,
    default_model,
    moving_norms,
)
from unskew.types import Inputs, Out

MNIST = Inputs("image", (1, 28, 28))
CIFAR = Inputs("image", (3, 32, 32))
TINY = Inputs("image", (3, 64, 64))
DIGITS = Inputs("image", (1, 8, 8))
TABLE = Inputs("table", (60,))
TEXT = Inputs("text", (12,), vocabulary=50)


def some_input(inputs: Inputs, batch: int = 4) -> Tensor:
    shape = (batch, *inputs.shape)
    generator = torch.Generator().manual_seed(0)
    if inputs.kind == "text":
        return torch.randint(inputs.vocabulary, shape, dtype=torch.int32, generator=generator)
    return torch.randn(shape, generator=generator)


def fitting(name: str) -> Inputs:
    return TEXT if name == "text" else CIFAR


# Published counts, or by arithmetic from a published layer list.
PARAMETERS = [
    ("logistic", TABLE, 10, 610),
    ("mlp", MNIST, 10, 199_210),
    ("mlp-small", DIGITS, 10, 4_810),
    ("lenet5", MNIST, 10, 61_706),
    ("lenet5-bn", CIFAR, 10, 62_006 + 2 * (6 + 16)),
    ("simple-cnn", CIFAR, 10, 62_006),
    ("simple-cnn", MNIST, 10, 44_426),
    ("lenet-fedma", MNIST, 10, 431_080),
    ("cnn", MNIST, 10, 1_663_370),
    ("cnn", CIFAR, 10, 2_156_490),
    ("cnn", CIFAR, 100, 2_202_660),
    ("cnn", TINY, 200, 8_545_416),
    ("cnn-l", MNIST, 10, 1_663_370 + 64 * 64 * 25 + 64),
    ("cnn-fedlc", CIFAR, 10, 304_650),
    ("cnn-pfl", CIFAR, 10, 896 + 18_496 + 12_544 * 128 + 128 + 1_290),
    ("vgg9", CIFAR, 10, 3_491_530),
    ("vgg9-mnist", MNIST, 10, 1_125_504 + 2_304 * 1_024 + 1_024 + 1_024 * 512 + 512 + 5_130),
    ("vgg11", CIFAR, 10, 9_220_480 + 2 * (512 * 512 + 512) + 5_130),
    ("vgg11", MNIST, 10, 9_220_480 - 2 * 576 + 2 * (512 * 512 + 512) + 5_130),
    ("mobilenet", CIFAR, 10, 3_217_226),
    ("mobilenetv2", CIFAR, 10, 2_296_922),
    ("mobilenetv2", CIFAR, 100, 2_412_212),
    ("mobilenetv2", TINY, 200, 2_540_312),
    ("resnet8", CIFAR, 10, 75_290),
    ("resnet20", CIFAR, 10, 269_722),
    ("resnet32", CIFAR, 10, 464_154),
    ("resnet56", CIFAR, 10, 853_018),
    ("resnet10", CIFAR, 10, 4_903_242),
    ("resnet18", CIFAR, 10, 11_173_962),
    ("resnet34", CIFAR, 10, 21_282_122),
    ("resnet18-imagenet", CIFAR, 10, 11_181_642),
    ("text", TEXT, 4, 50 * 64 + 64 * 4 + 4),
]


@pytest.mark.parametrize(("name", "inputs", "classes", "expected"), PARAMETERS)
def test_parameters(name: str, inputs: Inputs, classes: int, expected: int) -> None:
    with torch.device("meta"):
        assert count_parameters(build(name, inputs, classes)) == expected


def test_every_model_has_a_known_size() -> None:
    assert {name for name, *_ in PARAMETERS} == set(MODELS)


MACS = [
    ("lenet5", MNIST, 416_520, 0),
    ("mlp", MNIST, 0.20e6, 0.005e6),
    ("mobilenetv2", CIFAR, 91.15e6, 0.005e6),
    ("mobilenetv2", TINY, 364.8e6, 0.3e6),
    ("resnet18-imagenet", CIFAR, 37.0e6, 0.05e6),
    ("resnet32", CIFAR, 68.9e6, 0.05e6),
    ("resnet56", CIFAR, 125.5e6, 0.05e6),
    ("resnet18", CIFAR, 555e6, 1e6),
    ("cnn-fedlc", CIFAR, 30.4e6, 0.05e6),
    ("vgg9", CIFAR, 135.4e6, 0.05e6),
]


@pytest.mark.parametrize(("name", "inputs", "expected", "tolerance"), MACS)
def test_multiply_adds(name: str, inputs: Inputs, expected: float, tolerance: float) -> None:
    """Count those of convolutions and linear layers, for one image."""
    total = 0

    def count(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        total += output.numel() * math.prod(layer.weight.shape[1:])

    with torch.device("meta"):
        net = build(name, inputs, 10).eval()
        for layer in net.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.register_forward_hook(count)
        net(torch.empty(1, *inputs.shape))
    assert total == pytest.approx(expected, rel=0, abs=tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_features_are_what_the_last_layer_reads(name: str) -> None:
    inputs = fitting(name)
    net = build(name, inputs, 7).eval()
    out = net(some_input(inputs))
    assert isinstance(out, Out)
    assert out.features.shape == (4, net.head.in_features)
    assert out.logits.shape == (4, 7)
    torch.testing.assert_close(net.head(out.features), out.logits, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["cnn", "mobilenetv2", "resnet8", "text"])
def test_every_weight_learns_through_functional_call(name: str) -> None:
    inputs = fitting(name)
    net = build(name, inputs, 5).train()
    params = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    buffers = {name: b.detach().clone() for name, b in net.named_buffers()}
    out = functional_call(net, (params, buffers), (some_input(inputs, 8),))
    loss = nn.functional.cross_entropy(out.logits, torch.arange(8) % 5)
    gradients = torch.autograd.grad(loss, list(params.values()))
    assert all(bool(g.isfinite().all()) and bool((g != 0).any()) for g in gradients)


@pytest.mark.parametrize("name", [name for name in MODELS if "batch" in MODELS[name].norms])
def test_norm_by_choice(name: str) -> None:
    """Check that group normalisation has batch normalisation's weights and no buffers, and that a batch of
    one can train."""
    with torch.device("meta"):  # of these no values are looked at
        batched, default = build(name, CIFAR, 10, norm="batch"), build(name, CIFAR, 10)
        bare = build(name, CIFAR, 10, norm="none")
    assert moving_norms(batched)
    assert bool(moving_norms(default)) == (MODELS[name].norms[0] == "batch")
    grouped = build(name, CIFAR, 10, norm="group")
    assert not moving_norms(grouped)
    assert not list(grouped.buffers())
    assert count_parameters(grouped) == count_parameters(batched)
    out = grouped.train()(some_input(CIFAR, 1))
    assert bool(out.features.abs().sum() > 0)
    assert not any("norm" in key for key, _ in bare.named_parameters())


@pytest.mark.parametrize("channels", [2, 6, 16, 24, 96, 144, 512])
def test_a_group_never_holds_one_channel(channels: int) -> None:
    from unskew.models.net import norm_layer

    layer = norm_layer("group", channels)
    assert isinstance(layer, nn.GroupNorm)
    assert channels // layer.num_groups >= 2
    assert bool(layer(torch.randn(3, channels, 1, 1)).abs().sum() > 0)


def test_mobilenetv2_has_57_batch_norms() -> None:
    with torch.device("meta"):
        net = build("mobilenetv2", CIFAR, 10)
    assert sum(isinstance(part, nn.BatchNorm2d) for part in net.modules()) == 57


def test_option_a_shortcut_keeps_every_second_pixel_between_zero_channels() -> None:
    net = build("resnet8", CIFAR, 10)
    block = net.get_submodule("body.stage2.0")
    for p in block.parameters():
        nn.init.zeros_(p)
    x = torch.rand(2, 16, 6, 6)
    out = block(x)
    assert out.shape == (2, 32, 3, 3)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert not out[:, :8].any()
    assert not out[:, 24:].any()


def test_published_initial_weights() -> None:
    torch.manual_seed(0)
    he = build("resnet56", CIFAR, 10).get_parameter("body.stage3.4.conv1.weight").detach()
    assert float(he.std()) == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.03)
    convs = [layer for layer in build("vgg11", CIFAR, 10).modules() if isinstance(layer, nn.Conv2d)]
    assert float(convs[-1].weight.detach().std()) == pytest.approx(math.sqrt(2 / (512 * 9)), rel=0.01)
    assert not any(bool(layer.bias.any()) for layer in convs if layer.bias is not None)
    pfl = build("cnn-pfl", CIFAR, 10).get_parameter("body.fc.weight").detach()
    assert float(pfl.abs().max()) == pytest.approx(math.sqrt(6 / (12_544 + 128)), rel=0.01)


def test_the_seed_decides_the_weights() -> None:
    def weights(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return torch.cat([p.detach().flatten() for p in build("resnet8", CIFAR, 10).parameters()])

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))


def test_padding_counts_for_nothing() -> None:
    net = build("text", TEXT, 4, width=8)
    tokens = torch.tensor([[3, 9, 9, 0, 0, 0], [3, 9, 9, 7, 7, 7], [0, 0, 0, 0, 0, 0]], dtype=torch.int32)
    table = net.get_parameter("body.weight")
    features = net(tokens).features
    torch.testing.assert_close(features[0], (table[3] + 2 * table[9]) / 3)
    torch.testing.assert_close(features[0], net(tokens[:1, :3]).features[0])
    assert not features[2].any()
    net(tokens).logits.sum().backward()
    assert table.grad is not None
    assert not table.grad[0].any()


def test_perceptron_widths() -> None:
    net = build("mlp", TABLE, 3, hidden=[20, 30, 5])
    assert [tuple(p.shape) for p in net.parameters() if p.ndim == 2] == [(20, 60), (30, 20), (5, 30), (3, 5)]


@pytest.mark.parametrize(("kind", "extra"), [("moon", 512 * 512 + 512), ("fedvls", 512 * 256 + 256)])
def test_projection_stands_before_the_head(kind: str, extra: int) -> None:
    hidden = 512 if kind == "moon" else 256
    plain, projected = build("cnn", MNIST, 10), build("cnn", MNIST, 10, projection=kind)
    head = (256 * 10 + 10) - (512 * 10 + 10)
    assert count_parameters(projected) - count_parameters(plain) == extra + hidden * 256 + 256 + head
    out = projected(some_input(MNIST))
    assert out.features.shape == (4, 256)
    torch.testing.assert_close(projected.head(out.features), out.logits, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["lenet5-bn", "mobilenetv2", "resnet18"])
def test_batch_statistics_also_in_evaluation(name: str) -> None:
    net = build(name, CIFAR, 10)
    assert batch_statistics(net) is net
    assert not list(net.buffers())
    assert moving_norms(net)
    x = some_input(CIFAR, 6)
    torch.testing.assert_close(net.eval()(x).logits, net.train()(x).logits)
    other = torch.cat([x[:3], -5 * x[3:]])
    assert not torch.allclose(net.eval()(x).logits[:3], net.eval()(other).logits[:3])


def test_networks_follow_the_size_of_the_images() -> None:
    for name in MODELS:
        if name == "text":
            continue
        for inputs in (MNIST, CIFAR, TINY, Inputs("image", (2, 48, 40))):
            with torch.device("meta"):
                model, images = build(name, inputs, 10).eval(), torch.empty(2, *inputs.shape)
            with torch.no_grad():
                out = model(images)
            assert out.logits.shape == (2, 10), name


@pytest.mark.parametrize(
    ("name", "inputs", "options", "message"),
    [
        ("mobilnetv2", CIFAR, {}, "unknown model 'mobilnetv2': did you mean 'mobilenetv2'?"),
        (
            "cnn",
            TABLE,
            {},
            "model 'cnn' reads image data, not table data: choose one of logistic, mlp, mlp-small.",
        ),
        ("mlp", TEXT, {}, "model 'mlp' reads image or table data, not text data: choose one of text."),
        ("resnet8", CIFAR, {"norm": "grup"}, "unknown norm of model 'resnet8' 'grup': did you mean 'group'?"),
        ("cnn", CIFAR, {"width": 3}, "model 'cnn' has no option 'width': it takes none."),
        ("mlp", MNIST, {"hiden": [3]}, "unknown option of model 'mlp' 'hiden': did you mean 'hidden'?"),
        (
            "mlp",
            MNIST,
            {"hidden": [0]},
            "hidden is [0] but should list the width of each hidden layer, as [200, 200].",
        ),
        (
            "mlp",
            MNIST,
            {"hidden": 20},
            "hidden is 20 but should list the width of each hidden layer, as [200, 200].",
        ),
        ("text", TEXT, {"width": 0}, "width is 0 but should be a whole number of 1 or more."),
        ("cnn", MNIST, {"projection": "mon"}, "unknown projection 'mon': did you mean 'moon'?"),
        ("simple-cnn", DIGITS, {}, "images of 8×8 are too small for model 'simple-cnn'"),
        ("vgg11", DIGITS, {}, "images of 8×8 are too small for model 'vgg11'"),
    ],
)
def test_mistakes_are_explained(name: str, inputs: Inputs, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        build(name, inputs, 10, **options)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("dataset", "inputs", "expected"),
    [
        ("digits", DIGITS, "mlp-small"),
        ("wine", TABLE, "mlp-small"),
        ("synthetic", TABLE, "logistic"),
        ("mnist", MNIST, "mlp"),
        ("fashion-mnist", MNIST, "lenet5"),
        ("usps", Inputs("image", (1, 16, 16)), "cnn"),
        ("cifar10", CIFAR, "cnn"),
        ("flowers", Inputs("image", (3, 224, 224)), "resnet18-imagenet"),
        ("ag_news", TEXT, "text"),
    ],
)
def test_default_model_fits_the_data(dataset: str, inputs: Inputs, expected: str) -> None:
    assert default_model(dataset, inputs) == expected
    with torch.device("meta"):
        build(expected, inputs, 3)
