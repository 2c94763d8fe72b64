"""How the losses relate: limiting cases, gradients in closed form, decompositions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
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

close = torch.testing.assert_close


def holds_for(*strategies: st.SearchStrategy[object]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return lambda test: settings(max_examples=40)(given(*strategies)(test))


@dataclass(frozen=True)
class Client:
    """One client's batch: z student, t teacher, y labels among the present classes, n counts."""

    z: Tensor
    t: Tensor
    y: Tensor
    n: Tensor

    @property
    def vacant(self) -> Tensor:
        return self.n == 0

    @property
    def label(self) -> Tensor:
        return F.one_hot(self.y, len(self.n)).bool()


@st.composite
def clients(
    draw: st.DrawFn, *, smallest: int = 0, batch: int | None = None, classes: int | None = None
) -> Client:
    c = classes or draw(st.integers(2, 7))
    b = batch or draw(st.integers(1, 6))
    vacant = draw(st.lists(st.booleans(), min_size=c, max_size=c)) if smallest == 0 else [False] * c
    counts = [0 if v else draw(st.integers(max(smallest, 1), 400)) for v in vacant]
    if not any(counts):
        counts[draw(st.integers(0, c - 1))] = 5
    present = [i for i, n in enumerate(counts) if n]
    labels = [draw(st.sampled_from(present)) for _ in range(b)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    z, t = (3 * torch.randn(b, c, generator=generator, dtype=torch.float64) for _ in range(2))
    return Client(z, t, torch.tensor(labels), torch.tensor(counts))


def gradient(loss: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    return torch.func.grad(loss)(z)


temperatures = st.sampled_from([0.5, 1.0, 3.0])


# ------------------------------------------------------------------------------ cross-entropies


def neutral_settings() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    counts = torch.arange(1, 11)
    return {
        "calibrated tau=0": lambda z, y: calibrated_cross_entropy(z, y, counts, tau=0.0),
        "margin tau=0": lambda z, y: margin_cross_entropy(z, y, counts, tau=0.0),
        "restricted alpha=1": lambda z, y: restricted_cross_entropy(z, y, counts - 1, alpha=1.0),
        "restricted soft alpha=1": lambda z, y: restricted_cross_entropy(z, y, counts, alpha=1.0, soft=True),
        "restricted, none vacant": lambda z, y: restricted_cross_entropy(z, y, counts, alpha=0.3),
        "label smoothing 0": lambda z, y: label_smoothing_cross_entropy(z, y, smoothing=0.0),
        "focal gamma=0": lambda z, y: focal_loss(z, y, gamma=0.0),
        "class balanced beta=0": lambda z, y: class_balanced_cross_entropy(z, y, counts, beta=0.0),
    }


@pytest.mark.parametrize("name", neutral_settings())
def test_neutral_settings_are_cross_entropy_to_the_last_bit(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    z, y = torch.randn(50, 10, generator=generator), torch.randint(0, 10, (50,), generator=generator)
    loss = neutral_settings()[name]
    assert torch.equal(loss(z, y), F.cross_entropy(z, y))
    # By autograd, as a training loop takes it.
    z.requires_grad_()
    (ours,) = torch.autograd.grad(loss(z, y), z)
    (plain,) = torch.autograd.grad(F.cross_entropy(z, y), z)
    assert torch.equal(ours, plain)


@holds_for(clients(smallest=1), st.floats(0, 3), st.integers(1, 1000))
def test_equal_counts_are_cross_entropy(client: Client, tau: float, count: int) -> None:
    z, y, equal = client.z, client.y, torch.full_like(client.n, count)
    expected = F.cross_entropy(z, y)
    close(calibrated_cross_entropy(z, y, equal, tau=tau), expected)
    close(calibrated_cross_entropy(z, y, equal, tau=tau, floor=1e-9), expected)
    close(margin_cross_entropy(z, y, equal, tau=tau), expected)
    close(class_balanced_cross_entropy(z, y, equal), expected)
    close(restricted_cross_entropy(z, y, equal, alpha=0.1, soft=True), expected)


@holds_for(clients(smallest=1))
def test_calibration_adds_log_counts(client: Client) -> None:
    z, y, n = client.z, client.y, client.n
    close(calibrated_cross_entropy(z, y, n), F.cross_entropy(z + n.double().log(), y))
    close(calibrated_cross_entropy(z, y, 7 * n), calibrated_cross_entropy(z, y, n))
    close(calibrated_cross_entropy(z, y, n / n.sum()), calibrated_cross_entropy(z, y, n))
    # FedLC with its n^(-1/4) replaced by a constant minus log n is the same loss.
    pretended = (10 - n.double().log()).pow(-4)
    close(margin_cross_entropy(z, y, pretended, tau=1.0), calibrated_cross_entropy(z, y, n))


@holds_for(clients(), st.floats(0, 2))
def test_masked_losses_are_cross_entropy_over_the_present_classes(client: Client, tau: float) -> None:
    z, y, n = client.z, client.y, client.n
    columns = n.nonzero().flatten()
    position = torch.searchsorted(columns, y)
    present, counts = z[:, columns], n[columns]
    close(margin_cross_entropy(z, y, n, tau=0.0), F.cross_entropy(present, position))
    close(calibrated_cross_entropy(z, y, n, tau=0.0), F.cross_entropy(present, position))
    close(margin_cross_entropy(z, y, n, tau=tau), margin_cross_entropy(present, position, counts, tau=tau))
    close(
        calibrated_cross_entropy(z, y, n, tau=tau),
        calibrated_cross_entropy(present, position, counts, tau=tau),
    )


@holds_for(clients(), st.floats(0, 2))
def test_masked_losses_leave_vacant_logits_alone(client: Client, tau: float) -> None:
    z, y, n = client.z, client.y, client.n
    calibrated = gradient(lambda z: calibrated_cross_entropy(z, y, n, tau=tau), z)
    margin = gradient(lambda z: margin_cross_entropy(z, y, n, tau=tau), z)
    assert not calibrated[:, client.vacant].any()
    assert not margin[:, client.vacant].any()
    # softmax minus one-hot on the present classes.
    q = (z - tau * n.clamp(min=1).double().pow(-0.25)).masked_fill(client.vacant, -math.inf).softmax(1)
    close(margin, (q - client.label.double()) / len(y))


@holds_for(clients(batch=1), st.floats(0, 2))
def test_margin_without_the_label_in_the_denominator(client: Client, tau: float) -> None:
    z, y, n = client.z, client.y, client.n
    include = margin_cross_entropy(z, y, n, tau=tau)
    exclude = margin_cross_entropy(z, y, n, tau=tau, denominator="exclude")
    alone = (n > 0).sum() == 1
    if alone:
        assert include == exclude == 0
    else:
        close(exclude, torch.expm1(include).log(), rtol=1e-6, atol=1e-6)
    grad = gradient(lambda z: margin_cross_entropy(z, y, n, tau=tau, denominator="exclude"), z)
    close(grad[0, y[0]].item(), 0.0 if alone else -1.0)


@holds_for(clients(smallest=1, classes=2, batch=1), st.floats(0, 5))
def test_the_margin_favours_the_rarer_class(client: Client, tau: float) -> None:
    z, y, n = client.z, client.y, client.n.double()
    other = 1 - y
    shift = tau * (n[y] ** -0.25 - n[other] ** -0.25)
    expected = F.softplus(z[0, other] - z[0, y] + shift).squeeze()
    close(margin_cross_entropy(z, y, client.n, tau=tau), expected)


@holds_for(clients())
def test_one_class_has_nothing_to_learn_from_masked_losses(client: Client) -> None:
    z, t = client.z, client.t
    n = torch.zeros_like(client.n)
    n[0] = 9
    y = torch.zeros_like(client.y)
    for loss in (
        lambda z: calibrated_cross_entropy(z, y, n),
        lambda z: margin_cross_entropy(z, y, n, tau=0.5),
        lambda z: distillation(z, t, classes=n > 0),
        lambda z: logit_suppression(z, y, n, form="paper"),
    ):
        assert loss(z) == 0
        assert not gradient(loss, z).any()


def test_a_sample_whose_label_the_counts_deny_contributes_nothing() -> None:
    z = torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.1, 2.0]])
    n = torch.tensor([4, 2, 0])
    denied = torch.tensor([0, 2])
    for loss in (
        calibrated_cross_entropy,
        lambda *a: margin_cross_entropy(*a, tau=0.5),
        lambda *a: margin_cross_entropy(*a, tau=0.5, denominator="exclude"),
    ):
        close(loss(z, denied, n), loss(z[:1], denied[:1], n) / 2)
        assert not gradient(lambda z, loss=loss: loss(z, denied, n), z)[1].any()
        assert loss(z, denied, torch.zeros_like(n)) == 0


