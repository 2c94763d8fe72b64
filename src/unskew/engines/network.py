"""The trial's model in its modes: training, frozen, under test. Weights come in with every call."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import linear

from unskew.errors import UserError
from unskew.models import BATCH_NORMS, has_batch_norm, last_linear
from unskew.trial import Trial
from unskew.types import Out, Params, Weights


class Network:
    def __init__(self, trial: Trial, device: torch.device) -> None:
        self.statistics = trial.statistics
        self.student = trial.build().to(device).train()
        self.normed = has_batch_norm(self.student)
        self.teacher = copy.deepcopy(self.student).eval()
        self.lone = _with_batch_norms(copy.deepcopy(self.student), training=False)
        self.tester = _with_batch_norms(copy.deepcopy(self.teacher), training=trial.statistics == "local")
        self.pupil = _with_batch_norms(copy.deepcopy(self.teacher), training=True)
        self.batch_teacher = self.normed and trial.teacher == "batch"

        self.head = last_linear(self.student, len(trial.federation.dataset.classes))

    @property
    def self_normalising(self) -> bool:
        """Whether a test batch is normalised by its own statistics."""
        return self.normed and self.statistics != "average"

    def train(self, weights: Weights, x: Tensor) -> Out:
        """In training mode: moves the running statistics in `weights.buffers`."""
        if self.normed and len(x) == 1:
            # One sample has no batch statistics: normalise by the running ones, where there are any.
            return (
                _paired(self.student, weights, x)
                if self.statistics == "batch"
                else _run(self.lone, weights, x)
            )
        return _run(self.student, weights, x)

    @torch.no_grad()
    def frozen(self, weights: Weights, x: Tensor) -> Out:
        """In evaluation mode, without gradient; BatchNorm as the trial wants it of teachers."""
        if not self.batch_teacher:
            return self.evaluate(weights, x)
        return _by_its_batch(self.pupil, weights, x)

    def evaluate(self, weights: Weights, x: Tensor) -> Out:
        """In evaluation mode."""
        if self.normed and self.statistics == "batch" and len(x) == 1:
            return _paired(self.teacher, weights, x)
        return _run(self.teacher, weights, x)

    def classify(self, params: Params, features: Tensor) -> Tensor:
        """The last linear layer alone."""
        prefix = f"{self.head}." if self.head else ""  # the model may be a linear layer itself
        if self.head is None or f"{prefix}weight" not in params:
            raise UserError("this method needs a model that ends in a linear layer: choose another model.")
        return linear(features, params[f"{prefix}weight"], params.get(f"{prefix}bias"))

    @torch.no_grad()
    def test(self, weights: Weights, x: Tensor) -> Out:
        """As the global model is tested."""
        return (
            _by_its_batch(self.tester, weights, x) if self.self_normalising else _run(self.tester, weights, x)
        )


def _run(module: nn.Module, weights: Weights, x: Tensor) -> Out:
    out: Out = functional_call(module, (weights.params, weights.buffers), (x,))
    return out


def _by_its_batch(module: nn.Module, weights: Weights, x: Tensor) -> Out:
    """Normalised by the batch's own statistics, the running ones left alone."""
    scratch = weights.scratch()
    return _paired(module, scratch, x) if len(x) == 1 else _run(module, scratch, x)


def _paired(module: nn.Module, weights: Weights, x: Tensor) -> Out:
    """One sample beside its copy: the same batch statistics, of which BatchNorm accepts no fewer than two."""
    out = _run(module, weights, torch.cat([x, x]))
    return Out(out.features[:1], out.logits[:1])


def _with_batch_norms(module: nn.Module, *, training: bool) -> nn.Module:
    for part in module.modules():
        if isinstance(part, BATCH_NORMS):
            part.train(training)
    return module
