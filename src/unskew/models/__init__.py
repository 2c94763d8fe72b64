"""Networks by name, and the user's own: `forward(x)` returns features and logits."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unskew.errors import UserError, unknown
from unskew.models import cnn, lenet, linear, mobilenet, resnet, text, vgg
from unskew.models.adapt import adapt
from unskew.models.levels import level_ends, seen_levels
from unskew.models.net import (
    Net,
    batch_statistics,
    count_parameters,
    forget_statistics,
    frozen_norms,
    frozen_tensors,
    last_linear,
    moving_norms,
    project,
    set_length,
    set_scale,
)
from unskew.models.own import OwnModel, own_model, stated_options
from unskew.models.pretrained import Matched, TrainedWeights, weights_file
from unskew.models.tuning import Tuning, patterns
from unskew.types import Inputs

__all__ = [
    "MODELS",
    "Matched",
    "Model",
    "OwnModel",
    "TrainedWeights",
    "Tuning",
    "adapt",
    "batch_statistics",
    "build",
    "count_parameters",
    "default_model",
    "forget_statistics",
    "frozen_norms",
    "frozen_tensors",
    "last_linear",
    "level_ends",
    "moving_norms",
    "own_model",
    "patterns",
    "seen_levels",
    "stated_options",
    "weights_file",
]

IMAGES = ("image",)
NUMBERS = ("image", "table")
TEXTS = ("text",)
BATCH = ("batch", "group", "none", "ws", "group+ws")
PLAIN = ("none", "batch", "group", "ws", "group+ws")
NONE = ("none",)


@dataclass(frozen=True)
class Model:
    """A network that can be built by name."""

    name: str
    title: str
    build: Callable[..., Net]
    """(inputs, classes, norm, and the model's own options by keyword)."""
    kinds: tuple[str, ...]
    """The kinds of data that it reads: image, table, text."""
    norms: tuple[str, ...]
    """Normalisations to choose from; the first is the published one."""
    reference: str

    @property
    def options(self) -> tuple[str, ...]:
        """The options of this network that others do not have."""
        return tuple(name for name in self.defaults if name not in COMMON)

    @property
    def defaults(self) -> dict[str, Any]:
        """Every option of `build` for this network, without norm, and its default."""
        own = {
            p.name: list(p.default) if isinstance(p.default, tuple) else p.default  # as in an experiment file
            for p in inspect.signature(self.build).parameters.values()
            if p.kind is p.KEYWORD_ONLY
        }
        common = {name: value for name, value in COMMON.items() if name != "ws_scale" or "ws" in self.norms}
        return {**common, **own}


COMMON: dict[str, Any] = {"projection": "none", "features": "plain", "ws_scale": 0.0}
"""The options of all networks, in addition to norm; ws_scale only if weights can be standardised."""


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model("logistic", "Logistic regression", linear.logistic, NUMBERS, NONE, "Li et al., MLSys 2020"),
        Model("mlp", "Perceptron 200-200", linear.mlp, NUMBERS, PLAIN, "Guo et al., AAAI 2025"),
        Model("mlp-small", "Perceptron 64", linear.mlp_small, NUMBERS, PLAIN, "unskew"),
        Model("lenet5", "LeNet-5", lenet.lenet5, IMAGES, PLAIN, "LeCun et al., Proc. IEEE 1998"),
        Model("lenet5-bn", "LeNet-5 with BatchNorm", lenet.lenet5_bn, IMAGES, BATCH, "FL-bench"),
        Model("lenet-fedma", "FedMA's LeNet", lenet.lenet_fedma, IMAGES, PLAIN, "Wang et al., ICLR 2020"),
        Model("simple-cnn", "NIID-Bench's CNN", lenet.simple_cnn, IMAGES, PLAIN, "Li et al., ICDE 2022"),
        Model("cnn", "FedAvg's CNN", cnn.cnn, IMAGES, PLAIN, "McMahan et al., AISTATS 2017"),
        Model("cnn-l", "FedAvg's CNN, one convolution more", cnn.cnn_l, IMAGES, PLAIN, "PKD's ConvNet-L"),
        Model("cnn-fedlc", "FedLC's CNN", cnn.cnn_fedlc, IMAGES, BATCH, "Zhang et al., ICML 2022"),
        Model("cnn-pfl", "pfl-research's CNN", cnn.cnn_pfl, IMAGES, PLAIN, "Granqvist et al., NeurIPS 2024"),
        Model("vgg9", "VGG-9", vgg.vgg9, IMAGES, PLAIN, "Wang et al., ICLR 2020"),
        Model("vgg9-mnist", "VGG-9 for MNIST", vgg.vgg9_mnist, IMAGES, PLAIN, "Wang et al., ICLR 2020"),
        Model("vgg11", "VGG-11", vgg.vgg11, IMAGES, PLAIN, "Lee et al., NeurIPS 2022"),
        Model("mobilenet", "MobileNet", mobilenet.mobilenet, IMAGES, BATCH, "Howard et al., 2017"),
        Model(
            "mobilenetv2", "MobileNetV2", mobilenet.mobilenetv2, IMAGES, BATCH, "Sandler et al., CVPR 2018"
        ),
        Model("resnet8", "ResNet-8, option A", resnet.resnet8, IMAGES, BATCH, "He et al., CVPR 2016"),
        Model("resnet20", "ResNet-20, option A", resnet.resnet20, IMAGES, BATCH, "He et al., CVPR 2016"),
        Model("resnet32", "ResNet-32, option A", resnet.resnet32, IMAGES, BATCH, "He et al., CVPR 2016"),
        Model("resnet56", "ResNet-56, option A", resnet.resnet56, IMAGES, BATCH, "He et al., CVPR 2016"),
        Model("resnet10", "ResNet-10, option B", resnet.resnet10, IMAGES, BATCH, "He et al., CVPR 2016"),
        Model("resnet18", "ResNet-18, option B", resnet.resnet18, IMAGES, BATCH, "He et al., CVPR 2016"),
        Model("resnet34", "ResNet-34, option B", resnet.resnet34, IMAGES, BATCH, "He et al., CVPR 2016"),
        Model(
            "resnet18-imagenet",
            "ResNet-18 with the ImageNet stem",
            resnet.resnet18_imagenet,
            IMAGES,
            BATCH,
            "He et al., CVPR 2016",
        ),
        Model("text", "Mean of embeddings", text.text, TEXTS, NONE, "Joulin et al., EACL 2017"),
    )
}


