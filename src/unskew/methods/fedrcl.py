"""FedRCL.

Seo, Kim, Kim, Han. Relaxed Contrastive Learning for Federated Learning. CVPR 2024.

At every level of the network a sample is drawn to the farthest sample of its own class in the batch and away
from the nearest of others, so that clients learn alike features. By itself that lets a class collapse into
one point; a penalty on samples of a class that are very close already relaxes it.

    L = CE + mu mean_l S_l + beta mean_l P_l,   means over levels l and samples
    S = -log( e^(s_p/tau) / (e^(s_p/tau) + sum_n e^(s_n/tau)) )
    P = log(1 + e^((s_q - 1)/tau)) where s_q >= lam, else 0
    s cosines between samples of the batch at a level: s_p the smallest to the own class, s_n the `negatives`
    largest to others, s_q the smallest to another sample of the own class

A sample that is alone in its class has s_p = 1 and no P; a batch of one class has no S.

Deviations:
- None known from the released code: tau 0.05, lam 0.7, 2 negatives, both weights 1; it takes the hardest
  pairs alone, other implementations all of them and every pair above lam. Where s_q < lam the release has
  log(1 + e^(-2/tau)), a constant of 4e-18.
- Levels of residual networks are the stem and every stage before its last ReLU, averaged over the image; of
  mobilenetv2 the stem and the first four stages; both as released. Of mobilenet they are the stem and the
  last block of every resolution, of plain networks every hidden layer before its ReLU. A model of your own
  has its features as the only level.
- The release also runs the received model, for terms of weight 0: that pass is left out. It trains with SGD
  without momentum, lr 0.1 with a decay in every round and again in every local epoch, weight decay 0.001, and
  gradients clipped to norm 10.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from unskew.errors import require
from unskew.method import Method, Work
from unskew.methods.card import card
from unskew.models.directions import directions
from unskew.types import View


@card("fedrcl", memory="the activations of all levels, averaged over the image")
def fedrcl(
    *, mu: float = 1.0, beta: float = 1.0, tau: float = 0.05, lam: float = 0.7, negatives: int = 2
) -> Method:
    """Contrast classes at every level of the network, without letting a class collapse."""
    require(mu >= 0, f"mu is {mu} but should be 0 or more.")
    require(beta >= 0, f"beta is {beta} but should be 0 or more.")
    require(tau > 0, f"tau is {tau} but should be above 0.")
    require(negatives >= 1, f"negatives is {negatives} but should be at least 1.")

    def term(view: View) -> Tensor:
        losses = [
            torch.stack(relaxed_contrast(level, view.labels, tau=tau, lam=lam, negatives=negatives))
            for level in view.levels or (view.out.features,)
        ]
        contrast, penalty = torch.stack(losses).mean(dim=0).unbind()
        return mu * contrast + beta * penalty

    return Method(terms=(term,) if mu or beta else (), levels=True, work=Work())


def relaxed_contrast(
    features: Tensor, labels: Tensor, *, tau: float, lam: float, negatives: int
) -> tuple[Tensor, Tensor]:
    """Return the contrast between classes and the penalty within them, for features [B, d], as means over the
    batch."""
    lengthless = directions(features)
    cosine = lengthless @ lengthless.T
    same = labels[:, None] == labels
    own = cosine.masked_fill(~same, math.inf).min(dim=1, keepdim=True).values
    others = cosine.masked_fill(same, -math.inf).topk(min(negatives, len(labels)), dim=1).values
    contrast = torch.cat([own, others], dim=1) / tau
    self_ = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    nearest = cosine.masked_fill(~same | self_, math.inf).min(dim=1).values
    counts = (nearest >= lam) & nearest.isfinite()
    penalty = torch.where(counts, softplus((torch.where(counts, nearest, 1.0) - 1) / tau), 0.0)
    return (contrast.logsumexp(dim=1) - contrast[:, 0]).mean(), penalty.mean()
