"""Methods that reshape the client's loss: what each must do, through the objective and through training."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, log_softmax, softmax

import unskew
from federations import flat, split
from unskew import Budget, Method, Trial, UserError, engines
from unskew.data.augment import normalise
from unskew.losses import label_masking_distillation
from unskew.methods import (
    METHODS,
    calfat,
    class_balanced,
    fedavg,
    fedcodl,
    feddkd,
    fedekd,
    fedkd,
    fedlc,
    fedlmd,
    fedlmd_switch,
    fedlmd_tf,
    fedntd,
    fedntd_tf,
    fedprox,
    fedrs,
    fedvls,
    focal,
    label_smoothing,
    logit_adjustment,
    logit_adjustment_post_hoc,
)
from unskew.methods.assemble import assemble
from unskew.program import Program
from unskew.result import State
from unskew.types import Out, Scope, Server, ServerState, View, Weights

NAMES = [
    "fedrs",
    "fedlc",
    "logit-adjustment",
    "calfat",
    "logit-adjustment-post-hoc",
    "fedntd",
    "fedntd-tf",
    "fedlmd",
    "fedlmd-tf",
    "fedlmd-switch",
    "fedvls",
    "feded",
    "fedkd",
    "fedekd",
    "feddkd",
    "fedcodl",
    "label-smoothing",
    "focal",
    "class-balanced",
]

OPTIONS = {
    "fedrs graded": fedrs(form="graded"),
    "fedlc clamp": fedlc(vacant="clamp"),
    "fedlc one": fedlc(vacant="one"),
    "logit-adjustment global": logit_adjustment(prior="global"),
    "logit-adjustment floor": logit_adjustment(floor=1e-9),
    "fedlmd ge": fedlmd(majority="ge", fallback="ntd", temperature=3.0, squared_temperature=False),
    "fedlmd present": fedlmd(majority="present"),
    "fedlmd-switch early": fedlmd_switch(switch_round=1),
    "fedvls mask": fedvls(floor=0.0, lam=0.5),
    "fedcodl own": fedcodl(student_init="own", warmup_rounds=1),
    "focal classwise": focal(classwise=True),
    "focal detached": focal(detach_weight=True),
    "class-balanced all": class_balanced(normalise="all"),
}

NEUTRAL = {
    "fedrs": fedrs(alpha=1.0),
    "fedrs graded": fedrs(alpha=1.0, form="graded"),
    "fedntd": fedntd(beta=0.0),
    "fedntd-tf": fedntd_tf(beta=0.0),
    "fedlmd": fedlmd(beta=0.0),
    "fedlmd-tf": fedlmd_tf(beta=0.0),
    "fedlmd-switch": fedlmd_switch(switch_round=1, beta=0.0, tf_beta=0.0),
    "fedkd": fedkd(beta=0.0),
    "fedekd": fedekd(beta=0.0),
    "feddkd": feddkd(weight=0.0),
    "fedcodl": fedcodl(alpha=0.0),
    "fedcodl warm-up": fedcodl(warmup_rounds=100, student_init="own"),
    "label-smoothing": label_smoothing(mu=0.0),
    "focal": focal(gamma=0.0),
    "focal classwise": focal(gamma=0.0, classwise=True),
    "class-balanced": class_balanced(beta=0.0),
}
"""With these hyperparameters a method is FedAvg, bit for bit."""


# ------------------------------------------------------------------------------ what tests are built from


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 28, 28), np.uint8), np.arange(60) % 5
    dataset = unskew.data.from_arrays(x, y, x[:20], y[:20], name="noise")
    return split(dataset, range(0, 60, 5), [i for i in range(33) if i % 5], [53])


def of_class(dataset, label, number, skip=0):
    return (dataset.train.labels == label).nonzero().flatten().tolist()[skip : skip + number]


def trained(trial, method):
    return flat(unskew.train(trial, method).weights)


class Given:
    """A model whose logits are its inputs, so that the teacher returns what the test wrote into the batch."""

    def frozen(self, weights, inputs, /):
        return Out(inputs, inputs)

    def classify(self, params, features, /):
        return features


def see(logits, labels, counts, *, teacher=None, memory=None, shared=None):
    """Return a view of one batch of one client."""
    logits, counts = torch.as_tensor(logits), torch.as_tensor(counts)
    scope = Scope(Weights({}, {}), counts, memory or {}, shared or {})
    teacher = torch.zeros_like(logits) if teacher is None else torch.as_tensor(teacher)
    return View(scope, teacher, torch.as_tensor(labels), {}, Out(logits, logits), Given())


def value_and_gradient(objective, logits, labels, counts, **more):
    z = torch.as_tensor(logits).detach().clone().requires_grad_()
    value = objective(see(z, labels, counts, **more))
    (gradient,) = torch.autograd.grad(value, z, allow_unused=True, materialize_grads=True)
    return value.detach(), gradient


def of_terms(method):
    """Return the method's objective without its classification loss."""
    return lambda view: sum((term(view) for term in method.terms), torch.zeros(()).double())


COUNTS = [30, 5, 0, 0, 10, 0]
C = len(COUNTS)


def batch(seed=0, size=7, counts=COUNTS, scale=2.0):
    """Draw logits, a teacher and labels of a client with these counts, in float64."""
    rng = np.random.default_rng(seed)
    z, g = rng.normal(scale=scale, size=(2, size, len(counts)))
    labels = rng.choice(np.flatnonzero(counts), size)
    return torch.from_numpy(z), torch.from_numpy(g), torch.from_numpy(labels)


close = torch.testing.assert_close


# ------------------------------------------------------------------------------ all of them


@pytest.fixture(scope="module")
def plain(skewed):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=2, epochs=1, cohort=3))
    return trial, trained(trial, fedavg())


@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_hyperparameters_are_fedavg_bit_for_bit(name, plain):
    trial, expected = plain
    assert torch.equal(trained(trial, NEUTRAL[name]), expected)


@pytest.mark.parametrize("name", NEUTRAL)
def test_a_teacher_leaves_no_trace_in_statistics_and_random_state(name, images):
    """Check that BatchNorm statistics move once per batch, and that dropout draws the same numbers."""

    def module():
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 5)
        )

    trial = Trial(images, module, budget=Budget(rounds=2, epochs=1, batch_size=8))
    plain, other = unskew.train(trial).weights, unskew.train(trial, NEUTRAL[name]).weights
    assert torch.equal(flat(plain), flat(other))
    for key, value in plain.buffers.items():
        assert torch.equal(value, other.buffers[key]), key


