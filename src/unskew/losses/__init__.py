"""Losses for label-skewed clients, for any training loop: pure functions, and sums of them as modules.

Shapes: logits and teacher [B, C], labels int [B], counts [C] (how many samples of each class the client
holds: a list, a NumPy array, or a tensor on any device), features [B, d]. A function returns the mean over
the batch unless it says otherwise; `reduction` is "mean", "sum", or "none" for one value per sample, [B].
Samples whose label is `ignore_index` are left out, as if they were not in the batch.

Rules that hold for all of them:

- A class with count 0 (or below) is *vacant*. A term over an empty set of classes or samples is exactly 0,
  and its gradient is finite.
- float16 and bfloat16 are computed in float32, float64 stays float64, also under autocast.
- Teachers, anchors, experts and prototypes are constants: no gradient flows into them.
- Shapes never depend on values and no value is read back from a device, so every function can be captured
  in a CUDA graph, compiled, and used with `torch.func.vmap` and `torch.func.grad`.
- Shapes, types and plain numbers are checked, with a `UserError`. A label that is no class is a `UserError`
  on the CPU and fails an assertion of the device on a GPU, for which nothing waits. A step that is captured,
  compiled or traced does not look for it.
"""

from unskew.losses.counts import counts_of
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
    partial_distillation,
    vacant_distillation,
)
from unskew.losses.modules import (
    CalibratedLoss,
    ClassBalancedLoss,
    FedDecorrLoss,
    FedDKDLoss,
    FedKDLoss,
    FedLCLoss,
    FedLMDLoss,
    FedNTDLoss,
    FedProxLoss,
    FedRSLoss,
    FedVLSLoss,
    FocalLoss,
    MOONLoss,
)
from unskew.losses.terms import (
    contrastive_term,
    decorrelation_term,
    logit_suppression,
    manifold_term,
    prototype_margin_term,
    proximal_term,
)

__all__ = [
    "CalibratedLoss",
    "ClassBalancedLoss",
    "FedDKDLoss",
    "FedDecorrLoss",
    "FedKDLoss",
    "FedLCLoss",
    "FedLMDLoss",
    "FedNTDLoss",
    "FedProxLoss",
    "FedRSLoss",
    "FedVLSLoss",
    "FocalLoss",
    "MOONLoss",
    "calibrated_cross_entropy",
    "class_balanced_cross_entropy",
    "contrastive_term",
    "counts_of",
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
