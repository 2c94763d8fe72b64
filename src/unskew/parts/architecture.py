"""Models as methods change them, and models that are built again from their description, `NetworkRecord`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from unskew import models
from unskew.models.directions import Sphere
from unskew.models.net import Net, chain
from unskew.parts.heads import Head, find_head
from unskew.record import FixedHead, NetworkRecord
from unskew.types import Inputs, Out, Weights

MakeModule = Callable[[], nn.Module]


@runtime_checkable
class DescribedModel(Protocol):
    """A function that makes a model and can describe it."""

    @property
    def network(self) -> NetworkRecord: ...

    def __call__(self) -> nn.Module: ...


def rebuild(network: NetworkRecord, inputs: Inputs, classes: int, own: MakeModule | None = None) -> nn.Module:
    """Build a model of this kind, with any weights. `own` makes the network if it is the user's own code."""

    def plain() -> nn.Module:
        if own is not None:
            module = own()
        else:
            module = models.build(network.name, inputs, classes, norm=network.norm, **network.options)
        if network.tuning is not None:
            models.Tuning(**asdict(network.tuning)).apply(module, classes)
        return module

    if network.fixed_head is not None:
        module = with_fixed_head(plain(), classes, network.fixed_head)
    elif network.side_by_side is not None:
        nets = [models.adapt(plain(), classes) for _ in range(network.side_by_side)]
        module = Concatenation.of(nets, classes)
    else:
        module = plain()
    models.adapt(module, classes)
    return models.batch_statistics(module) if network.statistics == "batch" else module


def with_fixed_head(
    module: nn.Module, classes: int, fixed: FixedHead, vectors: Tensor | None = None
) -> nn.Module:
    """Return the module with its last linear layer replaced by a normalisation and a linear layer that is
    never trained. `vectors` [C, d] are its weights; with None they are arbitrary, to be loaded later."""
    head = find_head(module, classes)
    name, d = head.weight.removesuffix("weight").removesuffix("."), head.features
    norms = {"batch": nn.BatchNorm1d(d), "l2": Sphere(fixed.length), "none": nn.Identity()}
    norm, last = norms[fixed.normalise], nn.Linear(d, classes, bias=False)
    last.weight = nn.Parameter(last.weight.detach() if vectors is None else vectors, requires_grad=False)
    if isinstance(module, Net):
        module.body = chain(body=module.body, length=module.length or nn.Identity(), norm=norm)
        module.length, module.head = None, last
    elif name:
        module.set_submodule(name, chain(norm=norm, fixed=last))
    else:
        module = chain(norm=norm, fixed=last)
    return module


class Concatenation(nn.Module):
    """Networks that are no longer trained, side by side, and one last layer on the features of all of
    them."""

    def __init__(self, nets: Sequence[nn.Module], features: int, classes: int) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets).requires_grad_(False)
        self.head = nn.Linear(features, classes)

    @classmethod
    def of(cls, nets: Sequence[nn.Module], classes: int) -> Concatenation:
        """Make a concatenation of these networks with a fresh last layer."""
        return cls(nets, len(nets) * find_head(nets[0], classes).features, classes)

    def forward(self, x: Tensor) -> Out:
        features = torch.cat([net(x).features for net in self.nets], dim=1)
        return Out(features, self.head(features))


def side_by_side(models: Sequence[Weights], head: Head, like: Weights) -> Weights:
    """Return the weights of a concatenation of models with this head, whose logits are the sum of theirs.
    `like` are weights of the same concatenation, which tell the names of its buffers."""
    each = [model.params | model.buffers for model in models]
    nets = {f"nets.{n}.{name}": value for n, net in enumerate(each) for name, value in net.items()}
    bias = torch.zeros_like(like.params["head.bias"])
    if head.bias is not None:
        bias = torch.stack([net[head.bias] for net in each]).sum(dim=0)
    weight = torch.cat([net[head.weight] for net in each], dim=1)
    return Weights({"head.weight": weight, "head.bias": bias}, {name: nets[name] for name in like.buffers})