@pytest.mark.parametrize("name", NAMES)
def test_every_method_trains_digits_under_strong_skew(name, skewed):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=3, epochs=2, lr=0.05))
    method, _ = assemble({name: {}})
    result = unskew.train(trial, method)
    assert flat(result.weights).isfinite().all()
    assert result.accuracy["last"] > 0.15  # chance is 0.1


@pytest.mark.parametrize("name", [*NAMES, *OPTIONS])
def test_hard_clients_give_finite_weights(name, digits):
    method = OPTIONS[name] if name in OPTIONS else assemble({name: {}})[0]

    def three_of_each(classes, skip):
        return [i for c in range(classes) for i in of_class(digits, c, 3, skip)]

    trial = Trial(
        split(
            digits,
            of_class(digits, 0, 12),  # one class
            of_class(digits, 1, 1),  # one sample
            [],  # none
            three_of_each(9, skip=20),  # one class vacant
            three_of_each(10, skip=30),  # none vacant
            [*of_class(digits, 2, 9), *of_class(digits, 3, 1)],  # two classes
        ),
        "mlp-small",
        budget=Budget(rounds=3, epochs=2, batch_size=5, lr=0.1),
    )
    result = unskew.train(trial, method)
    assert flat(result.weights).isfinite().all()
    assert all(math.isfinite(round.train_loss) for round in result.rounds)


@pytest.mark.parametrize("name", [*NAMES, *OPTIONS])
def test_two_classes(name):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 3)).astype(np.float32), np.repeat([0, 1], [22, 8])
    dataset = unskew.data.from_arrays(x, y, x, y, name="two")
    method = OPTIONS[name] if name in OPTIONS else assemble({name: {}})[0]
    trial = Trial(split(dataset, range(10), range(10, 30)), "logistic", budget=Budget(rounds=2, epochs=1))
    assert trained(trial, method).isfinite().all()


SHIFT_INVARIANT = {
    "fedlc": fedlc(),
    "fedlc exclude": fedlc(denominator="exclude"),
    "logit-adjustment": logit_adjustment(),
    "fedntd": fedntd(),
    "fedntd-tf": fedntd_tf(),
    "fedlmd": fedlmd(temperature=2.0),
    "fedlmd-tf": fedlmd_tf(),
    "fedkd": fedkd(beta=1.0),
    "fedekd": fedekd(beta=1.0),
    "feddkd": feddkd(weight=1.0),
    "label-smoothing": label_smoothing(),
    "focal": focal(),
    "class-balanced": class_balanced(),
    "fedvls without suppression": fedvls(gamma=0.0),
}


@pytest.mark.parametrize("name", SHIFT_INVARIANT)
@given(shift=st.floats(-20, 20), teacher_shift=st.floats(-20, 20), seed=st.integers(0, 99))
@settings(max_examples=10)
def test_a_constant_on_all_logits_changes_nothing(name, shift, teacher_shift, seed):
    z, g, y = batch(seed)
    objective = SHIFT_INVARIANT[name].objective
    close(
        objective(see(z + shift, y, COUNTS, teacher=g + teacher_shift)),
        objective(see(z, y, COUNTS, teacher=g)),
        rtol=1e-6,
        atol=1e-6,
    )


@pytest.mark.parametrize("name", [*NAMES, *OPTIONS])
def test_a_captured_graph_could_run_the_objective(name):
    """Check that no value of a tensor is read back: the objective runs on tensors without values."""
    method = OPTIONS[name] if name in OPTIONS else assemble({name: {}})[0]
    if isinstance(method, Program):
        method = method.base
    meta = torch.device("meta")
    counts, number = torch.ones(C, dtype=torch.int64, device=meta), torch.zeros((), device=meta)
    known = {"fedlmd-switch/round": number, "fedcodl/round": number}
    memory = {"logit-adjustment/total": counts, "focal/accuracy": torch.rand(C, device=meta)}
    z, y = torch.randn(7, C, device=meta, requires_grad=True), torch.zeros(7, dtype=torch.int64, device=meta)
    scope = Scope(Weights({}, {}), counts, memory, known)
    view = View(scope, torch.randn(7, C, device=meta), y, {}, Out(z, z), Given())
    method.objective(view).backward()
    assert z.grad is not None


@pytest.mark.parametrize("counts", [[5, 5, 5, 5], [1, 0, 0, 9], [3, 0, 0, 0], [4, 4, 4, 0]])
@pytest.mark.parametrize("name", ["fedntd", "fedkd", "fedekd", "feddkd", "fedvls", "fedcodl"])
def test_nothing_is_distilled_where_the_student_is_its_teacher(name, counts):
    z, _, y = batch(counts=counts)
    method = {"fedvls": fedvls(gamma=0.0)}.get(name) or assemble({name: {}})[0]
    shared = {"fedcodl/round": torch.zeros(())}
    value, gradient = value_and_gradient(of_terms(method), z, y, counts, teacher=z, shared=shared)
    close(value, torch.zeros_like(value), rtol=0, atol=1e-12)
    close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (fedrs, {"alpha": 1.5}, "alpha is 1.5 but should be from 0 to 1."),
        (fedrs, {"form": "soft"}, "form is 'soft'"),
        (fedlc, {"tau": -1}, "tau is -1"),
        (fedlc, {"vacant": "no"}, "vacant is 'no'"),
        (fedlc, {"denominator": "no"}, "denominator is 'no'"),
        (logit_adjustment, {"tau": -1}, "tau is -1"),
        (logit_adjustment, {"floor": -1}, "floor is -1"),
        (logit_adjustment, {"prior": "mine"}, "prior is 'mine'"),
        (logit_adjustment_post_hoc, {"tau": -1}, "tau is -1"),
        (fedntd, {"beta": -1}, "beta is -1"),
        (fedntd_tf, {"temperature": 0}, "temperature is 0 but should be above 0."),
        (fedlmd, {"majority": "most"}, "majority is 'most'"),
        (fedlmd_tf, {"fallback": "no"}, "fallback is 'no'"),
        (fedlmd_switch, {"switch_round": -1}, "switch_round is -1"),
        (fedlmd_switch, {"tf_beta": -1}, "tf_beta is -1"),
        (fedlmd_switch, {"tf_target": "all"}, "tf_target is 'all'"),
        (fedvls, {"lam": math.nan}, "lam is nan"),
        (fedvls, {"gamma": -1}, "gamma is -1"),
        (fedvls, {"gamma": "none"}, "gamma is none"),
        (fedvls, {"form": "code"}, "form is 'code'"),
        (fedkd, {"temperature": -1}, "temperature is -1"),
        (fedekd, {"beta": -1}, "beta is -1"),
        (feddkd, {"weight": -1}, "weight is -1"),
        (fedcodl, {"alpha": 2}, "alpha is 2"),
        (fedcodl, {"student_init": "mine"}, "student_init is 'mine'"),
        (fedcodl, {"warmup_rounds": -1}, "warmup_rounds is -1"),
        (label_smoothing, {"mu": 2}, "mu is 2"),
        (focal, {"gamma": -1}, "gamma is -1"),
        (focal, {"classwise": True, "detach_weight": True}, "detach_weight has no effect with classwise"),
        (class_balanced, {"beta": 1.0}, "beta is 1.0 but should be at least 0 and below 1."),
        (class_balanced, {"normalise": "no"}, "normalise is 'no'"),
    ],
)
def test_wrong_hyperparameters_are_refused(make, options, message):
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        make(**options)


