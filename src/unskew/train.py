"""Federated training. A round is sample, fit, aggregate, test, record: read `begin_round` first."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew import engines, metrics
from unskew.client_tensors import ClientStore, ClientTensors, client_store
from unskew.engines.job import Fit, Job, Pending, Task, completed
from unskew.engines.plan import cohort
from unskew.errors import UserError
from unskew.method import Method, Tally
from unskew.metrics import Assessment, Traffic
from unskew.probe import Findings, observe
from unskew.transfer import upload
from unskew.trial import Trial
from unskew.types import FORGETFUL, Params, ServerState, Tensors, Updates, Weights

NOTHING_SENT = Traffic(up=0, down=0)


@dataclass(frozen=True, eq=False)
class State:
    """All that training is between two rounds."""

    server: ServerState
    memories: ClientTensors = field(default_factory=ClientTensors)
    """What each client that ever took part has kept."""
    buffers: ClientTensors = field(default_factory=ClientTensors)
    """Each client's own BatchNorm statistics, where the policy keeps them local."""
    optimizers: ClientTensors = field(default_factory=ClientTensors)
    """The state of each client's optimiser, where the budget keeps it."""

    @property
    def round(self) -> int:
        """How many rounds were done."""
        return self.server.round


@dataclass(frozen=True, eq=False)
class Round:
    """What one round did."""

    number: int
    """Counted from 1."""
    lr: float
    cohort: list[int]
    trained: list[int]
    """The clients of the cohort that took at least one step."""
    train_loss: float
    """Mean over the clients that trained, weighted as they were averaged; NaN when none did."""
    seconds: float
    test: Assessment | None
    """None in rounds that were not tested."""
    traffic: Traffic = NOTHING_SENT
    samples: int = 0
    """How many the clients passed through in training: their own, in each epoch anew."""
    tallies: dict[str, int] = field(default_factory=dict)
    """What the method counted in its steps, by the names of `Method.tallies`."""
    probe: Findings | None = None
    """None in rounds that were not probed."""


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run."""

    weights: Weights
    """The served model; its buffers have the frozen parameters too."""
    rounds: list[Round]
    classes: tuple[str, ...]
    counts: NDArray[np.int64]
    """Label counts, [N, C]."""
    seconds: float
    state: State
    """From which training can go on."""
    notes: tuple[str, ...] = ()
    """What a reader of the numbers should know."""
    beside: Traffic = NOTHING_SENT
    """Bytes that were sent outside of the rounds."""
    cost: float | None = None
    """Computation of the whole run in rounds of FedAvg; None where nobody has counted a method's."""
    tallies: tuple[Tally, ...] = ()
    """What the tallies of the rounds count."""

    @cached_property
    def final(self) -> Assessment:
        test = self.rounds[-1].test
        assert test is not None  # the last round is always tested
        return test

    @property
    def accuracy(self) -> dict[str, float]:
        """best, last and mean_last_10, over the rounds that were tested."""
        return metrics.best_last_mean([metrics.accuracy(test.confusion) for test in self._tests])

    @property
    def class_accuracy(self) -> dict[str, float]:
        """The final model's accuracy on each class, by its name."""
        return dict(zip(self.classes, metrics.class_accuracy(self.final.confusion).tolist(), strict=True))

    @property
    def worst_accuracy(self) -> float:
        """The final model's accuracy on its worst class."""
        return float(np.nanmin(metrics.class_accuracy(self.final.confusion)))

    @property
    def groups(self) -> dict[str, float | None]:
        """The final model's accuracy on the clients' majority, minority and vacant classes."""
        return metrics.group_accuracy(metrics.class_accuracy(self.final.confusion), self.counts)

    @property
    def forgetting(self) -> float:
        return metrics.forgetting([metrics.class_accuracy(test.confusion) for test in self._tests])

    @property
    def traffic(self) -> Traffic:
        """Bytes of the whole run."""
        return sum((round.traffic for round in self.rounds), self.beside)

    @property
    def probe_seconds(self) -> float | None:
        """What probing cost; None where there was none."""
        probes = [round.probe.seconds for round in self.rounds if round.probe is not None]
        return sum(probes) if probes else None

    @property
    def _tests(self) -> list[Assessment]:
        return [round.test for round in self.rounds if round.test is not None]