@holds_for(clients(), st.floats(0, 1))
def test_restricted_softmax_gradient(client: Client, alpha: float) -> None:
    z, y, n = client.z, client.y, client.n
    scale = torch.where(client.vacant, alpha, 1.0)
    p = (scale * z).softmax(1)
    grad = gradient(lambda z: restricted_cross_entropy(z, y, n, alpha=alpha), z)
    close(grad, scale * (p - client.label.double()) / len(y), rtol=1e-6, atol=1e-9)
    pinned = gradient(lambda z: restricted_cross_entropy(z, y, n, alpha=0.0), z)
    assert not pinned[:, client.vacant].any()


@holds_for(clients(), st.floats(0.01, 5))
def test_focal_loss_is_at_most_cross_entropy(client: Client, gamma: float) -> None:
    z, y = client.z, client.y
    assert focal_loss(z, y, gamma=gamma) <= F.cross_entropy(z, y) + 1e-12
    p = z.softmax(1)
    factor = (1 - p.gather(1, y.unsqueeze(1))) ** gamma
    detached = gradient(lambda z: focal_loss(z, y, gamma=gamma, detach_weight=True), z)
    close(detached, factor * (p - client.label.double()) / len(y))
    flowing = gradient(lambda z: focal_loss(z, y, gamma=gamma), z)
    assert not torch.equal(flowing, detached)