def build(
    name: str,
    inputs: Inputs,
    classes: int,
    *,
    norm: str | None = None,
    projection: str = "none",
    features: str = "plain",
    ws_scale: float = 0.0,
    **options: object,
) -> Net:
    """Build a network of MODELS with fresh weights, drawn from PyTorch's global generator.

    - `norm`: batch, group, ws, group+ws or none; None for the published choice. See `standardised` for ws.
    - `projection`: moon, fedvls or none; see `net.project`.
    - `features`: plain, normalised or unit, the length that features are given before the head; see
      `net.set_length`.
    - `ws_scale`: the standard deviation of standardised weights; 0 for each layer's gain / sqrt(fan-in).
    - `options`: `hidden` of the perceptrons, `width` of the text model.
    """
    model = MODELS.get(name)
    if model is None:
        raise unknown("model", name, MODELS)
    if inputs.kind not in model.kinds:
        fitting = ", ".join(m.name for m in MODELS.values() if inputs.kind in m.kinds)
        readable = " or ".join(model.kinds)
        raise UserError(
            f"model '{name}' reads {readable} data, not {inputs.kind} data: choose one of {fitting}."
        )
    if norm is not None and norm not in model.norms:
        if model.norms == NONE:
            raise UserError(f"model '{name}' has no layer to normalise: leave norm out, not '{norm}'.")
        raise unknown(f"norm of model '{name}'", norm, model.norms)
    for option in options:
        if option not in model.options:
            if not model.options:
                raise UserError(f"model '{name}' has no option '{option}': it takes none.")
            raise unknown(f"option of model '{name}'", option, model.options)
    norm = norm or model.norms[0]
    if not isinstance(ws_scale, int | float) or not 0 <= ws_scale < math.inf:
        raise UserError(f"ws_scale is {ws_scale!r} but should be above 0, or 0: as suits each layer.")
    if ws_scale and norm not in ("ws", "group+ws"):
        raise UserError(f"ws_scale is given with norm '{norm}': let norm be ws or group+ws, or leave it out.")
    net = project(model.build(inputs, classes, norm, **options), projection)
    set_length(net, features)
    if ws_scale:
        set_scale(net, ws_scale)
    return net


def default_model(dataset: str, inputs: Inputs) -> str:
    """Return the name of the model for a dataset if none is given."""
    if inputs.kind == "text":
        return "text"
    if dataset.startswith("synthetic"):
        return "logistic"
    if inputs.kind == "table" or max(inputs.shape[1:]) < 16:
        return "mlp-small"
    if dataset == "mnist":
        return "mlp"
    if dataset.startswith("fashion"):
        return "lenet5"
    return "cnn" if max(inputs.shape[1:]) <= 64 else "resnet18-imagenet"