OnRound = Callable[[Round], None]


@runtime_checkable
class Staged(Protocol):
    """A method that trains in stages of its own, such as a `Program`."""

    def train_in_stages(self, trial: Trial, on_round: OnRound) -> Result:
        """Train under a trial's conditions; `on_round` sees every round of the main model as it ends."""


def train(
    trial: Trial,
    method: Method | Staged | None = None,
    *,
    start: State | None = None,
    on_round: OnRound = lambda _: None,
) -> Result:
    """Train one global model under a trial's conditions. `on_round` sees every round as it ends; `start`
    continues where another training of the same model ended."""
    method = method or Method()
    if isinstance(method, Staged):
        if start is not None:
            raise UserError("a method in stages begins at its beginning: leave start out.")
        return method.train_in_stages(trial, on_round)
    if not isinstance(method, Method):
        raise UserError("train needs a method, such as unskew.methods.fedprox(): call its function first.")
    began = time.perf_counter()
    with closing(engines.start(trial)) as engine:
        state = start or begin(method, engine.initial)
        done = state.round
        state, rounds = train_rounds(trial, method, engine, state, on_round=on_round)
        weights = method.server.serve(state.server).with_frozen(engine.frozen)
    return Result(
        weights=weights,
        rounds=rounds,
        classes=trial.federation.dataset.classes,
        counts=trial.federation.counts.numpy(),
        seconds=time.perf_counter() - began,
        notes=(*trial.federation.partition.notes, *method.notes, *divergence(weights)),
        state=state,
        cost=rounds_cost(trial, method, state.round - done),
        tallies=method.tallies,
    )


def train_rounds(
    trial: Trial,
    method: Method,
    engine: engines.Engine,
    state: State,
    *,
    until: int | None = None,
    on_round: OnRound = lambda _: None,
) -> tuple[State, list[Round]]:
    """Train until so many rounds are done; by default those of the budget. A round may begin before the
    numbers of the one before have arrived."""
    check_momentum(trial, method)
    until = trial.budget.rounds if until is None else until
    rounds: list[Round] = []
    under_way: list[Pending[Round]] = []
    while under_way or state.round < until:
        if state.round < until and len(under_way) <= engine.rounds_ahead:
            try:
                state, pending = begin_round(trial, method, engine, state)
            except Exception:
                for pending in under_way:  # the rounds before are done all the same
                    on_round(pending.result())
                raise
            under_way.append(pending)
        else:
            rounds.append(under_way.pop(0).result())
            on_round(rounds[-1])
    return state, rounds


def check_momentum(trial: Trial, method: Method) -> None:
    """Refuse a method that needs a momentum from 0 under a budget that keeps it."""
    if method.fresh_momentum and trial.budget.optimizer == "kept":
        raise UserError(
            "this method divides by the steps of a momentum that starts at 0: use budget.optimizer=fresh."
        )


def begin(method: Method, weights: Weights, *, round: int = 0) -> State:
    """The state before a round, with nothing remembered but the model."""
    return State(ServerState(weights, method.server.init(weights), round))


def step(
    trial: Trial, method: Method, engine: engines.Engine, state: State, *, sample: Sample | None = None
) -> tuple[State, Round]:
    """One round, and what it did: sample, fit, aggregate, test, record."""
    state, pending = begin_round(trial, method, engine, state, sample=sample)
    return state, pending.result()


Sample = Callable[[Trial, int], list[Task]]
"""From a trial and the number of a round to who trains in it, on what."""