@pytest.mark.parametrize("accuracy", [0.0, 0.3, 1.0])
def test_focal_loss_of_equally_accurate_classes_is_cross_entropy(accuracy: float) -> None:
    z, y = torch.tensor([[1.0, 2.0, 0.0], [0.3, 0.2, 0.9]]), torch.tensor([0, 2])
    close(focal_loss(z, y, class_accuracy=torch.full((3,), accuracy)), F.cross_entropy(z, y))


@holds_for(clients())
def test_class_balanced_weights_tend_to_inverse_counts(client: Client) -> None:
    z, y, n = client.z, client.y, client.n
    inverse = torch.where(client.vacant, 0.0, 1 / n.double())
    inverse = inverse * (n > 0).sum() / inverse.sum()
    expected = (inverse[y] * F.cross_entropy(z, y, reduction="none")).mean()
    close(class_balanced_cross_entropy(z, y, n, beta=1 - 1e-10), expected, rtol=1e-6, atol=0)
    single = class_balanced_cross_entropy(z.float(), y, n, beta=1 - 1e-10)
    close(single.double(), expected, rtol=1e-5, atol=1e-6)


@holds_for(clients(), st.floats(0, 1))
def test_label_smoothing_gradient(client: Client, smoothing: float) -> None:
    z, y = client.z, client.y
    target = (1 - smoothing) * client.label.double() + smoothing / z.shape[1]
    grad = gradient(lambda z: label_smoothing_cross_entropy(z, y, smoothing=smoothing), z)
    close(grad, (z.softmax(1) - target) / len(y))


# ------------------------------------------------------------------------------ distillation


@holds_for(clients(), temperatures)
def test_a_student_equal_to_its_teacher_has_nothing_to_learn(client: Client, temperature: float) -> None:
    z, y, n = client.z, client.y, client.n
    for loss in (
        lambda z: distillation(z, client.z, temperature=temperature),
        lambda z: distillation(z, client.z, classes=n > 0),
        lambda z: vacant_distillation(z, client.z, n),
        lambda z: not_true_distillation(z, client.z, y, temperature=temperature),
        lambda z: decoupled_distillation(z, client.z, y, alpha=1.0, beta=8.0, temperature=temperature),
    ):
        close(loss(z).item(), 0.0)
        close(gradient(loss, z), torch.zeros_like(z))


