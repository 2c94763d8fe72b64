"""The effect of a round on the classes, for each of its clients: the class accuracies of the model it
received, of its model after the local update and of the next global model, all on the global test set."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unskew import metrics
from unskew.engines import Engine
from unskew.engines.job import Pending, Task
from unskew.metrics import Assessment, Floats, Stages
from unskew.trial import Trial
from unskew.types import Params, Tensors, Weights


@dataclass(frozen=True, eq=False)
class Effect:
    """The effect of a round for one client."""

    client: int
    before: Floats
    """Class accuracies [C] of the model that the client received; `after` are those of its own model, and
    `aggregated` those of the next global model."""
    after: Floats
    aggregated: Floats
    groups: dict[str, Stages | None]
    """The same accuracies on its majority, minority and vacant classes."""
    in_local: float | None
    out_local: float | None
    deviation: float | None
    """The share of the client's pairs of a majority class j and a minority class r with n_j / n_r above
    FedLC's bound; None if it has no such pair or if its model is not finite."""


@dataclass(frozen=True, eq=False)
class Findings:
    """The results of a probe."""

    clients: list[Effect]
    """The effects for the clients that trained."""
    groups: dict[str, Stages | None]
    """The means over the clients."""
    local_class_accuracy: Floats
    """Class accuracies [C], as means over the clients' own models; NaN if none trained."""
    drift: dict[str, float | None]
    """Drift diversity, by the model from which moves are measured: the one `received`, or the `aggregated`
    one."""
    seconds: float
    """How many seconds the run waited for it."""


def observe(
    trial: Trial,
    engine: Engine,
    received: Weights,
    local: Mapping[Task, Weights],
    delta: Params,
    following: Weights,
    test: Pending[Assessment] | None,
) -> Pending[Findings]:
    """Start all tests that a probe of a round needs, and return its findings, which wait for the device.

    `local` are the clients' models after their update and `delta` their moves, in the same order; `following`
    is the next global model, and `test` its test if there is one already.
    """
    began = time.perf_counter()
    before = engine.evaluate(received)
    aggregated = test or engine.evaluate(following)
    after = {task: engine.evaluate(weights) for task, weights in local.items()}
    classes = len(trial.federation.dataset.classes)
    with engine.deterministic(), torch.no_grad():
        own = {
            task: engine.fetch(_own_data(engine, task, weights, classes)) for task, weights in local.items()
        }
        drift = engine.fetch({"moves": _moves(delta, received.params, following.params)})
    spent = time.perf_counter() - began

    def findings() -> Findings:
        began = time.perf_counter()
        first, last = _by_class(before.result()), _by_class(aggregated.result())
        effects = []
        for task, test in after.items():
            counts, mine = task.holding.counts.numpy(), _by_class(test.result())
            effects.append(
                Effect(
                    client=task.client,
                    before=first,
                    after=mine,
                    aggregated=last,
                    groups=metrics.update_effect(first, mine, last, counts),
                    in_local=metrics.in_local_accuracy(mine, counts),
                    out_local=metrics.out_local_accuracy(mine, counts),
                    deviation=_deviation(own[task].result()),
                )
            )
        moves = drift.result()["moves"].tolist()
        found = {
            name: metrics.diversity(*sums)
            for name, sums in zip(("received", "aggregated"), moves, strict=True)
        }
        return _findings(effects, classes, found, spent + time.perf_counter() - began)

    return Pending(findings)


def merge(parts: Sequence[Findings], classes: int) -> Findings:
    """Merge the findings of groups of clients that each have a global model of their own. There is no drift
    between groups."""
    effects = sorted((effect for part in parts for effect in part.clients), key=lambda effect: effect.client)
    nothing: dict[str, float | None] = {"received": None, "aggregated": None}
    return _findings(effects, classes, nothing, sum(part.seconds for part in parts))


def _findings(
    effects: list[Effect], classes: int, drift: dict[str, float | None], seconds: float
) -> Findings:
    mean = metrics.mean_class_accuracy([effect.after for effect in effects])
    return Findings(
        clients=effects,
        groups=metrics.mean_effect(effect.groups for effect in effects),
        local_class_accuracy=np.full(classes, np.nan) if mean is None else mean,
        drift=drift,
        seconds=seconds,
    )


def _by_class(test: Assessment) -> Floats:
    return metrics.class_accuracy(test.confusion)


def _own_data(engine: Engine, task: Task, weights: Weights, classes: int) -> Tensors:
    """Return how a model does on its client's data: for each class the number of samples, and the sums of
    their probabilities and features."""
    totals: list[Tensors] = []
    for view in engine.look(task, weights):
        labels, out = view.labels, view.out
        members = (torch.arange(classes, device=labels.device)[:, None] == labels).double()
        totals.append(
            {
                "samples": members.sum(dim=1),
                "probability": members @ out.logits.double().softmax(dim=1),
                "features": members @ out.features.double(),
            }
        )
    return {name: torch.stack([total[name] for total in totals]).sum(dim=0) for name in totals[0]}


def _deviation(sums: Tensors) -> float | None:
    counts = sums["samples"].numpy().astype(np.int64)
    kinds = metrics.groups(counts[None])
    pairs = kinds["majority"][0][:, None] & kinds["minority"][0]
    samples = np.maximum(counts, 1)[:, None]
    probability, features = sums["probability"].numpy() / samples, sums["features"].numpy() / samples
    if not pairs.any() or not (np.isfinite(probability).all() and np.isfinite(features).all()):
        return None
    return float(metrics.deviation(probability, features, counts).deviates[pairs].mean())


def _moves(delta: Params, received: Params, following: Params) -> Tensor:
    """Return the arguments of `metrics.diversity`, for moves from the model received and from the next one,
    [2, 3]. The sums are taken on the device, a layer at a time: the moves of a whole cohort may not fit into
    memory as float64."""
    total = torch.zeros(2, 3, dtype=torch.float64, device=next(iter(received.values())).device)
    for name, moves in delta.items():
        exact = moves.double()
        step = following[name].double() - received[name]
        rounding = (len(moves) * torch.finfo(moves.dtype).eps * exact).square().sum()
        for row, own in enumerate((exact, exact - step)):
            total[row] += torch.stack([own.square().sum(), own.sum(dim=0).square().sum(), rounding])
    return total
