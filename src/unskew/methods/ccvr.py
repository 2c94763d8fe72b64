"""CCVR: classifier calibration with virtual representations.

Luo, Chen, Hu, Zhang, Liang, Feng. No Fear of Heterogeneity: Classifier Calibration for Federated Learning
with Non-IID Data. NeurIPS 2021.

Label skew harms the last layer most. After training, every client sends the mean and covariance of each
class's features; the server draws features from the pooled Gaussians and trains the last layer on them.

    mu_c    = sum_k n_kc mu_kc / n_c
    Sigma_c = [ sum_k (n_kc - 1) Sigma_kc + sum_k n_kc mu_kc mu_kc^T - n_c mu_c mu_c^T ] / (n_c - 1)
    virtual features of class c ~ N(mu_c, Sigma_c);   CE on them, over the last layer's weights alone

All rounds train with FedAvg, or what CCVR is combined with; the last one is tested after calibration.
Where validation chooses a round, the model of that round is calibrated, and the last line is its test.

Deviations:
- Sigma_kc is the unbiased covariance, with which the pooled one is exact; FL-bench and fluke put the biased
  one into the same formula. Clients are pooled one after another, which is the same sum without its
  cancellation.
- 200 virtual features per class are FL-bench's number; papers go from 100 to 2000. They are trained on with
  the trial's optimiser (first learning rate, momentum, weight decay, batch size), `epochs` times, from the
  trained layer.
- covariance="diagonal" keeps d numbers per class in place of d^2. `shrinkage` s moves a covariance towards
  the sphere of the same trace: (1 - s) Sigma + s tr(Sigma)/d I.
- Nothing is drawn of a class with fewer than two samples in all, which has no covariance; a note says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from unskew import metrics
from unskew.errors import require, unknown
from unskew.methods.card import card
from unskew.parts.heads import Head, find_head
from unskew.program import Program, Run
from unskew.randomness import Purpose, draw_seed
from unskew.result import Result, Round
from unskew.trial import Trial
from unskew.types import Look, Params, Scope, Tensors, View, Weights

Covariance = Literal["full", "diagonal"]


@card(
    "ccvr",
    passes="one over the data at the end",
    traffic="the model down and C (d^2 + d + 1) numbers up once; with covariance=diagonal C (2 d + 1)",
    sends="its label counts, and by class the mean and covariance of its features",
)
def ccvr(
    *,
    samples: int = 200,
    epochs: int = 10,
    covariance: Covariance = "full",
    shrinkage: float = 0.0,
) -> Program:
    """After training, re-train the last layer on features drawn from the classes' pooled Gaussians."""
    require(samples >= 1, f"samples is {samples} but should be 1 or more.")
    require(epochs >= 0, f"epochs is {epochs} but should be 0 or more.")
    require(0 <= shrinkage <= 1, f"shrinkage is {shrinkage} but should be in 0..1.")
    if covariance not in get_args(Covariance):
        raise unknown("covariance", covariance, get_args(Covariance))

    def run(run: Run) -> Result:
        trial = run.trial
        classes = trial.federation.dataset.classes
        module = trial.build()
        head = find_head(module, len(classes))
        head.check_plain()
        require(
            all(module.get_parameter(name).requires_grad for name in head.names),
            "ccvr trains the model's last layer again, but this one is frozen: choose another model.",
        )

        waiting: list[Round] = []

        def one_behind(round: Round) -> None:
            """Report each round when the next one has ended. Only then is it known not to be the last, which
            is reported after its calibration."""
            for before in waiting:
                run.report(before)
            waiting[:] = [round]

        trained = run.train("training", run.base, record=one_behind)

        def moments_of_classes(scope: Scope, look: Look) -> Tensors:
            return client_moments(look(scope.anchor), head, diagonal=covariance == "diagonal")

        answers = run.ask("moments", moments_of_classes, trained.served, state=trained.state)
        known = {c: found for c, found in pool(answers).items() if found.count > 1 and found.finite}

        def calibrated() -> Tensors:
            with run.engine().deterministic():
                return calibrate(trial, head, trained.served, known, samples, epochs, shrinkage)

        last_layer = run.value("calibration", calibrated)
        served = Weights({**trained.served.params, **last_layer}, trained.served.buffers)
        *others, last = trained.rounds
        assert last.test is not None  # the last round is always tested
        before, test = last.test, run.engine().evaluate(served).result()
        validated = None
        if trial.federation.validation is not None:
            before = run.engine().evaluate(trained.served).result()
            validated = run.engine().evaluate(served, "validation").result()
        last = replace(last, test=test, validation=validated)
        run.report(last)
        notes = [
            f"CCVR: accuracy {metrics.accuracy(before.confusion):.4f} before calibration, "
            f"{metrics.accuracy(test.confusion):.4f} after it; it cost one more forward pass over all data."
        ]
        if missing := [name for c, name in enumerate(classes) if c not in known]:
            notes.append(
                f"CCVR drew no features of {', '.join(missing)}: too few samples, or features not finite."
            )
        return run.result(
            served.with_frozen(trained.frozen),
            trained.state,
            [*others, last],
            notes=notes,
            final=test,
            validated=validated,
        )

    return Program(run)


