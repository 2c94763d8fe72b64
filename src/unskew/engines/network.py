"""The trial's model in its modes: training, frozen, under test. Weights come in with every call."""

from __future__ import annotations

import copy
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call

from unskew.models import BATCH_NORMS, has_batch_norm
from unskew.parts.heads import Head, find_head
from unskew.trial import Trial
from unskew.types import Out, Params, Weights


class Network:
    def __init__(self, trial: Trial, device: torch.device) -> None:
        self.statistics = trial.statistics
        self.student = trial.build().to(device).train()
        self.normed = has_batch_norm(self.student)
        self.teacher = copy.deepcopy(self.student).eval()
        # The two beside their BatchNorms' mode. Without BatchNorm there is nothing to tell them apart.
        self.lone, self.by_batch = self.student, self.teacher
        if self.normed:
            self.lone = _with_batch_norms(copy.deepcopy(self.student), training=False)
            self.by_batch = _with_batch_norms(copy.deepcopy(self.teacher), training=True)
        self.batch_teacher = self.normed and trial.teacher == "batch"
        self.classes = len(trial.federation.dataset.classes)

    @cached_property
    def head(self) -> Head:
        return find_head(self.student, self.classes)

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
        return self._normalised_by_batch(weights, x) if self.batch_teacher else self.evaluate(weights, x)

    def evaluate(self, weights: Weights, x: Tensor) -> Out:
        """In evaluation mode."""
        if self.normed and self.statistics == "batch" and len(x) == 1:
            return _paired(self.teacher, weights, x)
        return _run(self.teacher, weights, x)

    def classify(self, params: Params, features: Tensor) -> Tensor:
        """The last linear layer alone."""
        return self.head(params, features)

    @torch.no_grad()
    def test(self, weights: Weights, x: Tensor) -> Out:
        """As the global model is tested."""
        return (
            self._normalised_by_batch(weights, x) if self.self_normalising else _run(self.teacher, weights, x)
        )

    def _normalised_by_batch(self, weights: Weights, x: Tensor) -> Out:
        """In evaluation mode, but normalised by the batch's statistics; the running ones stay as they are."""
        scratch = weights.scratch()
        return _paired(self.by_batch, scratch, x) if len(x) == 1 else _run(self.by_batch, scratch, x)


def _run(module: nn.Module, weights: Weights, x: Tensor) -> Out:
    out: Out = functional_call(module, (weights.params, weights.buffers), (x,))
    return out


def _paired(module: nn.Module, weights: Weights, x: Tensor) -> Out:
    """One sample beside its copy: the same batch statistics, of which BatchNorm accepts no fewer than two."""
    out = _run(module, weights, torch.cat([x, x]))
    return Out(out.features[:1], out.logits[:1])


def _with_batch_norms(module: nn.Module, *, training: bool) -> nn.Module:
    for part in module.modules():
        if isinstance(part, BATCH_NORMS):
            part.train(training)
    return module
