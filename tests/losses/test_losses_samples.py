"""Samples one by one, samples left out, labels that are no class, and counts of any kind."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from unskew import losses
from unskew.errors import UserError

close = torch.testing.assert_close
COUNTS = [30, 0, 0, 200, 0, 12]
CLASSES = len(COUNTS)


def partial(z, y, t, **options):
    groups = [[0, 1, 2], [2, 3], [4, 5], [1, 3, 4, 5]]
    experts = [torch.stack([t[:, c] for c in group], 1) for group in groups]
    return losses.partial_distillation(z, y, experts, groups, mean="batch", **options)


def prototypes(z, y, n, t, **options):
    known = torch.as_tensor(n) > 0
    return losses.prototype_margin_term(z, y, 2 * torch.eye(CLASSES, dtype=z.dtype), known, **options)


LABELLED = {
    "calibrated": lambda z, y, n, t, **o: losses.calibrated_cross_entropy(z, y, n, **o),
    "calibrated floor": lambda z, y, n, t, **o: losses.calibrated_cross_entropy(z, y, n, floor=1e-9, **o),
    "margin": lambda z, y, n, t, **o: losses.margin_cross_entropy(z, y, n, tau=0.5, **o),
    "margin exclude": lambda z, y, n, t, **o: losses.margin_cross_entropy(
        z, y, n, tau=0.5, denominator="exclude", **o
    ),
    "restricted": lambda z, y, n, t, **o: losses.restricted_cross_entropy(z, y, n, alpha=0.7, **o),
    "class balanced": lambda z, y, n, t, **o: losses.class_balanced_cross_entropy(z, y, n, **o),
    "focal": lambda z, y, n, t, **o: losses.focal_loss(z, y, **o),
    "focal gamma=0": lambda z, y, n, t, **o: losses.focal_loss(z, y, gamma=0, **o),
    "focal classwise": lambda z, y, n, t, **o: losses.focal_loss(
        z, y, class_accuracy=torch.linspace(0, 1, CLASSES), **o
    ),
    "smoothing": lambda z, y, n, t, **o: losses.label_smoothing_cross_entropy(z, y, **o),
    "not true": lambda z, y, n, t, **o: losses.not_true_distillation(z, t, y, temperature=3.0, **o),
    "label masking": lambda z, y, n, t, **o: losses.label_masking_distillation(z, t, y, n, **o),
    "label masking, no T^2": lambda z, y, n, t, **o: losses.label_masking_distillation(
        z, None, y, n, temperature=2.0, squared_temperature=False, target="paper", **o
    ),
    "decoupled": lambda z, y, n, t, **o: losses.decoupled_distillation(
        z, t, y, alpha=1.0, beta=8.0, temperature=4.0, **o
    ),
    "partial": lambda z, y, n, t, **o: partial(z, y, t, **o),
    "prototypes": prototypes,
}
UNLABELLED = {
    "distillation": lambda z, y, n, t, **o: losses.distillation(z, t, temperature=2.0, **o),
    "vacant": lambda z, y, n, t, **o: losses.vacant_distillation(z, t, n, **o),
    "contrastive": lambda z, y, n, t, **o: losses.contrastive_term(z, t, t.flip(1), **o),
}
OF_BATCHES = {
    "suppression": lambda z, y, n, t, **o: losses.logit_suppression(z, y, n, **o),
    "suppression paper": lambda z, y, n, t, **o: losses.logit_suppression(z, y, n, form="paper", **o),
    "manifold": lambda z, y, n, t, **o: losses.manifold_term(z, y, CLASSES, **o),
}
of_samples = pytest.mark.parametrize("name", [*LABELLED, *UNLABELLED])
with_labels = pytest.mark.parametrize("name", [*LABELLED, *OF_BATCHES])
ALL = {**LABELLED, **UNLABELLED, **OF_BATCHES}


def batch() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    z, t = (2 * torch.randn(7, CLASSES, generator=generator, dtype=torch.float64) for _ in range(2))
    return z, torch.tensor([0, 3, 5, 0, 3, 3, 5]), t


def gradient(name: str, z: Tensor, y: Tensor, t: Tensor, direction: Tensor | None = None, **options):
    z = z.clone().requires_grad_()
    value = ALL[name](z, y, COUNTS, t, **options)
    if direction is not None:
        value = value @ direction
    return value.detach(), torch.autograd.grad(value, z)[0]


# ------------------------------------------------------------------------------ reductions


@of_samples
def test_the_values_of_the_samples_are_those_of_batches_of_one(name: str) -> None:
    z, y, t = batch()
    each = ALL[name](z, y, COUNTS, t, reduction="none")
    alone = [ALL[name](z[i : i + 1], y[i : i + 1], COUNTS, t[i : i + 1]) for i in range(len(y))]
    assert each.shape == y.shape
    close(each, torch.stack(alone))
    close(ALL[name](z, y, COUNTS, t, reduction="sum"), each.sum())
    close(ALL[name](z, y, COUNTS, t, reduction="mean"), each.mean())


@of_samples
def test_the_gradients_of_all_reductions_are_those_of_the_samples(name: str) -> None:
    z, y, t = batch()
    rows = [gradient(name, z[i : i + 1], y[i : i + 1], t[i : i + 1])[1] for i in range(len(y))]
    by_hand = torch.cat(rows)
    weights = torch.arange(1.0, len(y) + 1, dtype=z.dtype)
    close(gradient(name, z, y, t, weights, reduction="none")[1], weights.unsqueeze(1) * by_hand)
    close(gradient(name, z, y, t, reduction="sum")[1], by_hand)
    close(gradient(name, z, y, t, reduction="mean")[1], by_hand / len(y))


def test_partial_distillation_has_a_mean_over_active_samples() -> None:
    z, y, t = batch()
    z[2, y[2]] += 10
    each = losses.partial_distillation(z, y, [t], [list(range(CLASSES))], reduction="none")
    active = z.argmax(1) != y
    assert 0 < active.sum() < len(y)
    assert not each[~active].any()
    close(losses.partial_distillation(z, y, [t], [list(range(CLASSES))]), each[active].mean())


@of_samples
def test_an_unknown_reduction_is_refused(name: str) -> None:
    z, y, t = batch()
    with pytest.raises(UserError, match="unknown reduction 'avg': choose one of mean, none, sum"):
        ALL[name](z, y, COUNTS, t, reduction="avg")


# ------------------------------------------------------------------------------ samples left out


@with_labels
@pytest.mark.parametrize("ignored", [-1, -100, 255, 3])
def test_ignoring_is_leaving_out(name: str, ignored: int) -> None:
    z, y, t = batch()
    y = torch.where(y == 3, ignored, y)
    kept = y != ignored
    for reduction in [{}] if name in OF_BATCHES else [{"reduction": "mean"}, {"reduction": "sum"}]:
        value, found = gradient(name, z, y, t, ignore_index=ignored, **reduction)
        expected, by_hand = gradient(name, z[kept], y[kept], t[kept], **reduction)
        close(value, expected)
        close(found[kept], by_hand)
        assert not found[~kept].any()
    if name in LABELLED:
        each = ALL[name](z, y, COUNTS, t, ignore_index=ignored, reduction="none")
        close(each[kept], ALL[name](z[kept], y[kept], COUNTS, t[kept], reduction="none"))
        assert not each[~kept].any()


@with_labels
def test_a_batch_of_which_nothing_is_left_is_zero(name: str) -> None:
    z, y, t = batch()
    value, found = gradient(name, z, torch.full_like(y, -1), t, ignore_index=-1)
    assert value == 0
    assert not found.any()


@with_labels
def test_ignoring_nothing_changes_nothing(name: str) -> None:
    z, y, t = batch()
    value, found = gradient(name, z, y, t, ignore_index=-1)
    expected, by_hand = gradient(name, z, y, t)
    close(value, expected)
    close(found, by_hand)


# ------------------------------------------------------------------------------ labels that are no class


@with_labels
@pytest.mark.parametrize("wrong", [-1, -100, CLASSES, 255])
def test_a_label_that_is_no_class_is_named(name: str, wrong: int) -> None:
    z, y, t = batch()
    y[4] = wrong
    sentence = f"a label is {wrong}, where there are 6 classes: .* from 0 to 5, or ignore_index={wrong}"
    with pytest.raises(UserError, match=sentence):
        ALL[name](z, y, COUNTS, t)
    with pytest.raises(UserError, match=sentence):
        ALL[name](z, y, COUNTS, t, ignore_index=7)


class Recorder(TorchDispatchMode):
    """Says which operations ran, as the engines do that trace a step."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        self.names.append(str(operator))
        return operator(*arguments, **(named or {}))


