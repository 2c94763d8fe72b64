"""Residual networks (He, Zhang, Ren and Sun, CVPR 2016).

resnet8, resnet20, resnet32, resnet56
    He et al.'s CIFAR form: 3×3 stem of 16 maps, three stages of 16, 32, 64, shortcuts without weights (option
    A: every second pixel, zero channels on both sides), Kaiming-normal weights. ResNet32 is FedVLS's and
    FedDecorr's; ResNet56 is PKD's, which says no more than the citation. ResNet8 is in FedLMD's Table 4 but
    not in its release: one block a stage is inferred.
resnet10, resnet18, resnet34
    The ImageNet widths, 64 to 512, behind a 3×3 stem; shortcuts with a 1×1 convolution where shapes change
    (option B): FedNTD's and FedLMD's, and FedDecorr's ResNet18. In the FedNTD and FedLMD releases no
    BatchNorm keeps running statistics; here `batch_statistics` does that to any network.
resnet18-imagenet
    FedVLS's ResNet18: torchvision's, with its 7×7 stem of stride 2 and its max pool, on 32×32 images too,
    where the last maps are single pixels. Convolutions Kaiming-normal over the outputs, as torchvision.

With norm `ws` alone nothing normalises what the blocks add up to, so the last convolution of each of n blocks
is scaled by 1 / sqrt(n) (as in Hayou et al., AISTATS 2021): outputs then grow by less than e in variance.

Deviations: none known beyond what is inferred.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from unskew.models.levels import ends_level
from unskew.models.net import Net, chain, conv_layer, norm_layer
from unskew.models.standardised import RELU_GAIN
from unskew.types import Inputs


class Subsample(nn.Module):
    """Option A: every second pixel, with new channels of zeros, half of them on each side."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        left = self.extra // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, left, self.extra - left))


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut, one of `blocks` blocks of the network."""

    def __init__(self, before: int, after: int, stride: int, norm: str, option: str, blocks: int) -> None:
        super().__init__()
        self.conv1 = conv_layer(norm, before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = norm_layer(norm, after)
        gain = RELU_GAIN / math.sqrt(blocks)
        self.conv2 = conv_layer(norm, after, after, 3, padding=1, bias=False, gain=gain)
        self.norm2 = norm_layer(norm, after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = (
                Subsample(after - before)
                if option == "A"
                else chain(
                    conv=conv_layer(norm, before, after, 1, stride=stride, bias=False),
                    norm=norm_layer(norm, after),
                )
            )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        made: Tensor = self.relu(self.norm2(self.conv2(out)) + self.shortcut(x))
        return made


def resnet8(inputs: Inputs, classes: int, norm: str) -> Net:
    return _cifar(inputs, classes, norm, blocks=1)


def resnet20(inputs: Inputs, classes: int, norm: str) -> Net:
    return _cifar(inputs, classes, norm, blocks=3)


def resnet32(inputs: Inputs, classes: int, norm: str) -> Net:
    return _cifar(inputs, classes, norm, blocks=5)


def resnet56(inputs: Inputs, classes: int, norm: str) -> Net:
    return _cifar(inputs, classes, norm, blocks=9)


def resnet10(inputs: Inputs, classes: int, norm: str) -> Net:
    return _wide(inputs, classes, norm, blocks=(1, 1, 1, 1))


def resnet18(inputs: Inputs, classes: int, norm: str) -> Net:
    return _wide(inputs, classes, norm, blocks=(2, 2, 2, 2))


def resnet34(inputs: Inputs, classes: int, norm: str) -> Net:
    return _wide(inputs, classes, norm, blocks=(3, 4, 6, 3))


def resnet18_imagenet(inputs: Inputs, classes: int, norm: str) -> Net:
    stem = chain(
        conv=conv_layer(norm, inputs.shape[0], 64, 7, stride=2, padding=3, bias=False),
        norm=norm_layer(norm, 64),
        relu=ends_level(nn.ReLU()),
        pool=nn.MaxPool2d(3, stride=2, padding=1),
    )
    net = _residual(stem, 64, (64, 128, 256, 512), (2, 2, 2, 2), classes, norm, option="B")
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return net


def _cifar(inputs: Inputs, classes: int, norm: str, *, blocks: int) -> Net:
    net = _residual(_stem(inputs, 16, norm), 16, (16, 32, 64), (blocks,) * 3, classes, norm, option="A")
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
    return net


def _wide(inputs: Inputs, classes: int, norm: str, *, blocks: tuple[int, ...]) -> Net:
    return _residual(_stem(inputs, 64, norm), 64, (64, 128, 256, 512), blocks, classes, norm, option="B")


def _stem(inputs: Inputs, width: int, norm: str) -> nn.Sequential:
    conv = conv_layer(norm, inputs.shape[0], width, 3, padding=1, bias=False)
    return chain(conv=conv, norm=norm_layer(norm, width), relu=ends_level(nn.ReLU()))


def _residual(
    stem: nn.Sequential,
    channels: int,
    widths: tuple[int, ...],
    blocks: tuple[int, ...],
    classes: int,
    norm: str,
    *,
    option: str,
) -> Net:
    """Build stages of blocks. Every stage but the first begins by halving the resolution."""
    stages: dict[str, nn.Module] = {}
    for n, (width, depth) in enumerate(zip(widths, blocks, strict=True)):
        stage = nn.Sequential()
        for k in range(depth):
            stride = 2 if n > 0 and k == 0 else 1
            block = Block(channels, width, stride, norm, option, sum(blocks))
            stage.append(block)
            channels = width
        ends_level(block.relu)
        stages[f"stage{n + 1}"] = stage
    body = chain(stem=stem, **stages, pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
    return Net(body, channels, classes)
