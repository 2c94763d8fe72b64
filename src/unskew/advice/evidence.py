"""What was measured of methods: settings, in each the networks, on each the methods, of each the seeds.

The raw results are lines in docs/results/raw, one for each run, written by docs/results/collect.py. The
package has them by setting, in evidence.jsonl, which docs/results/build.py makes of the lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import fmean
from typing import Any

from unskew.advice.facts import SkewFacts
from unskew.record import Format, to_json

GOALS = ("accuracy", "worst", "vacant")
"""What methods are compared by and may be chosen for, as in `unskew.report.answer`."""


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """A run, by the mean of its last ten tested rounds, of fewer than a hundred of the last tenth; by its
    model alone where validation chose that, or where the method changes it after training."""

    accuracy: float
    worst: float | None
    """The accuracy of the worst class."""
    vacant: float | None
    """The accuracy of the classes that clients lack; None where no client lacks one."""
    last: float | None
    """The accuracy of the run's model."""
    traffic: int
    """Bytes up and down."""
    work: float | None
    """Of all clients, in rounds of plain training; None where nobody has counted."""
    seconds: float | None
    """Of the whole run, on whatever device it ran; None where that did other work beside it."""


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """A method in a setting, on a network."""

    name: str
    """As it can be typed."""
    client: str
    """What it changes at the clients; fedavg where that is nothing."""
    server: str
    """The parts of it that change the server; empty where there are none."""
    own_server: bool
    """Whether a loss and a server are one part of it, which FedAvg cannot be given."""
    tuned: dict[str, Any]
    """Settings of the budget that it alone was given, such as budget.lr."""
    seeds: dict[int, SeedResult]

    def mean(self, name: str) -> float | None:
        """The mean of a number over its seeds; None where one of them lacks it."""
        values = [getattr(seed, name) for seed in self.seeds.values()]
        return None if None in values else fmean(values)


@dataclass(frozen=True, kw_only=True)
class NetworkResult:
    """The methods on one network."""

    title: str
    name: str
    """Of `unskew.models.MODELS`."""
    changed: dict[str, Any]
    """Its settings that do not have their defaults; empty: the network as it was published."""
    methods: list[MethodResult]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Conditions that all runs share but for network, method and seed, and what was measured there."""

    title: str
    """Data, skew, clients and cohort."""
    budget: str
    """Rounds, epochs and all else, in words."""
    settings: dict[str, Any]
    """The same for programs, those that do not have their defaults, by their path in an experiment."""
    data: str
    skew: str
    facts: SkewFacts
    devices: list[str]
    commits: list[str]
    networks: list[NetworkResult]

    @property
    def seeds(self) -> int:
        """The most seeds that a method has."""
        return max(len(each.seeds) for network in self.networks for each in network.methods)


SETTING: Format[Setting] = Format(Setting)


def write(settings: Iterable[Setting]) -> str:
    """The evidence as it lies in the package: a line for each setting."""
    return "".join(f"{to_json(setting, indent=None)}\n" for setting in settings)


def read(text: str) -> list[Setting]:
    """The settings in such lines."""
    return [SETTING.parse(line) for line in text.splitlines()]


@cache
def evidence() -> tuple[Setting, ...]:
    """All that came with this version of unskew."""
    return tuple(read((files("unskew.advice") / "evidence.jsonl").read_text(encoding="utf-8")))


def in_words(changed: Mapping[str, Any]) -> str:
    """Settings in words, such as "norm group+ws, features unit"."""
    return ", ".join(f"{key.rpartition('.')[2].replace('_', ' ')} {value}" for key, value in changed.items())