@holds_for(clients(), temperatures)
def test_distillation_gradient_and_restriction(client: Client, temperature: float) -> None:
    z, t, y = client.z, client.t, client.y
    grad = gradient(lambda z: distillation(z, t, temperature=temperature), z)
    expected = temperature * ((z / temperature).softmax(1) - (t / temperature).softmax(1)) / len(y)
    close(grad, expected)
    present = ~client.vacant
    restricted = gradient(lambda z: distillation(z, t, classes=present), z)
    assert not restricted[:, client.vacant].any()
    close(distillation(z, t, classes=torch.ones_like(present)), distillation(z, t))
    close(distillation(z, t, classes=present), distillation(z[:, present], t[:, present]))
    assert distillation(z, t, classes=torch.zeros_like(present)) == 0


@holds_for(clients())
def test_vacant_distillation_touches_vacant_logits_only(client: Client) -> None:
    z, t, y, n, vacant = client.z, client.t, client.y, client.n, client.vacant
    loss = vacant_distillation(z, t, n)
    grad = gradient(lambda z: vacant_distillation(z, t, n), z)
    assert loss >= -1e-12
    assert not grad[:, ~vacant].any()
    if vacant.sum() <= 1:
        assert loss == 0
        assert not grad.any()
    else:
        close(grad[:, vacant], (z[:, vacant].softmax(1) - t[:, vacant].softmax(1)) / len(y))
        close(vacant_distillation(z + 5.0 * vacant, t - 3.0 * vacant, n), loss)


@holds_for(clients(batch=1))
def test_chain_rule_over_present_and_vacant_classes(client: Client) -> None:
    z, t, vacant = client.z, client.t, client.vacant
    q, p = (x.softmax(1)[0, vacant].sum() for x in (z, t))
    between = torch.xlogy(p, p / q) + torch.xlogy(1 - p, (1 - p) / (1 - q)) if vacant.any() else 0.0
    within_vacant = vacant_distillation(z, t, client.n)
    within_present = distillation(z, t, classes=~vacant)
    close(distillation(z, t), between + p * within_vacant + (1 - p) * within_present)


@holds_for(clients(), temperatures)
def test_not_true_distillation(client: Client, temperature: float) -> None:
    z, t, y = client.z, client.t, client.y
    loss = not_true_distillation(z, t, y, temperature=temperature)
    grad = gradient(lambda z: not_true_distillation(z, t, y, temperature=temperature), z)
    assert loss >= -1e-12
    assert not grad[client.label].any()
    if z.shape[1] == 2:
        assert loss == 0
        assert not grad.any()
    decoupled = decoupled_distillation(z, t, y, alpha=0.0, beta=1.0, temperature=temperature)
    assert torch.equal(decoupled, loss)


@holds_for(clients(), temperatures, st.floats(-5, 5))
def test_no_teacher_is_a_constant_teacher(client: Client, temperature: float, level: float) -> None:
    z, y, n = client.z, client.y, client.n
    constant = torch.full_like(z, level)
    without = not_true_distillation(z, None, y, temperature=temperature)
    close(without, not_true_distillation(z, constant, y, temperature=temperature))
    close(
        label_masking_distillation(z, None, y, n, temperature=temperature),
        label_masking_distillation(z, constant, y, n, temperature=temperature),
    )
    # Zero exactly when the classes other than the label are level.
    assert without > 1e-9 or z.shape[1] == 2
    close(not_true_distillation(torch.where(client.label, z, level), None, y).item(), 0.0)


@holds_for(clients(batch=1), temperatures)
def test_decoupled_distillation_adds_up_to_plain_distillation(client: Client, temperature: float) -> None:
    z, t, y = client.z, client.t, client.y

    def decoupled(alpha: float, beta: float) -> Tensor:
        return decoupled_distillation(z, t, y, alpha=alpha, beta=beta, temperature=temperature)

    others = 1 - (t / temperature).softmax(1)[0, y[0]]
    close(decoupled(1, 0) + others * decoupled(0, 1), distillation(z, t, temperature=temperature))


