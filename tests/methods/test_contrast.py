"""FedRCL, and the levels of a network that it uses."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d, cosine_similarity, cross_entropy, relu

import unskew
from federations import flat, split
from pools import on_every_engine
from unskew import Budget, Trial, UserError
from unskew.data.augment import normalise
from unskew.methods import fedrcl, fedsam
from unskew.methods.fedrcl import relaxed_contrast
from unskew.models import build, level_ends, seen_levels
from unskew.types import Inputs

RELEASED = {"tau": 0.05, "lam": 0.7, "negatives": 2}


def by_hand(features, labels, *, tau, lam, negatives):
    """Compute both terms sample by sample, in double precision."""
    x, contrast, penalty = features.double(), 0.0, 0.0
    for i, label in enumerate(labels):
        s = [float(cosine_similarity(x[i], other, dim=0)) for other in x]
        own = min(s[j] for j in range(len(x)) if labels[j] == label)
        others = sorted((s[j] for j in range(len(x)) if labels[j] != label), reverse=True)[:negatives]
        contrast += math.log(sum(math.exp(each / tau) for each in [own, *others])) - own / tau
        near = min((s[j] for j in range(len(x)) if j != i and labels[j] == label), default=-1.0)
        penalty += math.log1p(math.exp((near - 1) / tau)) if near >= lam else 0.0
    return contrast / len(x), penalty / len(x)


@pytest.mark.parametrize("options", [RELEASED, {"tau": 0.5, "lam": 0.2, "negatives": 3}])
@pytest.mark.parametrize("seed", range(3))
def test_the_terms_are_the_printed_ones_sample_by_sample(seed, options):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor([0, 0, 1, 2, 2, 2, 3, 1])
    features = torch.randn(8, 5, generator=generator) + 2 * nn.functional.one_hot(labels, 5)
    found = relaxed_contrast(features, labels, **options)
    np.testing.assert_allclose(torch.stack(found), by_hand(features, labels, **options), rtol=1e-5)
    scaled = relaxed_contrast(features * torch.rand(8, 1, generator=generator).add(0.1), labels, **options)
    torch.testing.assert_close(found, scaled)


def test_the_penalty_in_numbers():
    """Check two samples of a class with a cosine of 0.8, above a threshold of 0.7 and below one of 0.9."""
    features, labels = torch.tensor([[1.0, 0.0], [0.8, 0.6]]), torch.tensor([1, 1])
    _, penalty = relaxed_contrast(features, labels, **RELEASED)
    assert float(penalty) == pytest.approx(0.0181499, abs=1e-6)
    _, off = relaxed_contrast(features, labels, **{**RELEASED, "lam": 0.9})
    assert float(off) == 0


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2], [1], [0, 0, 1]])
def test_hard_batches_have_finite_losses_and_gradients(labels):
    """Check batches of one class or one sample, without a second sample of a class, and with equal or zero
    features."""
    for features in (torch.ones(len(labels), 4), torch.zeros(len(labels), 4), torch.randn(len(labels), 4)):
        leaf = features.clone().requires_grad_()
        contrast, penalty = relaxed_contrast(leaf, torch.tensor(labels), **RELEASED)
        (contrast + penalty).backward()
        assert torch.stack([contrast, penalty]).isfinite().all()
        assert leaf.grad.isfinite().all()
        if len(set(labels)) == 1:
            assert contrast.detach() == 0


@pytest.fixture(scope="module")
def noise():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (24, 16, 16), np.uint8), np.arange(24) % 3
    return unskew.data.from_arrays(x, y, x[:6], y[:6], name="noise")


def residual_levels(net, x):
    """Return the levels of a ResNet as the release takes them: before the last ReLU of its stem and of each
    stage."""
    out, levels = net.body.stem.norm(net.body.stem.conv(x)), []
    levels.append(out)
    out = relu(out)
    for stage in (net.body.stage1, net.body.stage2, net.body.stage3):
        for block in stage:
            inner = block.norm2(block.conv2(relu(block.norm1(block.conv1(out)))))
            made = inner + block.shortcut(out)
            out = relu(made)
        levels.append(made)
    return [adaptive_avg_pool2d(level, 1).flatten(1) for level in levels]


def test_one_step_looks_at_the_stem_and_at_all_stages(noise):
    budget = Budget(rounds=1, epochs=1, batch_size=100, lr=0.1, momentum=0, weight_decay=0)
    trial = Trial(split(noise, range(24)), "resnet8", budget=budget, model_options={"norm": "group"})
    net = copy.deepcopy(trial.build())
    x, y = normalise(noise.train.inputs, noise.mean, noise.std), noise.train.labels
    loss = cross_entropy(net(x).logits, y)
    terms = [relaxed_contrast(level, y, **RELEASED) for level in residual_levels(net, x)]
    loss = loss + sum(contrast + 0.5 * penalty for contrast, penalty in terms) / len(terms)
    grads = torch.autograd.grad(loss, list(net.parameters()))
    result = unskew.train(trial, fedrcl(beta=0.5))
    for (name, value), grad in zip(net.named_parameters(), grads, strict=True):
        torch.testing.assert_close(
            result.weights.params[name], (value - 0.1 * grad).detach(), rtol=1e-3, atol=1e-4
        )
    assert float(result.rounds[0].train_loss) == pytest.approx(loss.item(), rel=1e-4)


LEVELS = {"resnet8": 4, "resnet18": 5, "resnet18-imagenet": 5, "mobilenetv2": 5, "mobilenet": 6,
          "cnn": 3, "vgg9": 8, "mlp": 2, "logistic": 0, "lenet5": 4}  # fmt: skip


@pytest.mark.parametrize("name", LEVELS)
def test_which_levels_networks_have(name):
    net = build(name, Inputs("image", (3, 32, 32)), 10)
    with seen_levels(level_ends(net)) as seen, torch.no_grad():
        net(torch.zeros(2, 3, 32, 32))
    assert len(seen) == LEVELS[name]
    assert not any(part._forward_hooks for part in net.modules())


def test_levels_are_the_same_on_every_engine(noise, monkeypatch):
    """Train with a client that has one sample, and so no batch statistics."""
    on_every_engine(monkeypatch)
    clients = split(noise, range(9), range(9, 20), [20])
    budget = Budget(rounds=2, epochs=1, batch_size=3)
    loop, pool, graphs = (
        unskew.train(Trial(clients, "resnet8", budget=budget, engine=engine, workers=2), fedrcl())
        for engine in ("loop", "pool", "graphs")
    )
    assert torch.equal(flat(loop.weights), flat(pool.weights))
    assert torch.equal(flat(loop.weights), flat(graphs.weights))


def test_without_weights_it_is_fedavg_bit_for_bit(noise):
    trial = Trial(split(noise, range(9), range(9, 20)), "resnet8", budget=Budget(rounds=1, epochs=1))
    plain, other = unskew.train(trial), unskew.train(trial, fedrcl(mu=0, beta=0) + fedsam(rho=0))
    assert torch.equal(flat(plain.weights), flat(other.weights))


def test_a_model_of_ones_own_has_its_features_alone_and_the_run_says_so(noise):
    def own():
        return nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.ReLU(), nn.Linear(8, 3))

    clients, budget = split(noise, range(24)), Budget(rounds=1, epochs=1)
    mine = unskew.train(Trial(clients, own, budget=budget), fedrcl())
    assert any("features alone" in note for note in mine.notes)
    named = unskew.train(Trial(clients, "mlp", budget=budget), fedrcl())
    assert not any("features alone" in note for note in named.notes)


@pytest.mark.parametrize("options", [{"mu": -1}, {"beta": -1}, {"tau": 0}, {"negatives": 0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(UserError, match=f"^{next(iter(options))} is .* but should be"):
        fedrcl(**options)