# ------------------------------------------------------------------------------ combined


def test_a_neutral_part_changes_nothing(skewed):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=2, epochs=1))
    assert torch.equal(trained(trial, fedlmd() + fedprox(mu=0)), trained(trial, fedlmd()))
    assert torch.equal(trained(trial, fedlmd(beta=0) + fedprox(mu=0.1)), trained(trial, fedprox(mu=0.1)))
    assert torch.equal(trained(trial, fedlc() + fedprox(mu=0)), trained(trial, fedlc()))
    assert torch.equal(trained(trial, fedprox(mu=0) + fedvls()), trained(trial, fedvls()))


@pytest.mark.parametrize(
    ("parts", "base"),
    [
        ({"fedvls": {}, "fedsam": {"rho": 0.0}}, "fedvls"),
        ({"fedlmd": {}, "fedprox": {"mu": 0.0}, "fedavgm": {"beta": 0.0}}, "fedlmd"),
        ({"fedlc": {}, "fedprox": {"mu": 0.0}}, "fedlc"),
    ],
)
def test_the_papers_combinations_with_neutral_parts_are_the_base_method(parts, base, skewed):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=2, epochs=1))
    expected = trained(trial, METHODS[base].make())
    close(trained(trial, assemble(parts)[0]), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("names", "base"),
    [
        ("fedvls+fedexp", "fedvls"),
        ("fedvls+fedsam", "fedvls"),
        ("fpl+fedvls", "fedvls"),
        ("fedlmd+fedprox+fedavgm", "fedlmd"),
        ("fedlmd+ema", "fedlmd"),
        ("fedlc+scaffold", "fedlc"),
        ("fedlmd+uniform", "fedlmd"),
        ("fedcodl+fedprox", "fedcodl"),
    ],
)
def test_the_papers_combinations_train(names, base, skewed):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=3, epochs=1, lr=0.05))
    together = trained(trial, assemble({name: {} for name in names.split("+")})[0])
    assert together.isfinite().all()
    assert not torch.equal(together, trained(trial, METHODS[base].make()))


def test_one_classification_loss_is_enough():
    for pair in (("fedlc", "fedrs"), ("fedvls", "label-smoothing"), ("calfat", "logit-adjustment")):
        with pytest.raises(UserError, match="each has its own classification loss"):
            assemble({name: {} for name in pair})


def test_terms_and_a_loss_add_up():
    z, g, y = batch()
    both, view = fedlc() + fedntd(beta=0.3), see(z, y, COUNTS, teacher=g)
    close(both.objective(view), fedlc().loss(view) + of_terms(fedntd(beta=0.3))(view))


# ------------------------------------------------------------------------------ FedRS


def test_fedrs_with_all_classes_is_fedavg(digits):
    trial = Trial(split(digits, range(300)), "mlp-small", budget=Budget(rounds=1, epochs=1))
    assert torch.equal(trained(trial, fedrs(alpha=0.3)), trained(trial, fedavg()))


def test_fedrs_by_hand():
    z, _, y = batch()
    scale = torch.tensor([1, 1, 0.3, 0.3, 1, 0.3]).double()
    value, gradient = value_and_gradient(fedrs(alpha=0.3).objective, z, y, COUNTS)
    close(value, cross_entropy(scale * z, y))
    p = softmax(scale * z, 1)
    close(gradient[:, [2, 3, 5]], 0.3 * p[:, [2, 3, 5]] / len(y))
    graded = torch.tensor([1, 0.3 + 0.7 / 6, 0.3, 0.3, 0.3 + 0.7 / 3, 0.3]).double()
    close(fedrs(alpha=0.3, form="graded").objective(see(z, y, COUNTS)), cross_entropy(graded * z, y))


def test_fedrs_with_alpha_0_leaves_the_classifiers_of_vacant_classes_alone(digits):
    ours = [*of_class(digits, 0, 20), *of_class(digits, 4, 20)]
    budget = Budget(rounds=1, weight_decay=0, momentum=0)
    trial = Trial(split(digits, ours), "logistic", budget=budget)
    before = dict(trial.build().named_parameters())
    after = unskew.train(trial, fedrs(alpha=0.0)).weights.params
    vacant = [1, 2, 3, 5, 6, 7, 8, 9]
    for name, value in after.items():
        assert torch.equal(value[vacant], before[name][vacant]), name
        assert not torch.equal(value[[0, 4]], before[name][[0, 4]]), name


# ------------------------------------------------------------------------------ FedLC, logit adjustment


@pytest.mark.parametrize("method", [fedlc(tau=0.0), logit_adjustment(tau=0.0)])
def test_without_margin_vacant_classes_are_left_out_and_nothing_else(method, digits):
    z, _, y = batch()
    value, gradient = value_and_gradient(method.objective, z, y, COUNTS)
    present = torch.tensor([0, 1, 4])
    close(value, cross_entropy(z[:, present], torch.searchsorted(present, y)))
    assert (gradient[:, [2, 3, 5]] == 0).all()
    trial = Trial(split(digits, range(300)), "mlp-small", budget=Budget(rounds=1, epochs=1))
    assert torch.equal(trained(trial, method), trained(trial, fedavg()))  # nothing is vacant here


@pytest.mark.parametrize("method", [fedlc(tau=2.0), logit_adjustment(), fedvls(lam=0.0, gamma=0.0)])
def test_equal_counts_are_fedavg(method, digits):
    trial = Trial(
        split(digits, [i for c in range(10) for i in of_class(digits, c, 4)]), "mlp-small", Budget(rounds=1)
    )
    close(trained(trial, method), trained(trial, fedavg()), rtol=0, atol=1e-6)


