"""Terms to add to a classification loss: on logits of a batch, on weights and on features."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor

from unskew.errors import UserError
from unskew.losses.arguments import (
    ClassCounts,
    Reduction,
    check_among,
    check_device,
    check_fits,
    check_non_negative,
    check_reduction,
    checked_counts,
    checked_features,
    checked_labels,
    checked_temperature,
    upcast,
)
from unskew.losses.primitives import checked_inputs, filled, label_mask, marked, masked, reduced, shares

# The floor inside the logarithms of the released FedVLS code.
_PRIOR_FLOOR = 1e-9
# Added to variances by the released FedDecorr and FedMR code.
_VARIANCE_FLOOR = 1e-8
# Below this norm a vector has no direction (the bound of torch.nn.functional.cosine_similarity).
_SMALLEST_NORM = 1e-8


def logit_suppression(
    logits: Tensor,
    labels: Tensor,
    counts: ClassCounts,
    *,
    form: Literal["official", "paper"] = "official",
    ignore_index: int | None = None,
) -> Tensor:
    """Return FedVLS's suppression, which pushes down logits of the client's classes on samples of other
    classes.

    FedED has the same. With p = counts / sum(counts) and B the number of samples:

    - `form="paper"` (Eqs. 4, 5) is sum_c p_c log( 1/B sum_{x: y != c} exp z_c ). A class for which the batch
      has no such sample contributes 0. The term shifts with a constant that is added to all logits, so it has
      no minimum.
    - `form="official"` (the released code, with a weight of 0.005) is sum_c p_c log( 1/B [ #{x: y = c} +
      sum_{x: y != c} exp(z_c) / (C p_c) ] ). It is bounded below for every class that occurs in the batch.

    The result is one number for the batch, hence there is no `reduction`. Vacant classes have p_c = 0 and
    contribute 0.
    """
    z, y, keep = checked_inputs(logits, labels, ignore_index)
    n = checked_counts(counts, logits)
    check_among("form", form, ("official", "paper"))
    share, label = shares(n, z), label_mask(y, z.shape[1])
    if keep is None:
        log_batch = z.new_full((), y.shape[0]).log()  # a compiler may leave the size open in a tensor
    else:
        log_batch = keep.sum().clamp(min=1).to(z.dtype).log()
    if form == "paper":
        others = ~label if keep is None else ~label & keep.unsqueeze(1)
        level = torch.where(others.any(0), masked(z, others).logsumexp(0) - log_batch, 0.0)
    else:
        uniform = math.log(1 / len(n) + _PRIOR_FLOOR)
        shifted = z - (share + _PRIOR_FLOOR).log() + uniform
        # Zero, not minus infinity: the released code multiplies by the mask before the logsumexp.
        level = torch.where(label, 0.0, shifted)
        level = (level if keep is None else masked(level, keep.unsqueeze(1))).logsumexp(0) - log_batch
        level = level if keep is None else torch.where(keep.any(), level, 0.0)
    return (share * level).sum()


def proximal_term(params: Mapping[str, Tensor], anchor: Mapping[str, Tensor], *, mu: float) -> Tensor:
    """Return FedProx's term, `mu / 2 * sum ||w - anchor||^2` over all tensors of a model.

    `params` and `anchor` hold tensors of the same names and shapes. The term is a sum over weights: no mean
    is taken, and there is no `reduction`.
    """
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
    """Return MOON's contrast, `-log( e^(s_g/T) / (e^(s_g/T) + sum_r e^(s_r/T)) )`, where s are cosines with
    `features`.

    s_g is the cosine with the features of the global model (`anchor_features` [B, d]), s_r those with the
    features of the client's previous model (`previous_features` [B, d], or [r, B, d] for several). A vector
    without direction (norm of 1e-8 or less) has cosine 0 with every other and receives no gradient.
    `reduction` is over the samples.
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
    """Return FedDecorr's term, the squared correlations K_ij between feature dimensions over the batch.

    - `form="code"` is (B-1)^2 / B * mean_{i != j} K_ij^2, which grows with the batch. It is 0 for a single
      dimension.
    - `form="paper"` is sum_ij K_ij^2 / d^2.

    Both are 0 for a batch of one sample. The result is one number for the batch, hence there is no
    `reduction`.
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
    """Return FedMR's intra-class term, the squared correlations between feature dimensions inside each class.

    For every class c with at least two samples in the batch, X_c are its features, standardised in every
    dimension over these samples, and M_c = X_c^T X_c. The term is `sum_c mean_{i != j} (M_c)_ij^2 / N`, N the
    number of samples of these classes. It is 0 if there is no such class, or for a single dimension.

    `classes` is the number of classes. The result is one number for the batch, hence there is no `reduction`.
    """
    h = checked_features(features)
    if classes < 1:
        raise UserError(f"classes is {classes}: pass the number of classes.")
    y, keep = checked_labels(labels, features, classes, ignore_index)
    member = label_mask(y, classes)
    member = member if keep is None else member & keep.unsqueeze(1)
    size = member.sum(0)
    repeated = (member & (size >= 2)).any(1, keepdim=True)
    with _full_precision(h):
        one_hot = member.to(h.dtype)
        mean = one_hot.T @ h / size.clamp(min=1).unsqueeze(1)
        centred = torch.where(repeated, h - one_hot @ mean, 0.0)
        variance = one_hot.T @ centred.square() / (size - 1).clamp(min=1).unsqueeze(1)
        deviation = one_hot @ (variance + _VARIANCE_FLOOR).sqrt()
        x = centred / (deviation if keep is None else filled(deviation, 1.0))
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
    """Return FedMR's inter-class term, by which a feature should be nearer to its own class's prototype than
    to others.

    It is the mean over known classes c != y of `max(||h - prototype_y|| - ||h - prototype_c||, 0)`. A sample
    whose own class is not known, or for which no other class is known, contributes 0.

    - `prototypes` [C, d]: one feature per class. Rows of classes that are not known may hold any values.
    - `known` (bool [C]): which classes have a prototype.
    - `reduction`: over the samples; the mean counts all of them.
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
    distance = torch.where(square > 0, filled(square, 1.0).sqrt(), 0.0)
    label = label_mask(y, len(centres))
    others = known & ~label & (label & known).any(1, keepdim=True)
    excess = (marked(distance, label).unsqueeze(1) - distance).clamp(min=0)
    return reduced(torch.where(others, excess, 0.0).sum(1) / others.sum(1).clamp(min=1), keep, reduction)


def _directions(x: Tensor) -> Tensor:
    """Return every vector with length 1, or as 0 if it is too short to have a direction."""
    square = x.square().sum(-1, keepdim=True)
    long = square > _SMALLEST_NORM**2
    return torch.where(long, x / torch.where(long, square, 1.0).sqrt(), 0.0)


def _off_diagonal_mean(total: Tensor, diagonal: Tensor, d: int) -> Tensor:
    """Return the mean square off the diagonal of a [d, d] matrix. `total` is the sum of squares over the
    whole matrix, `diagonal` that over its diagonal."""
    return (total - diagonal) / (d * (d - 1)) if d > 1 else 0.0 * total


def _full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Keep autocast, on devices that have it, from running matrix products in half precision."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()
