"""Local steps that lean to the direction of the last round, for FedCM and MoFedSAM."""

from __future__ import annotations

from torch import Tensor

from unskew.parts.naming import select, under, zeros
from unskew.parts.servers import weighted_sum
from unskew.parts.steps import effective_steps
from unskew.types import Gradient, Params, Server, ServerState, Tensors, Updates, Weights

NEEDS_SGD = (
    "its steps lean to a mean gradient, which a client's move, divided by lr and steps, is under SGD alone"
)


def leaning(gradient: Gradient, direction: Params, own: float) -> Gradient:
    """Return a gradient function that mixes the gradient, with the share `own`, and the direction with the
    rest."""

    def mixed(params: Params, /, *, track: bool = True) -> tuple[Tensor, Params]:
        loss, grads = gradient(params, track=track)
        return loss, {name: own * grad + (1 - own) * direction[name] for name, grad in grads.items()}

    return mixed


def last_direction(prefix: str) -> Server:
    """Make a server that remembers and broadcasts, under the prefix, the mean gradient along which the
    clients of the last round moved. It is zero before the first round."""

    def init(weights: Weights) -> Tensors:
        return zeros(prefix, weights)

    def note(state: ServerState, after: Weights, updates: Updates) -> Tensors:
        counts = [effective_steps(steps, updates.momentum) for steps in updates.steps.tolist()]
        scale = -updates.weight / (updates.lr * updates.weight.new_tensor(counts))
        return under(prefix, weighted_sum(updates.delta, scale))

    def share(state: ServerState) -> Tensors:
        return select(prefix, state.memory)

    return Server(init=init, note=note, share=share)