def test_decoupled_distillation_survives_certainty() -> None:
    # 1 - p_y underflows in float32; its logarithm is -200.
    z, t, y = torch.tensor([[200.0, 0.0]]), torch.tensor([[0.0, 0.0]]), torch.tensor([0])
    loss = decoupled_distillation(z, t, y, alpha=1.0, beta=1.0, temperature=1.0)
    close(loss.item(), 0.5 * math.log(0.5) + 0.5 * (math.log(0.5) + 200), rtol=1e-6, atol=0)


def left_to_teacher(client: Client) -> Tensor:
    return ~client.label & ~(client.n > client.n.sum() / len(client.n))


@holds_for(clients(), temperatures)
def test_label_masking_gradient_pushes_the_majority_down(client: Client, temperature: float) -> None:
    z, t, y, n = client.z, client.t, client.y, client.n
    kept = left_to_teacher(client)
    student = (z / temperature).masked_fill(client.label, -math.inf).softmax(1)
    teacher = (t / temperature).masked_fill(~kept, -math.inf).softmax(1)
    expected = torch.where(kept.any(1, keepdim=True), temperature * (student - teacher) / len(y), 0.0)
    grad = gradient(lambda z: label_masking_distillation(z, t, y, n, temperature=temperature), z)
    close(grad, expected)
    assert not grad[client.label].any()


@holds_for(clients(), temperatures)
def test_label_masking_with_a_student_equal_to_its_teacher(client: Client, temperature: float) -> None:
    z, y, n = client.z, client.y, client.n
    kept = left_to_teacher(client)
    student = (z / temperature).masked_fill(client.label, -math.inf).softmax(1)
    mass = torch.where(kept, student, 0.0).sum(1)
    expected = -(temperature**2) * torch.where(kept.any(1), mass, 1.0).log().mean()
    close(label_masking_distillation(z, z, y, n, temperature=temperature), expected)


@holds_for(clients(smallest=1), temperatures, st.integers(1, 500))
def test_label_masking_of_a_balanced_client(client: Client, temperature: float, count: int) -> None:
    z, y, n = client.z, client.y, torch.full_like(client.n, count)
    for teacher in (client.t, None):
        not_true = not_true_distillation(z, teacher, y, temperature=temperature)
        masking = label_masking_distillation(z, teacher, y, n, temperature=temperature)
        assert torch.equal(masking, not_true)  # no majority
        for majority in ("ge", "present"):  # nothing but majority
            empty = label_masking_distillation(z, teacher, y, n, temperature=temperature, majority=majority)
            assert empty == 0
            fallback = label_masking_distillation(
                z, teacher, y, n, temperature=temperature, majority=majority, fallback="ntd"
            )
            assert torch.equal(fallback, not_true)


CONFUSED = torch.tensor(
    [[0.0, 1.0, 5.0, 0.0], [4.0, 0.0, 1.0, 0.0], [0.0, 0.5, 3.0, 2.0]], dtype=torch.float64
)
CONFUSED_LABELS = torch.tensor([1, 2, 3])  # predicted 2, 0, 2


def test_partial_distillation_needs_a_mistake_inside_a_group() -> None:
    expert = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)).double()
    assert partial_distillation(CONFUSED, CONFUSED.argmax(1), [expert], [[1, 2]]) == 0
    assert partial_distillation(CONFUSED, CONFUSED_LABELS, [expert], [[0, 1]]) == 0
    assert partial_distillation(CONFUSED, CONFUSED_LABELS, [], []) == 0
    assert partial_distillation(CONFUSED, CONFUSED_LABELS, [expert], [[1, 2]]) > 0


def test_partial_distillation_without_groups_has_a_gradient_of_zero() -> None:
    z = CONFUSED.clone().requires_grad_()
    partial_distillation(z, CONFUSED_LABELS, [], []).backward()
    assert z.grad is not None
    assert not z.grad.any()


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_partial_distillation_stays_inside_the_group(direction: str) -> None:
    group = [3, 1, 2]
    expert = torch.randn(3, 3, generator=torch.Generator().manual_seed(0)).double()

    def loss(z: Tensor, expert: Tensor = expert, group: list[int] = group) -> Tensor:
        return partial_distillation(z, CONFUSED_LABELS, [expert], [group], direction=direction)

    grad = gradient(loss, CONFUSED)
    assert not grad[:, 0].any()
    assert not grad[1].any()  # 2 taken for 0: outside
    assert grad[[0, 2]][:, group].all()
    # An expert that agrees teaches nothing, whatever the level of its logits.
    agreed = gradient(lambda z: loss(z, CONFUSED[:, group] + 3), CONFUSED)
    close(agreed, torch.zeros_like(agreed))
    # The columns may come in any order, as long as the group names them.
    close(loss(CONFUSED), loss(CONFUSED, expert[:, [2, 0, 1]], [2, 3, 1]))