def test_fedlc_margins():
    """Check that two classes are equally likely if the label leads by the difference of their margins."""
    lead = 2.0 * (5**-0.25 - 30**-0.25)
    _, gradient = value_and_gradient(fedlc(tau=2.0).objective, [[0.0, lead]], [1], [30, 5])
    close(gradient, torch.tensor([[0.5, -0.5]]))


def test_fedlc_as_printed_leaves_the_label_out_and_says_so(skewed):
    z, _, y = batch(size=1)
    included, excluded = (fedlc(denominator=d).objective(see(z, y, COUNTS)) for d in ("include", "exclude"))
    close(excluded, (included.exp() - 1).log())
    _, gradient = value_and_gradient(fedlc(denominator="exclude").objective, z, y, COUNTS)
    close(gradient[0, y], torch.tensor([-1.0]).double())
    assert "no minimum" in fedlc(denominator="exclude").notes[0]
    assert fedlc().notes == ()


def test_fedlc_readings_of_vacant_classes():
    z, _, y = batch()
    offsets = torch.tensor(COUNTS).double().clamp(min=1) ** -0.25
    vacant = torch.tensor(COUNTS) == 0
    view = see(z, y, COUNTS)
    close(fedlc(vacant="one").objective(view), cross_entropy(z - 0.5 * offsets, y))
    close(
        fedlc(vacant="clamp").objective(view),
        cross_entropy(z - 0.5 * torch.where(vacant, 100.0, offsets), y),
    )


def test_a_client_with_one_class_learns_nothing_from_a_calibrated_loss(digits):
    trial = Trial(split(digits, of_class(digits, 3, 30)), "mlp-small", budget=Budget(weight_decay=0))
    start = torch.cat([p.detach().flatten() for _, p in sorted(trial.build().named_parameters())])
    for method in (fedlc(), logit_adjustment(), fedvls(lam=0.0, gamma=0.0, floor=0.0)):
        assert torch.equal(trained(trial, method), start)
    assert not torch.equal(trained(trial, fedntd()), start)


@pytest.mark.parametrize(("floor", "expected"), [(0.0, 0.115671), (0.05, 0.268383), (1e6, 1.407606)])
def test_a_soft_prior_lets_vacant_classes_back_in(floor, expected):
    """Check counts of 3, 1 and 0, whose shares are 0.75, 0.25 and 0. With a large floor the loss is the
    cross-entropy."""
    z, y = torch.tensor([[1.0, 0.0, 2.0]]), torch.tensor([0])
    view = see(z, y, [3, 1, 0])
    close(logit_adjustment(floor=floor).objective(view), torch.tensor(expected), atol=1e-5, rtol=0)
    if floor:
        prior = ((torch.tensor([0.75, 0.25, 0.0]) + floor) / (1 + 3 * floor)).log()
        close(logit_adjustment(floor=floor).objective(view), cross_entropy(z + prior, y))


def test_logit_adjustment_adds_the_log_prior():
    z, _, y = batch()
    p = torch.tensor(COUNTS).double() / 45
    view = see(z, y, COUNTS)
    for tau in (1.0, 0.5):
        close(logit_adjustment(tau=tau).objective(view), cross_entropy(z + tau * p.log(), y))
    close(logit_adjustment(floor=1e-9).objective(view), cross_entropy(z + (p + 1e-9).log(), y))
    twice = see(z, y, [2 * n for n in COUNTS])
    close(logit_adjustment().objective(twice), logit_adjustment().objective(view))
    close(calfat().objective(view), logit_adjustment().objective(view))


def test_the_released_calfat_keeps_vacant_classes_and_scales_by_ten():
    z, _, y = batch()
    expected = cross_entropy(10 * (z + 0.1 * (torch.tensor(COUNTS).double() + 1e-7).log()), y)
    close(calfat(form="released").objective(see(z, y, COUNTS)), expected)
    high = z.clone()
    high[:, COUNTS.index(0)] += 5  # a vacant class
    vacant = [see(logits, y, COUNTS) for logits in (z, high)]
    close(calfat().objective(vacant[0]), calfat().objective(vacant[1]))
    released = calfat(form="released")
    assert released.objective(vacant[1]) > released.objective(vacant[0]) + 1
    with pytest.raises(UserError, match="did you mean 'released'"):
        calfat(form="release")


def test_the_released_calfat_averages_uniformly(digits):
    parts = [range(20), range(20, 100)]
    budget = Budget(rounds=1, epochs=1, batch_size=100, lr=0.1, momentum=0, weight_decay=0)
    trial = Trial(split(digits, *parts), "mlp-small", budget=budget)
    method = calfat(form="released")
    alone = [trained(replace(trial, federation=split(digits, part)), method) for part in parts]
    close(trained(trial, method), (alone[0] + alone[1]) / 2, rtol=1e-4, atol=1e-6)
    other = Trial(split(digits, *parts), "mlp-small", budget=budget)
    by_size = [trained(replace(other, federation=split(digits, part)), calfat()) for part in parts]
    close(trained(other, calfat()), (by_size[0] + 4 * by_size[1]) / 5, rtol=1e-4, atol=1e-6)


def halves(digits):
    """Return two clients, skewed against each other, that together have 12 samples of each of four
    classes."""
    sizes = {0: (10, 2), 1: (9, 3), 2: (1, 11), 3: (4, 8)}
    first = [i for c, (n, _) in sizes.items() for i in of_class(digits, c, n)]
    second = [i for c, (n, m) in sizes.items() for i in of_class(digits, c, m, skip=n)]
    return split(digits, first, second)


def test_the_global_prior_is_the_sum_of_what_clients_reported(digits):
    """Check that the first round uses the clients' own priors, and the second their sum. The sum is uniform
    over the four classes that occur, so the loss is the plain cross-entropy over these."""
    federation = halves(digits)
    trial = Trial(federation, "mlp-small", budget=Budget(rounds=1, epochs=1, batch_size=100, lr=0.1))
    first = unskew.train(trial, logit_adjustment(prior="global"))
    assert torch.equal(first.state.server.memory["logit-adjustment/counts"], federation.counts.sum(0))
    assert torch.equal(flat(first.weights), trained(trial, logit_adjustment()))

    def over_four(view):
        return cross_entropy(view.out.logits[:, :4], view.labels)

    trial = replace(trial, budget=Budget(rounds=2, epochs=1, batch_size=100, lr=0.1))
    second = unskew.train(trial, Method(loss=over_four), start=first.state)
    close(trained(trial, logit_adjustment(prior="global")), flat(second.weights), rtol=0, atol=1e-6)


