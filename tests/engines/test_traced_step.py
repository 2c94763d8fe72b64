"""Traced steps: what a trace may reorder, what it must not miss, and that no bit changes by it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from unskew.engines.cpu.trace import Trace


class Skipping(nn.Module):
    """Looks at a ReLU's output beside the pooling."""

    def forward(self, x: Tensor) -> Tensor:
        active = x.relu()
        return nn.functional.max_pool2d(active, 2) + nn.functional.avg_pool2d(active, 2)


def network(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), *middle, nn.Flatten(), nn.LazyLinear(3))


def traced(model: nn.Module) -> Trace:
    """A trace that has been compared with ordinary steps."""
    x, y = torch.randn(6, 1, 10, 10), torch.tensor([0, 1, 2, 0, 1, 2])
    x[0], x[1] = -1e3, 0.0  # windows without anything positive, and windows of one value
    x = x.to(memory_format=torch.channels_last)
    model(x)  # makes the lazy layer
    values = list(model.parameters())

    def step(values: list[Tensor]) -> Tensor:
        leaves = [value.detach().requires_grad_() for value in values]
        named = dict(zip((name for name, _ in model.named_parameters()), leaves, strict=True))
        torch.manual_seed(1)  # of dropout
        loss = nn.functional.cross_entropy(torch.func.functional_call(model, named, x), y)
        grads = torch.autograd.grad(loss, leaves)
        with torch.no_grad():
            torch._foreach_add_(values, list(grads), alpha=-0.5)
        return loss.detach()

    held = [value.detach().clone() for value in values]
    with Trace(-0.5, [x, y, *held]) as trace:
        loss = step(held)
    replay = trace.program(loss)
    assert replay is not None
    ours, theirs = ([value.clone() for value in held] for _ in range(2))
    for _ in range(3):
        expected = step(ours)
        torch.manual_seed(1)
        assert torch.equal(replay(-0.5, x, y, *theirs), expected)
    assert all(map(torch.equal, ours, theirs))
    return trace


def order(trace: Trace) -> list[str]:
    kinds = [node.kind().removeprefix("aten::") for node in trace.graph.nodes()]
    return [
        kind
        for kind in kinds
        if kind in ("relu", "threshold_backward") or kind.startswith("max_pool2d_with_indices")
    ]


@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, stride=2, padding=1), nn.MaxPool2d(3, stride=2, ceil_mode=True)]
)
def test_pooling_goes_before_a_relu(pool):
    assert order(traced(network(nn.ReLU(), pool))) == [
        "max_pool2d_with_indices",
        "relu",
        "threshold_backward",
        "max_pool2d_with_indices_backward",
    ]


def test_twice_in_one_network():
    model = network(
        nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5)
    )
    assert order(traced(model)) == [
        *["max_pool2d_with_indices", "relu"] * 2,
        *["threshold_backward", "max_pool2d_with_indices_backward"] * 2,
    ]


@pytest.mark.parametrize(
    "middle",
    [
        [Skipping()],
        [nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5, inplace=True)],
        [nn.ReLU(), nn.MaxPool2d(2), nn.Hardtanh(-1, 0.1, inplace=True)],
    ],
    ids=["looked at", "dropped in place", "cut in place"],
)
def test_a_relu_that_others_depend_on_stays(middle):
    assert order(traced(network(*middle)))[:2] == ["relu", "max_pool2d_with_indices"]
