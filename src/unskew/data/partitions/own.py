"""A partition by the user's own function, named as mine.py:function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data.partition import Ints, integers
from unskew.data.partitions.pool import Division, PartitionSeed, SamplePool, enough
from unskew.errors import UserError, unknown
from unskew.notation import items, without
from unskew.user_code import absolute_name, find_name, split_name

GIVEN = ("labels", "clients", "rng", "seed", "classes", "owners")
"""The arguments that a function is given if it has a parameter of that name."""


@dataclass(frozen=True)
class OwnSkew:
    """A function that returns the positions of every client's samples: a list of lists or arrays of whole
    numbers, one for each client.

    It is given the following arguments, if it has parameters of these names: labels (int64 [n]), clients (the
    number of clients; a function without it decides the number), rng (a NumPy generator that follows from the
    seed), seed, classes (their number), owners (int64 [n], or None). If it has none of these names, the first
    three parameters that it needs are labels, clients and rng. The options are values of its other
    parameters.
    """

    name: str
    """What the recipe calls it, such as mine.py:function."""
    options: tuple[tuple[str, Any], ...] = ()
    function: Callable[..., Any] | None = field(default=None, compare=False)
    """The function itself, if it comes from Python rather than from a file."""

    @classmethod
    def parse(cls, text: str) -> OwnSkew:
        """Read FILE.py:NAME,option=value, without running the file."""
        path, rest = split_name(text)
        given = items(rest)
        name = given.pop(0) if given else None
        if name is None or name.key is not None or not name.text:
            raise UserError(f"'{text}' does not say which function of the file: write {path}:FUNCTION.")
        for item in given:
            if item.key is None:
                raise UserError(f"'{item.text}' is out of place in '{text}': write option=value.")
        return cls(f"{path}:{name.text}", tuple((str(item.key), _value(item.value)) for item in given))

    def recipe(self, *, brief: bool = False) -> str:
        """Return the text that `parse` reads; if `brief`, without the folder of the file."""
        path, name = split_name(self.name)
        file = "" if self.function is not None else f"{Path(path).name if brief else path}:"
        return ",".join([f"{file}{name}", *(f"{key}={_text(value)}" for key, value in self.options)])

    def absolute(self) -> OwnSkew:
        """Return the same with an absolute path, so that it can be read from any folder."""
        if self.function is not None:
            return self
        without("+,:", split_name(self.name)[0].resolve())
        return replace(self, name=absolute_name(self.name))

    @property
    def tells_clients(self) -> bool:
        """Whether the function decides how many clients there are."""
        return "clients" not in self._given()[1]

    def divide(self, pool: SamplePool, clients: int, seed: PartitionSeed) -> Division:
        if not self.tells_clients:
            enough(pool, clients)
        values = {
            "labels": pool.labels.copy(),
            "clients": clients,
            "rng": seed.stream("own"),
            "seed": seed.value,
            "classes": pool.classes,
            "owners": None if pool.owners is None else pool.owners.copy(),
        }
        function, asked = self._given()
        try:
            parts = function(**{key: values[name] for name, key in asked.items()}, **dict(self.options))
        except UserError:
            raise
        except Exception as error:
            said = " ".join(str(error).split()).removesuffix(".")
            raise UserError(
                f"the partition '{self.name}' failed ({type(error).__name__}: {said}): fix it."
            ) from error
        return Division(self._checked(parts, len(pool), clients))

    def _given(self) -> tuple[Callable[..., Any], dict[str, str]]:
        """Return the function, and for each argument in `GIVEN` that it takes the name of its parameter."""
        function = self.function or find_name(self.name, "skew")
        if not callable(function):
            raise UserError(f"'{self.name}' is of type {type(function).__name__}: let it be a function.")
        parameters = inspect.signature(function).parameters
        plain = [each for each in parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
        asked = {name: name for name in GIVEN if name in parameters}
        bare = [each.name for each in plain if each.default is each.empty]
        if len(bare) >= 3 and not asked and bare == [each.name for each in plain[: len(bare)]]:
            asked = dict(zip(("labels", "clients", "rng"), bare, strict=False))
        own = [key for key in parameters if key not in asked.values()]
        for key, _ in self.options:
            if key not in own:
                raise unknown(f"option of '{self.name}'", key, own or ["none at all"])
        for each in parameters.values():
            needed = each.default is each.empty and each.kind in (
                each.KEYWORD_ONLY,
                each.POSITIONAL_OR_KEYWORD,
            )
            if needed and each.name not in asked.values() and each.name not in dict(self.options):
                raise UserError(
                    f"'{self.name}' needs a value for {each.name}: write {self.name},{each.name}=VALUE, or "
                    f"let it take {', '.join(GIVEN[:3])} alone."
                )
        return function, asked

    def _checked(self, parts: object, samples: int, clients: int) -> tuple[Ints, ...]:
        """Return the positions that the function returned, if they are 0..samples-1, each at most once."""
        if not isinstance(parts, list | tuple | np.ndarray):
            raise UserError(
                f"'{self.name}' returns a {type(parts).__name__}: let it return a list with the indices of "
                "each client."
            )
        expected = len(parts) if self.tells_clients and not clients else clients
        if len(parts) != expected or not len(parts):
            raise UserError(
                f"'{self.name}' divides among {len(parts)} clients, but {expected or 'some'} are asked for: "
                "let it return a list of indices for each."
            )
        holder, found = np.full(samples, -1, dtype=np.int64), list[Ints]()
        for client, given in enumerate(parts):
            mine = integers(_plain(given), self.name, client)
            if len(mine) and (mine.min() < 0 or mine.max() >= samples):
                wrong = mine.min() if mine.min() < 0 else mine.max()
                raise UserError(
                    f"'{self.name}' gives client {client} the index {wrong}, but there are 0..{samples - 1}: "
                    "let it return positions in labels."
                )
            if len(np.unique(mine)) != len(mine):
                raise UserError(f"'{self.name}' gives client {client} a sample twice: name each once.")
            taken = mine[holder[mine] >= 0]
            if len(taken):
                raise UserError(
                    f"'{self.name}' gives sample {taken[0]} to client {holder[taken[0]]} and to client "
                    f"{client}: only one may have it."
                )
            holder[mine] = client
            found.append(mine)
        return tuple(found)


def _plain(given: Any) -> Any:
    """Turn a range or a set into a list, from which an array can be made."""
    return list(given) if isinstance(given, range | set) else given


def _value(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