def sample_cohort(trial: Trial, round: int) -> list[Task]:
    """The clients that take part in a round, each with all its samples."""
    federation = trial.federation
    chosen = cohort(trial.seed, round, federation.clients, trial.cohort)
    return [Task(client, round, federation.holding(client)) for client in chosen]


def begin_round(
    trial: Trial, method: Method, engine: engines.Engine, state: State, *, sample: Sample | None = None
) -> tuple[State, Pending[Round]]:
    """One round, without waiting for a device that works on its own: the next state, and the round's record,
    which is there when the device has got so far."""
    sample = sample or sample_cohort
    stop_timer = engine.start_timer()
    received, t = state.server.weights, state.round

    tasks = sample(trial, t)
    with engine.deterministic():  # also on its number of threads: workers want the cores
        jobs = [recall(method, engine, state, task) for task in tasks]
    shared = method.server.share(state.server)

    # An engine that works ahead of its numbers makes the next round's inputs meanwhile.
    upcoming = sample(trial, t + 1) if engine.rounds_ahead and t + 1 < trial.budget.rounds else []
    fits = completed(engine.fit(method, received, shared, jobs, upcoming))

    with engine.deterministic():
        state, summary = aggregate(trial, method, state, jobs, fits)

    due = trial.evaluation.due(state.round, trial.budget.rounds)
    model = method.server.serve(state.server) if due else None
    test = engine.evaluate(model) if model else None
    seconds = stop_timer()

    findings = None
    if trial.probe.due(state.round, trial.budget.rounds):
        known = test if model is state.server.weights else None
        trained = {job.task: fit.weights for job, fit in summary.done}
        findings = observe(trial, engine, received, trained, summary.delta, state.server.weights, known)

    sent = metrics.traffic(
        received.params | received.buffers if trial.statistics == "average" else received.params,
        cohort=len(tasks),
        trained=len(summary.done),
        shared=shared,
        reported=summary.done[0][1].reported if summary.done else {},
    )
    numbers = engine.fetch({"loss": summary.loss} | {f"tallies/{k}": v for k, v in summary.tallies.items()})

    def record() -> Round:
        values = numbers.result()
        return Round(
            number=t + 1,
            lr=trial.budget.lr_at(t),
            cohort=[task.client for task in tasks],
            trained=[job.task.client for job, _ in summary.done],
            train_loss=float(values["loss"]),
            seconds=seconds.result(),
            test=test.result() if test else None,
            traffic=sent,
            samples=trial.budget.epochs * sum(fit.samples for _, fit in summary.done),
            tallies={name: int(values[f"tallies/{name}"]) for name in summary.tallies},
            probe=findings.result() if findings else None,
        )

    return state, Pending(record)


@dataclass(frozen=True, eq=False)
class RoundSummary:
    """What a round came to, beside the next state."""

    done: list[tuple[Job, Fit]]
    """The clients that took at least one step."""
    delta: Params
    """Their moves, [m, ...] each."""
    loss: Tensor
    tallies: Tensors


def aggregate(
    trial: Trial, method: Method, state: State, jobs: list[Job], fits: list[Fit]
) -> tuple[State, RoundSummary]:
    """The next state from what the clients sent: a function of tensors, which waits for nothing. Without a
    client that trained, the model stays as it was."""
    done = [(job, fit) for job, fit in zip(jobs, fits, strict=True) if fit.steps]
    if not done:
        return _following(trial, state, state.server, done), RoundSummary(
            done, {}, torch.tensor(math.nan), {}
        )
    server, received = state.server, state.server.weights
    updates = _gather(trial, received, state.round, [fit for _, fit in done])
    params, memory = method.server.move(server, method.server.combine(server, updates))
    averaged = trial.statistics == "average"
    after = Weights(params, average_buffers(received.buffers, updates) if averaged else received.buffers)
    noted = method.server.note(server, after, updates)
    following = ServerState(after, {**server.memory, **memory, **noted}, server.round)
    loss = torch.stack([fit.loss for _, fit in done]).double() @ updates.weight
    tallies = {name: torch.stack([fit.tallies[name] for _, fit in done]).sum() for name in done[0][1].tallies}
    return _following(trial, state, following, done), RoundSummary(done, updates.delta, loss, tallies)


