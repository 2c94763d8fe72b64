"""Any classifier a user brings returns features and logits, and keeps its own weights."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from unskew.errors import UserError
from unskew.models import adapt, build
from unskew.types import Inputs, Out


class Plain(nn.Module):
    """Returns logits; depends on its own training flag."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(5, 8)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.last = nn.Linear(8, classes)

    def hidden(self, x: Tensor) -> Tensor:
        return torch.relu(self.first(x)) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(nn.functional.dropout(self.hidden(x), 0.5, self.training))
        return logits


class Paired(Plain):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        features = self.hidden(x)
        return 3 * features, self.last(features)


class Odd(Plain):
    def __init__(self, output: object) -> None:
        super().__init__()
        self.output = output

    def forward(self, x: Tensor) -> object:  # type: ignore[override]
        return self.output


X = torch.linspace(-1, 1, 20).view(4, 5)


def test_features_are_the_input_of_the_last_linear_layer() -> None:
    own = Plain().eval()
    net = adapt(copy.deepcopy(own), 3)
    out = net(X)
    assert isinstance(out, Out)
    assert torch.equal(out.logits, own(X))
    assert torch.equal(out.features, own.hidden(X))


def test_a_pair_passes_through() -> None:
    own = Paired()
    out = adapt(copy.deepcopy(own), 3)(X)
    assert isinstance(out, Out)
    assert torch.equal(out.features, 3 * own.hidden(X))


def test_a_named_model_passes_through() -> None:
    net = build("mlp", Inputs("table", (5,)), 3)
    before = net(X)
    after = adapt(net, 3)(X)
    assert torch.equal(before.features, after.features)
    assert torch.equal(before.logits, after.logits)


def test_without_a_linear_layer_the_logits_are_the_features() -> None:
    net = adapt(nn.Sequential(nn.Conv2d(1, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()), 3)
    out = net(torch.rand(4, 1, 5, 5))
    assert torch.equal(out.features, out.logits)


def test_a_network_that_is_one_linear_layer() -> None:
    out = adapt(nn.Linear(5, 3), 3)(X)
    assert torch.equal(out.features, X)


def test_linear_layers_over_tokens_are_not_features() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.each(x).mean(dim=1)  # type: ignore[no-any-return]

    out = adapt(Pooled(), 3)(torch.rand(4, 7, 5))
    assert torch.equal(out.features, out.logits)


def test_weights_keep_their_names_and_load_back() -> None:
    own = Plain()
    net = adapt(copy.deepcopy(own), 3)
    assert list(net.state_dict()) == list(own.state_dict())
    with torch.no_grad():
        for p in net.parameters():
            p.add_(1.0)
    own.load_state_dict(net.state_dict())
    assert torch.equal(own.eval()(X), net.eval()(X).logits)


def test_gradients_flow_through_functional_call_to_features_and_logits() -> None:
    own = Plain().eval()
    net = adapt(copy.deepcopy(own), 3)
    params = {name: p.detach() + 0.1 for name, p in own.named_parameters()}
    out = functional_call(net, params, (X,))
    reference = functional_call(own, params, (X,))
    assert torch.equal(out.logits, reference)

    def through_features(params: dict[str, Tensor]) -> Tensor:
        return functional_call(net, params, (X,)).features.pow(2).sum()

    gradient = grad(through_features)(params)
    assert bool(gradient["first.weight"].any())
    assert bool(gradient["scale"] != 0)
    assert not gradient["last.weight"].any()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_is_independent(duplicate: object) -> None:
    net = adapt(Plain(), 3).eval()
    assert callable(duplicate)
    other = duplicate(net)
    before = net(X)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(2.0)
    changed = other(X)
    after = net(X)
    assert torch.equal(before.features, after.features)
    assert torch.equal(before.logits, after.logits)
    assert not torch.equal(changed.features, after.features)


def test_training_mode_reaches_the_network() -> None:
    net = adapt(Plain(), 3)
    torch.manual_seed(0)
    assert bool((net.train()(X).features == 0).sum() > (net.eval()(X).features == 0).sum())


def test_no_tensor_outlives_a_forward_pass() -> None:
    net = adapt(Plain(), 3)
    net(X)
    assert pickle.loads(pickle.dumps(net)) is not None
    assert len(pickle.dumps(net)) == len(pickle.dumps(adapt(Plain(), 3)))


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (
            Plain(4),
            "the model returns logits of shape [4, 4] for 3 classes: let its last layer have 3 outputs.",
        ),
        (Odd(torch.zeros(4, 2, 3)), "the model returns logits of shape [4, 2, 3] for 3 classes"),
        (
            Odd({"logits": X}),
            "the model returns a dict: let it return logits, or the pair (features, logits).",
        ),
        (Odd((X, X, X)), "the model returns 3 things: let it return logits, or the pair (features, logits)."),
    ],
)
def test_a_wrong_output_is_explained(net: nn.Module, message: str) -> None:
    with pytest.raises(UserError) as caught:
        adapt(net, 3)(X)
    assert str(caught.value).startswith(message)


def test_a_layer_without_a_shape_is_explained() -> None:
    with pytest.raises(UserError, match="'weight' of the model has no shape yet"):
        adapt(nn.LazyLinear(3), 3)
