"""How a round treats clients whose answers are missing or cannot be used, by the rules of a trial's
`Faults`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from unskew.engines import Engine
from unskew.engines.check import ClientAnswer, check_form, check_reports
from unskew.engines.job import Failed, Job
from unskew.errors import UserError
from unskew.method import Method, plain_loss
from unskew.method_checks import quoted_name
from unskew.record import Fault
from unskew.trial import Faults
from unskew.types import Look, Objective, Scope, Tensors, View, Weights


class DivergedError(UserError):
    """No client of a round has finished training with finite values."""


FAULTS_IN_ERROR = 5
"""How many faults of a round an error names; it only counts the others."""


def sort_out(
    rules: Faults, round: int, results: Iterable[ClientAnswer | Failed], sent: Weights
) -> tuple[list[ClientAnswer], list[Fault]]:
    """Return the answers of the clients that trained, if they have the right form, and the faults of the
    other clients, as far as the host knows them without waiting. A client without data is in neither list.
    `round` is counted from 0, as in all functions of this module."""
    answers, faults = list[ClientAnswer](), list[Fault]()
    for result in results:
        if isinstance(result, Failed):
            if result.kind == "error" and rules.on_fault != "skip":  # the error itself, with its traceback
                raise result.raised()
            faults.append(Fault(result.client, result.stage, result.kind, result.reason()))
            continue
        job, outcome = result
        if outcome.steps and (fault := check_form(job, outcome, sent)):
            faults.append(fault)
        elif outcome.steps:
            answers.append((job, outcome))
    odd = check_reports(answers)
    faults += odd
    accept(rules, round, faults)
    return without(answers, odd), faults


def without(answers: Iterable[ClientAnswer], faults: Iterable[Fault]) -> list[ClientAnswer]:
    """Return the answers of the clients that have no fault."""
    bad = {fault.client for fault in faults}
    return [(job, fit) for job, fit in answers if job.task.client not in bad]


def accept(rules: Faults, round: int, faults: Sequence[Fault]) -> None:
    """Raise an error at any fault if the rules say so."""
    if faults and rules.on_fault == "stop":
        raise UserError(
            f"round {round + 1} stopped at {_listed(faults)}, as faults.on_fault=stop asks: fix it, or use "
            "--on-fault skip to leave such clients out."
        )


def require_enough(rules: Faults, round: int, answered: int, faults: Sequence[Fault]) -> None:
    """Raise an error if clients had faults and too few others gave usable answers."""
    if not faults or answered >= rules.min_clients:
        return
    if not answered and all(fault.kind == "not finite" and fault.stage == "train" for fault in faults):
        who = f"all {len(faults)} clients" if len(faults) > 1 else f"client {faults[0].client}"
        raise DivergedError(
            f"training diverged in round {round + 1}: loss or weights of {who} became NaN or infinite; "
            "try a smaller lr."
        )
    raise UserError(
        f"round {round + 1} stopped with {answered} usable update{'s' * (answered != 1)}, fewer than "
        f"faults.min_clients {rules.min_clients}, because of {_listed(faults)}: fix that, or lower "
        "faults.min_clients."
    )


def find_bad_part(
    engine: Engine, method: Method, sent: Weights, shared: Tensors, job: Job
) -> tuple[str, str] | None:
    """Find a part of a method's objective that is not finite for a client under the model that it was sent,
    although the model's logits and their cross-entropy are. Return whether its value or its gradient is not
    finite, and its name; or None if there is no such part. This trains nothing."""
    parts = {f"terms[{n}]": term for n, term in enumerate(method.terms)}
    if method.loss is not plain_loss:
        parts["loss"] = method.loss

    def query(scope: Scope, look: Look) -> Tensors:
        scope = replace(scope, memory={**scope.memory, **method.memory.prepare(scope, look)})
        values = list[Tensors]()
        with torch.enable_grad():
            for view in look(scope.anchor, grad=True):
                values.append(_magnitudes_of(view.within(scope), parts))
        return {name: torch.stack([each[name] for each in values]) for name in values[0]}

    (answer,) = engine.ask("objective", query, sent, shared, [job])
    bad = [name for name, values in answer.items() if not bool(values.isfinite().all())]
    if not bad or bad[0] == "answers":
        return None
    what, _, name = bad[0].partition(" of ")
    return what, f"{name}{quoted_name(parts[name])}"


def _magnitudes_of(view: View, parts: Mapping[str, Objective]) -> Tensors:
    """Return numbers of a batch, one for the model's logits and two for each part of an objective, its value
    and its gradient. Each is finite only if what it stands for is."""
    found = {"answers": view.out.logits.abs().amax() + plain_loss(view)}
    for name, part in parts.items():
        found[f"value of {name}"] = value = part(view)
        grads: tuple[Tensor | None, ...] = ()
        if value.requires_grad:
            leaves = list(view.params.values())
            grads = torch.autograd.grad(value, leaves, allow_unused=True, retain_graph=True)
        sizes = [grad.abs().amax() for grad in grads if grad is not None]
        found[f"gradient of {name}"] = torch.stack([torch.zeros_like(value), *sizes]).amax()
    return {name: value.detach() for name, value in found.items()}


def _listed(faults: Sequence[Fault]) -> str:
    each_fault = [
        f"client {each.client}, stage '{each.stage}' ({each.reason})" for each in faults[:FAULTS_IN_ERROR]
    ]
    more = [f"{len(faults) - FAULTS_IN_ERROR} more"] if len(faults) > FAULTS_IN_ERROR else []
    return "; ".join([*each_fault, *more])
