"""What the losses are computed with: softmaxes over sets of classes, divergences, and reductions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.losses.arguments import Reduction, checked_labels, checked_logits, checked_temperature

# Marks a label to be left out of a cross-entropy (torch's own default).
_IGNORED = -100


def checked_inputs(
    logits: Tensor, labels: Tensor, ignore_index: int | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the logits, the labels and a mask of the samples to keep (None for all), or raise
    `UserError`."""
    z = checked_logits(logits)
    return z, *checked_labels(labels, logits, z.shape[1], ignore_index)


def masked(z: Tensor, mask: Tensor) -> Tensor:
    """Return `z` where the mask holds, else a number so low that its exponential is 0 next to any logit. It
    is finite, so that a row without any class gives finite values to be discarded, where minus infinity would
    give NaN."""
    return torch.where(mask, z, torch.finfo(z.dtype).min / 2)


def masked_cross_entropy(
    z: Tensor, labels: Tensor, present: Tensor, keep: Tensor | None, reduction: Reduction
) -> Tensor:
    """Return the cross-entropy over the present classes. A sample whose label is not present contributes
    0."""
    counted = present[labels] if keep is None else present[labels] & keep
    held = torch.where(counted, labels, _IGNORED)
    how = "sum" if reduction == "mean" else reduction
    loss = F.cross_entropy(masked(z, present), held, ignore_index=_IGNORED, reduction=how)
    return loss / sample_count(labels, keep) if reduction == "mean" else loss


def weighted_cross_entropy(
    z: Tensor,
    labels: Tensor,
    keep: Tensor | None,
    reduction: Reduction,
    *,
    weight: Tensor | None = None,
    smoothing: float = 0.0,
) -> Tensor:
    """Return the cross-entropy, each sample times its class's weight if weights are given. The mean divides
    by the number of samples, not by the sum of their weights."""
    if keep is not None or reduction != "mean":
        loss = F.cross_entropy(z, labels, weight=weight, reduction="none", label_smoothing=smoothing)
        return reduced(loss, keep, reduction)
    if weight is not None:
        return F.cross_entropy(z, labels, weight=weight, reduction="sum") / labels.shape[0]
    return F.cross_entropy(z, labels, label_smoothing=smoothing)


def reduced(loss: Tensor, keep: Tensor | None, reduction: Reduction) -> Tensor:
    """Reduce the losses [B] of the samples. Samples that are not kept are 0 and count in no mean."""
    if keep is not None:
        loss = torch.where(keep, loss, 0.0)
    if reduction == "mean":
        return loss.mean() if keep is None else loss.sum() / sample_count(loss, keep)
    return loss.sum() if reduction == "sum" else loss


def sample_count(samples: Tensor, keep: Tensor | None) -> Tensor | int:
    """Count the samples that are kept, all if `keep` is None. With a mask it is at least 1, so that a mean
    over no sample is 0."""
    return samples.shape[0] if keep is None else keep.sum().clamp(min=1)


def masked_kl(
    teacher: Tensor, teacher_mask: Tensor, student: Tensor, student_mask: Tensor, temperature: float = 1.0
) -> Tensor:
    """Return T^2 KL(teacher || student) for each sample, [B], each softmax over its own mask ([C] or [B, C];
    the teacher's is part of the student's). It is 0 if the teacher's mask is empty."""
    t = checked_temperature(temperature)
    log_p = masked(teacher / t, teacher_mask).log_softmax(1)
    log_q = masked(student / t, student_mask).log_softmax(1)
    return t**2 * torch.where(teacher_mask, log_p.exp() * (log_p - log_q), 0.0).sum(1)


def label_mask(labels: Tensor, classes: int) -> Tensor:
    """Say for each sample and class whether the class is the sample's label, bool [B, C]."""
    return labels.unsqueeze(1) == torch.arange(classes, device=labels.device)


def marked(x: Tensor, column: Tensor) -> Tensor:
    """Return the entry of each row that the mask marks, [B]. Each row of the mask has one True."""
    return torch.where(column, x, 0.0).sum(1)


def shares(n: Tensor, z: Tensor) -> Tensor:
    """Return the counts divided by their sum; 0 for all classes if there is no sample."""
    n = n.to(z.dtype).clamp(min=0)
    return n / filled(n.sum(), 1.0)


def filled(x: Tensor, value: float) -> Tensor:
    """Return `x` with every value that is not above 0 replaced by `value`."""
    return torch.where(x > 0, x, value)
