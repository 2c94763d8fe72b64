"""Rounds of training. A round is sample, fit, aggregate, test, record: read `begin_round` first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unskew import engines, metrics
from unskew.client_tensors import ClientStore, ClientTensors, client_store
from unskew.engines.check import ClientAnswer, ValueCheck
from unskew.engines.job import Fit, Job, Pending, Task
from unskew.engines.plan import draw_cohort
from unskew.errors import UserError
from unskew.faults import DivergedError, accept, find_bad_part, require_enough, sort_out, without
from unskew.method import Method
from unskew.method_checks import check_instance, check_like_model, check_named_tensors, check_pair
from unskew.parts.optimizers import OptimizerChoice
from unskew.probe import observe
from unskew.record import Fault, fault_notes
from unskew.result import Round, State
from unskew.transfer import upload
from unskew.trial import Trial
from unskew.types import Params, ServerState, Tensors, Updates, Weights

OnRound = Callable[[Round], None]


def train_rounds(
    trial: Trial,
    method: Method,
    engine: engines.Engine,
    state: State,
    *,
    until: int | None = None,
    after_round: Callable[[Round, State], bool] = lambda *_: False,
) -> State:
    """Train up to round `until` (by default the budget's). `after_round(round, state)` is called in order and
    returns True to stop. With `engine.rounds_ahead > 0` a round may start before the numbers of the one
    before arrive; if these show an update that cannot be used, training goes back to the state before that
    round and repeats it without the client."""
    check_compatible(trial, method)
    until = trial.budget.rounds if until is None else until
    under_way: list[tuple[State, Pending[Round | TrainedCohort]]] = []
    again: TrainedCohort | None = None

    def settle() -> State:
        """End the oldest round that is under way; return the state to go on from."""
        nonlocal again, until
        before, pending = under_way.pop(0)
        outcome = pending.result()
        if isinstance(outcome, Round):
            after = under_way[0][0] if under_way else state
            if not after_round(outcome, after):
                return state
            under_way.clear()
            until = after.round
            return after
        again = outcome
        under_way.clear()
        return before

    while under_way or state.round < until:
        if state.round < until and len(under_way) <= engine.rounds_ahead:
            before, cohort, again = state, again, None
            try:
                state, pending = begin_round(trial, method, engine, before, cohort=cohort)
            except Exception:
                while under_way:  # the rounds before are done all the same, or are what is wrong
                    state = settle()
                if state is before and state.round < until:
                    raise
            else:
                under_way.append((before, pending))
        else:
            state = settle()
    return state


def check_compatible(trial: Trial, method: Method) -> None:
    """Refuse a method that the trial's optimiser, its state or the probe does not fit."""
    budget = trial.budget
    kind = OptimizerChoice.parse(budget.optimizer).kind
    if method.needs_sgd and kind != "sgd":
        raise UserError(
            f"this method needs budget.optimizer=sgd, not {kind}, because {method.needs_sgd}: choose sgd, or "
            "another method."
        )
    if method.own_start and trial.probe.every:
        raise UserError(
            "the clients of this method start at their own last weights, which a probe does not see: leave "
            "the probe out."
        )
    if method.fresh_momentum and budget.optimizer_state == "kept":
        raise UserError(
            "this method divides by the steps of a momentum that starts at 0: use "
            "budget.optimizer_state=fresh."
        )


def check_fits(method: Method, state: State, initial: Weights, trial: Trial) -> None:
    """Refuse a state of another model, one that lacks what the method's server keeps, or one whose clients
    have kept another optimiser's state."""
    of_model = state.server.weights
    for have, need in ((of_model.params, initial.params), (of_model.buffers, initial.buffers)):
        for name in sorted(have.keys() | need.keys()):
            if name not in have or name not in need or have[name].shape != need[name].shape:
                raise UserError(
                    f"the state to start from is of another model ('{name}' differs): start from one of this."
                )
    if missing := sorted(method.server.init(initial).keys() - state.server.memory.keys()):
        raise UserError(
            f"the state to start from is of another method (it lacks '{missing[0]}' of the server): start "
            "from one of this."
        )
    expected = trial.budget.local_optimizer(trial.budget.lr).init(initial.params).keys()
    for client in list(state.optimizers)[:1]:
        if trial.budget.optimizer_state == "kept" and state.optimizers[client].keys() != expected:
            raise UserError(
                "the state to start from is of clients with another optimiser: start from one of this, or "
                "use budget.optimizer_state=fresh."
            )


def initial_state(method: Method, weights: Weights, *, round: int = 0) -> State:
    """The state before a round, with nothing remembered but the model."""
    memory = check_named_tensors("server.init", method.server.init(weights))
    return State(ServerState(weights, memory, round))


def model_to_send(method: Method, state: ServerState) -> Weights:
    """The model that the clients of the next round receive."""
    model = method.server.send(state)
    check_instance("server.send", model, Weights)
    check_like_model("server.send", model.params, state.weights.params)
    return model


def model_to_serve(method: Method, state: ServerState) -> Weights:
    """The model to evaluate, save and deploy after a round."""
    model = method.server.serve(state)
    check_instance("server.serve", model, Weights)
    return model


def run_round(
    trial: Trial,
    method: Method,
    engine: engines.Engine,
    state: State,
    *,
    sampler: CohortSampler | None = None,
) -> tuple[State, Round]:
    """One round, and what it did: sample, fit, aggregate, test, record."""
    after, pending = begin_round(trial, method, engine, state, sampler=sampler)
    outcome = pending.result()
    if isinstance(outcome, TrainedCohort):
        after, pending = begin_round(trial, method, engine, state, cohort=outcome)
        outcome = pending.result()
    assert isinstance(outcome, Round)
    return after, outcome


CohortSampler = Callable[[Trial, int], list[Task]]
"""Chooses the clients that train in a round, and their samples, from the trial and the round's number."""


def sample_cohort(trial: Trial, round: int) -> list[Task]:
    """The clients that take part in a round, each with all its samples."""
    federation = trial.federation
    chosen = draw_cohort(trial.seed, round, federation.clients, trial.cohort)
    return [Task(client, round, federation.holding(client)) for client in chosen]


@dataclass(frozen=True, eq=False)
class TrainedCohort:
    """The clients that trained in a round, and what came of it."""

    received: Weights
    """The model that all of them were sent."""
    shared: Tensors
    """What the server broadcast beside it."""
    tasks: list[Task]
    answers: list[ClientAnswer]
    """The answers that can be used, of the clients that took at least one step."""
    faults: tuple[Fault, ...]
    """The clients that are left out."""
    unusable: Pending[list[Fault]]
    """The faults of answers that the host did not know of when the round began."""
    stop_timer: Callable[[], Pending[float]]

    def settled(self) -> TrainedCohort:
        """Return this without what cannot be used, or this object where all can be. It waits."""
        if not (found := self.unusable.result()):
            return self
        answers, faults = without(self.answers, found), (*self.faults, *found)
        return replace(self, answers=answers, faults=faults, unusable=Pending.done([]))


def fit_cohort(
    trial: Trial, method: Method, engine: engines.Engine, state: State, sampler: CohortSampler
) -> TrainedCohort:
    """Train the clients of a round and look at what they send. Of an engine that works ahead of its numbers,
    values are looked at when they arrive."""
    stop_timer = engine.start_timer()
    received, t, ahead = model_to_send(method, state.server), state.round, engine.rounds_ahead > 0
    tasks = sampler(trial, t)
    with engine.deterministic():  # also on its number of threads: workers want the cores
        jobs = [recall(method, engine, state, task) for task in tasks]
    # An engine that works ahead of its numbers makes the next round's inputs meanwhile.
    upcoming = sampler(trial, t + 1) if ahead and t + 1 < trial.budget.rounds else []
    shared = check_named_tensors("server.share", method.server.share(state.server))
    outcomes = engine.fit(method, received, shared, jobs, upcoming)

    answers, faults = sort_out(trial.faults, t, jobs, outcomes, received)
    with engine.deterministic():
        answers = attacked(trial, received, t, answers)
    check = ValueCheck(answers, received, trial.faults.max_norm)
    arriving = engine.fetch(check.values)

    def unusable() -> list[Fault]:
        found = check.faults(arriving.result())
        accept(trial.faults, t, found)
        return found

    cohort = TrainedCohort(received, shared, tasks, answers, tuple(faults), Pending(unusable), stop_timer)
    return cohort if ahead else cohort.settled()


def begin_round(
    trial: Trial,
    method: Method,
    engine: engines.Engine,
    state: State,
    *,
    sampler: CohortSampler | None = None,
    cohort: TrainedCohort | None = None,
) -> tuple[State, Pending[Round | TrainedCohort]]:
    """One round, without waiting for a device that works on its own: the next state, and the round's record,
    which is there when the device has got so far. Where it then turns out that an update cannot be used, what
    is there instead is the cohort without it, to begin the round again with from the same state."""
    cohort = cohort or fit_cohort(trial, method, engine, state, sampler or sample_cohort)
    received, t = cohort.received, state.round
    try:
        require_enough(trial.faults, t, len(cohort.answers), cohort.faults)
    except DivergedError:
        raise_if_own_fault(method, engine, state, cohort)
        raise
    try:
        with engine.deterministic():
            following, summary = aggregate(trial, method, state, received, cohort.answers)

        due = trial.evaluation.due(following.round, trial.budget.rounds)
        model = model_to_serve(method, following.server) if due else None
        test = engine.evaluate(model) if model else None
        validates = trial.federation.validation is not None
        validation = engine.evaluate(model, "validation") if model and validates else None
        seconds = cohort.stop_timer()

        findings = None
        if trial.probe.due(following.round, trial.budget.rounds):
            known = test if model is following.server.weights else None
            trained = {job.task: fit.weights for job, fit in summary.done}
            moved = following.server.weights
            findings = observe(trial, engine, received, trained, summary.delta, moved, known)
    except Exception:
        if (settled := cohort.settled()) is not cohort:  # the error may come of what cannot be used
            return state, Pending.done(settled)
        raise

    traffic = metrics.traffic(
        trial.sent_of(received),
        cohort=len(cohort.tasks),
        trained=len(summary.done),
        shared=cohort.shared,
        reported=summary.done[0][1].reported if summary.done else {},
    )
    numbers = engine.fetch({"loss": summary.loss} | {f"tallies/{k}": v for k, v in summary.tallies.items()})

    def record() -> Round | TrainedCohort:
        if (settled := cohort.settled()) is not cohort:
            return settled
        values = numbers.result()
        return Round(
            number=t + 1,
            lr=trial.budget.lr_at(t),
            cohort=[task.client for task in cohort.tasks],
            trained=[job.task.client for job, _ in summary.done],
            train_loss=float(values["loss"]),
            seconds=seconds.result(),
            test=test.result() if test else None,
            validation=validation.result() if validation else None,
            traffic=traffic,
            samples=sum(fit.passed for _, fit in summary.done),
            tallies={name: int(values[f"tallies/{name}"]) for name in summary.tallies},
            probe=findings.result() if findings else None,
            faults=cohort.faults,
        )

    return following, Pending(record)


def raise_if_own_fault(method: Method, engine: engines.Engine, state: State, cohort: TrainedCohort) -> None:
    """Say which part of a method's objective is not finite, where that has not come of the training."""
    first = cohort.faults[0].client
    task = next(task for task in cohort.tasks if task.client == first)
    try:
        job = recall(method, engine, state, task)
        bad = find_bad_part(engine, method, cohort.received, cohort.shared, job)
    except Exception:  # of a method that cannot be asked outside of training
        return
    if bad:
        what, name = bad
        raise DivergedError(
            f"the {what} of the method's {name} is NaN or infinite for client {first} in round "
            f"{state.round + 1}, while the model and its answers are finite: fix it."
        ) from None


def attacked(trial: Trial, received: Weights, t: int, answers: list[ClientAnswer]) -> list[ClientAnswer]:
    """What the clients send, where the trial has some that attack. Those know of each other's honest updates
    what can be used."""
    if trial.attack.kind == "none":
        return answers
    honest = {job.task.client: fit.weights for job, fit in answers if _is_finite(fit.weights)}
    lies = trial.attack.changed(trial.seed, t, trial.federation.clients, received, honest)
    if trial.keeps_buffers:
        lies = {client: Weights(lie.params, honest[client].buffers) for client, lie in lies.items()}
    return [(job, replace(fit, weights=lies.get(job.task.client, fit.weights))) for job, fit in answers]


@dataclass(frozen=True, eq=False)
class RoundSummary:
    """What a round came to, beside the next state."""

    done: list[ClientAnswer]
    """The clients that took at least one step, and whose updates are used."""
    delta: Params
    """Their moves, [m, ...] each."""
    loss: Tensor
    tallies: Tensors


def aggregate(
    trial: Trial, method: Method, state: State, received: Weights, done: list[ClientAnswer]
) -> tuple[State, RoundSummary]:
    """The next state from what the clients that trained have made of the received model: a function of
    tensors, which waits for nothing. Without any, the model stays as it was."""
    if not done:
        return _following(trial, state, state.server, done), RoundSummary(
            done, {}, torch.tensor(math.nan), {}
        )
    server = state.server
    updates = _gather(trial, received, state.round, [fit for _, fit in done])
    revised = method.server.revise(server, updates)
    check_instance("server.revise", revised, Updates)
    delta = check_like_model("server.combine", method.server.combine(server, revised), received.params)
    params, memory = check_pair("server.move", method.server.move(server, delta), "parameters, memory")
    params = check_like_model("server.move", params, received.params)
    memory = check_named_tensors("server.move", memory)
    buffers = received.buffers
    if trial.statistics == "average":
        combine_buffers = method.server.buffers or average_buffers
        buffers = check_like_model("server.buffers", combine_buffers(buffers, revised), buffers)
    after = Weights(params, buffers)
    noted = check_named_tensors("server.note", method.server.note(server, after, revised))
    following = ServerState(after, {**server.memory, **memory, **noted}, server.round)
    loss = torch.stack([fit.loss for _, fit in done]).double() @ updates.weight
    tallies = {name: torch.stack([fit.tallies[name] for _, fit in done]).sum() for name in done[0][1].tallies}
    return _following(trial, state, following, done), RoundSummary(done, updates.delta, loss, tallies)


def _following(trial: Trial, state: State, server: ServerState, done: list[ClientAnswer]) -> State:
    """The state after a round, with what its clients keep."""
    by_client, store = {job.task.client: fit for job, fit in done}, store_of(trial)

    def kept(before: ClientTensors, now: Callable[[Fit], Tensors]) -> ClientTensors:
        so_far = before if before.store else store.empty()
        return so_far.updated({client: now(fit) for client, fit in by_client.items() if now(fit)})

    return State(
        server=replace(server, round=state.round + 1),
        memories=kept(state.memories, lambda fit: fit.memory),
        buffers=kept(state.buffers, lambda fit: fit.weights.buffers if trial.keeps_buffers else {}),
        optimizers=kept(state.optimizers, lambda fit: fit.optimizer),
    )


def store_of(trial: Trial) -> ClientStore:
    """Where a trial's clients keep what they keep."""
    limit = None if trial.client_memory is None else int(trial.client_memory * 1e9)
    return client_store(trial.pick_device(), limit, trial.client_files)


def recall(method: Method, engine: engines.Engine, state: State, task: Task) -> Job:
    """A client's task with what it remembers, or what the method begins with."""
    client = task.client
    memory = state.memories[client] if client in state.memories else engine.start_memory(method, task)
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
        momentum=trial.budget.momentum or 0.0,
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


def notes_of_faults(rounds: Iterable[Round]) -> list[str]:
    """A note of the clients that rounds continued without, and none where there are none."""
    return fault_notes((round.number, fault) for round in rounds for fault in round.faults)


def divergence(weights: Weights) -> list[str]:
    """A note where a model holds NaN or infinite values, and none where it does not."""
    if _is_finite(weights):
        return []
    return ["training diverged: the final model holds NaN or infinite weights; try a smaller lr."]


def _is_finite(weights: Weights) -> bool:
    return all(bool(value.isfinite().all()) for value in (weights.params | weights.buffers).values())


def rounds_cost(trial: Trial, method: Method, rounds: int) -> float | None:
    """The computation of so many rounds in rounds of FedAvg; None where nobody has counted the method's."""
    work, epochs = method.work_in(trial), trial.epochs
    return None if work is None else rounds * metrics.round_cost(work.passes(epochs), epochs)


def _device(weights: Weights) -> torch.device:
    return next(iter(weights.params.values())).device