def _following(trial: Trial, state: State, server: ServerState, done: list[tuple[Job, Fit]]) -> State:
    """The state after a round, with what its clients keep."""
    by_client, store = {job.task.client: fit for job, fit in done}, store_of(trial)

    def kept(before: ClientTensors, now: Callable[[Fit], Tensors]) -> ClientTensors:
        so_far = before if before.store else store.empty()
        return so_far.updated({client: now(fit) for client, fit in by_client.items() if now(fit)})

    return State(
        server=replace(server, round=state.round + 1),
        memories=kept(state.memories, lambda fit: fit.memory),
        buffers=kept(state.buffers, lambda fit: fit.weights.buffers if trial.statistics == "local" else {}),
        optimizers=kept(state.optimizers, lambda fit: fit.optimizer),
    )


def store_of(trial: Trial) -> ClientStore:
    """Where a trial's clients keep what they keep."""
    limit = None if trial.client_memory is None else int(trial.client_memory * 1e9)
    return client_store(trial.pick_device(), limit, trial.client_files)


def recall(method: Method, engine: engines.Engine, state: State, task: Task) -> Job:
    """A client's task with what it remembers, or what the method begins with."""
    client = task.client
    memory = state.memories.get(client, {})
    if client not in state.memories and method.memory.init is not FORGETFUL.init:
        memory = method.memory.init(engine.initial, upload(task.holding.counts, _device(engine.initial)))
    return Job(task, memory, state.buffers.get(client), state.optimizers.get(client, {}))


def _gather(trial: Trial, received: Weights, t: int, fits: list[Fit]) -> Updates:
    device, population = _device(received), trial.federation.population
    samples = torch.tensor([fit.samples for fit in fits], dtype=torch.float64)

    def stacked(parts: list[Tensors]) -> Tensors:
        return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}

    after = stacked([fit.weights.params for fit in fits])
    return Updates(
        holders=population.holders,
        weight=upload(samples / samples.sum(), device),
        delta={name: value.sub_(received.params[name]) for name, value in after.items()},
        buffers=stacked([fit.weights.buffers for fit in fits]),
        steps=upload(torch.tensor([fit.steps for fit in fits]), device),
        lr=trial.budget.lr_at(t),
        momentum=trial.budget.momentum,
        reported=stacked([fit.reported for fit in fits]),
        share=float(samples.sum()) / population.samples,
    )


def average_buffers(before: Tensors, updates: Updates) -> Tensors:
    """Average floating-point buffers by the clients' weights, and take the largest value of counters. What no
    client changed stays exactly as it was."""
    return {
        name: before[name] + torch.tensordot(updates.weight.to(value), value - before[name], dims=1)
        if value.is_floating_point()
        else value.amax(dim=0)
        for name, value in updates.buffers.items()
    }


def divergence(weights: Weights) -> list[str]:
    """A note where a model holds NaN or infinite values, and none where it does not."""
    if all(bool(value.isfinite().all()) for value in (weights.params | weights.buffers).values()):
        return []
    return ["training diverged: the final model holds NaN or infinite weights; try a smaller lr."]


def rounds_cost(trial: Trial, method: Method, rounds: int) -> float | None:
    """The computation of so many rounds in rounds of FedAvg; None where nobody has counted the method's."""
    work, epochs = method.work_in(trial), trial.budget.epochs
    return None if work is None else rounds * metrics.round_cost(work.passes(epochs), epochs)


def _device(weights: Weights) -> torch.device:
    return next(iter(weights.params.values())).device
