"""Wrong arguments end in one sentence that says what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from unskew import losses
from unskew.errors import UserError

Z, T, H = torch.zeros(4, 3), torch.zeros(4, 3), torch.zeros(4, 5)
Y, N = torch.tensor([0, 1, 2, 0]), torch.tensor([2, 1, 1])
P = torch.zeros(3, 5)
KNOWN = torch.tensor([True, True, False])

WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "logits 1-D": (
        lambda: losses.focal_loss(Z[0], Y),
        r"the shape of logits is \(3,\): pass \[samples, classes\]",
    ),
    "no samples": (lambda: losses.focal_loss(Z[:0], Y[:0]), "at least one of each"),
    "logits int": (lambda: losses.focal_loss(Z.long(), Y), "logits are torch.int64: pass a floating"),
    "labels short": (lambda: losses.focal_loss(Z, Y[:3]), r"shape of labels is \(3,\): pass \(4,\)"),
    "labels 2-D": (lambda: losses.focal_loss(Z, Y[:, None]), r"shape of labels is \(4, 1\)"),
    "labels float": (lambda: losses.focal_loss(Z, Y.float()), "class indices as integers"),
    "counts long": (
        lambda: losses.calibrated_cross_entropy(Z, Y, torch.ones(4)),
        r"shape of counts is \(4,\): pass \(3,\), one count per column",
    ),
    "counts elsewhere": (
        lambda: losses.vacant_distillation(Z, T, N.to("meta")),
        "device of counts is meta, the model's output is on cpu",
    ),
    "labels elsewhere": (lambda: losses.focal_loss(Z, Y.to("meta")), "device of labels is meta"),
    "teacher elsewhere": (lambda: losses.distillation(Z, T.to("meta")), "device of teacher is meta"),
    "previous elsewhere": (lambda: losses.contrastive_term(H, H, H.to("meta")), "previous_features is meta"),
    "teacher narrow": (
        lambda: losses.distillation(Z, T[:, :2]),
        r"shape of teacher is \(4, 2\): pass \(4, 3\)",
    ),
    "classes length": (lambda: losses.distillation(Z, T, classes=KNOWN[:2]), "one bool per class"),
    "classes type": (lambda: losses.distillation(Z, T, classes=N), "pass a bool mask"),
    "tau negative": (
        lambda: losses.calibrated_cross_entropy(Z, Y, N, tau=-1),
        "tau is -1: choose a number of at least 0",
    ),
    "tau text": (lambda: losses.calibrated_cross_entropy(Z, Y, N, tau="1"), "tau is 1: choose a number"),
    "alpha text": (
        lambda: losses.restricted_cross_entropy(Z, Y, N, alpha="1"),
        "alpha is 1: choose a number",
    ),
    "temperature None": (lambda: losses.distillation(Z, T, temperature=None), "temperature is None: choose"),
    "tau NaN": (lambda: losses.margin_cross_entropy(Z, Y, N, tau=float("nan")), "tau is nan"),
    "floor zero": (lambda: losses.calibrated_cross_entropy(Z, Y, N, floor=0.0), "None to leave vacant"),
    "alpha": (lambda: losses.restricted_cross_entropy(Z, Y, N, alpha=1.5), "from 0 to 1"),
    "beta": (lambda: losses.class_balanced_cross_entropy(Z, Y, N, beta=1.0), "not including, 1"),
    "gamma": (lambda: losses.focal_loss(Z, Y, gamma=-0.1), "gamma is -0.1"),
    "class_accuracy": (lambda: losses.focal_loss(Z, Y, class_accuracy=torch.ones(2)), "one value per class"),
    "smoothing": (lambda: losses.label_smoothing_cross_entropy(Z, Y, smoothing=2), "smoothing is 2"),
    "temperature zero": (lambda: losses.distillation(Z, T, temperature=0), "temperature is 0: choose"),
    "temperature negative": (
        lambda: losses.not_true_distillation(Z, T, Y, temperature=-1.0),
        "temperature is -1.0",
    ),
    "DKD weight": (
        lambda: losses.decoupled_distillation(Z, T, Y, alpha=1, beta=-8, temperature=1),
        "beta is -8",
    ),
    "form": (lambda: losses.logit_suppression(Z, Y, N, form="oficial"), "did you mean 'official'"),
    "vacant": (lambda: losses.margin_cross_entropy(Z, Y, N, tau=1, vacant="drop"), "clamp, mask, one"),
    "denominator": (
        lambda: losses.margin_cross_entropy(Z, Y, N, tau=1, denominator="excluded"),
        "did you mean 'exclude'",
    ),
    "majority": (
        lambda: losses.label_masking_distillation(Z, T, Y, N, majority="gt"),
        "unknown majority 'gt'",
    ),
    "fallback": (
        lambda: losses.label_masking_distillation(Z, T, Y, N, fallback="zero"),
        "choose one of ntd",
    ),
    "one expert missing": (
        lambda: losses.partial_distillation(Z, Y, [], [[0, 1]]),
        "0 experts for 1 groups",
    ),
    "expert width": (
        lambda: losses.partial_distillation(Z, Y, [T], [[0, 1]]),
        r"experts\[0\] is \(4, 3\): pass \(4, 2\)",
    ),
    "group repeats": (
        lambda: losses.partial_distillation(Z, Y, [T[:, :2]], [[1, 1]]),
        "two different classes from 0 to 2",
    ),
    "group beyond": (
        lambda: losses.partial_distillation(Z, Y, [T[:, :2]], [[1, 3]]),
        r"groups\[0\] is \[1, 3\]",
    ),
    "group of one": (lambda: losses.partial_distillation(Z, Y, [T[:, :1]], [[1]]), "at least two"),
    "direction": (
        lambda: losses.partial_distillation(Z, Y, [], [], direction="backward"),
        "unknown direction 'backward'",
    ),
    "mean": (lambda: losses.partial_distillation(Z, Y, [], [], mean="all"), "unknown mean 'all'"),
    "mu": (lambda: losses.proximal_term({"w": Z}, {"w": T}, mu=-1), "mu is -1"),
    "no params": (lambda: losses.proximal_term({}, {}, mu=1), "params hold no tensor"),
    "names": (lambda: losses.proximal_term({"w": Z}, {"v": T}, mu=1), "only one of .* holds 'v'"),
    "shapes": (
        lambda: losses.proximal_term({"w": Z}, {"w": H}, mu=1),
        r"anchor\['w'\] is \(4, 5\): pass \(4, 3\)",
    ),
    "counters": (lambda: losses.proximal_term({"n": N}, {"n": N}, mu=1), "no counters"),
    "anchor features": (lambda: losses.contrastive_term(H, H[:3], H), "shape of anchor_features is"),
    "previous features": (lambda: losses.contrastive_term(H, H, H[:3]), "stacked on axis 0"),
    "contrast temperature": (lambda: losses.contrastive_term(H, H, H, temperature=0), "temperature is 0"),
    "decorrelation form": (lambda: losses.decorrelation_term(H, form="papers"), "did you mean 'paper'"),
    "features 1-D": (lambda: losses.decorrelation_term(H[0]), r"pass \[samples, dimensions\]"),
    "classes number": (lambda: losses.manifold_term(H, Y, 0), "classes is 0"),
    "prototypes": (
        lambda: losses.prototype_margin_term(H, Y, P[:, :4], KNOWN),
        r"shape of prototypes is \(3, 4\): pass \(3, 5\)",
    ),
    "known length": (lambda: losses.prototype_margin_term(H, Y, P, KNOWN[:2]), "a row per entry of known"),
    "known 2-D": (lambda: losses.prototype_margin_term(H, Y, P, KNOWN[None]), "one bool per prototype"),
    "known type": (lambda: losses.prototype_margin_term(H, Y, P, N), "known is torch.int64"),
}


@pytest.mark.parametrize(("call", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_arguments_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
