"""How the server makes the next state from the clients' updates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unskew.client_tensors import ClientTensors
from unskew.engines.check import ClientAnswer
from unskew.engines.job import Fit
from unskew.method import Method
from unskew.method_checks import check_instance, check_like_model, check_named_tensors, check_pair
from unskew.result import State
from unskew.rounds.state import store_of
from unskew.transfer import upload
from unskew.trial import Trial
from unskew.types import Params, ServerState, Tensors, Updates, Weights


@dataclass(frozen=True, eq=False)
class RoundSummary:
    """What a round computed in addition to the next state."""

    done: list[ClientAnswer]
    """The clients that took at least one step, and whose updates are used."""
    delta: Params
    """Their moves, [m, ...] each."""
    loss: Tensor
    tallies: Tensors


def aggregate(
    trial: Trial, method: Method, state: State, sent: Weights, done: list[ClientAnswer]
) -> tuple[State, RoundSummary]:
    """Compute the next state from the updates of the clients that trained. The result depends on the
    arguments alone, which stay as they are. If no client trained, the model stays as it was."""
    if not done:
        return _following(trial, state, state.server, done), RoundSummary(
            done, {}, torch.tensor(math.nan), {}
        )
    server = state.server
    updates = _gather(trial, sent, state.round, [fit for _, fit in done])
    revised = method.server.revise(server, updates)
    check_instance("server.revise", revised, Updates)
    delta = check_like_model("server.combine", method.server.combine(server, revised), sent.params)
    params, memory = check_pair("server.move", method.server.move(server, delta), "parameters, memory")
    params = check_like_model("server.move", params, sent.params)
    memory = check_named_tensors("server.move", memory)
    buffers = sent.buffers
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
    """Return the state after a round, including what its clients keep."""
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


def _gather(trial: Trial, sent: Weights, t: int, fits: list[Fit]) -> Updates:
    device = next(iter(sent.params.values())).device
    population = trial.federation.population
    samples = torch.tensor([fit.samples for fit in fits], dtype=torch.float64)

    def stacked(parts: list[Tensors]) -> Tensors:
        return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}

    after = stacked([fit.weights.params for fit in fits])
    return Updates(
        holders=population.holders,
        weight=upload(samples / samples.sum(), device),
        delta={name: value.sub_(sent.params[name]) for name, value in after.items()},
        buffers=stacked([fit.weights.buffers for fit in fits]),
        steps=upload(torch.tensor([fit.steps for fit in fits]), device),
        lr=trial.budget.lr_at(t),
        momentum=trial.budget.momentum or 0.0,
        reported=stacked([fit.reported for fit in fits]),
        share=float(samples.sum()) / population.samples,
    )


def average_buffers(before: Tensors, updates: Updates) -> Tensors:
    """Average floating-point buffers by the clients' weights, and take the largest value of counters. Values
    that no client changed stay exactly as they were."""
    return {
        name: before[name] + torch.tensordot(updates.weight.to(value), value - before[name], dims=1)
        if value.is_floating_point()
        else value.amax(dim=0)
        for name, value in updates.buffers.items()
    }
