"""Classification losses: cross-entropies that know how many samples of each class the client holds."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.errors import UserError
from unskew.losses.arguments import (
    ClassCounts,
    Reduction,
    check_among,
    check_fits,
    check_fraction,
    check_non_negative,
    check_reduction,
    checked_counts,
)
from unskew.losses.primitives import (
    checked_inputs,
    filled,
    label_mask,
    marked,
    masked,
    masked_cross_entropy,
    reduced,
    shares,
    weighted_cross_entropy,
)

# The count of a vacant class in FL-bench's FedLC: a margin of 100 tau.
_CLAMPED_COUNT = 1e-8


def calibrated_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    counts: ClassCounts,
    *,
    tau: float = 1.0,
    floor: float | None = None,
    reduction: Reduction = "mean",
    ignore_index: int | None = None,
) -> Tensor:
    """Return the cross-entropy of `z + tau log p`: the logits plus the log-prior p = counts / sum(counts).

    tau=1 is FedVLS Eq. 2, balanced softmax and CalFAT's calibration; another tau is logit adjustment.

    - `floor`: None leaves vacant classes out of the softmax, so that they receive no gradient; a sample whose
      label is vacant then contributes 0. A number adds log(p + floor) instead and keeps vacant classes in;
      FedVLS released 1e-9.
    - `reduction`: the mean counts all samples, also those that contribute 0.
    """
    z, y, keep = checked_inputs(logits, labels, ignore_index)
    check_reduction(reduction)
    n = checked_counts(counts, logits)
    check_non_negative("tau", tau)
    if floor is None:
        # The normaliser of p shifts every logit alike and cancels.
        prior = filled(n.to(z.dtype), 1.0).log()
        return masked_cross_entropy(torch.add(z, prior, alpha=tau), y, n > 0, keep, reduction)
    if not (floor > 0 and math.isfinite(floor)):
        raise UserError(f"floor is {floor}: choose a number above 0, or None to leave vacant classes out.")
    return weighted_cross_entropy(torch.add(z, (shares(n, z) + floor).log(), alpha=tau), y, keep, reduction)


def margin_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    counts: ClassCounts,
    *,
    tau: float,
    vacant: Literal["mask", "clamp", "one"] = "mask",
    denominator: Literal["include", "exclude"] = "include",
    reduction: Reduction = "mean",
    ignore_index: int | None = None,
) -> Tensor:
    """Return FedLC's loss: the cross-entropy of `z - tau n^(-1/4)`, a margin that grows as a class gets
    rarer.

    - `vacant`: "mask" leaves vacant classes out of the softmax (the limit n -> 0), and a sample whose label
      is vacant contributes 0. "clamp" takes n = 1e-8 for them (a margin of 100 tau), "one" n = 1 (a margin of
      tau).
    - `denominator`: "include" keeps the label in the softmax. "exclude" is Eq. 7 as printed: it equals
      log(exp(include) - 1), is unbounded below, and is 0 where the label is the only class in the softmax.
    - `reduction`: the mean counts all samples, also those that contribute 0.
    """
    z, y, keep = checked_inputs(logits, labels, ignore_index)
    check_reduction(reduction)
    n = checked_counts(counts, logits)
    check_non_negative("tau", tau)
    check_among("vacant", vacant, ("mask", "clamp", "one"))
    check_among("denominator", denominator, ("include", "exclude"))
    rarity = filled(n.to(z.dtype), _CLAMPED_COUNT if vacant == "clamp" else 1.0).pow(-0.25)
    adjusted = torch.sub(z, rarity, alpha=tau)
    present = n > 0 if vacant == "mask" else torch.ones_like(n, dtype=torch.bool)
    if denominator == "include":
        return masked_cross_entropy(adjusted, y, present, keep, reduction)
    label = label_mask(y, z.shape[1])
    others = present & ~label
    gap = masked(adjusted, others).logsumexp(1) - marked(adjusted, label)
    return reduced(torch.where(present[y] & others.any(1), gap, 0.0), keep, reduction)


def restricted_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    counts: ClassCounts,
    *,
    alpha: float,
    soft: bool = False,
    reduction: Reduction = "mean",
    ignore_index: int | None = None,
) -> Tensor:
    """Return FedRS's loss: the cross-entropy of `s z`, where s is alpha for vacant classes and 1 for the
    others.

    A sample whose label is vacant has its label's logit scaled too. Predict with the plain logits. Unlike
    plain cross-entropy, the loss changes when a constant is added to all logits.

    - `soft`: True is the graded form of the authors' code, s = alpha + (1 - alpha) n / max(n).
    - `reduction`: over the samples.
    """
    z, y, keep = checked_inputs(logits, labels, ignore_index)
    check_reduction(reduction)
    n = checked_counts(counts, logits)
    check_fraction("alpha", alpha)
    if soft:
        n = n.to(z.dtype).clamp(min=0)
        scale = alpha + (1 - alpha) * n / filled(n.max(), 1.0)
    else:
        scale = torch.full_like(n, alpha, dtype=z.dtype).masked_fill(n > 0, 1.0)
    return weighted_cross_entropy(scale * z, y, keep, reduction)


def class_balanced_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    counts: ClassCounts,
    *,
    beta: float = 0.9999,
    normalise: Literal["present", "all"] = "present",
    reduction: Reduction = "mean",
    ignore_index: int | None = None,
) -> Tensor:
    """Return the cross-entropy of every sample times the weight `w_y` of its class (Cui et al., CVPR 2019).

    w_c is proportional to 1 / (1 - beta^n_c). Vacant classes have weight 0, so a sample whose label is vacant
    contributes 0.

    - `normalise`: with "present" the weights sum to the number of present classes, with "all" to the number C
      of all classes.
    - `reduction`: the mean divides by the number of samples, not by the sum of their weights.
    """
    z, y, keep = checked_inputs(logits, labels, ignore_index)
    check_reduction(reduction)
    n = checked_counts(counts, logits)
    if not 0 <= beta < 1:
        raise UserError(f"beta is {beta}: choose a number from 0 up to, but not including, 1.")
    check_among("normalise", normalise, ("present", "all"))
    # 1 - beta^n without cancellation; the factor 1 - beta falls out when the weights are normalised.
    log_beta = math.log(beta) if beta > 0 else -math.inf
    weight = torch.where(n > 0, -1.0 / torch.expm1(filled(n.to(z.dtype), 1.0) * log_beta), 0.0)
    classes = (n > 0).sum() if normalise == "present" else len(n)
    weight = weight * (classes / filled(weight.sum(), 1.0))
    return weighted_cross_entropy(z, y, keep, reduction, weight=weight)


def focal_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma: float = 2.0,
    detach_weight: bool = False,
    class_accuracy: Tensor | None = None,
    reduction: Reduction = "mean",
    ignore_index: int | None = None,
) -> Tensor:
    """Return the focal loss, `-(1 - p_y)^gamma log p_y` with p = softmax(z) (Lin et al., ICCV 2017).

    - `detach_weight`: True treats the factor (1 - p_y)^gamma as a constant, which receives no gradient.
    - `class_accuracy` [C], values from 0 to 1: with it the factor belongs to the class instead of the sample,
      as PKD describes its baseline: w_c = (1 - accuracy_c)^gamma divided by its mean over the classes whose
      accuracy is known. A class whose accuracy is NaN (it has no test samples) has weight 1, and so have all
      classes if every known accuracy is 1.
    - `reduction`: the mean divides by the number of samples.
    """
    z, y, keep = checked_inputs(logits, labels, ignore_index)
    check_reduction(reduction)
    check_non_negative("gamma", gamma)
    if class_accuracy is not None:
        check_fits("class_accuracy", class_accuracy, z, (z.shape[1],), "one value per class")
        accuracy = class_accuracy.detach().to(z.dtype)
        known = ~accuracy.isnan()
        factor = torch.where(known, (1 - accuracy).clamp(min=0).pow(gamma), 0.0)
        mean = factor.sum() / known.sum().clamp(min=1)
        weight = torch.where(known & (mean > 0), factor / filled(mean, 1.0), 1.0)
        return weighted_cross_entropy(z, y, keep, reduction, weight=weight)
    if gamma == 0:
        return weighted_cross_entropy(z, y, keep, reduction)
    loss = F.cross_entropy(z, y, reduction="none")
    # The clamp keeps x^(gamma-1) finite at p_y = 1, where autograd would form 0 * inf for gamma < 1.
    factor = (-torch.expm1(-loss)).clamp(min=torch.finfo(z.dtype).tiny).pow(gamma)
    return reduced((factor.detach() if detach_weight else factor) * loss, keep, reduction)


def label_smoothing_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    smoothing: float = 0.1,
    reduction: Reduction = "mean",
    ignore_index: int | None = None,
) -> Tensor:
    """Return the cross-entropy with targets that are smoothed over all classes.

    It is `(1 - smoothing) CE + smoothing / C sum_c -log p_c` with p = softmax(z). `reduction` is over the
    samples.
    """
    z, y, keep = checked_inputs(logits, labels, ignore_index)
    check_reduction(reduction)
    check_fraction("smoothing", smoothing)
    return weighted_cross_entropy(z, y, keep, reduction, smoothing=smoothing)
