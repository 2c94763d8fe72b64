"""The losses as pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.errors import UserError
from unskew.losses.arguments import (
    ClassCounts,
    Reduction,
    check_among,
    check_device,
    check_fits,
    check_fraction,
    check_non_negative,
    check_reduction,
    checked_counts,
    checked_features,
    checked_group,
    checked_labels,
    checked_logits,
    checked_temperature,
    constant,
    upcast,
)

# The floor inside the logarithms of the released FedVLS code.
_PRIOR_FLOOR = 1e-9
# What vacant counts become in FL-bench's FedLC: a margin of 100 tau.
_CLAMPED_COUNT = 1e-8
# Added to variances by the released FedDecorr and FedMR code.
_VARIANCE_FLOOR = 1e-8
# Marks a label to be left out of a cross-entropy (torch's own default).
_IGNORED = -100
# Below this norm a vector has no direction (the bound of torch.nn.functional.cosine_similarity).
_SMALLEST_NORM = 1e-8


# ------------------------------------------------------------------------------ cross-entropies


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
    """Cross-entropy of `z + tau log p`, p = counts / sum(counts).

    tau=1 is FedVLS Eq. 2, balanced softmax and CalFAT's calibration; other tau is logit adjustment.
    floor=None leaves vacant classes out of the softmax; a sample whose label is vacant then contributes 0.
    With a floor the prior is log(p + floor), vacant classes included; FedVLS released 1e-9.
    """
    z, y, keep = _inputs(logits, labels, ignore_index)
    check_reduction(reduction)
    n = checked_counts(counts, logits)
    check_non_negative("tau", tau)
    if floor is None:
        # The normaliser of p shifts every logit alike and cancels.
        prior = _filled(n.to(z.dtype), 1.0).log()
        return _masked_cross_entropy(torch.add(z, prior, alpha=tau), y, n > 0, keep, reduction)
    if not (floor > 0 and math.isfinite(floor)):
        raise UserError(f"floor is {floor}: choose a number above 0, or None to leave vacant classes out.")
    return _cross_entropy(torch.add(z, (_shares(n, z) + floor).log(), alpha=tau), y, keep, reduction)


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
    """FedLC: cross-entropy of `z - tau n^(-1/4)`, a margin that grows as a class gets rarer.

    vacant: "mask" leaves vacant classes out (the limit n -> 0; a sample whose label is vacant contributes 0),
    "clamp" sets n = 1e-8 (a margin of 100 tau), "one" sets n = 1 (a margin of tau).
    denominator: "include" keeps the label in the softmax. "exclude" is the printed Eq. 7: it equals
    log(exp(include) - 1), is unbounded below, and is 0 where the label is the only class.
    """
    z, y, keep = _inputs(logits, labels, ignore_index)
    check_reduction(reduction)
    n = checked_counts(counts, logits)
    check_non_negative("tau", tau)
    check_among("vacant", vacant, ("mask", "clamp", "one"))
    check_among("denominator", denominator, ("include", "exclude"))
    rarity = _filled(n.to(z.dtype), _CLAMPED_COUNT if vacant == "clamp" else 1.0).pow(-0.25)
    adjusted = torch.sub(z, rarity, alpha=tau)
    present = n > 0 if vacant == "mask" else torch.ones_like(n, dtype=torch.bool)
    if denominator == "include":
        return _masked_cross_entropy(adjusted, y, present, keep, reduction)
    label = _is_label(y, z.shape[1])
    others = present & ~label
    gap = _masked(adjusted, others).logsumexp(1) - _select(adjusted, label)
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
    """FedRS: cross-entropy of `s z`, where s = alpha for vacant classes and 1 for the others.

    soft=True is the graded form of the authors' code, s = alpha + (1 - alpha) n / max(n). Use plain logits to
    predict. Not invariant to a constant added to the logits. A vacant label is scaled like any vacant class.
    """
    z, y, keep = _inputs(logits, labels, ignore_index)
    check_reduction(reduction)
    n = checked_counts(counts, logits)
    check_fraction("alpha", alpha)
    if soft:
        n = n.to(z.dtype).clamp(min=0)
        scale = alpha + (1 - alpha) * n / _filled(n.max(), 1.0)
    else:
        scale = torch.full_like(n, alpha, dtype=z.dtype).masked_fill(n > 0, 1.0)
    return _cross_entropy(scale * z, y, keep, reduction)


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
    """Cross-entropy weighted by `w_y`, w_c proportional to 1 / (1 - beta^n_c) (Cui et al., CVPR 2019).

    The weights sum to the number of present classes, or of all C classes with normalise="all". Vacant
    classes weigh 0. The weighted sum is divided by B, not by the sum of the weights.
    """
    z, y, keep = _inputs(logits, labels, ignore_index)
    check_reduction(reduction)
    n = checked_counts(counts, logits)
    if not 0 <= beta < 1:
        raise UserError(f"beta is {beta}: choose a number from 0 up to, but not including, 1.")
    check_among("normalise", normalise, ("present", "all"))
    # 1 - beta^n without cancellation; the factor 1 - beta falls out when the weights are normalised.
    log_beta = math.log(beta) if beta > 0 else -math.inf
    weight = torch.where(n > 0, -1.0 / torch.expm1(_filled(n.to(z.dtype), 1.0) * log_beta), 0.0)
    classes = (n > 0).sum() if normalise == "present" else len(n)
    weight = weight * (classes / _filled(weight.sum(), 1.0))
    return _cross_entropy(z, y, keep, reduction, weight=weight)


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
    """`-(1 - p_y)^gamma log p_y` (Lin et al., ICCV 2017); detach_weight=True treats the factor as a constant.

    With class_accuracy [C] (values in 0..1) the factor is set per class instead, as PKD describes its
    baseline: w_c = (1 - accuracy_c)^gamma divided by its mean over classes. A class whose accuracy is NaN
    (no test samples) weighs 1, and so do all classes when every accuracy is 1.
    """
    z, y, keep = _inputs(logits, labels, ignore_index)
    check_reduction(reduction)
    check_non_negative("gamma", gamma)
    if class_accuracy is not None:
        check_fits("class_accuracy", class_accuracy, z, (z.shape[1],), "one value per class")
        accuracy = class_accuracy.detach().to(z.dtype)
        known = ~accuracy.isnan()
        factor = torch.where(known, (1 - accuracy).clamp(min=0).pow(gamma), 0.0)
        mean = factor.sum() / known.sum().clamp(min=1)
        weight = torch.where(known & (mean > 0), factor / _filled(mean, 1.0), 1.0)
        return _cross_entropy(z, y, keep, reduction, weight=weight)
    if gamma == 0:
        return _cross_entropy(z, y, keep, reduction)
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
    """`(1 - smoothing) CE + smoothing / C sum_c -log p_c`."""
    z, y, keep = _inputs(logits, labels, ignore_index)
    check_reduction(reduction)
    check_fraction("smoothing", smoothing)
    return _cross_entropy(z, y, keep, reduction, smoothing=smoothing)


# ------------------------------------------------------------------------------ distillation


def distillation(
    logits: Tensor,
    teacher: Tensor,
    *,
    temperature: float = 1.0,
    classes: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """`T^2 KL(softmax(teacher / T) || softmax(logits / T))`.

    classes (bool [C]) restricts both softmaxes to a set of classes: FedEKD with the present ones.
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
    return reduced(_kl(constant(teacher, logits), mask, z, mask, temperature), None, reduction)


