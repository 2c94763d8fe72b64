"""A training split that is never whole: a client's samples are drawn when they are needed."""

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
LabelledSamples = tuple[Tensor, Tensor]
"""Inputs and labels."""

MOST_BYTES = 64 << 20
"""Bytes of recently drawn samples that are kept in memory."""


class Ranges(Sequence[Ints]):
    """The rows of clients whose samples follow each other in a split, made when they are accessed."""

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
        start = self.starts[client]  # raises an IndexError as any sequence does
        return np.arange(start, start + self.sizes[client], dtype=np.int64)

    def __iter__(self) -> Iterator[Ints]:
        return (self[client] for client in range(len(self)))


class _Recent:
    """The samples of the clients that were drawn last, up to MOST_BYTES, but at least one client."""

    def __init__(self) -> None:
        self._samples: OrderedDict[int, LabelledSamples] = OrderedDict()
        self._bytes = 0

    def get(self, client: int) -> LabelledSamples | None:
        if client in self._samples:
            self._samples.move_to_end(client)
        return self._samples.get(client)

    def add(self, client: int, samples: LabelledSamples) -> LabelledSamples:
        self._samples[client] = samples
        self._bytes += _bytes(samples)
        while self._bytes > MOST_BYTES and len(self._samples) > 1:
            self._bytes -= _bytes(self._samples.popitem(last=False)[1])
        return samples


def _bytes(samples: LabelledSamples) -> int:
    return sum(value.nbytes for value in samples)


class AbsentSplit(Split):
    """A split whose samples are never all here: `whole`, `inputs` and `labels` raise an error."""

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
        raise NotImplementedError


class DrawnSplit(AbsentSplit):
    """The samples of clients, one client after the other, each drawn when it is needed. They depend only on
    the client's number, not on the clients that were drawn before."""

    def __init__(
        self, recipe: str, sizes: Ints, draw: Callable[[int], LabelledSamples], counts: Ints
    ) -> None:
        """Make a split of clients that `draw` draws by number.

        recipe: how samples are drawn, as a text. sizes: the number of samples of each client. counts: the
        first clients' samples of each class, [clients, classes]."""
        vars(self).update(recipe=recipe, rows=Ranges(sizes), draw=draw, counts=counts, _drawn=_Recent())

    recipe: str
    rows: Ranges
    draw: Callable[[int], LabelledSamples]
    counts: Ints
    _drawn: _Recent

    def __len__(self) -> int:
        return int(self.rows.sizes.sum())

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_drawn": _Recent()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def whole(self) -> NoReturn:
        raise UserError(
            f"the training split of '{self.recipe}' is drawn client by client and never whole, as this needs "
            "it: leave out drawn=true, or choose another skew or method."
        )

    def take(self, rows: Tensor) -> LabelledSamples:
        wanted = rows.numpy(force=True)
        owners = np.searchsorted(self.rows.starts, wanted, side="right") - 1
        clients, sizes = np.unique(owners, return_counts=True)
        if len(clients) == 1:
            return self._taken(int(clients[0]), wanted)
        order = np.argsort(owners, kind="stable")
        parts = zip(clients, np.split(wanted[order], np.cumsum(sizes)[:-1]), strict=True)
        taken = [self._taken(int(client), mine) for client, mine in parts]
        back = torch.from_numpy(np.argsort(order))
        x, y = (torch.cat(each)[back] for each in zip(*taken, strict=True))
        return x, y

    def _taken(self, client: int, rows: Ints) -> LabelledSamples:
        x, y = self.of_client(client)
        own = torch.from_numpy(rows - self.rows.starts[client])
        return x[own], y[own]

    def of_client(self, client: int) -> LabelledSamples:
        """Return all samples of a client in the order of its rows; draw them unless they were kept."""
        return self._drawn.get(client) or self._drawn.add(client, self.draw(client))

    def digest(self, into: hashlib._Hash) -> None:
        into.update(self.recipe.encode())
        into.update(self.rows.sizes.astype("<i8").tobytes())
