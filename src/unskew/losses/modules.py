"""Whole objectives as modules: a cross-entropy, the terms that a paper adds to it, and the models for them.

`loss(logits, labels, ...)` takes the logits of the model being trained and returns a scalar to differentiate.
A teacher is copied when the module is made, frozen, and run on the inputs that are passed: make the module
when the round begins, from the model as received.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from unskew.errors import UserError
from unskew.losses.arguments import (
    ClassCounts,
    Reduction,
    check_among,
    check_non_negative,
    check_reduction,
    checked_temperature,
    counts_tensor,
)
from unskew.losses.cross_entropies import (
    calibrated_cross_entropy,
    class_balanced_cross_entropy,
    focal_loss,
    label_smoothing_cross_entropy,
    margin_cross_entropy,
    restricted_cross_entropy,
)
from unskew.losses.distillations import (
    decoupled_distillation,
    distillation,
    label_masking_distillation,
    not_true_distillation,
    vacant_distillation,
)
from unskew.losses.primitives import reduced
from unskew.losses.terms import contrastive_term, decorrelation_term, logit_suppression, proximal_term


class _Loss(nn.Module):
    """The base of all: it holds the client's counts, for losses that need them, and the choice of
    reduction."""

    counts: Tensor

    def __init__(self, counts: ClassCounts | None, reduction: Reduction, ignore_index: int | None) -> None:
        super().__init__()
        check_reduction(reduction)
        self.reduction, self.ignore_index = reduction, ignore_index
        if counts is not None:
            found = counts_tensor(counts).detach().clone()
            if found.ndim != 1 or not len(found):
                raise UserError(f"the shape of counts is {tuple(found.shape)}: pass one count per class.")
            self.register_buffer("counts", found)

    def _counts_at(self, logits: Tensor) -> Tensor:
        """Return the counts on the device of the logits, to which they are moved once."""
        if self.counts.device != logits.device:
            self.counts = self.counts.to(logits.device)
        return self.counts

    def _cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        return label_smoothing_cross_entropy(logits, labels, smoothing=0.0, **self._samples())

    def _samples(self) -> dict[str, Any]:
        return {"reduction": self.reduction, "ignore_index": self.ignore_index}

    def _reduced(self, loss: Tensor, labels: Tensor) -> Tensor:
        """Reduce a term that has one value per sample and does not take the labels itself."""
        keep = None if self.ignore_index is None else labels != self.ignore_index
        return reduced(loss, keep, self.reduction)


class _Frozen(nn.Module):
    """A frozen copy of a model: in evaluation mode, without gradients, whatever its owner does with the
    original."""

    def __init__(self, name: str, model: nn.Module) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise UserError(f"{name} is a {type(model).__name__}: pass a torch.nn.Module.")
        self.name = name
        self.model = copy.deepcopy(model).requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Self:
        return super().train(False)

    def forward(self, inputs: tuple[Any, ...]) -> Tensor:
        if not inputs:
            raise UserError(
                f"the {self.name} has no inputs: pass those of the model too, loss(logits, labels, inputs)."
            )
        with torch.no_grad():
            out = self.model(*inputs)
        if not isinstance(out, Tensor):
            raise UserError(
                f"the {self.name} returns a {type(out).__name__}: pass a module that returns one tensor."
            )
        return out


class CalibratedLoss(_Loss):
    """`calibrated_cross_entropy`: CalFAT and balanced softmax, with another tau logit adjustment."""

    def __init__(
        self,
        counts: ClassCounts,
        *,
        tau: float = 1.0,
        floor: float | None = None,
        reduction: Reduction = "mean",
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(counts, reduction, ignore_index)
        self.tau, self.floor = tau, floor

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        n = self._counts_at(logits)
        return calibrated_cross_entropy(logits, labels, n, tau=self.tau, floor=self.floor, **self._samples())


class FedLCLoss(_Loss):
    """FedLC: `margin_cross_entropy`, with the label in its denominator."""

    def __init__(
        self,
        counts: ClassCounts,
        *,
        tau: float = 0.5,
        vacant: Literal["mask", "clamp", "one"] = "mask",
        reduction: Reduction = "mean",
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(counts, reduction, ignore_index)
        self.tau = tau
        self.vacant: Literal["mask", "clamp", "one"] = vacant

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        n = self._counts_at(logits)
        return margin_cross_entropy(logits, labels, n, tau=self.tau, vacant=self.vacant, **self._samples())


class FedRSLoss(_Loss):
    """FedRS: `restricted_cross_entropy`. Predict with the plain logits."""

    def __init__(
        self,
        counts: ClassCounts,
        *,
        alpha: float = 0.5,
        soft: bool = False,
        reduction: Reduction = "mean",
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(counts, reduction, ignore_index)
        self.alpha, self.soft = alpha, soft

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        n = self._counts_at(logits)
        return restricted_cross_entropy(
            logits, labels, n, alpha=self.alpha, soft=self.soft, **self._samples()
        )


class ClassBalancedLoss(_Loss):
    """The class-balanced loss: `class_balanced_cross_entropy`."""

    def __init__(
        self,
        counts: ClassCounts,
        *,
        beta: float = 0.9999,
        reduction: Reduction = "mean",
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(counts, reduction, ignore_index)
        self.beta = beta

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        n = self._counts_at(logits)
        return class_balanced_cross_entropy(logits, labels, n, beta=self.beta, **self._samples())


class FocalLoss(_Loss):
    """The focal loss: `focal_loss`."""

    def __init__(
        self, *, gamma: float = 2.0, reduction: Reduction = "mean", ignore_index: int | None = None
    ) -> None:
        super().__init__(None, reduction, ignore_index)
        self.gamma = gamma

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return focal_loss(logits, labels, gamma=self.gamma, **self._samples())


class FedVLSLoss(_Loss):
    """FedVLS: `calibrated_cross_entropy + lam vacant_distillation + gamma logit_suppression`.

    The suppression is one number for the whole batch, hence there is no `reduction`. gamma="auto" is 0.005 as
    in the release, and 1 with form="paper", as in the paper.
    """

    def __init__(
        self,
        counts: ClassCounts,
        teacher: nn.Module,
        *,
        lam: float = 0.1,
        gamma: float | Literal["auto"] = "auto",
        form: Literal["official", "paper"] = "official",
        floor: float | None = 1e-9,
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(counts, "mean", ignore_index)
        check_among("form", form, ("official", "paper"))
        weight = (0.005 if form == "official" else 1.0) if gamma == "auto" else gamma
        check_non_negative("lam", lam)
        check_non_negative("gamma", weight)
        self.teacher = _Frozen("teacher", teacher)
        self.lam, self.gamma, self.floor = lam, weight, floor
        self.form: Literal["official", "paper"] = form

    def forward(self, logits: Tensor, labels: Tensor, *inputs: Any) -> Tensor:
        n, skip = self._counts_at(logits), self.ignore_index
        distilled = vacant_distillation(logits, self.teacher(inputs), n, reduction="none")
        return (
            calibrated_cross_entropy(logits, labels, n, floor=self.floor, ignore_index=skip)
            + self.lam * self._reduced(distilled, labels)
            + self.gamma * logit_suppression(logits, labels, n, form=self.form, ignore_index=skip)
        )


class FedNTDLoss(_Loss):
    """FedNTD: cross-entropy + `beta not_true_distillation`; teacher=None is FedNTD-Tf."""

    def __init__(
        self,
        teacher: nn.Module | None,
        *,
        beta: float = 1.0,
        temperature: float = 1.0,
        reduction: Reduction = "mean",
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(None, reduction, ignore_index)
        check_non_negative("beta", beta)
        self.teacher = None if teacher is None else _Frozen("teacher", teacher)
        self.beta, self.temperature = beta, checked_temperature(temperature)

    def forward(self, logits: Tensor, labels: Tensor, *inputs: Any) -> Tensor:
        teacher_logits = None if self.teacher is None else self.teacher(inputs)
        return self._cross_entropy(logits, labels) + self.beta * not_true_distillation(
            logits, teacher_logits, labels, temperature=self.temperature, **self._samples()
        )


class FedLMDLoss(_Loss):
    """FedLMD: cross-entropy + `beta label_masking_distillation`; teacher=None is FedLMD-Tf."""

    def __init__(
        self,
        counts: ClassCounts,
        teacher: nn.Module | None,
        *,
        beta: float = 1.0,
        temperature: float = 1.0,
        majority: Literal["code", "ge", "present"] = "code",
        fallback: Literal["ntd"] | None = None,
        reduction: Reduction = "mean",
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(counts, reduction, ignore_index)
        check_non_negative("beta", beta)
        self.teacher = None if teacher is None else _Frozen("teacher", teacher)
        self.beta, self.temperature = beta, checked_temperature(temperature)
        self.majority: Literal["code", "ge", "present"] = majority
        self.fallback: Literal["ntd"] | None = fallback

    def forward(self, logits: Tensor, labels: Tensor, *inputs: Any) -> Tensor:
        teacher_logits = None if self.teacher is None else self.teacher(inputs)
        return self._cross_entropy(logits, labels) + self.beta * label_masking_distillation(
            logits,
            teacher_logits,
            labels,
            self._counts_at(logits),
            temperature=self.temperature,
            majority=self.majority,
            fallback=self.fallback,
            **self._samples(),
        )


class FedKDLoss(_Loss):
    """FedKD: cross-entropy + `beta distillation`. With counts FedEKD, which distils over the client's classes
    only."""

    def __init__(
        self,
        teacher: nn.Module,
        counts: ClassCounts | None = None,
        *,
        beta: float = 0.1,
        temperature: float = 1.0,
        reduction: Reduction = "mean",
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(counts, reduction, ignore_index)
        check_non_negative("beta", beta)
        self.teacher = _Frozen("teacher", teacher)
        self.present_only = counts is not None
        self.beta, self.temperature = beta, checked_temperature(temperature)

    def forward(self, logits: Tensor, labels: Tensor, *inputs: Any) -> Tensor:
        classes = self._counts_at(logits) > 0 if self.present_only else None
        distilled = distillation(
            logits, self.teacher(inputs), temperature=self.temperature, classes=classes, reduction="none"
        )
        return self._cross_entropy(logits, labels) + self.beta * self._reduced(distilled, labels)


class FedDKDLoss(_Loss):
    """Decoupled distillation: cross-entropy + `weight decoupled_distillation`."""

    def __init__(
        self,
        teacher: nn.Module,
        *,
        alpha: float = 1.0,
        beta: float = 8.0,
        temperature: float = 1.0,
        weight: float = 0.1,
        reduction: Reduction = "mean",
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(None, reduction, ignore_index)
        check_non_negative("weight", weight)
        self.teacher = _Frozen("teacher", teacher)
        self.alpha, self.beta, self.weight = alpha, beta, weight
        self.temperature = checked_temperature(temperature)

    def forward(self, logits: Tensor, labels: Tensor, *inputs: Any) -> Tensor:
        return self._cross_entropy(logits, labels) + self.weight * decoupled_distillation(
            logits,
            self.teacher(inputs),
            labels,
            alpha=self.alpha,
            beta=self.beta,
            temperature=self.temperature,
            **self._samples(),
        )


class FedProxLoss(_Loss):
    """FedProx: cross-entropy + `proximal_term` between the model as it trains and as it was when this module
    was made.

    The term is a sum over weights, hence there is no `reduction`.
    """

    def __init__(self, model: nn.Module, *, mu: float = 0.01, ignore_index: int | None = None) -> None:
        super().__init__(None, "mean", ignore_index)
        check_non_negative("mu", mu)
        self.anchor, self.mu = _Frozen("model", model), mu
        self._trained = (model,)  # in a tuple: its parameters are not those of this module

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        now = {name: p for name, p in self._trained[0].named_parameters() if p.requires_grad}
        before = dict(self.anchor.model.named_parameters())
        anchor = {name: before[name] for name in now}
        return self._cross_entropy(logits, labels) + proximal_term(now, anchor, mu=self.mu)


class MOONLoss(_Loss):
    """MOON: cross-entropy + `mu contrastive_term`.

    `anchor` and `previous` map inputs to features. They are the bodies of the received model, and of the
    client's own model after its last round (or of several such models).
    """

    def __init__(
        self,
        anchor: nn.Module,
        previous: nn.Module | Sequence[nn.Module],
        *,
        mu: float = 0.01,
        temperature: float = 0.5,
        reduction: Reduction = "mean",
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(None, reduction, ignore_index)
        check_non_negative("mu", mu)
        several = [previous] if isinstance(previous, nn.Module) else list(previous)
        if not several:
            raise UserError("previous holds no model: pass at least one.")
        self.anchor = _Frozen("anchor", anchor)
        self.previous = nn.ModuleList(_Frozen("previous model", model) for model in several)
        self.mu, self.temperature = mu, checked_temperature(temperature)

    def forward(self, logits: Tensor, labels: Tensor, features: Tensor, *inputs: Any) -> Tensor:
        previous = torch.stack([model(inputs) for model in self.previous])
        contrast = contrastive_term(
            features, self.anchor(inputs), previous, temperature=self.temperature, reduction="none"
        )
        return self._cross_entropy(logits, labels) + self.mu * self._reduced(contrast, labels)


class FedDecorrLoss(_Loss):
    """FedDecorr: cross-entropy + `beta decorrelation_term`.

    The term is one number for the whole batch, hence there is no `reduction`. It includes samples whose label
    is `ignore_index`.
    """

    def __init__(
        self,
        *,
        beta: float = 0.1,
        form: Literal["code", "paper"] = "code",
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(None, "mean", ignore_index)
        check_non_negative("beta", beta)
        self.beta = beta
        self.form: Literal["code", "paper"] = form

    def forward(self, logits: Tensor, labels: Tensor, features: Tensor) -> Tensor:
        return self._cross_entropy(logits, labels) + self.beta * decorrelation_term(features, form=self.form)
