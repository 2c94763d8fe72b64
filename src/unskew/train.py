"""Federated training: one round is a straight line. Read `step` first."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew import engines, metrics
from unskew.engines.lines import main_mark, seconds_between
from unskew.engines.numerics import steady
from unskew.engines.plan import cohort
from unskew.errors import UserError
from unskew.method import Method
from unskew.metrics import Assessment, Traffic
from unskew.probe import Findings, observe
from unskew.transfer import download, upload
from unskew.trial import Trial
from unskew.types import FORGETFUL, Params, ServerState, Tensors, Updates, Weights

NOTHING_SENT = Traffic(up=0, down=0)


@dataclass(frozen=True, eq=False)
class State:
    """All that a run is between two rounds."""

    round: int
    """Rounds done."""
    server: ServerState
    memories: dict[int, Tensors] = field(default_factory=dict)
    """What each client that ever took part has kept."""
    buffers: dict[int, Tensors] = field(default_factory=dict)
    """Each client's own BatchNorm statistics, where the policy keeps them local."""
    optimizers: dict[int, Tensors] = field(default_factory=dict)
    """The state of each client's optimiser, where the budget keeps it."""


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
    tallies: dict[str, int] = field(default_factory=dict)
    """What the method counted in its steps, such as PKD's `activated`."""
    probe: Findings | None = None
    """None in rounds that were not probed."""


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run."""

    weights: Weights
    """The served model."""
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
    """Computation of the whole run in rounds of FedAvg, from programs that know theirs."""

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
        """Of the final model, by class name."""
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


@dataclass(frozen=True)
class Program:
    """A method in stages, or one that changes the model: a function that trains, once or more often.

    `run` gets the trial, the method to train with (plain FedAvg, or what the program was put together with)
    and what to tell of every round of the main model. Programs add with methods, not with each other.
    """

    run: Callable[[Trial, Method, OnRound], Result]
    base: Method = Method()

    @property
    def notes(self) -> tuple[str, ...]:
        return self.base.notes

    def __add__(self, other: Method) -> Program:
        if isinstance(other, Program):
            raise UserError("these methods cannot be put together: each trains in stages of its own.")
        return replace(self, base=self.base + other)

    __radd__ = __add__


def train(
    trial: Trial,
    method: Method | Program | None = None,
    *,
    start: State | None = None,
    on_round: OnRound = lambda _: None,
) -> Result:
    """Train one global model under a trial's conditions. `on_round` sees every round as it ends; `start`
    continues where another training of the same model ended."""
    method = method or Method()
    if not isinstance(method, Method | Program):
        raise UserError("train needs a method, such as unskew.methods.fedprox(): call its function first.")
    if isinstance(method, Program):
        if start is not None:
            raise UserError("a method in stages begins at its beginning: leave start out.")
        return method.run(trial, method.base, on_round)
    if method.fresh and trial.budget.optimizer == "kept":
        raise UserError(
            "this method divides by the steps of a momentum that starts at 0: use budget.optimizer=fresh."
        )
    began = time.perf_counter()
    engine = engines.start(trial)
    state = start or begin(method, engine.initial)
    rounds: list[Round] = []
    under_way: list[Close] = []
    while under_way or state.round < trial.budget.rounds:
        if state.round < trial.budget.rounds and len(under_way) <= engine.ahead:
            state, close = advance(trial, method, engine, state)
            under_way.append(close)
        else:
            rounds.append(under_way.pop(0)())
            on_round(rounds[-1])
    weights = method.server.serve(state.server)
    notes = [*trial.federation.partition.notes, *method.notes, *divergence(weights)]
    return Result(
        weights=weights,
        rounds=rounds,
        classes=trial.federation.dataset.classes,
        counts=trial.federation.counts.numpy(),
        seconds=time.perf_counter() - began,
        notes=tuple(notes),
        state=state,
    )


def divergence(weights: Weights) -> list[str]:
    """A note where a model holds NaN or infinite values, and none where it does not."""
    if all(bool(value.isfinite().all()) for value in (weights.params | weights.buffers).values()):
        return []
    return ["training diverged: the final model holds NaN or infinite weights; try a smaller lr."]


def begin(method: Method, weights: Weights, *, round: int = 0) -> State:
    """The state before a round, with nothing remembered but the model."""
    return State(round, ServerState(weights, method.server.init(weights)))


def step(trial: Trial, method: Method, engine: engines.Engine, state: State) -> tuple[State, Round]:
    """One round: sample, fit, aggregate, test."""
    state, close = advance(trial, method, engine, state)
    return state, close()


Close = Callable[[], Round]
"""Waits for a round's numbers."""


