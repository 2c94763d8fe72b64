"""What holds for every loss: finite on the hardest clients, right derivatives, static shapes, float32 inside.

Each loss is one row of a table and is called as f(logits, labels, counts, teacher). Terms over features take
the logits as features and the teacher as the other model's features, so the same inputs serve all."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from unskew import losses
from unskew.losses import (
    calibrated_cross_entropy,
    class_balanced_cross_entropy,
    contrastive_term,
    cross_entropies,
    decorrelation_term,
    decoupled_distillation,
    distillation,
    distillations,
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
    terms,
    vacant_distillation,
)

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def partial(z: Tensor, y: Tensor, teacher: Tensor, **options: object) -> Tensor:
    groups = [[1, 0]] if z.shape[1] < 6 else [[0, 1, 2], [2, 3], [4, 5], [1, 3, 4, 5]]
    experts = [torch.stack([teacher[:, c] for c in group], 1) for group in groups]
    return partial_distillation(z, y, experts, groups, **options)


LOSSES: dict[str, Loss] = {
    "calibrated": lambda z, y, n, t: calibrated_cross_entropy(z, y, n),
    "calibrated tau=0.5": lambda z, y, n, t: calibrated_cross_entropy(z, y, n, tau=0.5),
    "calibrated floor": lambda z, y, n, t: calibrated_cross_entropy(z, y, n, floor=1e-9),
    "margin": lambda z, y, n, t: margin_cross_entropy(z, y, n, tau=0.5),
    "margin clamp": lambda z, y, n, t: margin_cross_entropy(z, y, n, tau=0.5, vacant="clamp"),
    "margin one": lambda z, y, n, t: margin_cross_entropy(z, y, n, tau=0.5, vacant="one"),
    "margin exclude": lambda z, y, n, t: margin_cross_entropy(z, y, n, tau=0.5, denominator="exclude"),
    "margin one exclude": lambda z, y, n, t: margin_cross_entropy(
        z, y, n, tau=0.5, vacant="one", denominator="exclude"
    ),
    "restricted": lambda z, y, n, t: restricted_cross_entropy(z, y, n, alpha=0.7),
    "restricted soft": lambda z, y, n, t: restricted_cross_entropy(z, y, n, alpha=0.7, soft=True),
    "class balanced": lambda z, y, n, t: class_balanced_cross_entropy(z, y, n),
    "class balanced all": lambda z, y, n, t: class_balanced_cross_entropy(z, y, n, normalise="all"),
    "focal": lambda z, y, n, t: focal_loss(z, y),
    "focal gamma=0.5": lambda z, y, n, t: focal_loss(z, y, gamma=0.5),
    "focal classwise": lambda z, y, n, t: focal_loss(z, y, class_accuracy=(n > 0) / 2.0),
    "label smoothing": lambda z, y, n, t: label_smoothing_cross_entropy(z, y),
    "distillation": lambda z, y, n, t: distillation(z, t, temperature=2.0),
    "distillation present": lambda z, y, n, t: distillation(z, t, classes=n > 0),
    "vacant": lambda z, y, n, t: vacant_distillation(z, t, n),
    "not true": lambda z, y, n, t: not_true_distillation(z, t, y, temperature=3.0),
    "not true, no teacher": lambda z, y, n, t: not_true_distillation(z, None, y),
    "label masking": lambda z, y, n, t: label_masking_distillation(z, t, y, n, temperature=3.0),
    "label masking, no teacher": lambda z, y, n, t: label_masking_distillation(z, None, y, n),
    "label masking ge": lambda z, y, n, t: label_masking_distillation(z, t, y, n, majority="ge"),
    "label masking present": lambda z, y, n, t: label_masking_distillation(z, t, y, n, majority="present"),
    "label masking ntd": lambda z, y, n, t: label_masking_distillation(z, t, y, n, fallback="ntd"),
    "decoupled": lambda z, y, n, t: decoupled_distillation(z, t, y, alpha=1.0, beta=8.0, temperature=4.0),
    "partial": lambda z, y, n, t: partial(z, y, t),
    "partial reverse": lambda z, y, n, t: partial(z, y, t, direction="reverse", mean="batch"),
    "suppression": lambda z, y, n, t: logit_suppression(z, y, n),
    "suppression paper": lambda z, y, n, t: logit_suppression(z, y, n, form="paper"),
    "proximal": lambda z, y, n, t: proximal_term({"a": z, "b": 2 * z}, {"a": t, "b": t}, mu=0.1),
    "contrastive": lambda z, y, n, t: contrastive_term(z, t, t.flip(1)),
    "contrastive two": lambda z, y, n, t: contrastive_term(z, t, torch.stack([t.flip(1), t.flip(0)])),
    "decorrelation": lambda z, y, n, t: decorrelation_term(z),
    "decorrelation paper": lambda z, y, n, t: decorrelation_term(z, form="paper"),
    "manifold": lambda z, y, n, t: manifold_term(z, y, len(n)),
    "prototype margin": lambda z, y, n, t: prototype_margin_term(
        z, y, t[0] * torch.eye(len(n), dtype=z.dtype, device=z.device), n > 0
    ),
}
SHIFT_CHANGES = {
    *("restricted", "restricted soft", "suppression", "suppression paper", "proximal"),
    *("contrastive", "contrastive two", "prototype margin"),
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())

COUNTS = {
    "none vacant": [30, 5, 1, 200, 40, 12],
    "equal": [7] * 6,
    "one vacant": [30, 5, 0, 200, 40, 12],
    "some vacant": [30, 0, 0, 200, 0, 12],
    "all but one vacant": [0, 0, 0, 200, 0, 0],
    "all vacant": [0] * 6,
    "two classes": [3, 9],
    "two classes, one vacant": [0, 9],
}
LABELS: dict[str, Callable[[list[int]], list[int]]] = {
    # Labels the client really holds, in turn, ...
    "mixed": lambda present: [present[i % len(present)] for i in range(5)],
    "one label": lambda present: [present[-1]] * 5,
    "one sample": lambda present: [present[0]],
    # ... and one that its counts deny.
    "inconsistent": lambda present: [0, 1, 0, 1, 1],
}


def batch(
    seed: int, labels: list[int], classes: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    z, t = (torch.randn(len(labels), classes, generator=generator, dtype=torch.float64) for _ in range(2))
    return (2 * z).to(dtype), torch.tensor(labels), (2 * t).to(dtype)


def value_and_gradient(loss: Loss, z: Tensor, y: Tensor, n: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    z = z.clone().requires_grad_()
    value = loss(z, y, n, t)
    gradient = torch.zeros_like(z)
    if value.requires_grad:
        (gradient,) = torch.autograd.grad(value, z)
    return value.detach(), gradient


def test_the_table_calls_every_public_function() -> None:
    source = inspect.getsource(inspect.getmodule(batch))
    public = {
        name
        for module in (cross_entropies, distillations, terms)
        for name, thing in vars(module).items()
        if inspect.isfunction(thing) and thing.__module__ == module.__name__ and not name.startswith("_")
    }
    assert all(f"{name}(" in source for name in public)
    assert public | {"counts_of"} == {name for name in losses.__all__ if name.islower()}


@every_loss
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS.keys())
def test_values_and_gradients_are_finite(loss: Loss, counts: list[int]) -> None:
    present = [c for c, n in enumerate(counts) if n] or [0, 1]
    for kind, choose in LABELS.items():
        z, y, t = batch(0, choose(present), len(counts))
        huge_z, huge_t = 1e4 * z.sign(), 1e4 * t.sign()
        for student, teacher in ((z, t), (t, t), (0 * z, t), (huge_z, huge_t), (huge_z, t), (0 * z, huge_t)):
            value, gradient = value_and_gradient(loss, student, y, torch.tensor(counts), teacher)
            assert value.shape == ()
            assert value.dtype == torch.float32
            assert value.isfinite(), kind
            assert gradient.isfinite().all(), kind


@every_loss
def test_every_loss_teaches_a_client_with_vacant_classes_something(loss: Loss) -> None:
    z, y, t = batch(1, [0, 3, 5, 0, 3], 6)
    assert value_and_gradient(loss, z, y, torch.tensor(COUNTS["some vacant"]), t)[1].any()


@every_loss
@pytest.mark.parametrize("counts", ["none vacant", "some vacant", "all but one vacant"])
def test_gradients_agree_with_finite_differences(loss: Loss, counts: str) -> None:
    n = torch.tensor(COUNTS[counts])
    present = n.nonzero().flatten().tolist()
    z, y, t = batch(1, LABELS["mixed"](present), 6, torch.float64)
    assert loss(z, y, n, t).dtype == torch.float64
    assert torch.autograd.gradcheck(lambda z: loss(z, y, n, t), (z.requires_grad_(),))


@every_loss
def test_nothing_flows_into_the_teacher(loss: Loss) -> None:
    z, y, t = batch(2, [0, 1, 3, 3, 5], 6)
    n = torch.tensor(COUNTS["one vacant"])
    z.requires_grad_()
    t.requires_grad_()
    value = loss(z, y, n, t)
    (gradient,) = torch.autograd.grad(value, t, allow_unused=True)
    assert gradient is None or not gradient.any()


@every_loss
def test_clients_stack_under_vmap(loss: Loss) -> None:
    counts = torch.tensor([row for row in COUNTS.values() if len(row) == 6])
    batches = [
        batch(seed, LABELS["mixed"](row.nonzero().flatten().tolist() or [0, 1]), 6)
        for seed, row in enumerate(counts)
    ]
    z, y, t = (torch.stack(tensors) for tensors in zip(*batches, strict=True))

    values = torch.func.vmap(loss)(z, y, counts, t)
    gradients = torch.func.vmap(torch.func.grad(loss))(z, y, counts, t)

    for i in range(len(counts)):
        value, gradient = value_and_gradient(loss, z[i], y[i], counts[i], t[i])
        torch.testing.assert_close(values[i], value, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradients[i], gradient, rtol=1e-5, atol=1e-6)


@every_loss
def test_no_shape_depends_on_a_value(loss: Loss) -> None:
    # The meta device has no values at all: reading one, or a shape that follows from one, raises.
    z, y, t = (x.to("meta") for x in batch(3, [0, 1, 3, 3, 5], 6))
    assert loss(z, y, torch.tensor(COUNTS["one vacant"]).to("meta"), t).shape == ()


@every_loss
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(loss: Loss, dtype: torch.dtype) -> None:
    z, y, t = batch(4, [0, 1, 3, 3, 5], 6, dtype)
    n = torch.tensor(COUNTS["one vacant"])
    expected, gradient = value_and_gradient(loss, z.float(), y, n, t.float())
    value, half_gradient = value_and_gradient(loss, z, y, n, t)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(half_gradient, gradient.to(dtype))
    with torch.autocast("cpu", dtype):
        assert torch.equal(loss(z, y, n, t), value)


@every_loss
def test_label_and_count_types_do_not_matter(loss: Loss) -> None:
    z, y, t = batch(5, [0, 1, 3, 3, 5], 6)
    n = torch.tensor(COUNTS["one vacant"])
    expected = loss(z, y, n, t)
    for y_type, n_type in [
        (torch.int32, torch.int32),
        (torch.uint8, torch.float32),
        (torch.int64, torch.float64),
    ]:
        torch.testing.assert_close(loss(z, y.to(y_type), n.to(n_type), t), expected, rtol=1e-6, atol=0)


@every_loss
def test_a_negative_count_is_a_vacant_class(loss: Loss) -> None:
    z, y, t = batch(5, [0, 1, 3, 3, 5], 6)
    n = torch.tensor(COUNTS["some vacant"])
    assert torch.equal(loss(z, y, torch.where(n > 0, n, -100), t), loss(z, y, n, t))


@pytest.mark.parametrize("name", LOSSES)
def test_a_constant_added_to_every_row_changes_nothing(name: str) -> None:
    z, y, t = batch(6, [0, 1, 3, 3, 5], 6, torch.float64)
    n = torch.tensor(COUNTS["some vacant"])
    row = torch.tensor([[3.0], [-40.0], [0.5], [7.0], [100.0]], dtype=torch.float64)
    # The terms over features are invariant to a shift of all samples alike.
    shift = torch.tensor(11.0) if name.startswith(("decorrelation", "manifold")) else row
    before, after = LOSSES[name](z, y, n, t), LOSSES[name](z + shift, y, n, t)
    moves = not torch.isclose(before, after, rtol=1e-10, atol=1e-10)
    assert moves == (name in SHIFT_CHANGES)


@pytest.mark.parametrize(
    "name",
    [name for name in LOSSES if name.startswith(("distil", "vacant", "not", "label m", "dec", "part"))],
)
def test_a_constant_added_to_every_row_of_the_teacher_changes_nothing(name: str) -> None:
    z, y, t = batch(7, [0, 1, 3, 3, 5], 6, torch.float64)
    n = torch.tensor(COUNTS["some vacant"])
    row = torch.tensor([[3.0], [-40.0], [0.5], [7.0], [100.0]], dtype=torch.float64)
    torch.testing.assert_close(LOSSES[name](z, y, n, t), LOSSES[name](z, y, n, t + row))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_loss
def test_a_step_can_be_captured_in_a_cuda_graph(loss: Loss) -> None:
    inputs = [[x.cuda() for x in batch(seed, LABELS["mixed"]([0, 3, 5]), 6)] for seed in (8, 9)]
    counts = [torch.tensor(COUNTS[name]).cuda() for name in ("none vacant", "some vacant")]
    z, y, t = (x.clone() for x in inputs[0])
    n = counts[0].clone()
    z.requires_grad_()

    def step() -> tuple[Tensor, Tensor]:
        value = loss(z, y, n, t)
        return value, torch.autograd.grad(value, z)[0]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value, gradient = step()

    for (new_z, new_y, new_t), new_n in zip(inputs, counts, strict=True):
        with torch.no_grad():
            for static, new in ((z, new_z), (y, new_y), (t, new_t), (n, new_n)):
                static.copy_(new)
        graph.replay()
        expected, expected_gradient = value_and_gradient(loss, new_z, new_y, new_n, new_t)
        torch.testing.assert_close(value.detach(), expected)
        torch.testing.assert_close(gradient, expected_gradient)
