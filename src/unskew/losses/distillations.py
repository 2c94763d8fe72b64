"""Losses that compare the logits with a teacher's or an expert's on sets of classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from unskew.errors import UserError
from unskew.losses.arguments import (
    ClassCounts,
    Reduction,
    check_among,
    check_fits,
    check_non_negative,
    check_reduction,
    checked_counts,
    checked_group,
    checked_logits,
    checked_temperature,
    constant,
)
from unskew.losses.primitives import (
    checked_inputs,
    label_mask,
    marked,
    masked,
    masked_kl,
    reduced,
    sample_count,
)


def distillation(
    logits: Tensor,
    teacher: Tensor,
    *,
    temperature: float = 1.0,
    classes: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return the plain distillation loss, `T^2 KL(softmax(teacher / T) || softmax(logits / T))`.

    - `classes` (bool [C]): restricts both softmaxes to these classes; with the present ones this is FedEKD.
      With fewer than two classes the loss is 0. None takes all classes.
    - `reduction`: over the samples.
    """
    z = checked_logits(logits)
    check_reduction(reduction)
    if classes is None:
        mask = torch.ones(z.shape[1], dtype=torch.bool, device=z.device)
    else:
        check_fits("classes", classes, z, (z.shape[1],), "one bool per class")
        if classes.dtype != torch.bool:
            raise UserError(f"classes are {classes.dtype}: pass a bool mask, for instance counts > 0.")
        mask = classes
    return reduced(masked_kl(constant(teacher, logits), mask, z, mask, temperature), None, reduction)


