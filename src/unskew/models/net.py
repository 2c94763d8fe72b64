"""The parts of all networks: a body, a linear head, and the choice of normalisation."""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn

from unskew.errors import UserError, unknown
from unskew.models.directions import Sphere
from unskew.models.standardised import RELU_GAIN, STANDARDISED, make_standardised
from unskew.types import Inputs, Out, Tensors

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Net(nn.Module):
    """A body that computes features [B, d], a layer that gives them one length (None if they keep theirs),
    and a linear layer that computes the logits."""

    def __init__(self, body: nn.Module, features: int, classes: int) -> None:
        super().__init__()
        self.body = body
        self.length: nn.Module | None = None
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Out:
        features: Tensor = self.body(x)
        if self.length is not None:
            features = self.length(features)
        return Out(features, self.head(features))


def chain(**layers: nn.Module) -> nn.Sequential:
    """Make a Sequential whose layers, and so whose weights, have names. Layers that do nothing are left out,
    since in a small model even their call takes time."""
    kept = {name: layer for name, layer in layers.items() if type(layer) is not nn.Identity}
    return nn.Sequential(OrderedDict(kept))


def numbered(*layers: nn.Module) -> nn.Sequential:
    """Make a Sequential whose layers have numbers. Layers of normalisation are not counted, so that weights
    have the same names with and without them."""
    named: dict[str, nn.Module] = {}
    count = 0
    for layer in layers:
        if isinstance(layer, nn.BatchNorm2d | nn.GroupNorm):
            named[f"norm{count - 1}"] = layer
        elif not isinstance(layer, nn.Identity):
            named[str(count)] = layer
            count += 1
    return chain(**named)