def test_the_server_knows_the_counts_of_those_who_took_part(skewed):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=2, epochs=1, cohort=2))
    result = unskew.train(trial, logit_adjustment(prior="global"))
    seen = sorted({client for round in result.rounds for client in round.trained})
    expected = skewed.counts[seen].sum(0)
    assert len(seen) < skewed.clients
    assert sum(len(round.trained) for round in result.rounds) > len(seen)  # one came twice, and counts once
    assert torch.equal(result.state.server.memory["logit-adjustment/counts"], expected)


def test_a_class_only_this_client_has_counts_before_the_server_knows_it():
    """Check that samples of class 2 have a loss if the broadcast sum has none and this client has 7 of
    them."""
    scope = Scope(
        Weights({}, {}),
        torch.tensor([3, 0, 7]),
        {},
        {"logit-adjustment/total": torch.tensor([20, 10, 0])},
    )
    method = logit_adjustment(prior="global")
    memory = method.memory.prepare(scope, lambda weights, *, grad=False: iter(()))
    z, y = torch.tensor([[0.3, -1.0, 0.5]]), torch.tensor([2])
    prior = torch.tensor([20.0, 10.0, 7.0]).log()
    close(method.objective(see(z, y, [3, 0, 7], memory=memory)), cross_entropy(z + prior, y))


def test_post_hoc_adjustment_shifts_the_served_model_only(skewed, digits):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=2, epochs=1))
    plain, adjusted = unskew.train(trial), unskew.train(trial, logit_adjustment_post_hoc(tau=0.5))
    assert torch.equal(flat(adjusted.state.server.weights), flat(plain.weights))
    model, shifted = trial.build().eval(), trial.build().eval()
    model.load_state_dict(plain.weights.params)
    shifted.load_state_dict(adjusted.weights.params)
    x = normalise(digits.test.inputs[:50], digits.mean, digits.std)
    p = skewed.counts.sum(0).double() / skewed.counts.sum()
    close(shifted(x).logits, model(x).logits - 0.5 * p.log().float(), rtol=1e-4, atol=1e-5)
    assert adjusted.final.confusion.sum() == len(digits.test)


def test_post_hoc_adjustment_goes_with_other_methods_and_needs_a_bias(skewed):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=1, epochs=1))
    method, _ = assemble({"fedprox": {"mu": 0.1}, "logit-adjustment-post-hoc": {}})
    result = unskew.train(trial, method)
    assert torch.equal(flat(result.state.server.weights), trained(trial, fedprox(mu=0.1)))

    def nothing(state):
        return Weights({name: torch.zeros_like(p) for name, p in state.weights.params.items()}, {})

    served = unskew.train(trial, Method(server=Server(serve=nothing)) + logit_adjustment_post_hoc()).weights
    p = skewed.counts.sum(0) / skewed.counts.sum()
    close(flat(served).unique(), torch.cat([torch.zeros(1), -p.log()]).unique())
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False))
    with pytest.raises(UserError, match="trained bias"):
        unskew.train(replace(trial, model=module), logit_adjustment_post_hoc())


# ------------------------------------------------------------------------------ distillation


@pytest.mark.parametrize("make", [fedntd, fedlmd, fedkd, feddkd])
def test_the_first_step_is_that_of_the_cross_entropy(make, digits):
    """Check a client whose student equals its teacher at the start. Its classes are balanced, since FedLMD
    would also push a majority down."""
    balanced = [i for c in range(10) for i in of_class(digits, c, 4)]
    budget = Budget(rounds=1, epochs=1, batch_size=1000, momentum=0, weight_decay=0, lr=0.5)
    trial = Trial(split(digits, balanced), "mlp-small", budget=budget)
    close(trained(trial, make()), trained(trial, fedavg()), rtol=0, atol=1e-7)


def test_fedntd_by_hand():
    z, g, y = batch()
    total = 0.0
    for zi, gi, yi in zip(z, g, y, strict=True):
        others = [c for c in range(C) if c != yi]
        q, p = softmax(zi[others] / 3, 0), softmax(gi[others] / 3, 0)
        total += float((p * (p / q).log()).sum())
    term = of_terms(fedntd(beta=0.7, temperature=3.0))
    value, gradient = value_and_gradient(term, z, y, COUNTS, teacher=g)
    assert float(value) == pytest.approx(0.7 * 9 * total / len(y))
    assert (gradient[range(len(y)), y] == 0).all()


def test_teacher_free_forms_are_those_of_a_constant_teacher():
    z, _, y = batch()
    view = see(z, y, COUNTS, teacher=torch.full_like(z, 3.0))
    for temperature in (1.0, 2.0):
        options = {"beta": 0.5, "temperature": temperature}
        close(of_terms(fedntd_tf(**options))(view), of_terms(fedntd(**options))(view))
        close(of_terms(fedlmd_tf(**options))(view), of_terms(fedlmd(**options))(view))
    assert of_terms(fedntd_tf())(view) > 0
    even = z.clone()
    even[torch.nn.functional.one_hot(y, C) == 0] = -1.5
    close(of_terms(fedntd_tf())(see(even, y, COUNTS)), torch.zeros(()).double(), rtol=0, atol=1e-12)


def test_fedlmd_by_hand():
    """Check it with majority n_c > 45/6, which are classes 0 and 4, and labels 0, 1 and 4."""
    z, g, y = batch(size=12)
    total, gradients = 0.0, torch.zeros_like(z)
    for i, (zi, gi, yi) in enumerate(zip(z / 2, g / 2, y, strict=True)):
        kept = [c for c in (1, 2, 3, 5) if c != yi]
        others = [c for c in range(C) if c != yi]
        log_q, p = torch.zeros(C).double(), torch.zeros(C).double()
        log_q[others], p[kept] = log_softmax(zi[others], 0), softmax(gi[kept], 0)
        total += 4 * float(sum(p[c] * (p[c].log() - log_q[c]) for c in kept))
        gradients[i, others] = 2 * (log_q.exp() - p)[others] / len(y)
    value, gradient = value_and_gradient(of_terms(fedlmd(temperature=2.0)), z, y, COUNTS, teacher=g)
    assert float(value) == pytest.approx(total / len(y))
    close(gradient, gradients)
    printed = of_terms(fedlmd(temperature=2.0, squared_temperature=False))
    close(4 * printed(see(z, y, COUNTS, teacher=g)), value)


