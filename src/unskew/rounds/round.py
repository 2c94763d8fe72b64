"""One round: sample, fit, aggregate, test, record. Read `begin_round` first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from unskew import engines, metrics
from unskew.engines.check import ClientAnswer, ValueCheck
from unskew.engines.job import Failed, Job, Pending, Task
from unskew.engines.plan import draw_cohort
from unskew.faults import DivergedError, accept, find_bad_part, require_enough, sort_out, without
from unskew.method import Method
from unskew.method_checks import check_named_tensors
from unskew.probe import observe
from unskew.record import Fault
from unskew.result import Round, State
from unskew.rounds.aggregation import aggregate
from unskew.rounds.notes import is_finite
from unskew.rounds.state import model_to_send, model_to_serve, recall
from unskew.trial import Trial
from unskew.types import Tensors, Weights


def run_round(
    trial: Trial,
    method: Method,
    engine: engines.Engine,
    state: State,
    *,
    sampler: CohortSampler | None = None,
) -> tuple[State, Round]:
    """Do one round: sample, fit, aggregate, test, record. Return the next state and the round's results."""
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
    """Choose the clients that take part in a round, each with all its samples."""
    federation = trial.federation
    chosen = draw_cohort(trial.seed, round, federation.clients, trial.cohort)
    return [Task(client, round, federation.holding(client)) for client in chosen]


@dataclass(frozen=True, eq=False)
class TrainedCohort:
    """The clients that trained in a round, and their answers."""

    sent: Weights
    """The model that all of them were sent."""
    shared: Tensors
    """What the server broadcast in addition to the model."""
    tasks: list[Task]
    answers: list[ClientAnswer]
    """The answers that can be used, of the clients that took at least one step."""
    faults: tuple[Fault, ...]
    """The clients that are left out."""
    unusable: Pending[list[Fault]]
    """The faults of answers that the host did not know of when the round began."""
    stop_timer: Callable[[], Pending[float]]

    def settled(self) -> TrainedCohort:
        """Wait for the values of all answers. Return this cohort without those that cannot be used, or this
        object if all can be."""
        if not (found := self.unusable.result()):
            return self
        answers, faults = without(self.answers, found), (*self.faults, *found)
        return replace(self, answers=answers, faults=faults, unusable=Pending.done([]))


def fit_cohort(
    trial: Trial, method: Method, engine: engines.Engine, state: State, sampler: CohortSampler
) -> TrainedCohort:
    """Train the clients of a round and check what they send. If the engine works ahead of the device, values
    are checked when they arrive."""
    stop_timer = engine.start_timer()
    sent, t, ahead = model_to_send(method, state.server), state.round, engine.rounds_ahead > 0
    tasks = sampler(trial, t)
    # An engine that works ahead of the device makes the next round's inputs meanwhile.
    upcoming = sampler(trial, t + 1) if ahead and t + 1 < trial.budget.rounds else []
    shared = check_named_tensors("server.share", method.server.share(state.server))
    results = fit_clients(method, engine, state, sent, shared, tasks, upcoming)

    answers, faults = sort_out(trial.faults, t, results, sent)
    with engine.deterministic():
        answers = attacked(trial, sent, t, answers)
    check = ValueCheck(answers, sent, trial.faults.max_norm)
    arriving = engine.fetch(check.values)

    def unusable() -> list[Fault]:
        found = check.faults(arriving.result())
        accept(trial.faults, t, found)
        return found

    cohort = TrainedCohort(sent, shared, tasks, answers, tuple(faults), Pending(unusable), stop_timer)
    return cohort if ahead else cohort.settled()


def fit_clients(
    method: Method,
    engine: engines.Engine,
    state: State,
    sent: Weights,
    shared: Tensors,
    tasks: Sequence[Task],
    upcoming: Sequence[Task] = (),
) -> list[ClientAnswer | Failed]:
    """Train clients, each with what it keeps, and return their results in the order of the tasks."""
    with engine.deterministic():  # also on its number of threads: workers want the cores
        recalled = [recall(method, engine, state, task) for task in tasks]
    jobs = [each for each in recalled if isinstance(each, Job)]
    outcomes = iter(engine.fit(method, sent, shared, jobs, upcoming))
    results = list[ClientAnswer | Failed]()
    for each in recalled:
        if isinstance(each, Failed):
            results.append(each)
            continue
        outcome = next(outcomes)
        results.append(outcome if isinstance(outcome, Failed) else (each, outcome))
    return results


def begin_round(
    trial: Trial,
    method: Method,
    engine: engines.Engine,
    state: State,
    *,
    sampler: CohortSampler | None = None,
    cohort: TrainedCohort | None = None,
) -> tuple[State, Pending[Round | TrainedCohort]]:
    """Begin one round. Return the next state and the round's record, which is available when the device has
    finished the round: with an engine that works ahead of its device, this waits only where a method or an
    attack reads values. If an update then turns out to be unusable, the result is the cohort without it
    instead: begin the round again with that cohort, from the same state."""
    cohort = cohort or fit_cohort(trial, method, engine, state, sampler or sample_cohort)
    sent, t = cohort.sent, state.round
    try:
        require_enough(trial.faults, t, len(cohort.answers), cohort.faults)
    except DivergedError:
        raise_if_own_fault(method, engine, state, cohort)
        raise
    try:
        with engine.deterministic():
            following, summary = aggregate(trial, method, state, sent, cohort.answers)

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
            findings = observe(trial, engine, sent, trained, summary.delta, moved, known)
    except Exception:
        if (settled := cohort.settled()) is not cohort:  # an unusable answer may have caused the error
            return state, Pending.done(settled)
        raise

    traffic = metrics.traffic(
        trial.sent_of(sent),
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
    """Raise an error that names the part of the method's objective which is not finite, if training is not
    the cause."""
    first = cohort.faults[0].client
    task = next(task for task in cohort.tasks if task.client == first)
    try:
        job = recall(method, engine, state, task)
        if isinstance(job, Failed):
            return
        bad = find_bad_part(engine, method, cohort.sent, cohort.shared, job)
    except Exception:  # the method cannot be evaluated outside of training
        return
    if bad:
        what, name = bad
        raise DivergedError(
            f"the {what} of the method's {name} is NaN or infinite for client {first} in round "
            f"{state.round + 1}, while the model and its answers are finite: fix it."
        ) from None


def attacked(trial: Trial, sent: Weights, t: int, answers: list[ClientAnswer]) -> list[ClientAnswer]:
    """Return the answers as clients send them if some of them attack. Attackers know the finite models of the
    honest clients."""
    if trial.attack.kind == "none":
        return answers
    trained = {job.task.client: fit.weights for job, fit in answers if is_finite(fit.weights)}
    changed = trial.attack.changed(trial.seed, t, trial.federation.clients, sent, trained)
    if trial.keeps_buffers:
        changed = {client: Weights(each.params, trained[client].buffers) for client, each in changed.items()}
    return [(job, replace(fit, weights=changed.get(job.task.client, fit.weights))) for job, fit in answers]
