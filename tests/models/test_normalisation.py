"""Weight standardisation, GroupNorm and normalised features, as options of every network."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from federations import flat, split
from pools import on_every_engine
from unskew import Budget, Trial, UserError, load_model, train
from unskew.data import from_arrays
from unskew.methods import METHODS
from unskew.models import MODELS, Tuning, build, count_parameters
from unskew.models.lora import add_adapter, merge_adapters
from unskew.models.net import BATCH_NORMS
from unskew.models.standardised import STANDARDISED, make_plain, make_standardised
from unskew.parts.heads import find_head
from unskew.types import Inputs

CIFAR = Inputs("image", (3, 32, 32))
DIGITS = Inputs("image", (1, 8, 8))
STANDARDISABLE = [name for name in MODELS if "ws" in MODELS[name].norms]
MORE_OF_THE_SAME = {"resnet20", "resnet32", "resnet56", "resnet18", "resnet18-imagenet", "resnet34", "vgg11"}
DIFFERENT = [name for name in STANDARDISABLE if name not in MORE_OF_THE_SAME]
"""Without those that have more of the same blocks than others."""


def images(size: int = 4, inputs: Inputs = CIFAR) -> Tensor:
    return torch.randn(size, *inputs.shape, generator=torch.Generator().manual_seed(0))


def seeded(name: str, inputs: Inputs = CIFAR, **options: object) -> nn.Module:
    torch.manual_seed(0)
    return build(name, inputs, 10, **options)  # type: ignore[arg-type]


def by_hand(weight: Tensor, scale: float) -> Tensor:
    """Compute the formula, written out."""
    rows = weight.flatten(1)
    n = rows.shape[1]
    mean = rows.sum(dim=1, keepdim=True) / n
    std = ((rows - mean).square().sum(dim=1, keepdim=True) / (n - 1)).sqrt()
    return (scale * (rows - mean) / (std + 1e-5)).view_as(weight)


# ---- Weight standardisation


def test_three_weights_by_hand() -> None:
    layer = nn.Conv2d(3, 2, 1, bias=False)
    make_standardised(layer, gain=math.sqrt(3) * 0.5)  # a scale of 0.5
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0, 3.0], [7.0, 7.0, 7.0]]).view(2, 3, 1, 1))
    x = torch.eye(3).view(3, 3, 1, 1)
    expected = torch.tensor([-0.5, 0.0, 0.5]) / 1.00001
    torch.testing.assert_close(layer(x)[:, 0, 0, 0], expected)
    assert not layer(x)[:, 1].any()  # a filter that is constant
    (gradient,) = torch.autograd.grad(layer(x).square().sum(), layer.weight)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("scale", [0.0, 1e-3])
@pytest.mark.parametrize("norm", ["ws", "group+ws"])
def test_a_network_and_its_gradient_are_the_formula(norm: str, scale: float) -> None:
    net = seeded("cnn", DIGITS, norm=norm, ws_scale=scale).double()
    weights = {name: value.detach().clone().requires_grad_() for name, value in net.named_parameters()}
    gain = math.sqrt(2 / (1 - 1 / math.pi))

    def written(x: Tensor) -> Tensor:
        for at, groups, fan_in in ((0, 16, 25), (3, 32, 800)):
            kernel = by_hand(weights[f"body.maps.{at}.weight"], scale or gain / math.sqrt(fan_in))
            x = F.conv2d(x, kernel, weights[f"body.maps.{at}.bias"], padding=2)
            if norm == "group+ws":
                own = (weights[f"body.maps.norm{at}.{part}"] for part in ("weight", "bias"))
                x = F.group_norm(x, groups, *own)
            x = F.max_pool2d(x.relu(), 2)
        x = F.linear(x.flatten(1), weights["body.fc.weight"], weights["body.fc.bias"]).relu()
        return F.linear(x, weights["head.weight"], weights["head.bias"])

    x = images(4, DIGITS).double()
    logits = net(x).logits
    torch.testing.assert_close(logits, written(x), rtol=1e-9, atol=1e-9)
    target = torch.arange(4)
    found = torch.autograd.grad(F.cross_entropy(logits, target), list(net.parameters()))
    expected = torch.autograd.grad(F.cross_entropy(written(x), target), list(weights.values()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ["cnn", "resnet8", "mobilenetv2", "mlp"])
def test_the_scale_and_the_mean_of_a_filter_count_for_nothing(name: str) -> None:
    net = seeded(name, norm="ws").double()
    x, other = images(2).double(), copy.deepcopy(net)
    parts = [part for part in net.modules() if isinstance(part, STANDARDISED)]
    moved = [part for part in other.modules() if isinstance(part, STANDARDISED)]
    assert parts
    with torch.no_grad():
        for part in moved:
            part.weight.mul_(3.0).add_(0.5)
    # what is left of the difference is the epsilon beside the deviation
    torch.testing.assert_close(other(x).logits, net(x).logits, rtol=2e-2, atol=2e-3)
    net(x).logits[:, 0].sum().backward()
    for part in parts:
        assert part.weight.grad is not None
        gradient, weight = part.weight.grad.flatten(1), part.weight.detach().flatten(1)
        centred = weight - weight.mean(dim=1, keepdim=True)
        lengths = gradient.norm(dim=1)
        assert (gradient.sum(dim=1).abs() <= 1e-9 + 1e-9 * lengths).all()
        assert ((gradient * centred).sum(dim=1).abs() <= 1e-9 + 2e-3 * lengths * centred.norm(dim=1)).all()


def test_which_layers_are_standardised() -> None:
    def names(model: str, **options: object) -> set[str]:
        net = seeded(model, norm="ws", **options)
        return {name for name, part in net.named_modules() if isinstance(part, STANDARDISED)}

    assert names("cnn") == {"body.maps.0", "body.maps.3"}  # not its linear layers
    assert names("mlp") == {"body.fc1", "body.fc2"}
    depthwise = {name for name in names("mobilenet") | names("mobilenetv2") if "depthwise" in name}
    assert not depthwise
    assert "body.stem.conv" in names("mobilenetv2")
    assert "body.stage2.0.shortcut.conv" in names("resnet18")
    # of one weight without its mean nothing would be left
    one = build("mlp-small", Inputs("table", (1,)), 3, norm="ws")
    assert len({tuple(row) for row in one(torch.tensor([[1.0], [2.0]])).logits.tolist()}) == 2


@pytest.mark.parametrize("name", STANDARDISABLE)
def test_outputs_keep_their_size_at_any_depth(name: str) -> None:
    """Check it without a norm behind the convolutions: the scale of their weights alone keeps the size."""
    with torch.no_grad():
        out = seeded(name, norm="ws").eval()(images(2))
    assert 0.1 < float(out.features.square().mean().sqrt()) < 5
    assert 0.05 < float(out.logits.std()) < 5


@pytest.mark.parametrize("name", DIFFERENT)
def test_weights_have_the_names_and_values_of_the_plain_network(name: str) -> None:
    plain = seeded(name, norm="none").state_dict()
    for norm in MODELS[name].norms:
        net = seeded(name, norm=norm)
        own = net.state_dict()
        assert plain.keys() <= own.keys()
        norms = [key for key, part in net.named_modules() if isinstance(part, (*BATCH_NORMS, nn.GroupNorm))]
        added = {key for key in own if key.rpartition(".")[0] not in norms} - plain.keys()
        assert all(norm == "ws" and key.endswith(".bias") for key in added)
        # MobileNets' depthwise kernels start larger where nothing is normalised behind them
        same = [key for key in plain if not (norm == "ws" and "depthwise" in key)]
        assert all(torch.equal(own[key], plain[key]) for key in same)


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.parametrize("norm", ["ws", "group+ws"])
def test_every_network_is_trained_saved_and_loaded(name: str, norm: str, few, tmp_path) -> None:
    options = {"features": "normalised"} if norm == "ws" else {}
    trial = Trial(few, name, norm=norm, model_options=options, engine="loop")
    trial = replace(trial, budget=Budget(rounds=1, epochs=1, batch_size=4, lr=0.01))
    result = train(trial)
    trained = result.weights.params
    untrained = trial.build()
    start = dict(untrained.named_parameters())
    assert trained.keys() == start.keys()  # the weights themselves are sent, and all of them
    assert result.rounds[0].traffic.up == 4 * sum(value.numel() for value in trained.values())
    for part, layer in untrained.named_modules():
        if isinstance(layer, STANDARDISED):
            assert not torch.equal(trained[f"{part}.weight"], start[f"{part}.weight"])
    model = load_model(result.save(tmp_path / "run"))
    x, confusion = few.dataset.test.inputs, np.zeros((10, 10), np.int64)
    np.add.at(confusion, (few.dataset.test.labels.numpy(), model(x).argmax(dim=1).numpy()), 1)
    assert (confusion == result.final.confusion).all()
    told = json.loads((tmp_path / "run" / "model.json").read_text())["network"]
    assert told["norm"] == norm
    assert told["options"]["features"] == options.get("features", "plain")
    # as it is exported: the same outputs without a layer that standardises
    before = model(x)
    make_plain(model)
    assert not any(isinstance(part, STANDARDISED) for part in model.modules())
    torch.testing.assert_close(model(x), before)


@pytest.fixture(scope="module")
def few():
    rng = np.random.default_rng(0)
    return split(from_arrays(rng.integers(0, 256, (12, 3, 32, 32), np.uint8), [*range(10), 0, 1]), range(4))


@pytest.mark.parametrize(
    ("model", "norm", "features", "tuning"),
    [
        ("cnn", "group+ws", "normalised", Tuning()),
        ("cnn", "ws", "unit", Tuning(lora=2)),
        ("mlp-small", "group+ws", "plain", Tuning(freeze=("body.fc1",))),
    ],
)
def test_engines_give_the_same_bits(skewed, monkeypatch, model, norm, features, tuning):
    pools = on_every_engine(monkeypatch)
    small = split(skewed.dataset, *(rows[:40] for rows in skewed.partition.indices))
    budget = Budget(rounds=2, epochs=1, batch_size=8)
    trial = Trial(small, model, norm=norm, model_options={"features": features}, tuning=tuning, budget=budget)
    by_loop = flat(train(replace(trial, engine="loop")).weights)
    assert torch.equal(flat(train(replace(trial, engine="pool", workers=2)).weights), by_loop)
    assert sum(pool.replayed for pool in pools) > 0
    assert torch.equal(flat(train(replace(trial, engine="graphs")).weights), by_loop)


def test_an_adapter_is_inside_the_standardisation_and_can_be_merged() -> None:
    for layer, x in (
        (nn.Conv2d(4, 6, 3, padding=1), torch.randn(2, 4, 6, 6)),
        (nn.Linear(6, 5), images(2)[:, 0, :6, :6]),
    ):
        make_standardised(layer, gain=1.0)
        plain = copy.deepcopy(layer)
        add_adapter(layer, 2, alpha=6)
        assert torch.equal(layer(x), plain(x))
        nn.init.normal_(layer.lora_b)
        assert not torch.allclose(layer(x), plain(x), atol=1e-2)
        merged = merge_adapters({f"l.{k}": v for k, v in layer.state_dict().items()}, {})
        plain.load_state_dict({k.removeprefix("l."): v for k, v in merged.items()})
        torch.testing.assert_close(plain(x), layer(x), rtol=1e-4, atol=1e-4)
        used = layer(x)
        make_plain(layer)
        assert layer.state_dict().keys() == {"weight", "bias"}
        torch.testing.assert_close(layer(x), used)


# ---- Normalised features


@pytest.mark.parametrize(("features", "length"), [("normalised", math.sqrt(512)), ("unit", 1.0)])
def test_features_have_one_length_and_are_what_the_head_reads(features: str, length: float) -> None:
    net = seeded("cnn", features=features)
    out = net(images(4))
    torch.testing.assert_close(out.features.norm(dim=1), torch.full((4,), length))
    assert torch.equal(net.head(out.features), out.logits)
    plain = seeded("cnn")
    assert count_parameters(net) == count_parameters(plain)
    assert net.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(out.features, length * F.normalize(plain(images(4)).features, eps=1e-12))


def test_the_length_of_features_counts_for_nothing_and_gets_no_gradient() -> None:
    net = build("logistic", Inputs("table", (5,)), 3, features="normalised").double()
    h = torch.randn(4, 5, dtype=torch.float64).requires_grad_()
    torch.testing.assert_close(net(7 * h).logits, net(h).logits)
    (gradient,) = torch.autograd.grad(F.cross_entropy(net(h).logits, torch.tensor([0, 1, 2, 0])), h)
    assert gradient.abs().sum() > 0
    torch.testing.assert_close((gradient * h).sum(dim=1), torch.zeros(4, dtype=torch.float64))
    zero = torch.zeros(1, 5, dtype=torch.float64).requires_grad_()
    out = net(zero)
    assert not out.features.any()
    (gradient,) = torch.autograd.grad(out.logits.square().sum(), zero)
    assert not gradient.any()


def test_a_projection_comes_before() -> None:
    out = build("cnn", DIGITS, 10, projection="moon", features="unit")(images(2, DIGITS))
    torch.testing.assert_close(out.features.norm(dim=1), torch.ones(2))


@pytest.mark.parametrize("name", ["fedgela", "ccvr", "fedconcat", "balancefl", "fpl"])
def test_methods_that_use_the_features_read_normalised_ones(name: str, skewed, tmp_path) -> None:
    small = split(skewed.dataset, *(rows[:20] for rows in skewed.partition.indices))
    trial = Trial(small, "mlp-small", norm="ws", model_options={"features": "unit"}, engine="loop")
    result = train(replace(trial, budget=Budget(rounds=1, epochs=1)), METHODS[name]())
    model = load_model(result.save(tmp_path / "run"))
    x, test = skewed.dataset.test.inputs, skewed.dataset.test
    confusion = np.zeros((10, 10), np.int64)
    np.add.at(confusion, (test.labels.numpy(), model(x).argmax(dim=1).numpy()), 1)
    assert (confusion == result.final.confusion).all()
    out = model.out(x)
    if name not in ("fedgela", "fedconcat"):  # of one's own: another norm, several networks
        torch.testing.assert_close(out.features.norm(dim=1), torch.ones(len(x)))
    head = find_head(model.core.network, 10)
    weights = dict(model.core.network.named_parameters())
    torch.testing.assert_close(head(weights, out.features), out.logits)


# ---- From the command line


def test_options_are_settings_and_travel_with_the_model(unskew, tmp_path) -> None:
    brief = (
        "--dataset",
        "digits",
        "--rounds",
        "1",
        "--epochs",
        "1",
        "--engine",
        "loop",
        "--quiet",
        "--model",
        "mlp-small",
    )
    assert unskew("run", *brief, "--out", "plain").code == 0
    options = ("--set", "model.norm=group+ws", "--set", "model.features=normalised")
    answer = unskew("run", *brief, *options, "--init", "plain", "--out", "run")
    assert answer.code == 0, answer.err
    written = (tmp_path / "run" / "experiment.toml").read_text()
    assert 'norm = "group+ws"' in written
    assert 'features = "normalised"' in written
    notes = json.loads((tmp_path / "run" / "summary.json").read_text())["notes"]
    assert "4 of 6 tensors are taken; not in the file" in " ".join(notes)
    for form, to in (("onnx", "model.onnx"), ("torch-export", "model.pt2")):
        answer = unskew("export", "run", "--to", form, "--out", to)
        assert answer.code == 0, answer.err


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("logistic", {"norm": "ws"}, "model 'logistic' has no layer to normalise: leave norm out, not 'ws'."),
        ("cnn", {"norm": "groupws"}, "unknown norm of model 'cnn' 'groupws': did you mean 'group+ws'?"),
        ("cnn", {"features": "normalized"}, "unknown features 'normalized': did you mean 'normalised'?"),
        ("cnn", {"features": 3}, "unknown features '3': choose one of normalised, plain, unit."),
        ("cnn", {"ws_scale": 0.1}, "ws_scale is given with norm 'none': let norm be ws or group+ws"),
        ("cnn", {"norm": "ws", "ws_scale": -1.0}, "ws_scale is -1.0 but should be above 0"),
        ("cnn", {"norm": "ws", "ws_scale": "a"}, "ws_scale is 'a' but should be above 0"),
    ],
)
def test_mistakes_get_one_sentence(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        build(name, CIFAR, 10, **options)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)
