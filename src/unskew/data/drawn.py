"""A training split that is never whole: every client's samples are drawn when somebody asks for them."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew.data.dataset import Split
from unskew.errors import UserError

Ints = NDArray[np.int64]
Samples = tuple[Tensor, Tensor]
"""Inputs and labels."""

MOST_BYTES = 64 << 20
"""Of samples that were drawn last and lie ready."""


class Ranges(Sequence[Ints]):
    """The rows of clients that follow each other in a split, made when they are asked for."""

    def __init__(self, sizes: Ints) -> None:
        self.sizes = sizes
        self.starts: Ints = np.cumsum(sizes) - sizes

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, client: int) -> Ints: ...

    @overload
    def __getitem__(self, client: slice) -> Sequence[Ints]: ...

    def __getitem__(self, client: int | slice) -> Ints | Sequence[Ints]:
        if isinstance(client, slice):
            return [self[each] for each in range(*client.indices(len(self)))]
        start = self.starts[client]  # an IndexError where there is none, as of any sequence
        return np.arange(start, start + self.sizes[client], dtype=np.int64)

    def __iter__(self) -> Iterator[Ints]:
        return (self[client] for client in range(len(self)))


class DrawnSplit(Split):
    """Clients' samples one client after the other, of which only those that are asked for exist. A client's
    are a function of its number alone, whoever else was drawn before."""

    def __init__(self, recipe: str, sizes: Ints, draw: Callable[[int], Samples], counts: Ints) -> None:
        """`recipe` says how samples are drawn, `sizes` how many each client has, and `counts` how many of
        each class the first ones have."""
        rows, drawn = Ranges(sizes), OrderedDict[int, Samples]()
        vars(self).update(recipe=recipe, rows=rows, draw=draw, counts=counts, _drawn=drawn)

    recipe: str
    rows: Ranges
    draw: Callable[[int], Samples]
    counts: Ints
    _drawn: OrderedDict[int, Samples]

    def __len__(self) -> int:
        return int(self.rows.sizes.sum())

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_drawn": OrderedDict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    @property
    def drawn(self) -> bool:
        return True

    @property
    def inputs(self) -> Tensor:
        self.whole()

    @property
    def labels(self) -> Tensor:
        self.whole()

    def whole(self) -> NoReturn:
        raise UserError(
            f"the training split of '{self.recipe}' is drawn client by client and never whole, as this needs "
            "it: leave out drawn=true, or choose another skew or method."
        )

    def take(self, rows: Tensor) -> Samples:
        wanted = rows.numpy(force=True)
        owners = np.searchsorted(self.rows.starts, wanted, side="right") - 1
        parts = [(np.flatnonzero(owners == client), int(client)) for client in np.unique(owners)]
        if len(parts) == 1:
            ((_, client),) = parts
            return self._taken(client, wanted)
        taken = [self._taken(client, wanted[places]) for places, client in parts]
        back = torch.from_numpy(np.argsort(np.concatenate([places for places, _ in parts])))
        x, y = (torch.cat(each)[back] for each in zip(*taken, strict=True))
        return x, y

    def _taken(self, client: int, rows: Ints) -> Samples:
        x, y = self.of_client(client)
        own = torch.from_numpy(rows - self.rows.starts[client])
        return x[own], y[own]

    def of_client(self, client: int) -> Samples:
        """All samples of a client, in the order of its rows. Those that were drawn last lie ready."""
        found = self._drawn.pop(client, None) or self.draw(client)
        self._drawn[client] = found
        held = sum(x.nbytes + y.nbytes for x, y in self._drawn.values())
        while held > MOST_BYTES and len(self._drawn) > 1:
            _, (x, y) = self._drawn.popitem(last=False)
            held -= x.nbytes + y.nbytes
        return found

    def digest(self, into: hashlib._Hash) -> None:
        into.update(self.recipe.encode())
        into.update(self.rows.sizes.astype("<i8").tobytes())
