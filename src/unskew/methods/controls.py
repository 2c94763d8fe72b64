"""Controls: what averaging is worth, seen from both sides.

centralised: one client holds what all clients hold, and trains for the same rounds, epochs and batch size.

    w[t+1] = E epochs of SGD from w[t] on the union of all D_k

It sees all data in every round, also where the budget's cohort is smaller than the federation. Its momentum
starts anew in every round, as the clients' does.

local-only: every client trains a model of its own, in every round, without any exchange.

    w_k[t+1] = E epochs of SGD from w_k[t] on D_k

A test is the mean over the clients that hold data: their models' confusion matrices are summed, so that every
accuracy is a mean over clients; losses, probabilities, their scores and features are averaged. Validation is
the same on the validation samples, and chooses one round for all clients. The result's weights are all
these models, stacked on the first axis in the order of their clients. Where sites are clients and have test
samples of their own, what counts at a site is its own model on its own samples.

Deviations: none, as there is no paper. The third usual control, FedAvg on evenly divided data, is the skew
iid.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew.attacks import Attack
from unskew.data.federation import Federation
from unskew.data.partition import partition_of
from unskew.engines.check import check_fit
from unskew.engines.job import Task
from unskew.errors import require
from unskew.faults import accept, require_enough, sort_out
from unskew.method import Work
from unskew.methods.card import card
from unskew.metrics import Assessment, Traffic, mean_scores
from unskew.program import Program, Run
from unskew.record import ClientModel, Fault
from unskew.result import NOTHING_SENT, Result, Round, Stage, State
from unskew.rounds import fit_clients, rounds_cost, store_of
from unskew.sites import Sites
from unskew.trial import Probe
from unskew.types import Server, ServerState, Tensors, Weights


@card("centralised", sends="all of its data: a control")
def centralised() -> Program:
    """Train on all data in one place, with the same budget."""

    def run(run: Run) -> Result:
        federation, trial = run.trial.federation, run.trial
        dataset, old_partition = federation.dataset, federation.partition
        all_rows = np.concatenate(old_partition.indices)
        partition = partition_of([all_rows], dataset, recipe="centralised", notes=old_partition.notes)
        budget = trial.budget.model_copy(update={"cohort": "all"})
        if trial.attack.kind == "label-flip":  # clients that train on wrong labels do so here too
            labels = trial.attack.labels(federation, trial.seed)
            dataset = replace(dataset, train=replace(dataset.train, labels=labels))
        pooled = Federation(dataset, partition, federation.validation)
        trial = replace(trial, federation=pooled, budget=budget, probe=Probe(), attack=Attack())

        def without_traffic(round: Round) -> Round:
            return replace(round, traffic=NOTHING_SENT)

        trained = run.train("training", run.base, trial, record=without_traffic)
        notes = [
            "centralised: one client holds all data; majority, minority and vacant are the clients' classes."
        ]
        if run.trial.attack.kind not in ("none", "label-flip"):
            notes.append("centralised: no client sends a model, so none attacked.")
        if run.trial.probe.every:
            notes.append("centralised: no client trains, so none was probed.")
        data = Traffic(up=_data_size(federation, all_rows), down=0)
        return run.result(trained.weights, trained.state, trained.rounds, notes=notes, traffic=data)

    return Program(run, work=Work(), one_place="it trains on all data in one place")


def _data_size(federation: Federation, rows: NDArray[np.int64]) -> int:
    """Return the size of these training samples in bytes."""
    train = federation.dataset.train
    return sum(len(rows) * value.nbytes // len(value) for value in (train.inputs, train.labels))


@card("local-only", traffic="none, not even the model")
def local_only() -> Program:
    """Train every client alone, without averaging; test the mean over clients."""

    def run(run: Run) -> Result:
        require(
            run.base.server == Server(),
            "local-only has no server, so it cannot be combined with a method that changes the server.",
        )
        trial, engine = run.trial, run.engine()
        federation = trial.federation
        clients: list[int] = federation.sizes.nonzero().flatten().tolist()

        def all_models(stage: Stage) -> Weights:
            models = [state.server.weights for state in stage.states] or [engine.initial]
            return stacked([model.with_frozen(engine.frozen) for model in models])

        stage = _train_alone(run, clients, all_models)
        weights = stage.best or all_models(stage)
        notes = [
            f"local-only: every figure is the mean over {len(clients)} clients' own models, and all of them "
            "trained in every round" + ("; at a site, its own model counts." if federation.sites else ".")
        ]
        if trial.probe.every:
            notes.append("local-only: there is no global model to probe the clients' models against.")
        memories = (
            store_of(trial)
            .empty()
            .updated(
                {
                    client: state.memories.get(client, {})
                    for client, state in zip(clients, stage.states, strict=True)
                }
            )
        )
        state = State(ServerState(all_models(stage), {}, len(stage.rounds)), memories)
        each = [engine.probability_scores(model) for model in unstacked(weights)]
        scores = mean_scores([found for found in each if found is not None])
        names = federation.names
        owners = [ClientModel(client, names[client] if names else "") for client in clients or [0]]
        return run.result(weights, state, stage.rounds, notes=notes, scores=scores, owners=owners)

    return Program(run, work=Work(), one_place="its clients exchange nothing: each site trains alone")


def _train_alone(run: Run, clients: Sequence[int], model: Callable[[Stage], Weights]) -> Stage:
    """Train every client's own model, round by round. `model` stacks all of them into one."""
    trial, base, engine = run.trial, run.base, run.engine()
    federation, budget = trial.federation, trial.budget
    nothing = store_of(trial).empty()
    clients_per_cohort = federation.clients / trial.cohort

    def begin() -> Stage:
        states = [State(ServerState(engine.initial, {}), nothing, nothing, nothing) for _ in clients]
        return Stage(tuple(states))

    def advance(stage: Stage) -> Stage:
        t, states = len(stage.rounds), dict(zip(clients, stage.states, strict=True))
        stop_timer = engine.start_timer()
        losses, counted, faults, samples, passed = [], Counter[str](), list[Fault](), 0, 0
        for client, state in states.items():
            sent, task = state.server.weights, Task(client, t, federation.holding(client))
            results = fit_clients(base, engine, state, sent, {}, [task])
            answers, bad = sort_out(trial.faults, t, results, sent)
            for job, fit in answers:
                bad += filter(None, [check_fit(job, fit, sent, trial.faults.max_norm)])
            accept(trial.faults, t, bad)
            faults += bad
            if bad or not answers:  # its model stays as it was
                states[client] = replace(state, server=replace(state.server, round=t + 1))
                continue
            [(_, fit)] = answers
            samples += fit.samples
            passed += fit.passed
            states[client] = replace(
                state,
                server=ServerState(fit.weights, {}, t + 1),
                memories=state.memories.updated({client: fit.memory}),
                optimizers=state.optimizers.updated({client: fit.optimizer}),
            )
            losses.append(float(fit.loss) * fit.samples)
            counted.update({name: int(value) for name, value in fit.tallies.items()})
        require_enough(trial.faults, t, len(losses), faults)
        loss = sum(losses) / samples if losses else math.nan
        test = validation = None
        if trial.evaluation.due(t + 1, budget.rounds):
            models = [state.server.weights for state in states.values()] or [engine.initial]
            tests = [engine.evaluate(weights).result() for weights in models]
            test = replace(mean_assessment(tests), answers=own_answers(federation.sites, clients, tests))
            if federation.validation is not None:
                tried = [engine.evaluate(weights, "validation").result() for weights in models]
                validation = mean_assessment(tried)
        seconds = stop_timer().result()
        everyone = list(range(federation.clients))
        round = Round(
            number=t + 1,
            lr=budget.lr_at(t),
            cohort=everyone,
            trained=[client for client in clients if client not in {fault.client for fault in faults}],
            train_loss=loss,
            seconds=seconds,
            test=test,
            samples=passed,
            tallies=dict(counted),
            faults=tuple(faults),
            validation=validation,
        )
        cost = rounds_cost(trial, base, t + 1)
        return replace(
            stage,
            states=tuple(states.values()),
            rounds=(*stage.rounds, round),
            cost=None if cost is None else cost * clients_per_cohort,
        )

    return run.repeat("training", begin, advance, rounds=budget.rounds, model=model)