def vacant_distillation(
    logits: Tensor,
    teacher: Tensor,
    counts: ClassCounts,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return the distillation of FedED and FedVLS (Eq. 3), KL(teacher || student) over the vacant classes
    only.

    Both softmaxes are over the vacant classes, so present ones receive no gradient. With fewer than two
    vacant classes the loss is 0. The print has the opposite sign, which would drive the student away from the
    teacher. `reduction` is over the samples.
    """
    z = checked_logits(logits)
    check_reduction(reduction)
    vacant = checked_counts(counts, logits) <= 0
    return reduced(masked_kl(constant(teacher, logits), vacant, z, vacant), None, reduction)


def not_true_distillation(
    logits: Tensor,
    teacher: Tensor | None,
    labels: Tensor,
    *,
    temperature: float = 1.0,
    reduction: Reduction = "mean",
    ignore_index: int | None = None,
) -> Tensor:
    """Return FedNTD's loss, `T^2 KL(teacher || student)` with both softmaxes over the classes other than the
    label.

    The label's logit receives no gradient. With two classes the loss is 0.

    - `teacher`: None stands for a uniform distribution (FedNTD-Tf).
    - `reduction`: over the samples.
    """
    z, y, keep = checked_inputs(logits, labels, ignore_index)
    check_reduction(reduction)
    others = ~label_mask(y, z.shape[1])
    return reduced(masked_kl(constant(teacher, logits), others, z, others, temperature), keep, reduction)


def label_masking_distillation(
    logits: Tensor,
    teacher: Tensor | None,
    labels: Tensor,
    counts: ClassCounts,
    *,
    temperature: float = 1.0,
    majority: Literal["code", "ge", "present"] = "code",
    fallback: Literal["ntd"] | None = None,
    squared_temperature: bool = True,
    target: Literal["sample", "paper"] = "sample",
    reduction: Reduction = "mean",
    ignore_index: int | None = None,
) -> Tensor:
    """Return FedLMD's loss, `T^2 KL(teacher || student)`, with softmaxes over two different sets of classes.

    The teacher's softmax is over the classes that are neither the label nor in the client's majority, the
    student's over all classes but the label. So majority classes other than the label are pushed down. The
    label's logit receives no gradient.

    - `teacher`: None stands for a uniform distribution (FedLMD-Tf).
    - `majority`: the rule by which a class belongs to it: "code" n_c > n / C; "ge" n_c >= n / C; "present"
      n_c >= n / (number of present classes). A vacant class never belongs to it.
    - `fallback`: the contribution of a sample that leaves no class for the teacher: 0 with None, FedNTD's
      loss with "ntd".
    - `squared_temperature`: False drops T^2, as printed in Eq. 6.
    - `target`: only without a teacher. "sample" spreads a probability of 1 over the classes that are left.
      "paper" gives each of them 1 / (number of classes outside the majority) as in Eq. 8, which sums to less
      than 1 if the label is one of these.
    - `reduction`: over the samples; the mean counts all of them.
    """
    z, y, keep = checked_inputs(logits, labels, ignore_index)
    check_reduction(reduction)
    n = checked_counts(counts, logits)
    check_among("majority", majority, ("code", "ge", "present"))
    if fallback is not None:
        check_among("fallback", fallback, ("ntd",))
    check_among("target", target, ("sample", "paper"))
    others = ~label_mask(y, z.shape[1])
    kept = others & ~_majority(n, majority)
    part = kept.sum(1).to(z.dtype) / (~_majority(n, majority)).sum().clamp(min=1)
    part = torch.where(part > 0, part, 1.0)  # with no class left: 0 or the fallback, as for the other target
    if fallback == "ntd":
        kept = torch.where(kept.any(1, keepdim=True), kept, others)
    loss = masked_kl(constant(teacher, logits), kept, z, others, temperature)
    if target == "paper" and teacher is None:  # with a sum of `part` instead of 1
        loss = part * loss + temperature**2 * torch.xlogy(part, part)
    loss = reduced(loss, keep, reduction)
    return loss if squared_temperature else loss / temperature**2


def decoupled_distillation(
    logits: Tensor,
    teacher: Tensor,
    labels: Tensor,
    *,
    alpha: float,
    beta: float,
    temperature: float,
    reduction: Reduction = "mean",
    ignore_index: int | None = None,
) -> Tensor:
    """Return the loss of DKD (Zhao et al., CVPR 2022), `alpha TCKD + beta NCKD`.

    TCKD is T^2 KL between the pairs (p_y, 1 - p_y) of teacher and student. NCKD is `not_true_distillation`,
    which is 0 with two classes. For every sample, plain distillation equals TCKD + (1 - teacher's p_y) NCKD.
    `reduction` is over the samples.
    """
    z, y, keep = checked_inputs(logits, labels, ignore_index)
    check_reduction(reduction)
    check_non_negative("alpha", alpha)
    check_non_negative("beta", beta)
    label, target = label_mask(y, z.shape[1]), constant(teacher, logits)
    log_p, log_q = (_log_pair(x / checked_temperature(temperature), label) for x in (target, z))
    target_class = temperature**2 * (log_p.exp() * (log_p - log_q)).sum(0)
    other_classes = masked_kl(target, ~label, z, ~label, temperature)
    return alpha * reduced(target_class, keep, reduction) + beta * reduced(other_classes, keep, reduction)


def partial_distillation(
    logits: Tensor,
    labels: Tensor,
    experts: Sequence[Tensor],
    groups: Sequence[Sequence[int]],
    *,
    temperature: float = 5.0,
    direction: Literal["forward", "reverse"] = "forward",
    squared_temperature: bool = False,
    mean: Literal["active", "batch"] = "active",
    reduction: Reduction = "mean",
    ignore_index: int | None = None,
) -> Tensor:
    """Return PKD's loss: where the student confuses two classes of a group, it learns from the expert on that
    group.

    A sample is active if its prediction, the class with the largest logit, is wrong and some group holds both
    label and prediction. Its expert is that of the smallest such group, of equally small ones the first. It
    contributes KL(softmax(expert / T) || softmax(z_g / T)), where z_g are the student's logits of the group's
    classes; other classes receive no gradient. Other samples contribute 0, and without an active sample the
    loss is 0.

    - `experts`: `experts[i]` are logits [B, len(groups[i])], column j for class `groups[i][j]`.
    - `groups`: at least two classes each. A class may be in several of them.
    - `direction`: "forward" is the divergence above, "reverse" is KL(student || expert), as printed.
    - `squared_temperature`: True multiplies by T^2.
    - `mean`: with reduction="mean", the sum is divided by the number of active samples ("active"), or of all
      samples ("batch").
    """
    z, y, keep = checked_inputs(logits, labels, ignore_index)
    check_reduction(reduction)
    check_among("direction", direction, ("forward", "reverse"))
    check_among("mean", mean, ("active", "batch"))
    if len(experts) != len(groups):
        raise UserError(
            f"{len(experts)} experts for {len(groups)} groups: pass one expert's logits per group."
        )
    t = checked_temperature(temperature)
    predicted = z.argmax(1)
    waiting = predicted != y if keep is None else (predicted != y) & keep
    # Without groups a sum over no column: zeros that can be differentiated.
    loss = torch.zeros_like(z[:, 0]) if len(groups) else z[:, :0].sum(1)
    active = torch.zeros_like(waiting)
    for i in sorted(range(len(groups)), key=lambda i: len(groups[i])):
        group = checked_group(i, groups[i], z.shape[1])
        check_fits(
            f"experts[{i}]", experts[i], z, (y.shape[0], len(group)), "one column per class of the group"
        )
        chosen = waiting & _is_in(y, group) & _is_in(predicted, group)
        # Columns one by one: indexing with a list would copy it to the device, which a graph cannot capture.
        student = (torch.stack([z[:, c] for c in group], 1) / t).log_softmax(1)
        expert = (experts[i].detach().to(z.dtype) / t).log_softmax(1)
        log_p, log_q = (expert, student) if direction == "forward" else (student, expert)
        loss = torch.where(chosen, (log_p.exp() * (log_p - log_q)).sum(1), loss)
        active, waiting = active | chosen, waiting & ~chosen
    scale = t**2 if squared_temperature else 1.0
    if reduction != "mean":
        return scale * reduced(loss, None, reduction)
    samples = active.sum().clamp(min=1) if mean == "active" else sample_count(y, keep)
    return scale * loss.sum() / samples


def _log_pair(z: Tensor, label: Tensor) -> Tensor:
    """Return log p_y and log(1 - p_y) as [2, B], the second without forming 1 - p_y."""
    return torch.stack([marked(z, label), masked(z, ~label).logsumexp(1)]) - z.logsumexp(1)


def _is_in(labels: Tensor, group: Iterable[int]) -> Tensor:
    """Say for each label whether its class is in the group, bool [B]."""
    return torch.stack([labels == c for c in group]).any(0)


def _majority(n: Tensor, rule: Literal["code", "ge", "present"]) -> Tensor:
    """Say for each class whether it belongs to the client's majority, bool [C]."""
    n = n.clamp(min=0)
    # Products instead of quotients: exact for integer counts.
    if rule == "code":
        return n * len(n) > n.sum()
    present = n > 0
    share = len(n) if rule == "ge" else present.sum()
    return present & (n * share >= n.sum())
