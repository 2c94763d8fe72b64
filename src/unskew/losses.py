"""Losses for label-skewed clients, as pure functions: usable in any training loop.

Shapes: logits and teacher [B, C], labels int [B], counts [C] (how many samples of each class the client
holds), features [B, d]. Every function returns a scalar: the mean over the batch unless it says otherwise.

Rules that hold for all of them:
- A class with count 0 (or below) is *vacant*. A term over an empty set of classes or samples is exactly 0,
  and its gradient is finite.
- float16 and bfloat16 are computed in float32, float64 stays float64, also under autocast.
- Teachers, anchors, experts and prototypes are constants: no gradient flows into them.
- Shapes never depend on values and no value is read back from the device, so every function can be captured
  in a CUDA graph and goes through `torch.func.vmap` and `torch.func.grad`. Hence values are not checked
  (labels outside 0..C-1, negative counts); shapes and plain numbers are, with a `UserError`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.errors import UserError, unknown

__all__ = [
    "calibrated_cross_entropy",
    "class_balanced_cross_entropy",
    "contrastive_term",
    "decorrelation_term",
    "decoupled_distillation",
    "distillation",
    "focal_loss",
    "label_masking_distillation",
    "label_smoothing_cross_entropy",
    "logit_suppression",
    "manifold_term",
    "margin_cross_entropy",
    "not_true_distillation",
    "partial_distillation",
    "prototype_margin_term",
    "proximal_term",
    "restricted_cross_entropy",
    "vacant_distillation",
]

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
    logits: Tensor, labels: Tensor, counts: Tensor, *, tau: float = 1.0, floor: float | None = None
) -> Tensor:
    """Cross-entropy of `z + tau log p`, p = counts / sum(counts).

    tau=1 is FedVLS Eq. 2, balanced softmax and CalFAT's calibration; other tau is logit adjustment.
    floor=None leaves vacant classes out of the softmax; a sample whose label is vacant then contributes 0.
    With a floor the prior is log(p + floor), vacant classes included; FedVLS released 1e-9.
    """
    z, y, n = _logits(logits), _labels(labels, logits), _counts(counts, logits)
    _non_negative("tau", tau)
    if floor is None:
        # The normaliser of p shifts every logit alike and cancels.
        prior = _filled(n.to(z.dtype), 1.0).log()
        return _masked_cross_entropy(torch.add(z, prior, alpha=tau), y, n > 0)
    if not (floor > 0 and math.isfinite(floor)):
        raise UserError(f"floor is {floor}: choose a number above 0, or None to leave vacant classes out.")
    return F.cross_entropy(torch.add(z, (_shares(n, z) + floor).log(), alpha=tau), y)


def margin_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    counts: Tensor,
    *,
    tau: float,
    vacant: Literal["mask", "clamp", "one"] = "mask",
    denominator: Literal["include", "exclude"] = "include",
) -> Tensor:
    """FedLC: cross-entropy of `z - tau n^(-1/4)`, a margin that grows as a class gets rarer.

    vacant: "mask" leaves vacant classes out (the limit n -> 0; a sample whose label is vacant contributes 0),
    "clamp" sets n = 1e-8 (a margin of 100 tau), "one" sets n = 1 (a margin of tau).
    denominator: "include" keeps the label in the softmax. "exclude" is the printed Eq. 7: it equals
    log(exp(include) - 1), is unbounded below, and is 0 where the label is the only class.
    """
    z, y, n = _logits(logits), _labels(labels, logits), _counts(counts, logits)
    _non_negative("tau", tau)
    _among("vacant", vacant, ("mask", "clamp", "one"))
    _among("denominator", denominator, ("include", "exclude"))
    rarity = _filled(n.to(z.dtype), _CLAMPED_COUNT if vacant == "clamp" else 1.0).pow(-0.25)
    adjusted = torch.sub(z, rarity, alpha=tau)
    present = n > 0 if vacant == "mask" else torch.ones_like(n, dtype=torch.bool)
    if denominator == "include":
        return _masked_cross_entropy(adjusted, y, present)
    label = _is_label(y, z.shape[1])
    others = present & ~label
    gap = _masked(adjusted, others).logsumexp(1) - _select(adjusted, label)
    return torch.where(present[y] & others.any(1), gap, 0.0).mean()


def restricted_cross_entropy(
    logits: Tensor, labels: Tensor, counts: Tensor, *, alpha: float, soft: bool = False
) -> Tensor:
    """FedRS: cross-entropy of `s z`, where s = alpha for vacant classes and 1 for the others.

    soft=True is the graded form of the authors' code, s = alpha + (1 - alpha) n / max(n). Use plain logits to
    predict. Not invariant to a constant added to the logits. A vacant label is scaled like any vacant class.
    """
    z, y, n = _logits(logits), _labels(labels, logits), _counts(counts, logits)
    _fraction("alpha", alpha)
    if soft:
        n = n.to(z.dtype).clamp(min=0)
        scale = alpha + (1 - alpha) * n / _filled(n.max(), 1.0)
    else:
        scale = torch.full_like(n, alpha, dtype=z.dtype).masked_fill(n > 0, 1.0)
    return F.cross_entropy(scale * z, y)


def class_balanced_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    counts: Tensor,
    *,
    beta: float = 0.9999,
    normalise: Literal["present", "all"] = "present",
) -> Tensor:
    """Cross-entropy weighted by `w_y`, w_c proportional to 1 / (1 - beta^n_c) (Cui et al., CVPR 2019).

    The weights sum to the number of present classes, or of all C classes with normalise="all". Vacant
    classes weigh 0. The weighted sum is divided by B, not by the sum of the weights.
    """
    z, y, n = _logits(logits), _labels(labels, logits), _counts(counts, logits)
    if not 0 <= beta < 1:
        raise UserError(f"beta is {beta}: choose a number from 0 up to, but not including, 1.")
    _among("normalise", normalise, ("present", "all"))
    # 1 - beta^n without cancellation; the factor 1 - beta falls out when the weights are normalised.
    log_beta = math.log(beta) if beta > 0 else -math.inf
    weight = torch.where(n > 0, -1.0 / torch.expm1(_filled(n.to(z.dtype), 1.0) * log_beta), 0.0)
    classes = (n > 0).sum() if normalise == "present" else len(n)
    weight = weight * (classes / _filled(weight.sum(), 1.0))
    return F.cross_entropy(z, y, weight=weight, reduction="sum") / y.shape[0]


def focal_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma: float = 2.0,
    detach_weight: bool = False,
    class_accuracy: Tensor | None = None,
) -> Tensor:
    """`-(1 - p_y)^gamma log p_y` (Lin et al., ICCV 2017); detach_weight=True treats the factor as a constant.

    With class_accuracy [C] (values in 0..1) the factor is set per class instead, as PKD describes its
    baseline: w_c = (1 - accuracy_c)^gamma divided by its mean over classes. A class whose accuracy is NaN
    (no test samples) weighs 1, and so do all classes when every accuracy is 1.
    """
    z, y = _logits(logits), _labels(labels, logits)
    _non_negative("gamma", gamma)
    if class_accuracy is not None:
        _fits("class_accuracy", class_accuracy, z, (z.shape[1],), "one value per class")
        accuracy = class_accuracy.detach().to(z.dtype)
        known = ~accuracy.isnan()
        factor = torch.where(known, (1 - accuracy).clamp(min=0).pow(gamma), 0.0)
        mean = factor.sum() / known.sum().clamp(min=1)
        weight = torch.where(known & (mean > 0), factor / _filled(mean, 1.0), 1.0)
        return F.cross_entropy(z, y, weight=weight, reduction="sum") / y.shape[0]
    if gamma == 0:
        return F.cross_entropy(z, y)
    loss = F.cross_entropy(z, y, reduction="none")
    # The clamp keeps x^(gamma-1) finite at p_y = 1, where autograd would form 0 * inf for gamma < 1.
    factor = (-torch.expm1(-loss)).clamp(min=torch.finfo(z.dtype).tiny).pow(gamma)
    return ((factor.detach() if detach_weight else factor) * loss).mean()


def label_smoothing_cross_entropy(logits: Tensor, labels: Tensor, *, smoothing: float = 0.1) -> Tensor:
    """`(1 - smoothing) CE + smoothing / C sum_c -log p_c`."""
    z, y = _logits(logits), _labels(labels, logits)
    _fraction("smoothing", smoothing)
    return F.cross_entropy(z, y, label_smoothing=smoothing)


# ------------------------------------------------------------------------------ distillation


def distillation(
    logits: Tensor, teacher: Tensor, *, temperature: float = 1.0, classes: Tensor | None = None
) -> Tensor:
    """`T^2 KL(softmax(teacher / T) || softmax(logits / T))`.

    classes (bool [C]) restricts both softmaxes to a set of classes: FedEKD with the present ones.
    """
    z = _logits(logits)
    if classes is None:
        mask = torch.ones(z.shape[1], dtype=torch.bool, device=z.device)
    else:
        _fits("classes", classes, z, (z.shape[1],), "one bool per class")
        if classes.dtype != torch.bool:
            raise UserError(f"classes are {classes.dtype}: pass a bool mask, for instance counts > 0.")
        mask = classes
    return _kl(_constant(teacher, logits), mask, z, mask, temperature).mean()


def vacant_distillation(logits: Tensor, teacher: Tensor, counts: Tensor) -> Tensor:
    """FedED and FedVLS Eq. 3: KL(teacher || student), both softmaxes over the vacant classes only.

    The print has the opposite sign, which would drive the student away from the teacher. 0 with fewer than
    two vacant classes; present classes receive no gradient.
    """
    z = _logits(logits)
    vacant = _counts(counts, logits) <= 0
    return _kl(_constant(teacher, logits), vacant, z, vacant).mean()


def not_true_distillation(
    logits: Tensor, teacher: Tensor | None, labels: Tensor, *, temperature: float = 1.0
) -> Tensor:
    """FedNTD: `T^2 KL(teacher || student)`, both softmaxes over the classes other than the label.

    teacher=None stands for a uniform one (FedNTD-Tf).
    """
    z, y = _logits(logits), _labels(labels, logits)
    others = ~_is_label(y, z.shape[1])
    return _kl(_constant(teacher, logits), others, z, others, temperature).mean()


def label_masking_distillation(
    logits: Tensor,
    teacher: Tensor | None,
    labels: Tensor,
    counts: Tensor,
    *,
    temperature: float = 1.0,
    majority: Literal["code", "ge", "present"] = "code",
    fallback: Literal["ntd"] | None = None,
    squared_temperature: bool = True,
    target: Literal["sample", "paper"] = "sample",
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
    z, y, n = _logits(logits), _labels(labels, logits), _counts(counts, logits)
    _among("majority", majority, ("code", "ge", "present"))
    if fallback is not None:
        _among("fallback", fallback, ("ntd",))
    _among("target", target, ("sample", "paper"))
    others = ~_is_label(y, z.shape[1])
    kept = others & ~_majority(n, majority)
    part = kept.sum(1).to(z.dtype) / (~_majority(n, majority)).sum().clamp(min=1)
    part = torch.where(part > 0, part, 1.0)  # nothing left: 0 or the fallback, as with the other target
    if fallback == "ntd":
        kept = torch.where(kept.any(1, keepdim=True), kept, others)
    loss = _kl(_constant(teacher, logits), kept, z, others, temperature)
    if target == "paper" and teacher is None:  # with a sum of `part` instead of 1
        loss = part * loss + temperature**2 * torch.xlogy(part, part)
    return loss.mean() if squared_temperature else loss.mean() / temperature**2


def decoupled_distillation(
    logits: Tensor, teacher: Tensor, labels: Tensor, *, alpha: float, beta: float, temperature: float
) -> Tensor:
    """DKD (Zhao et al., CVPR 2022): `alpha TCKD + beta NCKD`.

    TCKD is T^2 KL between the pairs (p_y, 1 - p_y), NCKD is `not_true_distillation`. Per sample, plain
    distillation is TCKD + (1 - teacher's p_y) NCKD.
    """
    z, y = _logits(logits), _labels(labels, logits)
    _non_negative("alpha", alpha)
    _non_negative("beta", beta)
    label, target = _is_label(y, z.shape[1]), _constant(teacher, logits)
    log_p, log_q = (_log_pair(x / _temperature(temperature), label) for x in (target, z))
    target_class = temperature**2 * (log_p.exp() * (log_p - log_q)).sum(0)
    other_classes = _kl(target, ~label, z, ~label, temperature)
    return alpha * target_class.mean() + beta * other_classes.mean()


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
) -> Tensor:
    """PKD: learn from an expert on a group of classes where the student confuses two of that group.

    experts[i] holds logits [B, len(groups[i])], column j for class groups[i][j]. A sample is active when its
    prediction is wrong and some group holds both label and prediction; the smallest such group counts, then
    the first. It contributes KL(expert || student), the student's logits selected on the group.
    direction: "reverse" is KL(student || expert), as printed. mean: over the active samples, or the batch.
    """
    z, y = _logits(logits), _labels(labels, logits)
    _among("direction", direction, ("forward", "reverse"))
    _among("mean", mean, ("active", "batch"))
    if len(experts) != len(groups):
        raise UserError(
            f"{len(experts)} experts for {len(groups)} groups: pass one expert's logits per group."
        )
    t = _temperature(temperature)
    predicted = z.argmax(1)
    waiting = predicted != y
    loss, active = torch.zeros_like(z[:, 0]), torch.zeros_like(waiting)
    for i in sorted(range(len(groups)), key=lambda i: len(groups[i])):
        group = _group(i, groups[i], z.shape[1])
        _fits(f"experts[{i}]", experts[i], z, (y.shape[0], len(group)), "one column per class of the group")
        chosen = waiting & _is_in(y, group) & _is_in(predicted, group)
        # Columns one by one: indexing with a list would copy it to the device, which a graph cannot capture.
        student = (torch.stack([z[:, c] for c in group], 1) / t).log_softmax(1)
        expert = (experts[i].detach().to(z.dtype) / t).log_softmax(1)
        log_p, log_q = (expert, student) if direction == "forward" else (student, expert)
        loss = torch.where(chosen, (log_p.exp() * (log_p - log_q)).sum(1), loss)
        active, waiting = active | chosen, waiting & ~chosen
    samples = active.sum().clamp(min=1) if mean == "active" else y.shape[0]
    return (t**2 if squared_temperature else 1.0) * loss.sum() / samples


# ------------------------------------------------------------------------------ terms to add to a loss


def logit_suppression(
    logits: Tensor, labels: Tensor, counts: Tensor, *, form: Literal["official", "paper"] = "official"
) -> Tensor:
    """FedED and FedVLS: pushes down the logits of classes the client holds on samples of other classes.

    "paper" (Eqs. 4, 5): sum_c p_c log( 1/B sum_{x: y != c} exp z_c ); a class without such a sample in the
    batch is skipped. It moves with a constant added to the logits, so it has no minimum.
    "official" (the released code): sum_c p_c log( 1/B [ #{x: y = c} + sum_{x: y != c} exp(z_c) / (C p_c) ] ),
    which is bounded below for every class that occurs in the batch. The released weight is 0.005.
    """
    z, y, n = _logits(logits), _labels(labels, logits), _counts(counts, logits)
    _among("form", form, ("official", "paper"))
    share, label = _shares(n, z), _is_label(y, z.shape[1])
    log_batch = z.new_full((), y.shape[0]).log()  # a compiler may leave the size open in a tensor
    if form == "paper":
        others = ~label
        level = torch.where(others.any(0), _masked(z, others).logsumexp(0) - log_batch, 0.0)
    else:
        uniform = math.log(1 / len(n) + _PRIOR_FLOOR)
        shifted = z - (share + _PRIOR_FLOOR).log() + uniform
        # Zero, not minus infinity: the released code multiplies by the mask before the logsumexp.
        level = torch.where(label, 0.0, shifted).logsumexp(0) - log_batch
    return (share * level).sum()


def proximal_term(params: Mapping[str, Tensor], anchor: Mapping[str, Tensor], *, mu: float) -> Tensor:
    """FedProx: `mu / 2 * sum ||w - anchor||^2` over tensors of the same names. No mean is taken."""
    _non_negative("mu", mu)
    if not params:
        raise UserError("params hold no tensor: pass the model's trainable tensors by name.")
    if params.keys() != anchor.keys():
        odd = min(params.keys() ^ anchor.keys())
        raise UserError(f"only one of params and anchor holds '{odd}': pass the same names in both.")
    for name, value in params.items():
        _fits(f"anchor['{name}']", anchor[name], value, value.shape, f"the shape of params['{name}']")
        if not value.is_floating_point():
            raise UserError(f"params['{name}'] is {value.dtype}: pass trainable tensors only, no counters.")
    # Joined first, because hundreds of small kernels cost more than one copy.
    now = torch.cat([_upcast(value).flatten() for value in params.values()])
    before = torch.cat([_upcast(anchor[name].detach()).flatten() for name in params])
    return mu / 2 * (now - before).square().sum()


def contrastive_term(
    features: Tensor, anchor_features: Tensor, previous_features: Tensor, *, temperature: float = 0.5
) -> Tensor:
    """MOON: `-log( e^(s_g/T) / (e^(s_g/T) + sum_r e^(s_r/T)) )`, s the cosine of `features` to those of the
    global model (anchor) and of the client's previous model ([B, d], or [r, B, d] for several).

    A vector without direction (norm below 1e-8) has cosine 0 with everything and receives no gradient.
    """
    h = _features(features)
    _fits("anchor_features", anchor_features, h, h.shape, "the shape of features")
    if previous_features.ndim not in (2, 3) or previous_features.shape[-2:] != h.shape:
        raise UserError(
            f"the shape of previous_features is {tuple(previous_features.shape)}: "
            f"pass {tuple(h.shape)}, the shape of features, or several such tensors stacked on axis 0."
        )
    _same_device("previous_features", previous_features, h)
    anchor = anchor_features.detach().to(h.dtype).unsqueeze(0)
    previous = previous_features.detach().to(h.dtype)
    previous = previous if previous.ndim == 3 else previous.unsqueeze(0)
    cosine = (_directions(h) * _directions(torch.cat([anchor, previous]))).sum(-1)
    # Differences of cosines, so that equal anchor and previous features give an exactly zero gradient.
    gap = (cosine[1:] - cosine[:1]) / _temperature(temperature)
    return torch.cat([torch.zeros_like(cosine[:1]), gap]).logsumexp(0).mean()


def decorrelation_term(features: Tensor, *, form: Literal["code", "paper"] = "code") -> Tensor:
    """FedDecorr: the squared correlations K_ij between feature dimensions.

    "code": (B-1)^2 / B * mean_{i != j} K_ij^2, which grows with the batch; "paper": sum_ij K_ij^2 / d^2.
    Both are 0 for a batch of one; "code" is 0 for a single dimension.
    """
    h = _features(features)
    _among("form", form, ("code", "paper"))
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


def manifold_term(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """FedMR, the intra-class term: per class c with at least two samples in the batch, features standardised
    over those samples and M = X^T X; `sum_c mean_{i != j} M_ij^2 / (number of those samples)`."""
    h, y = _features(features), _labels(labels, features)
    if classes < 1:
        raise UserError(f"classes is {classes}: pass the number of classes.")
    member = _is_label(y, classes)
    size = member.sum(0)
    repeated = (member & (size >= 2)).any(1, keepdim=True)
    with _full_precision(h):
        one_hot = member.to(h.dtype)
        mean = one_hot.T @ h / size.clamp(min=1).unsqueeze(1)
        centred = torch.where(repeated, h - one_hot @ mean, 0.0)
        variance = one_hot.T @ centred.square() / (size - 1).clamp(min=1).unsqueeze(1)
        x = centred / (one_hot @ (variance + _VARIANCE_FLOOR).sqrt())
        # Products between samples of one class give all M at once: [B, B] instead of [C, d, d].
        gram = torch.where(y.unsqueeze(1) == y, x @ x.T, 0.0)
        diagonal = (one_hot.T @ x.square()).square().sum()
    return _off_diagonal_mean(gram.square().sum(), diagonal, h.shape[1]) / repeated.sum().clamp(min=1)


def prototype_margin_term(features: Tensor, labels: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """FedMR, the inter-class term: the mean over known classes c != y of
    `max(||h - prototype_y|| - ||h - prototype_c||, 0)`.

    prototypes [C, d]; known: bool [C]. Rows that are not known may hold anything. A sample whose own class is
    not known, or for which no other class is, contributes 0.
    """
    h, y = _features(features), _labels(labels, features)
    _fits("prototypes", prototypes, h, (known.numel(), h.shape[1]), "a row per entry of known")
    _fits("known", known, h, (len(prototypes),), "one bool per prototype")
    if known.dtype != torch.bool:
        raise UserError(f"known is {known.dtype}: pass a bool mask.")
    centres = torch.where(known.unsqueeze(1), prototypes.detach().to(h.dtype), 0.0)
    square = (h.unsqueeze(1) - centres).square().sum(-1)
    # The square root has no gradient at 0; there the distance is a constant 0.
    distance = torch.where(square > 0, _filled(square, 1.0).sqrt(), 0.0)
    label = _is_label(y, len(centres))
    others = known & ~label & (label & known).any(1, keepdim=True)
    excess = (_select(distance, label).unsqueeze(1) - distance).clamp(min=0)
    return (torch.where(others, excess, 0.0).sum(1) / others.sum(1).clamp(min=1)).mean()


# ------------------------------------------------------------------------------ masked primitives


def _masked(z: Tensor, mask: Tensor) -> Tensor:
    """`z` where the mask holds, else a number so low that its exponential is 0 next to any logit. Finite, so
    that a row without any class gives finite values to be discarded, where minus infinity would give NaN."""
    return torch.where(mask, z, torch.finfo(z.dtype).min / 2)


def _masked_cross_entropy(z: Tensor, labels: Tensor, present: Tensor) -> Tensor:
    """Cross-entropy over the present classes; a sample whose label is not among them contributes 0."""
    held = torch.where(present[labels], labels, _IGNORED)
    return (
        F.cross_entropy(_masked(z, present), held, ignore_index=_IGNORED, reduction="sum") / labels.shape[0]
    )


def _kl(
    teacher: Tensor, teacher_mask: Tensor, student: Tensor, student_mask: Tensor, temperature: float = 1.0
) -> Tensor:
    """[B]: T^2 KL(teacher || student), each softmax over its mask ([C] or [B, C]; the teacher's inside the
    student's). 0 where the teacher's mask is empty."""
    t = _temperature(temperature)
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


# ------------------------------------------------------------------------------ arguments


def _upcast(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _matrix(name: str, x: Tensor, columns: str) -> Tensor:
    if x.ndim != 2 or 0 in x.shape:
        raise UserError(
            f"the shape of {name} is {tuple(x.shape)}: pass [samples, {columns}], at least one of each."
        )
    if not x.is_floating_point():
        raise UserError(f"{name} are {x.dtype}: pass a floating point tensor.")
    return _upcast(x)


def _logits(logits: Tensor) -> Tensor:
    return _matrix("logits", logits, "classes")


def _features(features: Tensor) -> Tensor:
    return _matrix("features", features, "dimensions")


def _labels(labels: Tensor, rows: Tensor) -> Tensor:
    _fits("labels", labels, rows, rows.shape[:1], "one class index per sample")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise UserError(f"labels are {labels.dtype}: pass class indices as integers.")
    return labels.long()


def _counts(counts: Tensor, logits: Tensor) -> Tensor:
    """As int64, or in the floating type they came in (at least float32)."""
    _fits("counts", counts, logits, (logits.shape[1],), "one count per column of the logits")
    return _upcast(counts) if counts.is_floating_point() else counts.long()


def _constant(teacher: Tensor | None, logits: Tensor) -> Tensor:
    """The teacher's logits without gradient, in the precision of the computation; None: a uniform one."""
    z = _upcast(logits)
    if teacher is None:
        return torch.zeros_like(z)
    _fits("teacher", teacher, logits, logits.shape, "the shape of the logits")
    return teacher.detach().to(z.dtype)


def _group(index: int, group: Sequence[int], classes: int) -> Sequence[int]:
    if len(group) < 2 or len(set(group)) < len(group) or not all(0 <= c < classes for c in group):
        raise UserError(
            f"groups[{index}] is {list(group)}: pass at least two different classes from 0 to {classes - 1}."
        )
    return group


def _fits(name: str, x: Tensor, like: Tensor, shape: tuple[int, ...], meaning: str) -> None:
    if x.shape != shape:
        raise UserError(f"the shape of {name} is {tuple(x.shape)}: pass {tuple(shape)}, {meaning}.")
    _same_device(name, x, like)


def _same_device(name: str, x: Tensor, like: Tensor) -> None:
    # Not moved silently: the copy would wait for the device at every step and cannot be captured.
    if x.device != like.device:
        raise UserError(
            f"the device of {name} is {x.device}, the model's output is on {like.device}: move {name} there."
        )


def _temperature(value: float) -> float:
    if not (value > 0 and math.isfinite(value)):
        raise UserError(f"temperature is {value}: choose a number above 0.")
    return value


def _non_negative(name: str, value: float) -> None:
    if not (value >= 0 and math.isfinite(value)):
        raise UserError(f"{name} is {value}: choose a number of at least 0.")


def _fraction(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise UserError(f"{name} is {value}: choose a number from 0 to 1.")


def _among(kind: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise unknown(kind, name, known)
