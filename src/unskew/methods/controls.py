"""Controls: what averaging is worth, seen from both sides.

centralised: one client holds what all clients hold, and trains for the same rounds, epochs and batch size.

    w[t+1] = E epochs of SGD from w[t] on the union of all D_k

It sees all data in every round, also where the budget's cohort is smaller than the federation. Its momentum
starts anew in every round, as the clients' does.

local-only: every client trains a model of its own, in every round, without any exchange.

    w_k[t+1] = E epochs of SGD from w_k[t] on D_k

A test is the mean over the clients that hold data: their models' confusion matrices are summed, so that every
accuracy is a mean over clients; losses, probabilities and features are averaged. The result's weights are all
these models, stacked on the first axis in the order of their clients.

Deviations: none, as there is no paper. The third usual control, FedAvg on evenly divided data, is the skew
iid.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from unskew import engines
from unskew.data.federation import Federation
from unskew.data.manifest import partition_of
from unskew.errors import require
from unskew.method import Method
from unskew.metrics import Assessment, Traffic
from unskew.train import NOTHING_SENT, OnRound, Program, Result, Round, State, divergence, train
from unskew.trial import Probe, Trial
from unskew.types import Server, ServerState, Tensors, Weights


def centralised() -> Program:
    """Train on all data in one place, with the same budget."""

    def run(trial: Trial, base: Method, on_round: OnRound) -> Result:
        mine = trial.federation
        everything = np.concatenate(mine.partition.indices)
        pooled = partition_of([everything], mine.dataset, recipe="centralised", notes=mine.partition.notes)
        told: list[Round] = []

        def tell(round: Round) -> None:
            told.append(replace(round, traffic=NOTHING_SENT))
            on_round(told[-1])

        result = train(
            replace(
                trial,
                federation=Federation(mine.dataset, pooled),
                budget=trial.budget.model_copy(update={"cohort": "all"}),
                probe=Probe(),
            ),
            base,
            on_round=tell,
        )
        notes = [
            "centralised: one client holds all data; majority, minority and vacant are the clients' classes."
        ]
        if trial.probe.every:
            notes.append("centralised: no client trains, so none was probed.")
        return replace(
            result,
            rounds=told,
            counts=mine.counts.numpy(),
            notes=(*result.notes, *notes),
            beside=Traffic(up=_data_size(mine, everything), down=0),
        )

    return Program(run)


def _data_size(federation: Federation, rows: NDArray[np.int64]) -> int:
    """The bytes of these training samples."""
    train = federation.dataset.train
    return sum(len(rows) * value.nbytes // len(value) for value in (train.inputs, train.labels))


def local_only() -> Program:
    """Train every client alone, without averaging; test the mean over clients."""

    def run(trial: Trial, base: Method, on_round: OnRound) -> Result:
        require(
            base.server == Server(),
            "local-only has no server, so it cannot be put together with a method that changes the server.",
        )
        began = time.perf_counter()
        engine, federation, rounds = engines.start(trial), trial.federation, trial.budget.rounds
        clients: list[int] = federation.sizes.nonzero().flatten().tolist()
        models = dict.fromkeys(clients, engine.initial)
        memories = {k: base.memory.init(engine.initial, federation.counts[k]) for k in clients}
        told: list[Round] = []
        for t in range(rounds):
            start = time.perf_counter()
            losses = []
            for k in clients:
                [fit] = engine.fit(base, models[k], {}, [engines.Job(k, t, memories[k])])
                models[k], memories[k] = fit.weights, fit.memory
                losses.append(float(fit.loss) * int(federation.sizes[k]))
            loss = sum(losses) / int(federation.sizes.sum()) if clients else math.nan
            test = None
            if (t + 1) % trial.evaluation.every == 0 or t + 1 == rounds:
                test = mean_assessment([engine.assess(w) for w in models.values() or [engine.initial]])
            seconds = time.perf_counter() - start
            everyone = list(range(federation.clients))
            told.append(Round(t + 1, trial.budget.lr_at(t), everyone, clients, loss, seconds, test))
            on_round(told[-1])
        weights = stacked(list(models.values()) or [engine.initial])
        notes = [
            *federation.partition.notes,
            *base.notes,
            f"local-only: every figure is the mean over {len(clients)} clients' own models, and all of them "
            "trained in every round.",
        ]
        if trial.probe.every:
            notes.append("local-only: there is no global model to probe the clients' models against.")
        notes += divergence(weights)
        return Result(
            weights=weights,
            rounds=told,
            classes=federation.dataset.classes,
            counts=federation.counts.numpy(),
            seconds=time.perf_counter() - began,
            state=State(rounds, ServerState(weights, {}), memories),
            notes=tuple(notes),
        )

    return Program(run)


def mean_assessment(tests: Sequence[Assessment]) -> Assessment:
    """Of several models on the same test set: their confusions summed, all else averaged."""
    domains = [test.domains for test in tests if test.domains is not None]
    return Assessment(
        confusion=np.sum([test.confusion for test in tests], axis=0),
        loss=float(np.mean([test.loss for test in tests])),
        mean_probability=np.mean([test.mean_probability for test in tests], axis=0),
        mean_features=np.mean([test.mean_features for test in tests], axis=0),
        domains=np.sum(domains, axis=0) if domains else None,
    )


def stacked(models: Sequence[Weights]) -> Weights:
    """All models in one, on a new first axis."""

    def stack(parts: Sequence[Tensors]) -> Tensors:
        return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}

    return Weights(stack([w.params for w in models]), stack([w.buffers for w in models]))