def test_fedlmd_of_a_client_without_majority_is_fedntd():
    z, g, y = batch(counts=[5] * C)
    view = see(z, y, [5] * C, teacher=g)
    close(of_terms(fedlmd())(view), of_terms(fedntd())(view))
    close(of_terms(fedlmd_tf())(view), of_terms(fedntd_tf())(view))
    assert of_terms(fedlmd(majority="ge"))(view) == 0
    close(of_terms(fedlmd(majority="ge", fallback="ntd"))(view), of_terms(fedntd())(view))


def test_fedlmd_of_its_own_teacher_still_pushes_the_majority_down():
    z, _, _ = batch()
    y = torch.zeros(len(z), dtype=torch.int64)
    q = softmax(z[:, 1:], 1)[:, [0, 1, 2, 4]]  # classes 1, 2, 3, 5
    close(of_terms(fedlmd())(see(z, y, COUNTS, teacher=z)), -q.sum(1).log().mean())


def test_fedlmd_readings_of_the_majority():
    """Check the bounds n / C = 5 and n / (number of present classes) = 10."""
    counts, y = [15, 12, 3, 0, 0, 0], [0]
    z, g, _ = batch(size=1)
    alone = softmax(z[0, 1:], 0)
    with_one = see(z, y, counts, teacher=g)
    kept = softmax(g[0, [2, 3, 4, 5]], 0)
    expected = (kept * (kept / alone[[1, 2, 3, 4]]).log()).sum()
    for majority in ("code", "ge", "present"):
        close(of_terms(fedlmd(majority=majority))(with_one), expected)
    counts = [22, 5, 3, 0, 0, 0]
    kept = softmax(g[0, 1:], 0)
    expected = (kept * (kept / alone).log()).sum()
    view = see(z, y, counts, teacher=g)
    close(of_terms(fedlmd(majority="code"))(view), expected)
    close(of_terms(fedlmd(majority="present"))(view), expected)
    assert not torch.isclose(of_terms(fedlmd(majority="ge"))(view), expected)  # class 1 has exactly 5


def test_fedlmd_with_one_class_left_to_teach():
    z, g, _ = batch(size=1)
    counts, y = [9, 9, 9, 9, 9, 0], [2]
    log_q = log_softmax(z[0, [0, 1, 3, 4, 5]] / 2, 0)
    for method in (fedlmd(temperature=2.0), fedlmd_tf(temperature=2.0)):
        close(of_terms(method)(see(z, y, counts, teacher=g)), -4 * log_q[-1])


@pytest.mark.parametrize(
    ("switched", "pure"),
    [
        (fedlmd_switch(switch_round=0), fedlmd()),
        (fedlmd_switch(switch_round=99), fedlmd_tf()),
        (fedlmd_switch(switch_round=99, tf_target="paper"), fedlmd_tf(target="paper")),
    ],
)
def test_the_ends_of_the_switch_are_the_pure_methods_bit_for_bit(switched, pure, skewed):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=3, epochs=1, cohort=3))
    assert torch.equal(trained(trial, switched), trained(trial, pure))


def test_the_switch_changes_at_its_round_with_each_phases_own_hyperparameters(skewed):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=3, epochs=1, cohort=3))
    switched = trained(
        trial, fedlmd_switch(switch_round=2, beta=2.0, temperature=3.0, tf_beta=0.1, tf_temperature=5.0)
    )
    early = unskew.train(
        replace(trial, budget=Budget(rounds=2, epochs=1, cohort=3)), fedlmd_tf(beta=0.1, temperature=5.0)
    )
    late = unskew.train(trial, fedlmd(beta=2.0, temperature=3.0), start=early.state)
    assert torch.equal(switched, flat(late.weights))


def test_fedkd_and_its_restriction():
    z, g, y = batch()
    view = see(z, y, COUNTS, teacher=g)
    p, q = softmax(g / 2, 1), softmax(z / 2, 1)
    close(of_terms(fedkd(beta=0.3, temperature=2.0))(view), 0.3 * 4 * (p * (p / q).log()).sum(1).mean())
    everything = see(z, y, [1] * C, teacher=g)
    close(of_terms(fedekd())(everything), of_terms(fedkd())(everything))
    _, gradient = value_and_gradient(of_terms(fedekd()), z, y, COUNTS, teacher=g)
    assert (gradient[:, [2, 3, 5]] == 0).all()
    assert (gradient[:, [0, 1, 4]] != 0).all()
    alone = see(z, torch.zeros_like(y), [9, 0, 0, 0, 0, 0], teacher=g)
    assert of_terms(fedekd())(alone) == 0


def test_distillation_falls_apart_into_the_groups_that_the_methods_take():
    """Check that KL over all classes = KL of the groups' masses + P(vacant) FedVLS's + P(present)
    FedEKD's."""
    z, g, y = batch(size=1)
    view = see(z, y, COUNTS, teacher=g)
    vacant = torch.tensor(COUNTS) == 0
    p, q = softmax(g[0], 0), softmax(z[0], 0)
    masses = [(float(p[group].sum()), float(q[group].sum())) for group in (vacant, ~vacant)]
    between = sum(a * math.log(a / b) for a, b in masses)
    of_vacant = of_terms(fedvls(lam=1.0, gamma=0.0))(view)
    of_present = of_terms(fedekd(beta=1.0))(view)
    close(of_terms(fedkd(beta=1.0))(view), between + masses[0][0] * of_vacant + masses[1][0] * of_present)


def test_feddkd_by_hand():
    z, g, y = batch(size=1)
    view = see(z, y, COUNTS, teacher=g)
    p, q = (float(softmax(x[0], 0)[y]) for x in (g, z))
    target = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    others = of_terms(fedntd())(view)
    options = {"temperature": 1.0, "weight": 1.0}
    close(of_terms(feddkd(alpha=1.0, beta=0.0, **options))(view), torch.tensor(target).double())
    close(of_terms(feddkd(alpha=0.0, beta=2.0, **options))(view), 2 * others)
    close(of_terms(fedkd(beta=1.0))(view), target + (1 - p) * others)
    close(of_terms(feddkd(alpha=1.0, beta=8.0, temperature=1.0))(view), 0.1 * (target + 8 * others))


# ------------------------------------------------------------------------------ FedVLS