@with_labels
def test_labels_are_not_read_where_a_step_is_recorded(name: str) -> None:
    z, y, t = batch()
    n = torch.tensor(COUNTS)
    with Recorder() as recorder:
        ALL[name](z, y, n, t)
    assert not [name for name in recorder.names if "aminmax" in name or "_local_scalar" in name]


@pytest.mark.parametrize("labels", [[0, 1], np.array([0, 1])])
def test_labels_that_are_no_tensor_are_refused(labels: object) -> None:
    with pytest.raises(UserError, match=r"labels are a \w+: pass a tensor"):
        losses.focal_loss(torch.zeros(2, 3), labels)


# ------------------------------------------------------------------------------ counts of any kind


@pytest.mark.parametrize(
    "kind",
    [
        tuple,
        np.array,
        lambda n: np.array(n, dtype=np.int32),
        lambda n: [float(count) for count in n],
        torch.tensor,
        lambda n: torch.tensor(n, dtype=torch.uint8 if max(n) < 256 else torch.int16),
    ],
    ids=["tuple", "numpy", "numpy int32", "floats", "tensor", "small tensor"],
)
@pytest.mark.parametrize("name", ALL)
def test_counts_may_be_of_any_kind(name: str, kind) -> None:
    z, y, t = batch()
    assert torch.equal(ALL[name](z, y, kind(COUNTS), t), ALL[name](z, y, COUNTS, t))