def vacant_distillation(
    logits: Tensor,
    teacher: Tensor,
    counts: ClassCounts,
    *,
    reduction: Reduction = "mean",
) -> Tensor:
    """FedED and FedVLS Eq. 3: KL(teacher || student), both softmaxes over the vacant classes only.

    The print has the opposite sign, which would drive the student away from the teacher. 0 with fewer than
    two vacant classes; present classes receive no gradient.
    """
    z = checked_logits(logits)
    check_reduction(reduction)
    vacant = checked_counts(counts, logits) <= 0
    return reduced(_kl(constant(teacher, logits), vacant, z, vacant), None, reduction)


def not_true_distillation(
    logits: Tensor,
    teacher: Tensor | None,
    labels: Tensor,
    *,
    temperature: float = 1.0,
    reduction: Reduction = "mean",
    ignore_index: int | None = None,
) -> Tensor:
    """FedNTD: `T^2 KL(teacher || student)`, both softmaxes over the classes other than the label.

    teacher=None stands for a uniform one (FedNTD-Tf).
    """
    z, y, keep = _inputs(logits, labels, ignore_index)
    check_reduction(reduction)
    others = ~_is_label(y, z.shape[1])
    return reduced(_kl(constant(teacher, logits), others, z, others, temperature), keep, reduction)


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
    """FedLMD: `T^2 KL(teacher || student)`, the teacher over the classes that are neither the label nor in
    the client's majority, the student over all classes but the label: the majority is pushed down.

    teacher=None stands for a uniform one (FedLMD-Tf).
    majority: "code" n_c > n / C; "ge" n_c >= n / C; "present" n_c >= n / (number of present classes). A
    vacant class never belongs to it.
    fallback: what a sample without any class left for the teacher contributes: None 0, "ntd" the FedNTD term.
    squared_temperature=False drops T^2, as printed in Eq. 6.
    target: without a teacher, "sample" spreads 1 over the classes left; "paper" gives each of them one part
    in the number of all classes outside the majority (Eq. 8): less in all where the label is one of these.
    """
    z, y, keep = _inputs(logits, labels, ignore_index)
    check_reduction(reduction)
    n = checked_counts(counts, logits)
    check_among("majority", majority, ("code", "ge", "present"))
    if fallback is not None:
        check_among("fallback", fallback, ("ntd",))
    check_among("target", target, ("sample", "paper"))
    others = ~_is_label(y, z.shape[1])
    kept = others & ~_majority(n, majority)
    part = kept.sum(1).to(z.dtype) / (~_majority(n, majority)).sum().clamp(min=1)
    part = torch.where(part > 0, part, 1.0)  # nothing left: 0 or the fallback, as with the other target
    if fallback == "ntd":
        kept = torch.where(kept.any(1, keepdim=True), kept, others)
    loss = _kl(constant(teacher, logits), kept, z, others, temperature)
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
    """DKD (Zhao et al., CVPR 2022): `alpha TCKD + beta NCKD`.

    TCKD is T^2 KL between the pairs (p_y, 1 - p_y), NCKD is `not_true_distillation`. Per sample, plain
    distillation is TCKD + (1 - teacher's p_y) NCKD.
    """
    z, y, keep = _inputs(logits, labels, ignore_index)
    check_reduction(reduction)
    check_non_negative("alpha", alpha)
    check_non_negative("beta", beta)
    label, target = _is_label(y, z.shape[1]), constant(teacher, logits)
    log_p, log_q = (_log_pair(x / checked_temperature(temperature), label) for x in (target, z))
    target_class = temperature**2 * (log_p.exp() * (log_p - log_q)).sum(0)
    other_classes = _kl(target, ~label, z, ~label, temperature)
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
    """PKD: learn from an expert on a group of classes where the student confuses two of that group.

    `experts[i]` holds logits [B, len(groups[i])], column j for class `groups[i][j]`. A sample is active when
    its prediction is wrong and some group holds both label and prediction; the smallest such group counts,
    then the first. It contributes KL(expert || student), the student's logits selected on the group.
    direction: "reverse" is KL(student || expert), as printed. mean: over the active samples, or the batch.
    """
    z, y, keep = _inputs(logits, labels, ignore_index)
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
    loss, active = torch.zeros_like(z[:, 0]), torch.zeros_like(waiting)
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
    samples = active.sum().clamp(min=1) if mean == "active" else _number_of(y, keep)
    return scale * loss.sum() / samples