@dataclass(frozen=True, eq=False)
class Moments:
    """Number, mean and covariance of one class's features, at a client or over all of them."""

    count: int
    mean: Tensor
    """[d]"""
    covariance: Tensor
    """Unbiased: [d, d], or [d] where only the diagonal is kept. 0 for a single sample."""

    @property
    def finite(self) -> bool:
        return bool(self.mean.isfinite().all() & self.covariance.isfinite().all())


def moments(features: Tensor, *, diagonal: bool = False) -> Moments:
    """Return the moments of features [n, d], in float64."""
    x = features.double()
    mean = x.mean(dim=0)
    gap = x - mean
    scatter = gap.square().sum(dim=0) if diagonal else gap.T @ gap
    return Moments(len(x), mean, scatter / max(len(x) - 1, 1))


def merge(first: Moments, second: Moments) -> Moments:
    """Return the exact moments of both sets of samples together."""
    n, m = first.count, second.count
    gap = second.mean - first.mean
    between = gap.square() if first.covariance.ndim == 1 else torch.outer(gap, gap)
    scatter = (n - 1) * first.covariance + (m - 1) * second.covariance + n * m / (n + m) * between
    return Moments(n + m, first.mean + m / (n + m) * gap, scatter / (n + m - 1))


def client_moments(views: Iterable[View], head: Head, *, diagonal: bool) -> Tensors:
    """Return what one client sends: the moments of every class that it holds, under the class's number."""
    features, labels = list[Tensor](), list[Tensor]()
    for view in views:
        head.check(view.params, view.out)
        features.append(view.out.features)
        labels.append(view.labels)
    if not features:
        return {}
    x, y = torch.cat(features), torch.cat(labels)
    sent: Tensors = {}
    for c in sorted(set(y.tolist())):
        found = moments(x[y == c], diagonal=diagonal)
        sent[f"{c}/count"] = torch.tensor(found.count)
        sent[f"{c}/mean"], sent[f"{c}/covariance"] = found.mean, found.covariance
    return sent


def pool(answers: Iterable[Tensors]) -> dict[int, Moments]:
    """Return the moments of every class over all clients, from their answers."""
    pooled: dict[int, Moments] = {}
    for sent in answers:
        for name in sent:
            if not name.endswith("/count"):
                continue
            c = int(name.removesuffix("/count"))
            own = Moments(int(sent[name]), sent[f"{c}/mean"], sent[f"{c}/covariance"])
            pooled[c] = merge(pooled[c], own) if c in pooled else own
    return dict(sorted(pooled.items()))


def virtual_features(found: Moments, samples: int, shrinkage: float, generator: torch.Generator) -> Tensor:
    """Draw features from the class's Gaussian, [samples, d]."""
    noise = torch.randn(samples, len(found.mean), generator=generator, dtype=torch.float64)
    noise = noise.to(found.mean.device)
    if found.covariance.ndim == 1:
        variance = (1 - shrinkage) * found.covariance + shrinkage * found.covariance.mean()
        return found.mean + noise * variance.sqrt()
    sphere = found.covariance.diagonal().mean() * torch.eye(len(found.mean)).to(found.covariance)
    # Eigenvectors, because fewer samples than features leave a singular matrix, which has no Cholesky factor.
    size, direction = torch.linalg.eigh((1 - shrinkage) * found.covariance + shrinkage * sphere)
    drawn: Tensor = found.mean + (noise * size.clamp(min=0).sqrt()) @ direction.T
    return drawn


def calibrate(
    trial: Trial,
    head: Head,
    weights: Weights,
    classes: dict[int, Moments],
    samples: int,
    epochs: int,
    shrinkage: float,
) -> Params:
    """Train the model's last layer on virtual features of these classes, and return its weights."""
    if not classes:
        return {name: weights.params[name] for name in head.names}
    seed = draw_seed(trial.seed, Purpose.SERVER, trial.budget.rounds)
    generator = torch.Generator().manual_seed(seed)
    like = weights.params[head.weight]
    x = torch.cat([virtual_features(found, samples, shrinkage, generator) for found in classes.values()])
    x = x.to(like)
    y = torch.tensor(list(classes)).repeat_interleave(samples).to(like.device)

    budget = trial.budget
    optimizer = budget.local_optimizer(budget.lr)
    params = {name: weights.params[name].clone() for name in head.names}
    state = optimizer.init(params)
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=generator).to(like.device)
        for rows in torch.split(order, budget.batch_size):

            @torch.enable_grad()
            def gradient(
                params: Params, /, *, track: bool = True, rows: Tensor = rows
            ) -> tuple[Tensor, Params]:
                leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
                loss = cross_entropy(head(leaves, x[rows]), y[rows])
                grads = torch.autograd.grad(loss, list(leaves.values()))
                return loss.detach(), dict(zip(leaves, grads, strict=True))

            optimizer.step(gradient, params, state)
    return params
