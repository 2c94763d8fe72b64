"""MobileNets for 32×32 images.

mobilenetv2  Sandler et al. (CVPR 2018) as FedVLS and FedDecorr run it, from kuangliu/pytorch-cifar: stem and
             second stage keep the resolution, plain ReLU (not ReLU6), an expansion even where it is 1, and a
             learned 1×1 shortcut wherever the stride is 1 and the width changes (Sandler et al. have none
             there). FedVLS's Table 8 prints the ImageNet strides instead; they do not describe its code.
mobilenet    Howard et al. (2017), of FedLMD's Table 4. Its release holds no MobileNet: inferred here is the
             CIFAR form of the same collection, a stem of stride 1 and four halvings.

With norm `ws` and `group+ws` the depthwise convolutions keep their weights as they are, as in FedWSQ: of nine
weights without their mean, none would blur. With `ws` alone they start at He et al.'s scale, and the last
convolution of each of MobileNetV2's blocks with a shortcut is scaled down as in `resnet`.

Deviations: a global average in place of that collection's fixed pooling windows; the same at 32×32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from unskew.models.levels import ends_level
from unskew.models.net import Net, chain, conv_layer, norm_layer
from unskew.models.standardised import RELU_GAIN
from unskew.types import Inputs

BLOCKS = 17  # of MobileNetV2


class Inverted(nn.Module):
    """Expand, filter each channel, project; linear at the end."""

    def __init__(self, before: int, after: int, expansion: int, stride: int, norm: str) -> None:
        super().__init__()
        width = expansion * before
        self.expand = chain(
            conv=conv_layer(norm, before, width, 1, bias=False, gain=1.0),
            norm=norm_layer(norm, width),
            relu=nn.ReLU(),
        )
        self.depthwise = chain(
            conv=_depthwise(norm, width, stride),
            norm=norm_layer(norm, width),
            relu=nn.ReLU(),
        )
        gain = RELU_GAIN / math.sqrt(BLOCKS) if stride == 1 else RELU_GAIN
        self.project = chain(
            conv=conv_layer(norm, width, after, 1, bias=False, gain=gain), norm=norm_layer(norm, after)
        )
        self.shortcut: nn.Module | None = None
        if stride == 1:
            self.shortcut = (
                nn.Identity()
                if before == after
                else chain(
                    conv=conv_layer(norm, before, after, 1, bias=False, gain=1.0),
                    norm=norm_layer(norm, after),
                )
            )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.project(self.depthwise(self.expand(x)))
        return out if self.shortcut is None else out + self.shortcut(x)


def mobilenetv2(inputs: Inputs, classes: int, norm: str) -> Net:
    blocks: list[nn.Module] = []
    channels = 32
    for expansion, width, repeats, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 1),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for n in range(repeats):
            blocks.append(Inverted(channels, width, expansion, stride if n == 0 else 1, norm))
            channels = width
    for last in (0, 2, 5, 9):  # of the first four stages
        ends_level(blocks[last])
    body = chain(
        stem=ends_level(_stem(inputs.shape[0], norm)),
        blocks=nn.Sequential(*blocks),
        last=chain(
            conv=conv_layer(norm, 320, 1280, 1, bias=False, gain=1.0),
            norm=norm_layer(norm, 1280),
            relu=nn.ReLU(),
        ),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )
    return Net(body, 1280, classes)


def mobilenet(inputs: Inputs, classes: int, norm: str) -> Net:
    blocks: list[nn.Module] = []
    channels = 32
    for width, stride in (
        (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1),
    ):  # fmt: skip
        if stride == 2:
            ends_level(blocks[-1])
        blocks.append(
            chain(
                depthwise=_depthwise(norm, channels, stride),
                norm1=norm_layer(norm, channels),
                relu1=nn.ReLU(),
                pointwise=conv_layer(norm, channels, width, 1, bias=False),
                norm2=norm_layer(norm, width),
                relu2=nn.ReLU(),
            )
        )
        channels = width
    ends_level(blocks[-1])
    body = chain(
        stem=ends_level(_stem(inputs.shape[0], norm)),
        blocks=nn.Sequential(*blocks),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )
    return Net(body, 1024, classes)


def _stem(channels: int, norm: str) -> nn.Sequential:
    return chain(
        conv=conv_layer(norm, channels, 32, 3, padding=1, bias=False),
        norm=norm_layer(norm, 32),
        relu=nn.ReLU(),
    )


@torch.no_grad()
def _depthwise(norm: str, channels: int, stride: int) -> nn.Conv2d:
    """Make a 3×3 convolution that filters each channel by itself."""
    layer = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, groups=channels, bias=False)
    if norm == "ws":
        layer.weight *= math.sqrt(6.0)  # PyTorch draws them with variance 1 / (3 · 9), He et al. with 2 / 9
        layer.bias = nn.Parameter(torch.zeros(channels))
    return layer
