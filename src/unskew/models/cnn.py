"""Small convolutional networks that papers call "CNN".

cnn        McMahan et al. (AISTATS 2017): 5×5 convolutions with padding 2, 32 and 64 maps, fc 512; its
           1,663,370 parameters at 28×28 are the count they print. It is also the CNN of FedNTD and FedLMD,
           and PKD's ConvNet-S. (FL-bench and PFLlib leave the padding out: another network.)
cnn-l      PKD's ConvNet-L: one more 5×5 convolution, place and width unprinted. Inferred here: 64 maps after
           the second pool, with padding, so that the rest stays as it is.
cnn-fedlc  FedLC (Zhang et al., ICML 2022), appendix Table 9, as Flower's baseline builds it: three times 3×3
           convolution without padding to 128 maps, BatchNorm, ReLU, pool; then one linear layer.
cnn-pfl    The CIFAR-10 benchmark network of pfl-research (Granqvist et al., NeurIPS 2024), with
           Glorot-uniform weights as there.

Deviations: none known beyond what is inferred.
"""

from __future__ import annotations

from torch import nn

from unskew.models.net import Net, chain, conv_layer, flat_size, norm_layer, numbered
from unskew.types import Inputs


def cnn(inputs: Inputs, classes: int, norm: str) -> Net:
    maps = numbered(*_five_by_five(norm, inputs.shape[0], 32), *_five_by_five(norm, 32, 64), nn.Flatten())
    return _with_hidden("cnn", inputs, classes, maps)


def cnn_l(inputs: Inputs, classes: int, norm: str) -> Net:
    third = _five_by_five(norm, 64, 64)[:-1]
    first, second = _five_by_five(norm, inputs.shape[0], 32), _five_by_five(norm, 32, 64)
    maps = numbered(*first, *second, *third, nn.Flatten())
    return _with_hidden("cnn-l", inputs, classes, maps)


def cnn_fedlc(inputs: Inputs, classes: int, norm: str) -> Net:
    layers: list[nn.Module] = []
    for channels in (inputs.shape[0], 128, 128):
        layers += [conv_layer(norm, channels, 128, 3), norm_layer(norm, 128), nn.ReLU(), nn.MaxPool2d(2)]
    body = nn.Sequential(*layers, nn.Flatten())
    return Net(body, flat_size("cnn-fedlc", inputs, body, 128), classes)


def cnn_pfl(inputs: Inputs, classes: int, norm: str) -> Net:
    maps = chain(
        conv1=conv_layer(norm, inputs.shape[0], 32, 3),
        norm1=norm_layer(norm, 32),
        relu1=nn.ReLU(),
        conv2=conv_layer(norm, 32, 64, 3),
        norm2=norm_layer(norm, 64),
        relu2=nn.ReLU(),
        pool=nn.MaxPool2d(2),
        dropout=nn.Dropout(0.25),
        flatten=nn.Flatten(),
    )
    hidden = nn.Linear(flat_size("cnn-pfl", inputs, maps, 64), 128)
    net = Net(chain(maps=maps, fc=hidden, relu=nn.ReLU(), dropout=nn.Dropout(0.5)), 128, classes)
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return net


def _five_by_five(norm: str, before: int, after: int) -> list[nn.Module]:
    conv = conv_layer(norm, before, after, 5, padding=2)
    return [conv, norm_layer(norm, after), nn.ReLU(), nn.MaxPool2d(2)]


def _with_hidden(name: str, inputs: Inputs, classes: int, maps: nn.Sequential) -> Net:
    body = chain(maps=maps, fc=nn.Linear(flat_size(name, inputs, maps, 64), 512), relu=nn.ReLU())
    return Net(body, 512, classes)
