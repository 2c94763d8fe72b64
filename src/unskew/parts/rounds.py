"""The number of the round, for methods that change with time."""

from __future__ import annotations

import torch

from unskew.types import Server, ServerState, Tensors, Updates, Weights


def count_rounds(name: str) -> Server:
    """A server that broadcasts, under this name, how many rounds it has aggregated: 0 in the first. A tensor,
    so that a captured graph sees it change."""

    def init(weights: Weights) -> Tensors:
        device = next(iter(weights.params.values())).device
        return {name: torch.zeros((), dtype=torch.int64, device=device)}

    def note(state: ServerState, after: Weights, updates: Updates) -> Tensors:
        return {name: state.memory[name] + 1}

    def share(state: ServerState) -> Tensors:
        return {name: state.memory[name]}

    return Server(init=init, note=note, share=share)