# ------------------------------------------------------------------------------ terms to add to a loss


def logit_suppression(
    logits: Tensor,
    labels: Tensor,
    counts: ClassCounts,
    *,
    form: Literal["official", "paper"] = "official",
    ignore_index: int | None = None,
) -> Tensor:
    """FedED and FedVLS: pushes down the logits of classes the client holds on samples of other classes.

    "paper" (Eqs. 4, 5): sum_c p_c log( 1/B sum_{x: y != c} exp z_c ); a class without such a sample in the
    batch is skipped. It moves with a constant added to the logits, so it has no minimum.
    "official" (the released code): sum_c p_c log( 1/B [ #{x: y = c} + sum_{x: y != c} exp(z_c) / (C p_c) ] ),
    which is bounded below for every class that occurs in the batch. The released weight is 0.005.
    """
    z, y, keep = _inputs(logits, labels, ignore_index)
    n = checked_counts(counts, logits)
    check_among("form", form, ("official", "paper"))
    share, label = _shares(n, z), _is_label(y, z.shape[1])
    if keep is None:
        log_batch = z.new_full((), y.shape[0]).log()  # a compiler may leave the size open in a tensor
    else:
        log_batch = keep.sum().clamp(min=1).to(z.dtype).log()
    if form == "paper":
        others = ~label if keep is None else ~label & keep.unsqueeze(1)
        level = torch.where(others.any(0), _masked(z, others).logsumexp(0) - log_batch, 0.0)
    else:
        uniform = math.log(1 / len(n) + _PRIOR_FLOOR)
        shifted = z - (share + _PRIOR_FLOOR).log() + uniform
        # Zero, not minus infinity: the released code multiplies by the mask before the logsumexp.
        level = torch.where(label, 0.0, shifted)
        level = (level if keep is None else _masked(level, keep.unsqueeze(1))).logsumexp(0) - log_batch
        level = level if keep is None else torch.where(keep.any(), level, 0.0)
    return (share * level).sum()