@pytest.mark.parametrize("counts", [Counter({0: 3, 1: 2, 2: 1}), {0: 3, 1: 2, 2: 1}, "321", [1, None, 2], 3])
def test_what_has_no_order_of_classes_is_no_counts(counts: object) -> None:
    with pytest.raises(UserError, match="pass a list, a NumPy array or a tensor, one number per class"):
        losses.calibrated_cross_entropy(torch.zeros(1, 3), torch.tensor([0]), counts)


def test_counts_of_the_wrong_length_are_named() -> None:
    with pytest.raises(UserError, match=r"the shape of counts is \(2,\): pass \(3,\)"):
        losses.calibrated_cross_entropy(torch.zeros(1, 3), torch.tensor([0]), [1, 2])


@pytest.mark.parametrize("counts", [[float("nan"), 1.0, 2.0], [float("inf"), 1.0, 2.0], [-1.0, 1.0, 2.0]])
def test_counts_are_numbers_of_samples(counts) -> None:
    with pytest.raises(UserError, match="counts are negative or not finite"):
        losses.calibrated_cross_entropy(torch.zeros(1, 3), torch.tensor([1]), counts)


# ------------------------------------------------------------------------------ on a GPU

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("name", ALL)
def test_a_gpu_is_not_waited_for(name: str) -> None:
    if name in ("prototypes", "focal classwise"):
        pytest.skip("the table above makes tensors on the CPU")
    z, y, t = (x.cuda() for x in batch())
    n = torch.tensor(COUNTS).cuda()
    options = {"ignore_index": -1} if name in LABELLED else {}
    expected = ALL[name](z, y, n, t, **options)
    try:
        torch.cuda.set_sync_debug_mode("error")
        found = ALL[name](z, y, n, t, **options)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    close(found, expected)


@needs_gpu
def test_counts_need_not_be_where_the_logits_are() -> None:
    z, y, _ = (x.cuda() for x in batch())
    expected = losses.calibrated_cross_entropy(z, y, torch.tensor(COUNTS).cuda())
    for counts in (COUNTS, np.array(COUNTS), torch.tensor(COUNTS)):
        close(losses.calibrated_cross_entropy(z, y, counts), expected)
    close(losses.CalibratedLoss(COUNTS)(z, y), expected)
    close(losses.calibrated_cross_entropy(z.cpu(), y.cpu(), torch.tensor(COUNTS).cuda()), expected.cpu())


@needs_gpu
def test_a_label_that_is_no_class_does_not_pass_on_a_gpu() -> None:
    program = (
        "import torch; from unskew import losses\n"
        "z, y = torch.zeros(2, 3).cuda(), torch.tensor([0, -1]).cuda()\n"
        "print('before'); losses.not_true_distillation(z, None, y); torch.cuda.synchronize(); print('after')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stdout.split() == ["before"]
    assert "a label is not from 0 to 2" in done.stdout + done.stderr
