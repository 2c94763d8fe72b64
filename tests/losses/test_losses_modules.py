"""The ready sums: the objectives of the methods of the same names, with what they need."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unskew import losses
from unskew.errors import UserError
from unskew.methods import METHODS
from unskew.types import Out, Scope, View, Weights

COUNTS = [30, 5, 0, 0, 10, 0]
CLASSES, INPUTS, FEATURES = len(COUNTS), 4, 5
close = torch.testing.assert_close


class Net(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.body = nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.BatchNorm1d(FEATURES), nn.Tanh())
            self.head = nn.Linear(FEATURES, CLASSES)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


STUDENT, TEACHER, PREVIOUS = Net(0), Net(1).eval(), Net(2).eval()
X = torch.randn(8, INPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
Y = torch.tensor([0, 0, 0, 1, 1, 4, 4, 0])

SUMS = {
    "calfat": lambda **o: losses.CalibratedLoss(COUNTS, **o),
    "fedlc": lambda **o: losses.FedLCLoss(COUNTS, **o),
    "fedrs": lambda **o: losses.FedRSLoss(COUNTS, **o),
    "class-balanced": lambda **o: losses.ClassBalancedLoss(COUNTS, **o),
    "focal": lambda **o: losses.FocalLoss(**o),
    "fedvls": lambda **o: losses.FedVLSLoss(COUNTS, TEACHER, **o),
    "fedntd": lambda **o: losses.FedNTDLoss(TEACHER, **o),
    "fedntd-tf": lambda **o: losses.FedNTDLoss(None, **o),
    "fedlmd": lambda **o: losses.FedLMDLoss(COUNTS, TEACHER, **o),
    "fedlmd-tf": lambda **o: losses.FedLMDLoss(COUNTS, None, **o),
    "fedkd": lambda **o: losses.FedKDLoss(TEACHER, **o),
    "fedekd": lambda **o: losses.FedKDLoss(TEACHER, COUNTS, **o),
    "feddkd": lambda **o: losses.FedDKDLoss(TEACHER, **o),
    "fedprox": lambda **o: losses.FedProxLoss(TEACHER, **o),
    "moon": lambda **o: losses.MOONLoss(TEACHER.body, PREVIOUS.body, **o),
    "feddecorr": lambda **o: losses.FedDecorrLoss(**o),
}
WITHOUT_REDUCTION = {"fedvls", "fedprox", "feddecorr"}
every_sum = pytest.mark.parametrize("name", SUMS)


def value(name: str, loss: nn.Module, x: torch.Tensor = X, y: torch.Tensor = Y) -> torch.Tensor:
    h = STUDENT.body.eval()(x)
    z = STUDENT.head(h)
    if name == "moon":
        return loss(z, y, h, x)
    if name == "feddecorr":
        return loss(z, y, h)
    return loss(z, y, x) if any(part in name for part in ("vls", "ntd", "lmd", "kd")) else loss(z, y)


def weights(net: nn.Module) -> Weights:
    return Weights(dict(net.named_parameters()), dict(net.named_buffers()))


def out(net: nn.Module) -> Out:
    h = net.body.eval()(X)
    return Out(features=h, logits=net.head(h))


class Seen(View):
    """One batch of one client, of which the received and the previous model are those above."""

    teacher = property(lambda self: out(TEACHER))

    def forward(self, model: Weights) -> Out:
        return out(PREVIOUS)


def seen(params: dict[str, torch.Tensor]) -> View:
    memory = {f"moon/0/{kind}/w": torch.zeros(1) for kind in ("params", "buffers")}
    scope = Scope(weights(TEACHER), torch.tensor(COUNTS), memory, {})
    return Seen(scope, X, Y, params, out(STUDENT), None)


@pytest.mark.parametrize("name", sorted(set(SUMS) - {"fedprox"}))
def test_the_sum_is_the_methods_objective(name: str) -> None:
    loss = SUMS[name]()
    params = dict(STUDENT.named_parameters())
    objective = METHODS[name]().objective(seen(params))
    close(value(name, loss), objective)
    found = torch.autograd.grad(value(name, loss), list(params.values()), allow_unused=True)
    expected = torch.autograd.grad(objective, list(params.values()), allow_unused=True)
    close(found, expected)


@every_sum
def test_a_sum_has_nothing_to_train_and_can_be_moved_and_saved(name: str) -> None:
    loss = SUMS[name]()
    assert not [parameter for parameter in loss.parameters() if parameter.requires_grad]
    other = SUMS[name]()
    other.load_state_dict(loss.state_dict())
    assert all(x.is_meta for x in loss.to("meta").state_dict().values())


@pytest.mark.parametrize("name", sorted(set(SUMS) - WITHOUT_REDUCTION))
def test_sums_reduce_as_their_parts_do(name: str) -> None:
    each = value(name, SUMS[name](reduction="none"))
    assert each.shape == Y.shape
    close(value(name, SUMS[name](reduction="sum")), each.sum())
    close(value(name, SUMS[name](reduction="mean")), each.mean())
    close(value(name, SUMS[name]()), each.mean())


@pytest.mark.parametrize("name", sorted(set(SUMS) - {"feddecorr"}))
def test_ignoring_is_leaving_out(name: str) -> None:
    y = torch.where(Y == 1, -1, Y)
    close(value(name, SUMS[name](ignore_index=-1), X, y), value(name, SUMS[name](), X[Y != 1], Y[Y != 1]))
    with pytest.raises(UserError, match="a label is -1"):
        value(name, SUMS[name](), X, y)


def test_the_teacher_is_the_model_as_it_was_and_stays_so() -> None:
    model = Net(4)
    loss = losses.FedVLSLoss(COUNTS, model)
    loss.train()
    before = {name: x.clone() for name, x in loss.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        loss(model(X), Y, X).backward()
        optimizer.step()
    assert all(torch.equal(x, before[name]) for name, x in loss.state_dict().items())
    assert not torch.equal(model.head.weight, loss.teacher.model.head.weight)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_fedprox_holds_on_to_the_model_it_was_made_of() -> None:
    model = Net(4)
    loss = losses.FedProxLoss(model)
    plain = nn.functional.cross_entropy(model.eval()(X), Y)
    close(loss(model(X), Y), plain)
    with torch.no_grad():
        model.head.bias += 3.0
    close(loss(model(X), Y), nn.functional.cross_entropy(model(X), Y) + 0.01 / 2 * 9 * CLASSES)


def test_several_previous_models_are_contrasted() -> None:
    h = STUDENT.body.eval()(X)
    z = STUDENT.head(h)
    loss = losses.MOONLoss(TEACHER.body, [PREVIOUS.body, STUDENT.body], mu=2.0)
    previous = torch.stack([PREVIOUS.body(X), h])
    term = losses.contrastive_term(h, TEACHER.body(X), previous)
    close(loss(z, Y, h, X), nn.functional.cross_entropy(z, Y) + 2.0 * term)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: losses.FedVLSLoss(COUNTS, None), "teacher is a NoneType: pass a torch.nn.Module"),
        (lambda: losses.FedVLSLoss(COUNTS, TEACHER, lam=-1), "lam is -1"),
        (lambda: losses.FedVLSLoss(COUNTS, TEACHER, form="papers"), "did you mean 'paper'"),
        (lambda: losses.FedLCLoss([[1, 2], [3, 4]]), r"shape of counts is \(2, 2\): pass one count"),
        (lambda: losses.FedNTDLoss(TEACHER, temperature=0), "temperature is 0"),
        (lambda: losses.FedNTDLoss(TEACHER, reduction="max"), "unknown reduction 'max'"),
        (lambda: losses.FedNTDLoss(TEACHER)(TEACHER(X), Y), r"teacher has no inputs: .*labels, inputs"),
        (lambda: losses.FedNTDLoss(nn.LSTM(4, 6).double())(TEACHER(X), Y, X), "teacher returns a tuple"),
        (lambda: losses.MOONLoss(TEACHER.body, []), "previous holds no model"),
    ],
)
def test_what_a_sum_cannot_use_is_named(call, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        call()