def mean_assessment(tests: Sequence[Assessment]) -> Assessment:
    """Return the tests of several models as one: confusion matrices are summed, all else is averaged."""
    domains = [test.domains for test in tests if test.domains is not None]
    return Assessment(
        confusion=np.sum([test.confusion for test in tests], axis=0),
        loss=float(np.mean([test.loss for test in tests])),
        mean_probability=np.mean([test.mean_probability for test in tests], axis=0),
        mean_features=np.mean([test.mean_features for test in tests], axis=0),
        domains=np.sum(domains, axis=0) if domains else None,
    )


def own_answers(
    sites: Sites | None, clients: Sequence[int], tests: Sequence[Assessment]
) -> NDArray[np.integer] | None:
    """Return what every client's own model answers on the test samples of the client's sites. On samples of a
    site that belongs to no client the answer is the number of classes, which is none of them. The result is
    None without sites, or if none belongs to a client."""
    if sites is None or not (sites.clients >= 0).any():
        return None
    asked = sites.clients[sites.owners]
    every = [test.answers for test in tests if test.answers is not None]
    answers = np.full_like(every[0], sites.train.shape[1])
    for client, own in zip(clients, every, strict=True):
        mine = asked == client
        answers[mine] = own[mine]
    return answers


def unstacked(models: Weights) -> list[Weights]:
    """Return the models from which `stacked` made one."""
    number = len(next(iter(models.params.values())))
    return [
        Weights(
            {name: value[at] for name, value in models.params.items()},
            {name: value[at] for name, value in models.buffers.items()},
        )
        for at in range(number)
    ]


def stacked(models: Sequence[Weights]) -> Weights:
    """Stack all models on a new first axis. A tensor that all of them share, such as parameters that are not
    trained, takes the memory of one."""

    def stack(parts: Sequence[Tensors]) -> Tensors:
        return {name: stack_one([part[name] for part in parts]) for name in parts[0]}

    def stack_one(values: Sequence[Tensor]) -> Tensor:
        first = values[0]
        shared = all(value is first for value in values)
        return first.clone().expand(len(values), *first.shape) if shared else torch.stack(list(values))

    return Weights(stack([w.params for w in models]), stack([w.buffers for w in models]))
