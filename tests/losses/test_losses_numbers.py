"""Each loss against numbers worked out by hand. Logits are logarithms of small integers, so that a softmax is
a fraction one can read off: log(1, 2, 5) has probabilities 1/8, 2/8, 5/8."""

from __future__ import annotations

from math import exp, log, sqrt

import pytest
import torch
from torch import Tensor

from unskew.losses import (
    calibrated_cross_entropy,
    class_balanced_cross_entropy,
    contrastive_term,
    decorrelation_term,
    decoupled_distillation,
    distillation,
    focal_loss,
    label_masking_distillation,
    label_smoothing_cross_entropy,
    logit_suppression,
    manifold_term,
    margin_cross_entropy,
    not_true_distillation,
    partial_distillation,
    prototype_margin_term,
    proximal_term,
    restricted_cross_entropy,
    vacant_distillation,
)


def logs(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def kl(p: list[float], q: list[float]) -> float:
    p, q = ([x / sum(weights) for x in weights] for weights in (p, q))
    return sum(a * log(a / b) for a, b in zip(p, q, strict=True))


def check(loss: Tensor, expected: float, tolerance: float = 1e-12) -> None:
    assert loss.item() == pytest.approx(expected, rel=tolerance, abs=tolerance)


Z = logs([1, 2, 5], [4, 3, 1])
Y = torch.tensor([1, 0])
TEACHER = logs([9, 1, 1], [9, 1, 3])


def test_calibrated_cross_entropy() -> None:
    n = torch.tensor([3, 1, 0])
    # counts times exp(z), the vacant class gone: (3, 2) and (12, 3).
    check(calibrated_cross_entropy(Z, Y, n), (log(5 / 2) + log(15 / 12)) / 2)
    # counts squared: (9, 2) and (36, 3).
    check(calibrated_cross_entropy(Z, Y, n, tau=2.0), (log(11 / 2) + log(39 / 36)) / 2)
    # shares (0.75, 0.25, 0) plus 0.25: (1, 0.5, 0.25) times exp(z) = (1, 1, 1.25) and (4, 1.5, 0.25).
    check(calibrated_cross_entropy(Z, Y, n, floor=0.25), (log(3.25 / 1) + log(5.75 / 4)) / 2)


def test_calibrated_cross_entropy_with_the_released_floor_wakes_huge_vacant_logits() -> None:
    z = torch.tensor([[0.0, 0.0, 25.0]], dtype=torch.float64)
    n = torch.tensor([1, 1, 0])
    check(calibrated_cross_entropy(z, Y[:1], n, floor=1e-9), log((1 + 2e-9 + 1e-9 * exp(25)) / (0.5 + 1e-9)))
    check(calibrated_cross_entropy(z, Y[:1], n), log(2))


def test_margin_cross_entropy() -> None:
    n = torch.tensor([16, 1, 0])
    # n^(-1/4) = 1/2 and 1: odds of class 0 against the label (1/2) e^(1/2), of class 1 (3/4) e^(-1/2).
    check(margin_cross_entropy(Z, Y, n, tau=1.0), (log(1 + 0.5 * exp(0.5)) + log(1 + 0.75 * exp(-0.5))) / 2)
    check(
        margin_cross_entropy(Z, Y, n, tau=1.0, denominator="exclude"),
        (log(0.5 * exp(0.5)) + log(0.75 * exp(-0.5))) / 2,
    )


@pytest.mark.parametrize(("vacant", "margin"), [("one", 1.0), ("clamp", 100.0)])
def test_margin_cross_entropy_with_vacant_classes_kept(vacant: str, margin: float) -> None:
    a, b, c = exp(-0.01 * 0.5), exp(-0.01 * 1.0), exp(-0.01 * margin)
    loss = margin_cross_entropy(Z, Y, torch.tensor([16, 1, 0]), tau=0.01, vacant=vacant)
    check(loss, (log((a + 2 * b + 5 * c) / (2 * b)) + log((4 * a + 3 * b + c) / (4 * a))) / 2)


def test_restricted_cross_entropy() -> None:
    # The last logit is halved: log 5 becomes log sqrt(5).
    check(
        restricted_cross_entropy(Z, Y, torch.tensor([2, 3, 0]), alpha=0.5),
        (log((3 + sqrt(5)) / 2) + log(8 / 4)) / 2,
    )
    # Graded: 0.5 + 0.5 n / 4 = 0.75, 1, 0.5.
    check(
        restricted_cross_entropy(Z, Y, torch.tensor([2, 4, 0]), alpha=0.5, soft=True),
        (log((1 + 2 + sqrt(5)) / 2) + log((4**0.75 + 3 + 1) / 4**0.75)) / 2,
    )


def test_class_balanced_cross_entropy() -> None:
    n = torch.tensor([1, 2, 0])
    # 1 / (1 - 1/2) = 2 and 1 / (1 - 1/4) = 4/3, scaled to sum 2 (present) or 3 (all).
    check(class_balanced_cross_entropy(Z, Y, n, beta=0.5), (0.8 * log(4) + 1.2 * log(2)) / 2)
    check(class_balanced_cross_entropy(Z, Y, n, beta=0.5, normalise="all"), (1.2 * log(4) + 1.8 * log(2)) / 2)


def test_focal_loss() -> None:
    check(focal_loss(Z, Y), (0.75**2 * log(4) + 0.5**2 * log(2)) / 2)
    check(focal_loss(Z, Y, gamma=0.5, detach_weight=True), (sqrt(0.75) * log(4) + sqrt(0.5) * log(2)) / 2)


def test_focal_loss_by_class_accuracy() -> None:
    # (1 - accuracy)^2 = 0.25, 0.01, 1 with mean 0.42.
    weighted = focal_loss(Z, Y, class_accuracy=torch.tensor([0.5, 0.9, 0.0], dtype=torch.float64))
    check(weighted, (0.01 / 0.42 * log(4) + 0.25 / 0.42 * log(2)) / 2)
    # A class that was never tested weighs 1 and is left out of the mean, 0.13.
    untested = focal_loss(Z, Y, class_accuracy=torch.tensor([0.5, float("nan"), 0.9], dtype=torch.float64))
    check(untested, (log(4) + 0.25 / 0.13 * log(2)) / 2)


def test_label_smoothing_cross_entropy() -> None:
    check(
        label_smoothing_cross_entropy(Z, Y),
        (0.9 * log(4) + 0.1 / 3 * log(8 * 4 * 8 / 5) + 0.9 * log(2) + 0.1 / 3 * log(2 * 8 / 3 * 8)) / 2,
    )


def test_distillation() -> None:
    check(distillation(Z, TEACHER), (kl([9, 1, 1], [1, 2, 5]) + kl([9, 1, 3], [4, 3, 1])) / 2)
    check(
        distillation(Z, TEACHER, temperature=2.0),
        4 * (kl([3, 1, 1], [1, sqrt(2), sqrt(5)]) + kl([3, 1, sqrt(3)], [2, sqrt(3), 1])) / 2,
    )
    check(
        distillation(Z, TEACHER, classes=torch.tensor([True, False, True])),
        (kl([9, 1], [1, 5]) + kl([9, 3], [4, 1])) / 2,
    )


def test_vacant_distillation() -> None:
    # Classes 1 and 2: teacher (1, 1) and (1, 3), student (2, 5) and (3, 1).
    expected = (0.5 * log(0.5 * 7 / 2) + 0.5 * log(0.5 * 7 / 5) + 0.5 * log(3)) / 2
    check(vacant_distillation(Z, TEACHER, torch.tensor([5, 0, 0])), expected)


def test_not_true_distillation() -> None:
    check(not_true_distillation(Z, TEACHER, Y), (kl([9, 1], [1, 5]) + kl([1, 3], [3, 1])) / 2)
    check(
        not_true_distillation(Z, TEACHER, Y, temperature=2.0),
        4 * (kl([3, 1], [1, sqrt(5)]) + kl([1, sqrt(3)], [sqrt(3), 1])) / 2,
    )
    check(not_true_distillation(Z, None, Y), (kl([1, 1], [1, 5]) + kl([1, 1], [3, 1])) / 2)


def test_label_masking_distillation() -> None:
    z, t = logs([1, 2, 3, 4], [1, 2, 3, 4]), logs([9, 9, 1, 3], [9, 9, 9, 2])
    y, n = torch.tensor([0, 2]), torch.tensor([8, 6, 1, 1])
    # The majority (above 16 / 4) is {0, 1}. Label 0: the teacher keeps {2, 3}, the student {1, 2, 3}.
    first = 0.25 * log(0.25 * 9 / 3) + 0.75 * log(0.75 * 9 / 4)
    # Label 2: the teacher keeps {3}, the student {0, 1, 3}.
    check(label_masking_distillation(z, t, y, n), (first + log(7 / 4)) / 2)
    without_teacher = 0.5 * log(0.5 * 9 / 3) + 0.5 * log(0.5 * 9 / 4)
    check(label_masking_distillation(z, None, y, n), (without_teacher + log(7 / 4)) / 2)


def test_label_masking_distillation_with_and_without_the_squared_temperature() -> None:
    z, y, n = logs([1, 4, 9, 16]), torch.tensor([0]), torch.tensor([8, 6, 1, 1])
    plain = 0.5 * log(0.5 * 9 / 3) + 0.5 * log(0.5 * 9 / 4)
    check(label_masking_distillation(z, None, y, n, temperature=2.0), 4 * plain)
    check(label_masking_distillation(z, None, y, n, temperature=2.0, squared_temperature=False), plain)


def without_teacher(counts: list[int], label: int, **options: str) -> float:
    """Return k, the number of classes that the teacher is left with. With zero logits the loss is log((C - 1)
    / k)."""
    z = torch.zeros(1, len(counts), dtype=torch.float64)
    loss = label_masking_distillation(z, None, torch.tensor([label]), torch.tensor(counts), **options)
    return (len(counts) - 1) / exp(loss.item())


@pytest.mark.parametrize(("majority", "kept"), [("code", 2), ("ge", 1), ("present", 3)])
def test_majority_rules(majority: str, kept: int) -> None:
    # 16 samples over four classes, three of them present: bounds 4 and 16/3, so {0, 2}, {0, 1, 2} and {2}.
    assert without_teacher([5, 4, 7, 0], 2, majority=majority) == pytest.approx(kept)


def test_majority_of_a_client_printed_in_the_fedvls_paper() -> None:
    counts = [0, 0, 0, 141, 0, 1471, 0, 0, 1360, 366]  # Table 7: majority 5, 8, 9; minority 3.
    assert without_teacher(counts, 5) == pytest.approx(7)
    assert without_teacher(counts, 3) == pytest.approx(6)


def test_majority_is_exact_for_large_counts() -> None:
    # One sample above and at the mean: in float32, 2^24 + 1 does not exist.
    assert without_teacher([2**24 + 1, 2**24, 2**24 - 1], 2) == pytest.approx(1)
    assert without_teacher([2**24 + 1] * 3, 2) == pytest.approx(2)


def test_label_masking_when_only_the_label_is_left() -> None:
    z, y, n = logs([1, 2, 3]), torch.tensor([2]), torch.tensor([10, 10, 1])
    check(label_masking_distillation(z, TEACHER[:1], y, n), 0.0)
    check(label_masking_distillation(z, TEACHER[:1], y, n, fallback="ntd"), kl([9, 1], [1, 2]))
    # The fallback is for such samples alone: with label 0, class 2 is left.
    y = torch.tensor([0])
    check(label_masking_distillation(z, TEACHER[:1], y, n, fallback="ntd"), log(5 / 3))


def test_decoupled_distillation() -> None:
    z, t, y = logs([1, 2, 5]), logs([3, 1, 4]), torch.tensor([1])
    target, others = kl([1, 7], [2, 6]), kl([3, 4], [1, 5])
    check(decoupled_distillation(z, t, y, alpha=1.0, beta=8.0, temperature=1.0), target + 8 * others)
    z, t = 2 * z, 2 * t
    check(
        decoupled_distillation(z, t, y, alpha=0.5, beta=2.0, temperature=2.0), 4 * (0.5 * target + 2 * others)
    )


def test_partial_distillation() -> None:
    # Confuses 1 with 2 (in the group); is right; confuses 0 with 3 (not in the group).
    z, y = logs([1, 2, 5, 1], [4, 3, 1, 1], [1, 1, 1, 9]), torch.tensor([1, 0, 0])
    expert = logs([1, 3], [1, 1], [1, 1])
    forward, reverse = kl([1, 3], [2, 5]), kl([2, 5], [1, 3])
    check(partial_distillation(z, y, [expert], [[1, 2]], temperature=1.0), forward)
    check(partial_distillation(z, y, [expert], [[1, 2]], temperature=1.0, mean="batch"), forward / 3)
    check(partial_distillation(z, y, [expert], [[1, 2]], temperature=1.0, direction="reverse"), reverse)
    cooled = kl([1, 3 ** (1 / 5)], [2 ** (1 / 5), 5 ** (1 / 5)])
    check(partial_distillation(z, y, [expert], [[1, 2]]), cooled)
    check(partial_distillation(z, y, [expert], [[1, 2]], squared_temperature=True), 25 * cooled)


def test_partial_distillation_takes_one_expert_per_sample() -> None:
    z, y = logs([1, 2, 5, 1]), torch.tensor([1])
    large, small, late = logs([1, 1, 1]), logs([1, 3]), logs([7, 1])
    # The smallest group that holds both the label 1 and the prediction 2; of two, the first.
    loss = partial_distillation(z, y, [large, small, late], [[0, 1, 2], [1, 2], [2, 1]], temperature=1.0)
    check(loss, kl([1, 3], [2, 5]))


def test_logit_suppression() -> None:
    n = torch.tensor([1, 3, 0])
    # Class 0 is pushed on the first sample (exp z = 1), class 1 on the second (exp z = 3).
    check(logit_suppression(Z, Y, n, form="paper"), 0.25 * log(1 / 2) + 0.75 * log(3 / 2))
    # Both classes: (1 + 1 / (3 * 0.25)) / 2 = (1 + 3 / (3 * 0.75)) / 2 = 7/6, up to the floors of 1e-9.
    check(logit_suppression(Z, Y, n), log(7 / 6), 1e-7)


def test_logit_suppression_vanishes_at_the_level_of_the_official_form() -> None:
    n = torch.tensor([1, 3, 4, 0])
    share = n.double() / 8
    z = (4 * share).log().nan_to_num(neginf=3.0).expand(5, 4)
    check(logit_suppression(z, torch.tensor([0, 1, 2, 2, 1]), n), 0.0, 1e-7)


def test_proximal_term() -> None:
    params = {"weight": torch.tensor([[3.0, 0.0], [0.0, 5.0]]), "bias": torch.tensor(2.0)}
    anchor = {"bias": torch.tensor(1.0), "weight": torch.tensor([[0.0, 0.0], [0.0, 1.0]])}
    check(proximal_term(params, anchor, mu=0.1), 0.05 * (9 + 16 + 1), 1e-6)


def test_contrastive_term() -> None:
    h, aligned = torch.tensor([[2.0, 0.0]]).double(), torch.tensor([[7.0, 0.0]]).double()
    across, opposite = torch.tensor([[0.0, 3.0]]).double(), torch.tensor([[-1.0, 0.0]]).double()
    check(contrastive_term(h, aligned, across), log(1 + exp(-2)))
    check(contrastive_term(h, opposite, aligned, temperature=1.0), log(1 + exp(2)))
    check(contrastive_term(h, aligned, torch.stack([across, opposite])), log(1 + exp(-2) + exp(-4)))


# Two dimensions with correlation 1/2.
HALF = [[0.0, 0.0], [1.0, 2.0], [2.0, 1.0]]


def test_decorrelation_term() -> None:
    h = torch.tensor(HALF).double()
    check(decorrelation_term(h), (2**2 / 3) * 0.5**2, 1e-7)
    check(decorrelation_term(h, form="paper"), (2 + 2 * 0.5**2) / 4, 1e-7)


def test_manifold_term() -> None:
    h = torch.tensor([*HALF, [0.0, 0.0], [9.0, -9.0], [5.0, 5.0]]).double()
    # M_12 is 2 * 1/2 in class 4 and -1 in class 0; class 2 has one sample and counts nowhere.
    check(manifold_term(h, torch.tensor([4, 4, 4, 0, 0, 2]), 5), (1 + 1) / 5, 1e-7)


def test_prototype_margin_term() -> None:
    h = torch.tensor([[0.0, 0.0], [0.0, 2.0], [3.0, 4.0]], requires_grad=True)
    prototypes = torch.tensor([[3.0, 4.0], [0.0, 2.0], [float("nan"), 1.0], [0.0, 7.0]])
    known = torch.tensor([True, True, False, True])
    # Label 0: (5 - 2 + 0) / 2. Label 1: it is its own prototype. Label 2 is not known.
    loss = prototype_margin_term(h, torch.tensor([0, 1, 2]), prototypes, known)
    check(loss, 1.5 / 3, 1e-6)
    loss.backward()
    assert h.grad.isfinite().all()
