"""The levels of a network: what its stem and its stages make of a batch, for methods that look at more than
the features.

Of residual networks these are the stem and every stage, before their last ReLU; of mobilenetv2, the stem and
the first four stages, as the release of FedRCL has it; of mobilenet, the stem and the last block of every
resolution; of plain networks, every hidden layer before its ReLU. A network of one's own has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from torch import Tensor, nn

from unskew.models.net import Net

M = TypeVar("M", bound=nn.Module)


def ends_level(part: M) -> M:
    """Mark a part of a network: what it returns is a level; of a ReLU, what it is given. The part itself
    comes back."""
    part.ends_level = True  # type: ignore[assignment]
    return part


def level_ends(module: nn.Module) -> list[nn.Module]:
    """The parts that end the levels of a network, in their order."""
    marked = [part for part in module.modules() if getattr(part, "ends_level", False)]
    if marked or not isinstance(module, Net):
        return marked
    return [part for part in module.modules() if isinstance(part, nn.ReLU)]


@contextmanager
def seen_levels(ends: Iterable[nn.Module]) -> Iterator[list[Tensor]]:
    """Collect what levels that end with these parts make of what passes through them meanwhile."""
    seen: list[Tensor] = []

    def look(part: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        seen.append(given[0] if isinstance(part, nn.ReLU) else made)

    handles = [part.register_forward_hook(look) for part in ends]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