def proximal_term(params: Mapping[str, Tensor], anchor: Mapping[str, Tensor], *, mu: float) -> Tensor:
    """FedProx: `mu / 2 * sum ||w - anchor||^2` over tensors of the same names. No mean is taken."""
    check_non_negative("mu", mu)
    if not params:
        raise UserError("params hold no tensor: pass the model's trainable tensors by name.")
    if params.keys() != anchor.keys():
        odd = min(params.keys() ^ anchor.keys())
        raise UserError(f"only one of params and anchor holds '{odd}': pass the same names in both.")
    for name, value in params.items():
        check_fits(f"anchor['{name}']", anchor[name], value, value.shape, f"the shape of params['{name}']")
        if not value.is_floating_point():
            raise UserError(f"params['{name}'] is {value.dtype}: pass trainable tensors only, no counters.")
    # Joined first, because hundreds of small kernels cost more than one copy.
    now = torch.cat([upcast(value).flatten() for value in params.values()])
    before = torch.cat([upcast(anchor[name].detach()).flatten() for name in params])
    return mu / 2 * (now - before).square().sum()


def contrastive_term(
    features: Tensor,
    anchor_features: Tensor,
    previous_features: Tensor,
    *,
    temperature: float = 0.5,
    reduction: Reduction = "mean",
) -> Tensor:
    """MOON: `-log( e^(s_g/T) / (e^(s_g/T) + sum_r e^(s_r/T)) )`, s the cosine of `features` to those of the
    global model (anchor) and of the client's previous model ([B, d], or [r, B, d] for several).

    A vector without direction (norm below 1e-8) has cosine 0 with everything and receives no gradient.
    """
    h = checked_features(features)
    check_reduction(reduction)
    check_fits("anchor_features", anchor_features, h, h.shape, "the shape of features")
    if previous_features.ndim not in (2, 3) or previous_features.shape[-2:] != h.shape:
        raise UserError(
            f"the shape of previous_features is {tuple(previous_features.shape)}: "
            f"pass {tuple(h.shape)}, the shape of features, or several such tensors stacked on axis 0."
        )
    check_device("previous_features", previous_features, h)
    anchor = anchor_features.detach().to(h.dtype).unsqueeze(0)
    previous = previous_features.detach().to(h.dtype)
    previous = previous if previous.ndim == 3 else previous.unsqueeze(0)
    cosine = (_directions(h) * _directions(torch.cat([anchor, previous]))).sum(-1)
    # Differences of cosines, so that equal anchor and previous features give an exactly zero gradient.
    gap = (cosine[1:] - cosine[:1]) / checked_temperature(temperature)
    return reduced(torch.cat([torch.zeros_like(cosine[:1]), gap]).logsumexp(0), None, reduction)


def decorrelation_term(features: Tensor, *, form: Literal["code", "paper"] = "code") -> Tensor:
    """FedDecorr: the squared correlations K_ij between feature dimensions.

    "code": (B-1)^2 / B * mean_{i != j} K_ij^2, which grows with the batch; "paper": sum_ij K_ij^2 / d^2.
    Both are 0 for a batch of one; "code" is 0 for a single dimension.
    """
    h = checked_features(features)
    check_among("form", form, ("code", "paper"))
    batch, d = h.shape
    centred = h - h.mean(0)
    variance = centred.square().sum(0) / max(batch - 1, 1)
    x = centred / (variance + _VARIANCE_FLOOR).sqrt()
    with _full_precision(x):
        # The two Gram matrices have the same Frobenius norm: take the smaller.
        gram = x.T @ x if d <= batch else x @ x.T
    total = gram.square().sum()
    if form == "paper":
        return total / (max(batch - 1, 1) * d) ** 2
    return _off_diagonal_mean(total, x.square().sum(0).square().sum(), d) / batch