def norm_layer(kind: str, channels: int) -> nn.Module:
    """Make the normalisation that follows a convolution: BatchNorm for `batch`, GroupNorm for `group` and
    `group+ws`, else none.

    The number of groups is the largest power of two up to 32 (Wu & He, 2018) that leaves at least two
    channels in every group, because a group of one value, as on a 1×1 map, would be normalised to zero.
    """
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind in ("group", "group+ws"):
        return nn.GroupNorm(max(1, math.gcd(64, channels) // 2), channels)
    return nn.Identity()


def vector_norm_layer(kind: str, width: int) -> nn.Module:
    """Make the normalisation that follows a hidden layer of a perceptron. All its values are one group: in
    groups of two, only their order would be left."""
    if kind == "batch":
        return nn.BatchNorm1d(width)
    return nn.GroupNorm(1, width) if kind in ("group", "group+ws") else nn.Identity()


def conv_layer(
    norm: str,
    before: int,
    after: int,
    kernel: int,
    *,
    stride: int = 1,
    padding: int = 0,
    bias: bool = True,
    gain: float = RELU_GAIN,
) -> nn.Conv2d:
    """Make a convolution of a network with this norm. With `ws` and `group+ws` its weights are standardised,
    for inputs that come from a ReLU unless another gain is given. With `ws` it always has a bias, since no
    normalisation with a bias follows."""
    layer = nn.Conv2d(before, after, kernel, stride=stride, padding=padding, bias=bias)
    if norm in ("ws", "group+ws"):
        make_standardised(layer, gain)
    if norm == "ws" and not bias:
        layer.bias = nn.Parameter(torch.zeros(after))
    return layer


def linear_layer(norm: str, before: int, after: int) -> nn.Linear:
    """Make a hidden layer of a perceptron with this norm."""
    layer = nn.Linear(before, after)
    if norm in ("ws", "group+ws"):
        make_standardised(layer, RELU_GAIN)
    return layer


def set_scale(net: Net, scale: float) -> None:
    """Give all standardised weights this standard deviation."""
    for part in net.modules():
        if isinstance(part, STANDARDISED):
            part.scale = scale


def set_length(net: Net, features: str) -> None:
    """Give features one length before the head reads them (FedFN; the released code of FedLN).

    What the head receives of a client's samples is then independent of how large the client's features are.
    `normalised`: the square root of their number. `unit`: 1. `plain`: features stay as they are.
    """
    lengths = {"normalised": math.sqrt(net.head.in_features), "unit": 1.0}
    if str(features) in lengths:
        net.length = Sphere(lengths[features])
    elif features != "plain":
        raise unknown("features", str(features), (*lengths, "plain"))


def flat_size(model: str, inputs: Inputs, layers: nn.Sequential, channels: int) -> int:
    """Return the length of the flattened output of these convolutions and pools, which ends in `channels`
    maps."""
    _, *size = inputs.shape
    for layer in layers.modules():
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            kernel, stride, padding = (_side(v) for v in (layer.kernel_size, layer.stride, layer.padding))
            size = [(side + 2 * padding - kernel) // stride + 1 for side in size]
        if min(size) < 1:
            raise UserError(
                f"images of {inputs.shape[1]}×{inputs.shape[2]} are too small for model '{model}': its "
                "convolutions and pools leave nothing of them, choose another model."
            )
    return channels * size[0] * size[1]


def project(net: Net, kind: str) -> Net:
    """Put MOON's projection before the head: its output becomes the features, and the head reads it.

    `moon` (Li, He and Song, CVPR 2021, and their code): d → d, ReLU, → 256. `fedvls` (Guo et al.'s wrapper):
    d → d/2, ReLU, → 256. `none`: the network as it is.
    """
    if kind == "none":
        return net
    d = net.head.in_features
    widths = {"moon": d, "fedvls": d // 2}
    if kind not in widths:
        raise unknown("projection", kind, (*widths, "none"))
    hidden = widths[kind]
    projection = chain(fc1=nn.Linear(d, hidden), relu=nn.ReLU(), fc2=nn.Linear(hidden, 256))
    return Net(chain(body=net.body, projection=projection), 256, net.head.out_features)


def last_linear(module: nn.Module, classes: int) -> str | None:
    """Return the name of the layer that computes the logits: the last linear one with an output for every
    class. The result is None if there is none."""
    names = [
        name
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear) and part.out_features == classes
    ]
    return names[-1] if names else None


def count_parameters(module: nn.Module) -> int:
    """Count the trainable values."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def moving_norms(module: nn.Module) -> list[nn.Module]:
    """Return the BatchNorms that normalise by the batch in training: all but those of frozen parts that have
    running statistics, which use these instead."""
    frozen = frozen_norms(module).values()
    return [part for part in module.modules() if isinstance(part, BATCH_NORMS) and part not in frozen]


def frozen_norms(module: nn.Module) -> dict[str, nn.Module]:
    """Return the BatchNorms, by name, whose running statistics stay as they are: those whose parameters are
    frozen, and those without parameters behind a layer that is frozen."""
    found: dict[str, nn.Module] = {}
    trained = True
    for name, part in module.named_modules():
        own = list(part.parameters(recurse=False))
        trained = any(value.requires_grad for value in own) if own else trained
        if isinstance(part, BATCH_NORMS) and part.running_mean is not None and not trained:
            found[name] = part
    return found


def frozen_tensors(module: nn.Module) -> Tensors:
    """Return the tensors of a model that are not trained, sent or stored: frozen parameters, and the
    statistics of BatchNorms in frozen parts."""
    found = {
        name: value.detach()
        for name, value in module.named_parameters(remove_duplicate=False)
        if not value.requires_grad
    }
    for name, part in frozen_norms(module).items():
        prefix = f"{name}." if name else ""
        found |= {f"{prefix}{key}": value for key, value in part.named_buffers(recurse=False)}
    return found


def batch_statistics(module: nn.Module) -> nn.Module:
    """Make every BatchNorm of `module` normalise by the batch that it sees, in evaluation too. The module
    itself is changed: the running statistics, and with them the buffers, are removed."""
    for part in module.modules():
        if isinstance(part, BATCH_NORMS):
            forget_statistics(part)
    return module


def forget_statistics(norm: nn.Module) -> None:
    """Make a BatchNorm normalise by the batch it sees, in evaluation too."""
    assert isinstance(norm, BATCH_NORMS)
    norm.track_running_stats = False
    norm.running_mean = norm.running_var = norm.num_batches_tracked = None


def _side(value: int | str | tuple[int, ...]) -> int:
    """Return the side of a square kernel, stride or padding."""
    side = value[0] if isinstance(value, tuple) else value
    assert isinstance(side, int)
    return side
