"""unskew's own default, against its equations."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unskew
from federations import split
from unskew import Budget, Trial, UserError
from unskew.methods import ema, fedacg, fedavg, logit_adjustment, steady, uniform

HELD = ([9, 3, 0], [0, 6, 2], [5, 0, 0], [1, 1, 12])
"""What four clients hold of three classes."""


@pytest.fixture(scope="module")
def federation():
    rng = np.random.default_rng(0)
    y = np.repeat(np.tile(np.arange(3), len(HELD)), np.ravel(HELD))
    x = rng.normal(y[:, None], 1.0, (len(y), 4)).astype(np.float32)
    dataset = unskew.data.from_arrays(x, y, x, y, name="three")
    return split(dataset, *map(samples_of, range(len(HELD))))


def samples_of(client: int) -> range:
    before = int(np.sum(HELD[:client]))
    return range(before, before + sum(HELD[client]))


def trial_of(federation, **budget) -> Trial:
    """Make a trial with whole batches, so that the order of samples has no effect."""
    plain = {"rounds": 25, "steps": 2, "batch_size": 100, "lr": 0.2, "momentum": 0.0, "weight_decay": 0.0}
    return Trial(federation, lambda: nn.Linear(4, 3, bias=False), budget=Budget(**(plain | budget)))


def by_hand(trial: Trial, cohorts, lam: float = 0.85):
    """Compute the equations in steady's file step by step, and return the model that the server serves."""
    dataset = trial.federation.dataset
    x, y = torch.as_tensor(dataset.train.inputs), torch.as_tensor(dataset.train.labels)
    w = next(trial.build().parameters()).detach().clone()
    m, a, r = torch.zeros_like(w), torch.zeros_like(w), 0.0
    for t, cohort in enumerate(cohorts):
        sent, ends = w + lam * m, []
        for client in cohort:
            mine, here = list(samples_of(client)), sent.clone().requires_grad_()
            prior = torch.log(max(1 - r, 0.05) * torch.tensor(HELD[client], dtype=torch.float32) + 1)
            for _ in range(trial.budget.steps):
                loss = F.cross_entropy(x[mine] @ here.T + prior, y[mine])
                here = (here - trial.budget.lr * torch.autograd.grad(loss, here)[0]).detach().requires_grad_()
            ends.append(here.detach() - sent)
        m = lam * m + torch.stack(ends).mean(0)
        w = w + m
        r = len(cohort) / len(HELD)
        a = a + max(1 / (t + 1), r / 2, 0.05) * (w - a)
    return a


@pytest.mark.parametrize("cohort", [1, 3, "all"])
def test_steady_is_its_equations(federation, cohort):
    trial = trial_of(federation, cohort=cohort)
    result = unskew.train(trial, steady())
    expected = by_hand(trial, [done.cohort for done in result.rounds])
    found = next(iter(result.weights.params.values()))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (found - by_hand(trial, [done.cohort for done in result.rounds], lam=0.5)).abs().max() > 1e-3


def test_an_average_whose_length_follows_from_participation(federation):
    """Check that with half of all clients it moves by a quarter, as decay=0.75 does once its beginning is
    forgotten."""
    trial = trial_of(federation, cohort=2, rounds=60)
    path = unskew.train(trial, ema(decay="auto"))
    fixed = unskew.train(trial, ema(decay=0.75))
    one, other = (next(iter(result.weights.params.values())) for result in (path, fixed))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match="or auto"):
        ema(decay="slow")


def test_steady_adds_to_others_but_not_to_another_loss():
    with pytest.raises(UserError, match="classification loss"):
        steady() + logit_adjustment()
    with pytest.raises(UserError, match="cannot be combined"):
        steady() + fedacg()
    assert (steady() + fedavg()).loss is not fedavg().loss
    assert uniform().server.combine is steady().server.combine