def test_partial_distillation_in_the_limit_of_high_temperature() -> None:
    group, t = [1, 2, 3], 1e3
    expert = torch.randn(3, 3, generator=torch.Generator().manual_seed(1)).double()
    gap = expert - CONFUSED[:, group]
    spread = (gap - gap.mean(1, keepdim=True)).square().sum(1)[[0, 2]].mean() / (2 * 3)
    loss = partial_distillation(
        CONFUSED, CONFUSED_LABELS, [expert], [group], temperature=t, squared_temperature=True
    )
    close(loss, spread, rtol=1e-2, atol=0)


# ------------------------------------------------------------------------------ terms


@holds_for(clients(), st.floats(-5, 5))
def test_suppression_as_printed_follows_the_level_of_the_logits(client: Client, level: float) -> None:
    z, y, n = client.z, client.y, client.n
    share = n.double() / n.sum()
    pushed = ~client.label.all(0)
    shift = level * share[pushed].sum()
    after, before = (logit_suppression(x, y, n, form="paper") for x in (z + level, z))
    close(after - before, shift, rtol=1e-9, atol=1e-9)
    # Over the batch, each class is pushed with its share: a softmax over the samples of other classes.
    expected = share * torch.where(pushed, z.masked_fill(client.label, -math.inf).softmax(0), 0.0)
    close(gradient(lambda z: logit_suppression(z, y, n, form="paper"), z), expected)


@holds_for(clients())
def test_official_suppression_is_bounded_for_classes_in_the_batch(client: Client) -> None:
    z, y, n = client.z, client.y, client.n
    in_batch = torch.where(client.label.any(0), n, 0)  # the client holds nothing else
    share = in_batch.double() / in_batch.sum()
    bound = torch.xlogy(share, client.label.double().mean(0)).sum()
    for level in (0.0, -50.0, -1e4):
        assert logit_suppression(z + level, y, in_batch) >= bound - 1e-9
    grad = gradient(lambda z: logit_suppression(z, y, n), z)
    assert not grad[:, client.vacant].any()
    assert not grad[client.label].any()
    assert (grad >= 0).all()


@holds_for(clients(), st.floats(0, 10))
def test_proximal_gradient(client: Client, mu: float) -> None:
    params, anchor = {"a": client.z, "b": client.z[0]}, {"b": client.t[0], "a": client.t}
    grads = torch.func.grad(lambda p: proximal_term(p, anchor, mu=mu))(params)
    for name, grad in grads.items():
        close(grad, mu * (params[name] - anchor[name]))
    at_anchor = torch.func.grad(lambda p: proximal_term(p, anchor, mu=mu))(anchor)
    assert not any(grad.any() for grad in at_anchor.values())


@holds_for(clients(), st.floats(0.1, 2))
def test_contrastive_term_bounds_and_scale(client: Client, temperature: float) -> None:
    h, anchor, previous = client.z, client.t, client.t.flip(0).neg() + 0.1
    loss = contrastive_term(h, anchor, previous, temperature=temperature)
    low, high = (math.log1p(math.exp(sign * 2 / temperature)) for sign in (-1, 1))
    assert low - 1e-9 <= loss <= high + 1e-9
    close(contrastive_term(1e3 * h, 0.1 * anchor, previous, temperature=temperature), loss)


def test_contrastive_term_of_equal_references_moves_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    h, reference = (torch.randn(64, 32, generator=generator) for _ in range(2))
    h.requires_grad_()
    loss = contrastive_term(h, reference, reference)
    close(loss.item(), math.log(2))
    (grad,) = torch.autograd.grad(loss, h)
    assert not grad.any()  # exactly: the first round of MOON is FedAvg, bit for bit


