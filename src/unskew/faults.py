"""What becomes of a round where clients' answers are missing or cannot be used, by a trial's `Faults`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from unskew.engines.check import Answer, check_form, check_reports
from unskew.engines.job import Failed, Job, Outcome
from unskew.errors import UserError
from unskew.record import Fault
from unskew.trial import Faults
from unskew.types import Weights


class DivergedError(UserError):
    """That no client of a round has come to finite values."""


MOST_TOLD = 5
"""Clients that one sentence names."""


def sort_out(
    rules: Faults, round: int, jobs: Sequence[Job], outcomes: Sequence[Outcome], sent: Weights
) -> tuple[list[Answer], list[Fault]]:
    """The clients that trained and whose answers have the form they should have, and the faults of the
    others, as far as the host knows without waiting. A client without data is among neither. `round` is
    counted from 0, as in all of these."""
    answers, faults = list[Answer](), list[Fault]()
    for job, outcome in zip(jobs, outcomes, strict=True):
        if isinstance(outcome, Failed):
            if outcome.kind == "error" and rules.on_fault != "skip":  # as it is, with its traceback
                raise outcome.raised()
            faults.append(Fault(job.task.client, outcome.stage, outcome.kind, outcome.reason()))
        elif outcome.steps and (fault := check_form(job, outcome, sent)):
            faults.append(fault)
        elif outcome.steps:
            answers.append((job, outcome))
    odd = check_reports(answers)
    faults += odd
    accept(rules, round, faults)
    return without(answers, odd), faults


def without(answers: Iterable[Answer], faults: Iterable[Fault]) -> list[Answer]:
    """The answers of those clients that have no fault."""
    bad = {fault.client for fault in faults}
    return [(job, fit) for job, fit in answers if job.task.client not in bad]


def accept(rules: Faults, round: int, faults: Sequence[Fault]) -> None:
    """Stop where the rules ask to stop at any fault."""
    if faults and rules.on_fault == "stop":
        raise UserError(
            f"round {round + 1} stopped at {_named(faults)}, as faults.on_fault=stop asks: mend it, or use "
            "--on-fault skip to go on without."
        )


def require_enough(rules: Faults, round: int, answered: int, faults: Sequence[Fault]) -> None:
    """Stop where clients had faults and too few others answered."""
    if not faults or answered >= rules.min_clients:
        return
    if not answered and all(fault.kind == "not finite" for fault in faults):
        who = f"all {len(faults)} clients" if len(faults) > 1 else f"client {faults[0].client}"
        raise DivergedError(
            f"training diverged in round {round + 1}: loss or weights of {who} became NaN or infinite; "
            "try a smaller lr."
        )
    raise UserError(
        f"round {round + 1} stopped with {answered} usable update{'s' * (answered != 1)}, fewer than "
        f"faults.min_clients {rules.min_clients}, because of {_named(faults)}: mend that, or lower "
        "faults.min_clients."
    )


def _named(faults: Sequence[Fault]) -> str:
    told = [f"client {each.client}, stage '{each.stage}' ({each.reason})" for each in faults[:MOST_TOLD]]
    more = [f"{len(faults) - MOST_TOLD} more"] if len(faults) > MOST_TOLD else []
    return "; ".join([*told, *more])