def manifold_term(
    features: Tensor,
    labels: Tensor,
    classes: int,
    *,
    ignore_index: int | None = None,
) -> Tensor:
    """FedMR, the intra-class term: per class c with at least two samples in the batch, features standardised
    over those samples and M = X^T X; `sum_c mean_{i != j} M_ij^2 / (number of those samples)`."""
    h = checked_features(features)
    if classes < 1:
        raise UserError(f"classes is {classes}: pass the number of classes.")
    y, keep = checked_labels(labels, features, classes, ignore_index)
    member = _is_label(y, classes)
    member = member if keep is None else member & keep.unsqueeze(1)
    size = member.sum(0)
    repeated = (member & (size >= 2)).any(1, keepdim=True)
    with _full_precision(h):
        one_hot = member.to(h.dtype)
        mean = one_hot.T @ h / size.clamp(min=1).unsqueeze(1)
        centred = torch.where(repeated, h - one_hot @ mean, 0.0)
        variance = one_hot.T @ centred.square() / (size - 1).clamp(min=1).unsqueeze(1)
        deviation = one_hot @ (variance + _VARIANCE_FLOOR).sqrt()
        x = centred / (deviation if keep is None else _filled(deviation, 1.0))
        # Products between samples of one class give all M at once: [B, B] instead of [C, d, d].
        gram = torch.where(y.unsqueeze(1) == y, x @ x.T, 0.0)
        diagonal = (one_hot.T @ x.square()).square().sum()
    return _off_diagonal_mean(gram.square().sum(), diagonal, h.shape[1]) / repeated.sum().clamp(min=1)


def prototype_margin_term(
    features: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    known: Tensor,
    *,
    reduction: Reduction = "mean",
    ignore_index: int | None = None,
) -> Tensor:
    """FedMR, the inter-class term: the mean over known classes c != y of
    `max(||h - prototype_y|| - ||h - prototype_c||, 0)`.

    prototypes [C, d]; known: bool [C]. Rows that are not known may hold anything. A sample whose own class is
    not known, or for which no other class is, contributes 0.
    """
    h = checked_features(features)
    check_fits("prototypes", prototypes, h, (known.numel(), h.shape[1]), "a row per entry of known")
    check_fits("known", known, h, (len(prototypes),), "one bool per prototype")
    if known.dtype != torch.bool:
        raise UserError(f"known is {known.dtype}: pass a bool mask.")
    check_reduction(reduction)
    y, keep = checked_labels(labels, features, len(known), ignore_index)
    centres = torch.where(known.unsqueeze(1), prototypes.detach().to(h.dtype), 0.0)
    square = (h.unsqueeze(1) - centres).square().sum(-1)
    # The square root has no gradient at 0; there the distance is a constant 0.
    distance = torch.where(square > 0, _filled(square, 1.0).sqrt(), 0.0)
    label = _is_label(y, len(centres))
    others = known & ~label & (label & known).any(1, keepdim=True)
    excess = (_select(distance, label).unsqueeze(1) - distance).clamp(min=0)
    return reduced(torch.where(others, excess, 0.0).sum(1) / others.sum(1).clamp(min=1), keep, reduction)


# ------------------------------------------------------------------------------ samples