def advance(trial: Trial, method: Method, engine: engines.Engine, state: State) -> tuple[State, Close]:
    """One round, without waiting for a device that works on its own: its numbers come when they are asked
    for."""
    federation, budget, t = trial.federation, trial.budget, state.round
    anchor = state.server.weights
    device = _device(anchor)
    began = main_mark(device, timed=True)
    chosen = cohort(trial.seed, t, federation.clients, trial.cohort)
    jobs = [
        engines.Job(
            client,
            t,
            memory=_memory(method, engine, state, client, federation.counts[client]),
            buffers=state.buffers.get(client),
            optimizer=state.optimizers.get(client, {}),
        )
        for client in chosen
    ]
    shared = method.server.share(state.server)
    fits = engine.fit(method, anchor, shared, jobs)

    done = [(job, fit) for job, fit in zip(jobs, fits, strict=True) if fit.steps]
    server, loss = state.server, torch.tensor(math.nan)
    delta, reported, tallies = Params(), Tensors(), Tensors()
    if done:
        with steady(device, trial.threads):
            updates = _gather(trial, anchor, t, done)
            params, memory = method.server.move(server, method.server.combine(server, updates))
            buffers = (
                average_buffers(anchor.buffers, updates) if trial.statistics == "average" else anchor.buffers
            )
            after = Weights(params, buffers)
            noted = method.server.note(server, after, updates)
            server = ServerState(after, {**server.memory, **memory, **noted})
            loss = torch.stack([fit.loss for _, fit in done]).double() @ updates.weight
            delta, reported = updates.delta, done[0][1].reported
            tallies = {
                name: torch.stack([fit.tallies[name] for _, fit in done]).sum() for name in done[0][1].tallies
            }
    state = State(
        round=t + 1,
        server=server,
        memories=state.memories | {job.client: fit.memory for job, fit in done if fit.memory},
        buffers=state.buffers | {job.client: fit.weights.buffers for job, fit in done}
        if trial.statistics == "local"
        else {},
        optimizers=state.optimizers | {job.client: fit.optimizer for job, fit in done}
        if budget.optimizer == "kept"
        else {},
    )
    due = state.round % trial.evaluation.every == 0 or state.round == budget.rounds
    served = method.server.serve(server) if due else None
    test = cache(engine.assess_later(served)) if served else None
    worked = main_mark(device, timed=True)
    probing = None
    if trial.probe.due(state.round, budget.rounds):
        local = {job.client: fit.weights for job, fit in done}
        known = test if served is server.weights else None
        probing = observe(trial, engine, anchor, local, delta, server.weights, known)
    sent = metrics.traffic(
        anchor.params | anchor.buffers if trial.statistics == "average" else anchor.params,
        cohort=len(chosen),
        trained=len(done),
        shared=shared,
        reported=reported,
    )
    trained = [job.client for job, _ in done]
    loss, tallies = download(loss), {name: download(value) for name, value in tallies.items()}
    arrived = main_mark(device)  # of this round: the next may be under way when they are asked for

    def close() -> Round:
        arrived.synchronize()
        asked = time.perf_counter()
        result = test() if test else None
        seconds = seconds_between(began, worked)
        if not engine.ahead:  # else it was tested beside the next one
            seconds += time.perf_counter() - asked
        found = probing() if probing else None
        return Round(
            number=t + 1,
            lr=budget.lr_at(t),
            cohort=chosen,
            trained=trained,
            train_loss=float(loss),
            seconds=seconds,
            test=result,
            traffic=sent,
            tallies={name: int(value) for name, value in tallies.items()},
            probe=found,
        )

    return state, close


def _memory(method: Method, engine: engines.Engine, state: State, client: int, counts: Tensor) -> Tensors:
    if client in state.memories:
        return state.memories[client]
    if method.memory.init is FORGETFUL.init:
        return {}
    return method.memory.init(engine.initial, upload(counts, _device(engine.initial)))


def _device(weights: Weights) -> torch.device:
    return next(iter(weights.params.values())).device


def _gather(trial: Trial, anchor: Weights, t: int, done: list[tuple[engines.Job, engines.Fit]]) -> Updates:
    samples = torch.tensor([fit.samples for _, fit in done], dtype=torch.float64)
    device = _device(anchor)

    def stacked(parts: list[Tensors]) -> Tensors:
        return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}

    after = stacked([fit.weights.params for _, fit in done])
    return Updates(
        clients=trial.federation.clients,
        holders=int((trial.federation.sizes > 0).sum()),
        rows=upload(torch.tensor([job.client for job, _ in done]), device),
        weight=upload(samples / samples.sum(), device),
        delta={name: value.sub_(anchor.params[name]) for name, value in after.items()},
        buffers=stacked([fit.weights.buffers for _, fit in done]),
        steps=upload(torch.tensor([fit.steps for _, fit in done]), device),
        lr=trial.budget.lr_at(t),
        momentum=trial.budget.momentum,
        reported=stacked([fit.reported for _, fit in done]),
        share=float(samples.sum()) / int(trial.federation.counts.sum()),
    )


def average_buffers(before: Tensors, updates: Updates) -> Tensors:
    """Floating-point buffers by the clients' weights, counters by their largest value. What no client
    changed stays exactly as it was."""
    return {
        name: before[name] + torch.tensordot(updates.weight.to(value), value - before[name], dims=1)
        if value.is_floating_point()
        else value.amax(dim=0)
        for name, value in updates.buffers.items()
    }
