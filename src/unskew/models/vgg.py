"""VGG networks (Simonyan & Zisserman, ICLR 2015) for small images, published without normalisation.

vgg11       FedNTD's and FedLMD's: 3×3 convolutions 64 M 128 M 256 256 M 512 512 M 512 512 M, two hidden
            layers of 512, no dropout. Convolution weights from N(0, 2 / (9 · maps)), their biases zero, and
            no last pool for 28×28 images, as in the release.
vgg9        FedMA's "ModerateCNN" for CIFAR-10 (Wang et al., ICLR 2020), PKD's VGG-9: 32 64 M 128 128 M 256
            256 M, fc 512-512, dropout 0.05 on maps and 0.1 on values.
vgg9-mnist  FedMA's MNIST version: the same maps, fc 1024-512.

Deviations: vgg11's last pool is left out of every image under 32 pixels, not of 28×28 alone.
"""

from __future__ import annotations

import math

from torch import nn

from unskew.models.net import Net, chain, conv_layer, flat_size, norm_layer, numbered
from unskew.types import Inputs


def vgg11(inputs: Inputs, classes: int, norm: str) -> Net:
    pool_last = min(inputs.shape[1:]) >= 32  # five halvings
    plan: list[int | str] = [64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512]
    maps = _convolutions(norm, inputs.shape[0], [*plan, "M"] if pool_last else plan)
    body = chain(
        maps=maps,
        fc1=nn.Linear(flat_size("vgg11", inputs, maps, 512), 512),
        relu1=nn.ReLU(),
        fc2=nn.Linear(512, 512),
        relu2=nn.ReLU(),
    )
    for layer in maps.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.normal_(layer.weight, 0.0, math.sqrt(2.0 / (9 * layer.out_channels)))
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return Net(body, 512, classes)


def vgg9(inputs: Inputs, classes: int, norm: str) -> Net:
    return _vgg9("vgg9", inputs, classes, norm, hidden=512)


def vgg9_mnist(inputs: Inputs, classes: int, norm: str) -> Net:
    return _vgg9("vgg9-mnist", inputs, classes, norm, hidden=1024)


def _vgg9(name: str, inputs: Inputs, classes: int, norm: str, *, hidden: int) -> Net:
    maps = _convolutions(norm, inputs.shape[0], [32, 64, "M", 128, 128, "M", "D", 256, 256, "M"])
    body = chain(
        maps=maps,
        dropout1=nn.Dropout(0.1),
        fc1=nn.Linear(flat_size(name, inputs, maps, 256), hidden),
        relu1=nn.ReLU(),
        fc2=nn.Linear(hidden, 512),
        relu2=nn.ReLU(),
        dropout2=nn.Dropout(0.1),
    )
    return Net(body, 512, classes)


def _convolutions(norm: str, channels: int, plan: list[int | str]) -> nn.Sequential:
    """Build layers from a plan: a number is a 3×3 convolution to this many maps, norm and ReLU, M is max
    pooling, and D dropout of whole maps."""
    layers: list[nn.Module] = []
    for step in plan:
        if isinstance(step, int):
            conv = conv_layer(norm, channels, step, 3, padding=1)
            layers += [conv, norm_layer(norm, step), nn.ReLU()]
            channels = step
        else:
            layers.append(nn.MaxPool2d(2) if step == "M" else nn.Dropout2d(0.05))
    return numbered(*layers, nn.Flatten())