def _inputs(logits: Tensor, labels: Tensor, ignore_index: int | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Logits, labels, and which samples to keep (None: all)."""
    z = checked_logits(logits)
    return z, *checked_labels(labels, logits, z.shape[1], ignore_index)


# ------------------------------------------------------------------------------ masked primitives


def _masked(z: Tensor, mask: Tensor) -> Tensor:
    """`z` where the mask holds, else a number so low that its exponential is 0 next to any logit. Finite, so
    that a row without any class gives finite values to be discarded, where minus infinity would give NaN."""
    return torch.where(mask, z, torch.finfo(z.dtype).min / 2)


def _masked_cross_entropy(
    z: Tensor, labels: Tensor, present: Tensor, keep: Tensor | None, reduction: Reduction
) -> Tensor:
    """Cross-entropy over the present classes; a sample whose label is not among them contributes 0."""
    counted = present[labels] if keep is None else present[labels] & keep
    held = torch.where(counted, labels, _IGNORED)
    how = "sum" if reduction == "mean" else reduction
    loss = F.cross_entropy(_masked(z, present), held, ignore_index=_IGNORED, reduction=how)
    return loss / _number_of(labels, keep) if reduction == "mean" else loss


def _cross_entropy(
    z: Tensor,
    labels: Tensor,
    keep: Tensor | None,
    reduction: Reduction,
    *,
    weight: Tensor | None = None,
    smoothing: float = 0.0,
) -> Tensor:
    """Cross-entropy; with weights their sum does not count, the number of samples does."""
    if keep is not None or reduction != "mean":
        loss = F.cross_entropy(z, labels, weight=weight, reduction="none", label_smoothing=smoothing)
        return reduced(loss, keep, reduction)
    if weight is not None:
        return F.cross_entropy(z, labels, weight=weight, reduction="sum") / labels.shape[0]
    return F.cross_entropy(z, labels, label_smoothing=smoothing)


def reduced(loss: Tensor, keep: Tensor | None, reduction: Reduction) -> Tensor:
    """Of the values of the samples, [B]; those not kept are 0 and count in no mean."""
    if keep is not None:
        loss = torch.where(keep, loss, 0.0)
    if reduction == "mean":
        return loss.mean() if keep is None else loss.sum() / _number_of(loss, keep)
    return loss.sum() if reduction == "sum" else loss


def _number_of(samples: Tensor, keep: Tensor | None) -> Tensor | int:
    return samples.shape[0] if keep is None else keep.sum().clamp(min=1)


def _kl(
    teacher: Tensor, teacher_mask: Tensor, student: Tensor, student_mask: Tensor, temperature: float = 1.0
) -> Tensor:
    """[B]: T^2 KL(teacher || student), each softmax over its mask ([C] or [B, C]; the teacher's inside the
    student's). 0 where the teacher's mask is empty."""
    t = checked_temperature(temperature)
    log_p = _masked(teacher / t, teacher_mask).log_softmax(1)
    log_q = _masked(student / t, student_mask).log_softmax(1)
    return t**2 * torch.where(teacher_mask, log_p.exp() * (log_p - log_q), 0.0).sum(1)


def _log_pair(z: Tensor, label: Tensor) -> Tensor:
    """[2, B]: log p_y and log(1 - p_y), the second without forming 1 - p_y."""
    return torch.stack([_select(z, label), _masked(z, ~label).logsumexp(1)]) - z.logsumexp(1)


def _is_label(labels: Tensor, classes: int) -> Tensor:
    """[B, C]: whether the column is the row's label."""
    return labels.unsqueeze(1) == torch.arange(classes, device=labels.device)


def _is_in(labels: Tensor, group: Iterable[int]) -> Tensor:
    return torch.stack([labels == c for c in group]).any(0)


def _select(x: Tensor, column: Tensor) -> Tensor:
    """[B]: the entry of each row that the one-hot mask marks."""
    return torch.where(column, x, 0.0).sum(1)


def _majority(n: Tensor, rule: Literal["code", "ge", "present"]) -> Tensor:
    n = n.clamp(min=0)
    # Products instead of quotients: exact for integer counts.
    if rule == "code":
        return n * len(n) > n.sum()
    present = n > 0
    share = len(n) if rule == "ge" else present.sum()
    return present & (n * share >= n.sum())


def _shares(n: Tensor, z: Tensor) -> Tensor:
    n = n.to(z.dtype).clamp(min=0)
    return n / _filled(n.sum(), 1.0)


def _filled(x: Tensor, value: float) -> Tensor:
    """`x` with everything that is not above 0 replaced by `value`."""
    return torch.where(x > 0, x, value)


def _directions(x: Tensor) -> Tensor:
    square = x.square().sum(-1, keepdim=True)
    long = square > _SMALLEST_NORM**2
    return torch.where(long, x / torch.where(long, square, 1.0).sqrt(), 0.0)


def _off_diagonal_mean(total: Tensor, diagonal: Tensor, d: int) -> Tensor:
    """The mean square off the diagonal of a [d, d] matrix, from its sums of squares: all, and diagonal."""
    return (total - diagonal) / (d * (d - 1)) if d > 1 else 0.0 * total


def _full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Keeps autocast, where the device has it, from running matrix products in half precision."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()