def test_fedvls_by_hand():
    z, g, y = batch(size=9)
    p = [n / sum(COUNTS) for n in COUNTS]
    calibrated = distilled = suppressed = 0.0
    vacant = [2, 3, 5]
    for zi, gi, yi in zip(z, g, y, strict=True):
        calibrated -= math.log(
            p[yi] * math.exp(zi[yi]) / sum(p[c] * math.exp(zi[c]) for c in range(C))
        ) / len(y)
        t = [math.exp(gi[o]) / sum(math.exp(gi[i]) for i in vacant) for o in vacant]
        s = [math.exp(zi[o]) / sum(math.exp(zi[i]) for i in vacant) for o in vacant]
        distilled += sum(a * math.log(a / b) for a, b in zip(t, s, strict=True)) / len(y)
    printed = 0.0
    for c in (0, 1, 4):
        others = sum(math.exp(zi[c]) for zi, yi in zip(z, y, strict=True) if yi != c)
        suppressed += p[c] * math.log((int((y == c).sum()) + others / (C * p[c])) / len(y))
        printed += p[c] * math.log(others / len(y))
    view = see(z, y, COUNTS, teacher=g)
    released = fedvls(lam=0.3).objective(view)
    assert float(released) == pytest.approx(calibrated + 0.3 * distilled + 0.005 * suppressed, rel=1e-6)
    literal = fedvls(lam=0.3, form="paper", floor=0.0).objective(view)
    assert float(literal) == pytest.approx(calibrated + 0.3 * distilled + printed)
    weighted = fedvls(lam=0.3, form="paper", floor=0.0, gamma=0.1).objective(view)
    assert float(weighted) == pytest.approx(calibrated + 0.3 * distilled + 0.1 * printed)


def test_fedvls_without_its_terms_is_the_calibrated_loss_bit_for_bit(skewed):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=2, epochs=1))
    for floor in (0.0, 1e-9):
        bare = fedvls(lam=0.0, gamma=0.0, floor=floor)
        assert torch.equal(trained(trial, bare), trained(trial, logit_adjustment(floor=floor)))


def test_where_the_gradients_of_fedvls_go():
    z, g, y = batch()
    present, vacant = [0, 1, 4], [2, 3, 5]

    def gradient(**options):
        method = fedvls(**({"lam": 0.0, "gamma": 0.0, "floor": 0.0} | options))
        return value_and_gradient(method.objective, z, y, COUNTS, teacher=g)[1]

    plain = gradient()
    assert (plain[:, vacant] == 0).all()
    distilled = gradient(lam=1.0)
    assert torch.equal(distilled[:, present], plain[:, present])
    expected = (softmax(z[:, vacant], 1) - softmax(g[:, vacant], 1)) / len(y)
    close(distilled[:, vacant], expected)
    suppressed = gradient(gamma=1.0, form="paper") - plain
    assert (suppressed[:, vacant] == 0).all()
    assert (suppressed[range(len(y)), y] == 0).all()
    close(suppressed.sum(0)[present], torch.tensor([30, 5, 10]).double() / 45)


def test_fedvls_as_printed_falls_without_end_and_says_so(skewed):
    z, g, _ = batch()
    y = torch.tensor([0, 1, 4, 0, 0, 1, 4])  # the official form is bounded for classes that are in the batch
    paper, official = fedvls(form="paper", floor=0.0), fedvls(floor=0.0)
    at = {
        s: [float(m.objective(see(z + s, y, COUNTS, teacher=g))) for m in (paper, official)]
        for s in (0, -500)
    }
    assert at[-500][0] == pytest.approx(at[0][0] - 500)
    assert at[-500][1] == pytest.approx(at[0][1], abs=0.1)
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=1, epochs=1))
    assert any("no minimum" in note for note in unskew.train(trial, fedvls(form="paper")).notes)
    assert not any("no minimum" in note for note in unskew.train(trial, fedvls()).notes)


def test_feded_is_fedvls():
    assert METHODS["feded"].make is METHODS["fedvls"].make


# ------------------------------------------------------------------------------ FedCodl


def test_fedcodl_by_hand():
    z, g, y = batch()
    p, q = softmax(g / 2, 1), softmax(z / 2, 1)
    divergence = 4 * (p * (p / q).log()).sum(1).mean()
    view = see(z, y, COUNTS, teacher=g, shared={"fedcodl/round": torch.tensor(3)})
    expected = 0.8 * cross_entropy(z, y) + 0.2 * divergence
    close(fedcodl(alpha=0.2, temperature=2.0).objective(view), expected, rtol=1e-6, atol=0)
    close(fedcodl(alpha=0.2, warmup_rounds=4).objective(view), cross_entropy(z, y))
    student = see(z, y, COUNTS, teacher=z, shared={"fedcodl/round": torch.tensor(0)})
    close(fedcodl(alpha=1.0).objective(student), torch.zeros(()).double(), rtol=0, atol=1e-12)


def test_fedcodl_warms_up_as_fedavg(skewed):
    trial = Trial(skewed, "mlp-small", budget=Budget(rounds=3, epochs=1))
    warm = unskew.train(replace(trial, budget=Budget(rounds=2, epochs=1)))
    server = ServerState(warm.weights, {"fedcodl/round": torch.tensor(2)}, 2)
    rest = unskew.train(trial, fedcodl(), start=State(server))
    assert torch.equal(trained(trial, fedcodl(warmup_rounds=2)), flat(rest.weights))


