"""The evidence on methods: settings, which have networks, which have methods, which have seeds.

The raw results are lines in docs/results/raw, one for each run, written by docs/results/collect.py. The
package has them by setting, in evidence.jsonl, which docs/results/build.py makes from the lines."""

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
"""The measures by which methods are compared and may be chosen, as in `unskew.report.standings`."""
TUNED_TITLE = ", each method tuned"
"""The end of the title of a setting where every method was tuned."""


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """The values of a run: means over its last ten tested rounds, or over the last tenth if it has fewer than
    a hundred. They are the values of its model alone if validation chose it, or if the method changes it
    after training."""

    accuracy: float
    worst: float | None
    """The accuracy of the worst class."""
    vacant: float | None
    """The accuracy of the classes that clients lack; None if no client lacks one."""
    last: float | None
    """The accuracy of the run's model."""
    traffic: int
    """Bytes up and down."""
    work: float | None
    """The computation of all clients, in rounds of plain training; None if it was not counted."""
    seconds: float | None
    """The time of the whole run, on whatever device it ran; None if the device did other work at the same
    time."""


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """A method in a setting, on a network."""

    name: str
    """The name as it can be typed."""
    family: str
    """The name without the values of hyperparameters; those that are 0 by default are named, such as
    logit-adjustment:floor."""
    client: str
    """The parts of it that change the clients; fedavg if there are none."""
    server: str
    """The parts of it that change the server; empty if there are none."""
    own_server: bool
    """Whether one part of it changes both loss and server, so that FedAvg cannot be combined with this
    server."""
    tuned: dict[str, Any]
    """Settings of the budget that are its own, such as a tuned budget.lr."""
    seeds: dict[int, SeedResult]

    def mean(self, name: str) -> float | None:
        """Return the mean of a value over the seeds; None if one of them lacks it."""
        values = [getattr(seed, name) for seed in self.seeds.values()]
        return None if None in values else fmean(values)


@dataclass(frozen=True, kw_only=True)
class NetworkResult:
    """The methods on one network."""

    title: str
    name: str
    """The name in `unskew.models.MODELS`."""
    changed: dict[str, Any]
    """The settings that do not have their defaults; empty for the network as it was published."""
    methods: list[MethodResult]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The conditions of runs that differ in network, method and seed, and the results of these runs."""

    title: str
    """Data, skew, clients and cohort, and whether each method was tuned."""
    tuned: bool
    """Whether the settings of each method were chosen on validation data, in one search for all methods."""
    budget: str
    """Rounds, epochs and the other settings, in words."""
    settings: dict[str, Any]
    """The settings that do not have their defaults, by their path in an experiment."""
    data: str
    skew: str
    facts: SkewFacts
    devices: list[str]
    commits: list[str]
    networks: list[NetworkResult]

    @property
    def seeds(self) -> int:
        """The number of seeds of the method with the most."""
        return max(len(each.seeds) for network in self.networks for each in network.methods)


SETTING: Format[Setting] = Format(Setting)


def write(settings: Iterable[Setting]) -> str:
    """Write settings as the package has them: a line of JSON for each."""
    return "".join(f"{to_json(setting, indent=None)}\n" for setting in settings)


def read(text: str) -> list[Setting]:
    """Read settings from such lines."""
    return [SETTING.parse(line) for line in text.splitlines()]


@cache
def evidence() -> tuple[Setting, ...]:
    """Read all settings that come with this version of unskew."""
    return tuple(read((files("unskew.advice") / "evidence.jsonl").read_text(encoding="utf-8")))


def in_words(changed: Mapping[str, Any]) -> str:
    """Write settings in words, such as "norm group+ws, features unit"."""
    return ", ".join(f"{key.rpartition('.')[2].replace('_', ' ')} {value}" for key, value in changed.items())
