"""The tables and figures of papers: their numbers, and the experiment behind each of them.

`paper_files` reads them from TOML files. Nothing here needs PyTorch.
"""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from unskew import metrics
from unskew.errors import UserError, unknown
from unskew.notation import items, joined, named

Reading = Literal["paper", "as-coded"]
READINGS: tuple[Reading, ...] = ("paper", "as-coded")
Statistic = Literal["best_by_test", "last", "mean_last_10"]
ExperimentSettings = dict[str, Any]
"""Tables of an experiment file. In the method's, `parts` has the names and each part a table of its own."""

PERCENT = ("accuracy", "max_class", "min_class", "domain")
"""Measures published in percent, by what their names begin with; the others are numbers as they are."""


@dataclass(frozen=True)
class Published:
    """A published number: in percent if the measure is an accuracy."""

    value: float | None
    std: float | None = None
    word: str = ""
    """The word that is printed instead of a number: never (reached) or failed."""

    @classmethod
    def read(cls, text: str) -> Published | None:
        """Read a number such as 61.25±0.06 or 61.25, or the word never or failed; return None for -."""
        if text == "-":
            return None
        if text in ("never", "failed"):
            return cls(None, word=text)
        value, _, std = text.partition("±")
        return cls(float(value), float(std) if std else None)

    def __str__(self) -> str:
        """Return the number as papers print it, with two decimals."""
        if self.value is None:
            return self.word
        return metrics.mean_and_std(self.value, self.std, digits=2)


@dataclass(frozen=True, eq=False)
class Cell:
    """A place of a table: the numbers that one experiment gives, and that experiment."""

    id: str
    """Column and row, such as cifar10/dirichlet:0.05/fedlmd; the row is behind the last slash."""
    table: str
    """The table's id."""
    column: str
    row: str
    readings: tuple[Reading, ...]
    published: Mapping[str, Published]
    """By measure."""
    not_runnable: str
    """Why it cannot be run; empty if it can."""
    assumed: tuple[str, ...]
    """Settings that are not published and had to be chosen, in words."""
    _layers: Mapping[Reading, Sequence[ExperimentSettings]] = field(default_factory=dict, repr=False)

    @property
    def datasets(self) -> tuple[str, ...]:
        """The names of the datasets that it needs."""
        if self.not_runnable:
            return ()
        name = str(settings(self)["data"]["name"])
        return tuple(named(part)[0] for part in joined(name))


@dataclass(frozen=True, eq=False)
class PublishedTable:
    """A table or a figure of a paper."""

    id: str
    """The paper and the table, such as fedlmd:table3."""
    title: str
    reports: str
    """What the numbers report, in words."""
    statistic: Statistic
    """The accuracy of a run that is compared with them."""
    readings: tuple[Reading, ...]
    """The readings that differ; the first is the default."""
    not_runnable: str
    notes: tuple[str, ...]
    """Contradictions within the paper, and parts that were not legible."""
    differences: tuple[str, ...]
    """Differences between the readings, and between both and this library."""
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    measures: tuple[str, ...]
    """What its numbers measure; accuracy for a figure without numbers."""
    cells: tuple[Cell, ...]


@dataclass(frozen=True, eq=False)
class Paper:
    """A paper with its tables and figures."""

    name: str
    title: str
    reference: str
    tables: tuple[PublishedTable, ...]


def cells(table: PublishedTable, pattern: str = "*") -> list[Cell]:
    """Return the cells of a table whose ids match a pattern such as cifar10/dirichlet:0.05/*, or one of
    several patterns separated by spaces. Every pattern has to match a cell."""
    wanted = pattern.split() or [pattern]
    for each in wanted:
        if table.cells and not any(fnmatch.fnmatchcase(cell.id, each) for cell in table.cells):
            raise UserError(
                f"no cell of {table.id} matches '{each}': write a pattern for names such as "
                f"'{table.cells[0].id}', where * stands for anything, or several separated by spaces."
            )
    return [cell for cell in table.cells if any(fnmatch.fnmatchcase(cell.id, each) for each in wanted)]


def settings(cell: Cell, reading: Reading | None = None) -> ExperimentSettings:
    """Return the settings of a cell's experiment without a seed, as the tables of an experiment file."""
    if cell.not_runnable:
        raise UserError(f"{cell.table} {cell.id} cannot be run: {cell.not_runnable}.")
    reading = check_reading(cell, reading)
    whole: ExperimentSettings = {}
    for layer in cell._layers[reading]:
        _merge(whole, layer)
    whole["method"] = _method(whole.get("method", {}))
    return {name: table for name, table in whole.items() if table}


def experiment(
    cell: Cell,
    reading: Reading | None = None,
    seed: int = 1,
    *,
    rounds: int | None = None,
    fraction: float | None = None,
) -> ExperimentSettings:
    """Return the experiment file of a cell as a dictionary.

    `Experiment(**experiment(cell))` is the experiment. With `rounds` or a `fraction` of the data it is a
    smaller version.
    """
    whole = {"seed": seed, "precision": "fp32", **settings(cell, reading)}
    if rounds is not None:
        whole["budget"]["rounds"] = rounds
        _fit(whole["method"], rounds)
    if fraction is not None:
        whole["skew"]["recipe"] = f"part:{fraction:g}+{_scaled(whole['skew']['recipe'], fraction)}"
    return whole


def check_reading(cell: Cell | PublishedTable, reading: str | None) -> Reading:
    """Return a reading by its name, by default the first; refuse one that the paper does not have."""
    if reading is None:
        return cell.readings[0]
    for known in cell.readings:
        if reading == known:
            return known
    if reading not in READINGS:
        raise unknown("reading", reading, READINGS)
    name = cell.id if isinstance(cell, PublishedTable) else cell.table
    raise UserError(f"{name} has the reading {cell.readings[0]} alone: no code was released with the paper.")


def _fit(method: ExperimentSettings, rounds: int) -> None:
    """Shorten the stages of a method so that they fit into fewer rounds than it was published with."""
    for key in ("warmup", "encoder_rounds"):
        if isinstance(method.get(key), int) and method[key] >= rounds:
            method[key] = "auto"
    if method.get("expert_rounds", 0) > rounds:
        method["expert_rounds"] = rounds


SCALED = {("dirichlet", "min_size"), ("quantity", "variant")}
"""Options of skews that do not apply unchanged to a part of the data."""


def _scaled(recipe: str, fraction: float) -> str:
    """Return a skew that can divide a fraction of the data.

    The minimum number of samples shrinks with it. A variant whose code fixes that number is replaced by the
    skew's default form.
    """
    parts = []
    for rule in joined(recipe):
        name, rest = named(rule)
        given = {item.key or item.value: item for item in items(rest)}
        texts = [item.text for key, item in given.items() if (name, key) not in SCALED]
        if name == "dirichlet":
            least = int(given["min_size"].value) if "min_size" in given else 10
            texts.append(f"min_size={max(1, int(fraction * least))}")
        parts.append(f"{name}:{','.join(texts)}" if texts else name)
    return "+".join(parts)


def _method(table: Mapping[str, Any]) -> ExperimentSettings:
    """Return the [method] table of an experiment file, from the table of a paper's file."""
    parts = table["parts"]
    options = {part: dict(table.get(part, {})) for part in parts}
    return {"name": "+".join(parts), **(options[parts[0]] if len(parts) == 1 else options)}


def _merge(under: ExperimentSettings, over: Mapping[str, Any]) -> None:
    """Override settings in place by others, table by table."""
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(under.get(key), dict):
            _merge(under[key], value)
        else:
            under[key] = copy.deepcopy(value)
