"""The levels of a network: outputs of its stem and its stages, for methods that need more than the features.

In residual networks these are the stem and every stage, before their last ReLU; in mobilenetv2 the stem and
the first four stages, as in the release of FedRCL; in mobilenet the stem and the last block of every
resolution; in plain networks every hidden layer, before its ReLU. A user's own network has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from torch import Tensor, nn

from unskew.models.net import Net

M = TypeVar("M", bound=nn.Module)


def ends_level(part: M) -> M:
    """Mark a part of a network as the end of a level, and return it. The level is what the part returns, or
    the input if it is a ReLU."""
    part.ends_level = True  # type: ignore[assignment]
    return part


def level_ends(module: nn.Module) -> list[nn.Module]:
    """Return the parts that end the levels of a network, in their order."""
    marked = [part for part in module.modules() if getattr(part, "ends_level", False)]
    if marked or not isinstance(module, Net):
        return marked
    return [part for part in module.modules() if isinstance(part, nn.ReLU)]


@contextmanager
def seen_levels(ends: Iterable[nn.Module]) -> Iterator[list[Tensor]]:
    """Collect the levels that end with these parts from every pass while the block runs."""
    seen: list[Tensor] = []

    def look(part: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        seen.append(given[0] if isinstance(part, nn.ReLU) else made)

    handles = [part.register_forward_hook(look) for part in ends]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