def test_contrastive_term_of_a_vector_without_direction() -> None:
    h, reference = torch.zeros(1, 3), torch.tensor([[1.0, 2.0, 3.0]])
    close(contrastive_term(h, reference, -reference).item(), math.log(2))
    assert not gradient(lambda h: contrastive_term(h, reference, -reference), h).any()
    close(
        contrastive_term(reference, 0 * reference, -reference, temperature=1.0).item(),
        math.log1p(math.exp(-1)),
    )


def feature_batch(samples: int, dimensions: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(samples, dimensions, generator=generator, dtype=torch.float64)
    return mixed + 0.5 * mixed.roll(1, dims=1)


def whitened(samples: int, dimensions: int) -> Tensor:
    h = feature_batch(samples, dimensions)
    return torch.linalg.qr(h - h.mean(0)).Q


@pytest.mark.parametrize(("samples", "dimensions"), [(12, 5), (4, 9)])
def test_decorrelation_is_the_mean_squared_correlation(samples: int, dimensions: int) -> None:
    h = feature_batch(samples, dimensions)
    k = torch.corrcoef(h.T)
    off = k[~torch.eye(dimensions, dtype=torch.bool)].square().mean()
    close(decorrelation_term(h), (samples - 1) ** 2 / samples * off, rtol=1e-6, atol=0)
    close(decorrelation_term(h, form="paper"), k.square().sum() / dimensions**2, rtol=1e-6, atol=0)
    stretched = h * torch.linspace(-3, 40, dimensions).double() + 7
    close(decorrelation_term(stretched), decorrelation_term(h), rtol=1e-5, atol=0)


def test_decorrelated_features_cost_nothing() -> None:
    h = whitened(12, 5)
    close(decorrelation_term(h).item(), 0.0, rtol=0, atol=1e-9)
    close(manifold_term(h, torch.zeros(12, dtype=torch.long), 3).item(), 0.0, rtol=0, atol=1e-9)
    assert decorrelation_term(h[:, :1]) == 0
    assert decorrelation_term(h[:1]) == decorrelation_term(h[:1], form="paper") == 0


@pytest.mark.parametrize(("samples", "dimensions"), [(15, 4), (15, 20)])
def test_manifold_term_is_decorrelation_class_by_class(samples: int, dimensions: int) -> None:
    h = feature_batch(samples, dimensions)
    y = torch.tensor([0] * 6 + [2] * 5 + [3] * 3 + [5])
    parts = [h[y == c] for c in (0, 2, 3)]
    expected = sum(len(part) * decorrelation_term(part) for part in parts) / 14
    close(manifold_term(h, y, 7), expected)
    # Each class may be moved and stretched on its own.
    moved = torch.cat([part * (3 + i) + 10 * i for i, part in enumerate(parts)] + [h[y == 5]])
    close(manifold_term(moved, y, 7), expected, rtol=1e-6, atol=0)


def test_manifold_term_of_duplicated_dimensions_and_of_lonely_samples() -> None:
    column = feature_batch(6, 1)
    duplicated = torch.cat([column, column], 1)
    close(manifold_term(duplicated, torch.zeros(6, dtype=torch.long), 1).item(), 5**2 / 6, rtol=1e-6, atol=0)
    lonely = manifold_term(duplicated, torch.arange(6), 6)
    assert lonely == 0


def test_prototype_margin_is_zero_beside_the_own_prototype() -> None:
    prototypes = 10 * torch.eye(4)
    known = torch.tensor([True, True, True, False])
    y = torch.tensor([0, 1, 2])
    near = prototypes[:3] + 0.1
    assert prototype_margin_term(near, y, prototypes, known) == 0
    assert prototype_margin_term(near, y.roll(1), prototypes, known) > 1
    # Exactly on a prototype the distance has no gradient.
    grad = gradient(lambda h: prototype_margin_term(h, y.roll(1), prototypes, known), prototypes[:3])
    assert grad.isfinite().all()
    # No class known but the own: nothing to keep away from.
    assert prototype_margin_term(near, y * 0, prototypes, torch.tensor([True, False, False, False])) == 0
