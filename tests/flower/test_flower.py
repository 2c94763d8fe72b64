"""The parts of unskew.flower for a client's app, which need no Flower."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from unskew import flower, losses
from unskew.errors import UserError

COUNTS = [30, 10, 0, 8, 0]
MODULES = {
    "class-balanced": lambda net: losses.ClassBalancedLoss(COUNTS),
    "feddkd": lambda net: losses.FedDKDLoss(net),
    "fedekd": lambda net: losses.FedKDLoss(net, COUNTS),
    "fedkd": lambda net: losses.FedKDLoss(net),
    "fedlc": lambda net: losses.FedLCLoss(COUNTS),
    "fedlmd": lambda net: losses.FedLMDLoss(COUNTS, net),
    "fedlmd-tf": lambda net: losses.FedLMDLoss(COUNTS, None),
    "fedntd": lambda net: losses.FedNTDLoss(net),
    "fedntd-tf": lambda net: losses.FedNTDLoss(None),
    "fedprox": lambda net: losses.FedProxLoss(net),
    "fedrs": lambda net: losses.FedRSLoss(COUNTS),
    "fedvls": lambda net: losses.FedVLSLoss(COUNTS, net),
    "focal": lambda net: losses.FocalLoss(),
    "logit-adjustment": lambda net: losses.CalibratedLoss(COUNTS),
}
WITH_INPUTS = {"feddkd", "fedekd", "fedkd", "fedlmd", "fedntd", "fedvls"}


def data():
    labels = torch.arange(len(COUNTS)).repeat_interleave(torch.tensor(COUNTS))
    inputs = torch.randn(len(labels), 6, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, labels)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, len(COUNTS)))


def trained(net, call):
    """Train a model for one epoch and return the loss of each step."""
    torch.manual_seed(2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    values = []
    for x, y in DataLoader(data(), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        value = call(net(x), y, x)
        value.backward()
        optimizer.step()
        values.append(value.item())
    return values


@pytest.mark.parametrize("name", MODULES)
def test_a_training_loop_has_the_values_of_the_losses(name):
    net, other = model(), model()
    expected = MODULES[name](other)
    direct = expected if name in WITH_INPUTS else lambda logits, labels, inputs: expected(logits, labels)
    values = trained(net, flower.loss(name, COUNTS, net))
    assert values == trained(other, direct)
    assert len(set(values)) == len(values) == 6


def test_every_loss_is_held_to_its_values():
    with pytest.raises(UserError) as caught:
        flower.loss("zzz", COUNTS, model())
    assert str(caught.value) == f"unknown loss 'zzz': choose one of {', '.join(sorted(MODULES))}."


def test_options_are_those_of_the_loss():
    net = model()
    x, y = data()[:]
    net.eval()
    value = flower.loss("fedlc", COUNTS, net, tau=2.0)(net(x), y, x)
    assert torch.equal(value, losses.margin_cross_entropy(net(x), y, COUNTS, tau=2.0))


def called(name, counts):
    net = model()
    x, y = data()[:]
    return flower.loss(name, counts, net)(net(x), y, x)


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: called("fedvsl", COUNTS), "unknown loss 'fedvsl': did you mean 'fedvls'?"),
        (
            lambda: flower.loss("fedlc", COUNTS, model(), taus=1),
            "unknown option of fedlc 'taus': did you mean 'tau'?",
        ),
        (lambda: flower.loss("fedlc", COUNTS, "net"), "net is a str: pass the model, a torch.nn.Module."),
        *(
            (
                lambda name=name: called(name, COUNTS[:3]),
                "counts has 3 numbers, where the model tells 5 classes apart: pass one count per class, such "
                "as losses.counts_of(loader, classes=5).",
            )
            for name in ("fedvls", "fedlc", "fedntd")
        ),
        (lambda: called("fedlc", [COUNTS]), "the shape of counts is (1, 5): pass one count per class."),
        (
            lambda: flower.class_counts(model(), DataLoader(data().tensors[0], batch_size=8)),
            "the batches are of type Tensor and have no labels: pass a loader that yields (inputs, labels).",
        ),
        (
            lambda: flower.class_counts(model(), [{"img": torch.zeros(2, 6)}]),
            "the batches hold img and no labels: name these one of labels, label, targets, target, y.",
        ),
        (
            lambda: flower.class_counts(model(), [{"a": 1, "b": 2, "label": torch.tensor([1])}]),
            "the batches hold a, b, label: say which are the model's inputs, inputs=NAME.",
        ),
        (
            lambda: flower.class_counts(model(), []),
            "the loader yields no batch: pass one with samples, or say how many classes there are, classes=.",
        ),
        (
            lambda: flower.class_counts(model(), [(torch.zeros(2, 6), torch.tensor([0, 5]))]),
            "a label is 5, where there are 5 classes: pass class indices from 0 to 4, or ignore_index=5 to "
            "leave such samples out.",
        ),
        (
            lambda: flower.class_counts(model(), [(torch.zeros(2, 6), torch.tensor([0]))]),
            "the model returns (2, 5) for 1 labels: pass one that returns [samples, classes].",
        ),
        (
            lambda: flower.class_counts(model(), [(torch.zeros(1, 6), torch.tensor([0]))], classes=3),
            "the model has 5 outputs, where there are 3 classes: pass classes=5.",
        ),
    ],
)
def test_mistakes_are_answered_in_a_sentence(ask, sentence):
    with pytest.raises(UserError) as caught:
        ask()
    assert str(caught.value) == sentence


def test_answers_are_counted_by_class():
    net, (x, y) = model().eval(), data()[:]
    expected = [0] * 25
    for label, answer in zip(y.tolist(), net(x).argmax(1).tolist(), strict=True):
        expected[5 * label + answer] += 1
    found = {"num-examples": 48, "confusion": expected}
    assert flower.class_counts(net, DataLoader(data(), batch_size=7, drop_last=True)) == found
    assert flower.class_counts(net, [{"img": x, "label": y}]) == found
    assert flower.class_counts(net, [{"id": y, "img": x, "label": y}], inputs="img") == found
    unknown = torch.where(y == 3, -1, y)
    assert flower.class_counts(net, [(x, unknown)], ignore_index=-1)["num-examples"] == 40


def test_counting_changes_neither_the_model_nor_the_random_state():
    net = model()
    net.train()
    net[2].eval()
    weights, state = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    flower.class_counts(net, DataLoader(data(), batch_size=8, shuffle=True))
    assert torch.equal(state, torch.get_rng_state())
    assert [module.training for module in net] == [True, True, False, True]
    assert all(torch.equal(weights[name], value) for name, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


def test_a_client_loads_pytorch_and_little_else():
    code = "import sys, unskew.flower; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"flwr", "scipy", "sklearn", "pydantic", "typer", "rich", "ray"} & set(loaded)