@pytest.mark.parametrize("warmup", [0, 2])
def test_fedcodl_goes_on_from_a_clients_own_weights(warmup, digits):
    """Compare with a plain loop in which a client that took part in the round before starts where it
    ended."""
    parts = [range(0, 20), range(20, 60), range(60, 70)]
    budget = Budget(rounds=5, cohort=2, epochs=4, batch_size=100, lr=0.1, momentum=0.9, weight_decay=0)
    trial = Trial(split(digits, *parts), "logistic", budget=budget)
    result = unskew.train(trial, fedcodl(student_init="own", warmup_rounds=warmup))

    model = trial.build()
    anchor = {name: p.detach().clone() for name, p in model.named_parameters()}
    x = normalise(digits.train.inputs, digits.mean, digits.std).flatten(1)
    name_w, name_b = (next(n for n in anchor if n.endswith(kind)) for kind in ("weight", "bias"))
    own, before, continued = {}, [], 0
    for t, round in enumerate(result.rounds):
        alpha = 0.0 if t < warmup else 0.5
        ends = []
        for k in round.trained:
            goes_on = k in before and t >= warmup
            continued += goes_on
            w = {n: v.clone().requires_grad_() for n, v in (own[k] if goes_on else anchor).items()}
            optimizer = torch.optim.SGD(list(w.values()), lr=0.1, momentum=0.9)
            rows = torch.tensor(list(parts[k]))
            for _ in range(budget.epochs):  # full batches
                z = x[rows] @ w[name_w].T + w[name_b]
                p = softmax(x[rows] @ anchor[name_w].T + anchor[name_b], 1)
                kl = (p * (p.log() - log_softmax(z, 1))).sum(1).mean()
                optimizer.zero_grad()
                ((1 - alpha) * cross_entropy(z, digits.train.labels[rows]) + alpha * kl).backward()
                optimizer.step()
            own[k] = {n: v.detach() for n, v in w.items()}
            ends.append((len(parts[k]), own[k]))
        n = sum(size for size, _ in ends)
        anchor = {name: sum(size * w[name] for size, w in ends) / n for name in anchor}
        before = round.trained
    assert continued > 0
    for name, value in result.weights.params.items():
        close(value, anchor[name], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(flat(result.weights), trained(trial, fedcodl(warmup_rounds=warmup)), atol=1e-4)


def test_the_printed_target_of_fedlmd_tf_by_hand():
    """Check Eq. 8, which gives each class 1 / (number of classes outside the majority) and leaves out the
    label's part."""
    counts, y = torch.tensor([9, 1, 0, 0]), torch.tensor([0, 1])  # majority {0}; label 1 is a minority one
    z = torch.tensor([[0.3, -1.0, 0.5, 2.0], [1.0, 0.2, -0.4, 0.7]], dtype=torch.float64)
    expected = 0.0
    for row, left in ((0, [1, 2, 3]), (1, [2, 3])):
        others = [c for c in range(4) if c != y[row]]
        log_q = {c: float(z[row, c] - z[row, others].logsumexp(0)) for c in others}
        expected += sum(1 / 3 * (math.log(1 / 3) - log_q[c]) for c in left) / 2
    value = label_masking_distillation(z, None, y, counts, target="paper")
    assert float(value) == pytest.approx(expected)
    assert float(label_masking_distillation(z, None, y, counts)) != pytest.approx(expected)


# ------------------------------------------------------------------------------ re-shaped cross-entropies


def test_label_smoothing_by_hand():
    z, _, y = batch()
    value, gradient = value_and_gradient(label_smoothing(mu=0.2).objective, z, y, COUNTS)
    log_p = log_softmax(z, 1)
    close(value, 0.8 * cross_entropy(z, y) - 0.2 * log_p.mean(1).mean())
    target = 0.8 * torch.nn.functional.one_hot(y, C) + 0.2 / C
    close(gradient, (log_p.exp() - target) / len(y))


def test_focal_by_hand():
    z, _, y = batch()
    p = softmax(z, 1)[range(len(y)), y]
    view = see(z, y, COUNTS)
    close(focal(gamma=3.0).objective(view), (-((1 - p) ** 3) * p.log()).mean())
    assert focal().objective(view) < cross_entropy(z, y)
    _, gradient = value_and_gradient(focal(detach_weight=True).objective, z, y, COUNTS)
    difference = softmax(z, 1) - torch.nn.functional.one_hot(y, C)
    close(gradient, ((1 - p) ** 2).unsqueeze(1) * difference / len(y))


def test_classwise_focal_weighs_classes_by_the_accuracy_the_server_broadcasts():
    z, _, y = batch()
    accuracy = torch.tensor([0.9, 0.5, 0.0, 0.2, 0.3, 0.7]).double()
    weight = (1 - accuracy) ** 2
    weight = weight / weight.mean()
    losses = cross_entropy(z, y, reduction="none")
    view = see(z, y, COUNTS, memory={"focal/accuracy": accuracy})
    close(focal(classwise=True).objective(view), (weight[y] * losses).mean())
    even = see(z, y, COUNTS, memory={"focal/accuracy": torch.full((C,), 0.6)})
    close(focal(classwise=True).objective(even), losses.mean())


def test_classwise_focal_learns_how_good_the_received_model_is(digits):
    """Train with a client that has all samples of class 9 and does not take part in every round."""
    parts = [
        [i for c in range(5) for i in of_class(digits, c, 8)],
        [*of_class(digits, 0, 5, skip=8), *of_class(digits, 9, 6)],
        [i for c in range(3, 8) for i in of_class(digits, c, 8, skip=8)],
    ]
    trial = Trial(split(digits, *parts), "mlp-small")
    expected, anchor, cohorts = torch.full((10,), math.nan), engines.start(trial).initial, []
    state = None
    for rounds in range(1, 6):
        budget = Budget(rounds=rounds, cohort=2, lr=0.05)
        result = unskew.train(replace(trial, budget=budget), focal(classwise=True))
        weight = (1 - expected) ** 2  # of the round before
        weight = (weight / weight[~weight.isnan()].mean()).nan_to_num(1.0)
        by_hand = Method(loss=lambda view, weight=weight: _weighted(view, weight))
        again = unskew.train(replace(trial, budget=budget), by_hand, start=state)
        close(flat(again.weights), flat(result.weights), rtol=0, atol=1e-6)
        cohorts.append(result.rounds[-1].trained)
        rows = torch.tensor([i for k in cohorts[-1] for i in parts[k]])
        model = trial.build().eval()
        model.load_state_dict(anchor.params)
        x, y = normalise(digits.train.inputs[rows], digits.mean, digits.std), digits.train.labels[rows]
        right = model(x).logits.argmax(1) == y
        for c in y.unique():
            expected[c] = right[y == c].float().mean()
        close(result.state.server.memory["focal/accuracy"], expected, equal_nan=True)
        anchor, state = result.weights, result.state
    assert [0, 2] in cohorts[1:]
    assert any(1 in cohort for cohort in cohorts)


def _weighted(view, weight):
    return (weight[view.labels] * cross_entropy(view.out.logits, view.labels, reduction="none")).mean()


def test_class_balanced_by_hand():
    z, _, y = batch()
    losses = cross_entropy(z, y, reduction="none")
    view = see(z, y, COUNTS)
    weight = torch.tensor([(1 - 0.9) / (1 - 0.9**n) if n else 0.0 for n in COUNTS]).double()
    close(class_balanced(beta=0.9).objective(view), (3 * weight / weight.sum())[y].mul(losses).mean())
    close(
        class_balanced(beta=0.9, normalise="all").objective(view),
        (C * weight / weight.sum())[y].mul(losses).mean(),
    )
    inverse = torch.tensor([1 / n if n else 0.0 for n in COUNTS]).double()
    close(
        class_balanced(beta=1 - 1e-9).objective(view),
        (3 * inverse / inverse.sum())[y].mul(losses).mean(),
        rtol=1e-6,
        atol=0,
    )
    close(class_balanced().objective(see(z, y, [4] * C)), losses.mean())
