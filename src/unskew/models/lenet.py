"""LeNet and its relatives: two 5×5 convolutions, then fully connected layers.

lenet5       LeCun et al. (1998) as PKD uses it for MNIST and FashionMNIST. PKD prints no layer list; its
             374.87 GFLOPs fix the network: padding 2 before the first convolution, 6 and 16 maps, 120-84-C
             (61,706 parameters, 416,520 multiply-adds at 28×28). Inferred: ReLU and max pooling.
lenet5-bn    FL-bench's LeNet5: no padding, BatchNorm after each convolution.
simple-cnn   NIID-Bench's network (Li et al., ICDE 2022), also BlazeFL's: no padding, no normalisation.
lenet-fedma  FedMA's "LeNet" for MNIST (Wang et al., ICLR 2020): 20 and 50 maps, ReLU after pooling, and no
             activation between its two fully connected layers, so its head is linear in 800 values.

Deviations: none known beyond what is inferred.
"""

from __future__ import annotations

from torch import nn

from unskew.models.net import Net, chain, conv_layer, flat_size, norm_layer
from unskew.types import Inputs


def lenet5(inputs: Inputs, classes: int, norm: str) -> Net:
    return _lenet("lenet5", inputs, classes, norm, padding=2)


def lenet5_bn(inputs: Inputs, classes: int, norm: str) -> Net:
    return _lenet("lenet5-bn", inputs, classes, norm, padding=0)


def simple_cnn(inputs: Inputs, classes: int, norm: str) -> Net:
    return _lenet("simple-cnn", inputs, classes, norm, padding=0)


def _lenet(name: str, inputs: Inputs, classes: int, norm: str, *, padding: int) -> Net:
    maps = chain(
        conv1=conv_layer(norm, inputs.shape[0], 6, 5, padding=padding),
        norm1=norm_layer(norm, 6),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=conv_layer(norm, 6, 16, 5),
        norm2=norm_layer(norm, 16),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
    )
    body = chain(
        maps=maps,
        fc1=nn.Linear(flat_size(name, inputs, maps, 16), 120),
        relu1=nn.ReLU(),
        fc2=nn.Linear(120, 84),
        relu2=nn.ReLU(),
    )
    return Net(body, 84, classes)


def lenet_fedma(inputs: Inputs, classes: int, norm: str) -> Net:
    maps = chain(
        conv1=conv_layer(norm, inputs.shape[0], 20, 5),
        norm1=norm_layer(norm, 20),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=conv_layer(norm, 20, 50, 5),
        norm2=norm_layer(norm, 50),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
    )
    return Net(chain(maps=maps, fc=nn.Linear(flat_size("lenet-fedma", inputs, maps, 50), 500)), 500, classes)
