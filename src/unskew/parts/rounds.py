"""The number of the round, for methods whose objective depends on it."""

from __future__ import annotations

import torch

from unskew.types import Server, ServerState, Tensors


def share_round(name: str) -> Server:
    """Make a server that broadcasts under this name how many rounds were done, 0 in the first. It is a
    tensor, so that a captured step sees it change."""

    def share(state: ServerState) -> Tensors:
        device = next(iter(state.weights.params.values())).device
        return {name: torch.full((), state.round, dtype=torch.int64, device=device)}

    return Server(share=share)
