"""A search for hyperparameters by validation: what is tried, how the next trial is chosen, who wins.

Every method is searched by itself with the same number of trials. A trial's values follow from the seed, its
number and the trials before it alone, so that a search that was stopped continues with the same ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from unskew.errors import UserError, unknown
from unskew.experiment import Experiment, assign
from unskew.methods.assemble import find
from unskew.randomness import Purpose, draw_seed
from unskew.record import SAME_FOR_ALL, Format
from unskew.trial import Stop

if TYPE_CHECKING:
    import optuna

SAMPLERS = ("tpe", "random", "grid")
Value = bool | int | float | str


@dataclass(frozen=True)
class Over:
    """What one setting is tried with: a range, or some values."""

    setting: str
    """Where it stands in an experiment, such as method.mu."""
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    """Whether orders of magnitude are equally likely."""
    whole: bool = False
    """Whether the range is of whole numbers."""
    choices: tuple[Value, ...] = ()
    """Values to choose from, in the place of a range."""
    default: Value | None = None
    """The setting's value without a search."""

    def distribution(self) -> optuna.distributions.BaseDistribution:
        """Return these values as a distribution of Optuna."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices:
            return CategoricalDistribution(self.choices)
        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)

    def ends(self) -> tuple[Value, ...]:
        """The values that all others lie between."""
        if self.choices:
            return self.choices
        return (int(self.low), int(self.high)) if self.whole else (self.low, self.high)

    def holds(self, value: object) -> bool:
        """Whether the value may be tried."""
        if self.choices:
            return value in self.choices
        return isinstance(value, int | float) and self.low <= value <= self.high

    def at_edge(self, value: Value) -> bool:
        """Whether a value lies in the outer hundredth of its range: there may be a better one beyond."""
        if self.choices or not isinstance(value, int | float) or self.low == self.high:
            return False
        scale = math.log if self.log else float
        low, high, here = scale(self.low), scale(self.high), scale(value)
        return min(here - low, high - here) < 0.01 * (high - low)


def parse_over(text: str, method: Mapping[str, Any], experiment: Experiment | None = None) -> Over:
    """Read SETTING=LOW..HIGH, with :log behind it where orders of magnitude matter, or SETTING=A|B|C. The
    setting is a hyperparameter of the method, of the table it has in an experiment, or one such as
    budget.lr, whose value without a search is that of the experiment."""
    key, sign, said = (part.strip() for part in text.partition("="))
    if not (key and sign and said):
        raise UserError(f"--over is '{text}' but should be such as mu=0.001..1:log or beta=1|2|3.")
    setting, default = _setting(key, method, experiment or Experiment())
    if ".." not in said:
        choices = tuple(_value(part) for part in said.split("|"))
        if len(set(choices)) < len(choices):
            raise UserError(f"--over {text} names a value twice: name each once.")
        return Over(setting, choices=choices, default=default)
    span, _, scale = said.partition(":")
    low, high = (_number(part, text) for part in span.split("..", 1))
    if scale not in ("", "log"):
        raise UserError(f"--over {text} ends with ':{scale}': write :log, or nothing.")
    if low > high:
        raise UserError(f"--over {text} goes downwards: write {key}={high:g}..{low:g}.")
    if scale and low <= 0:
        raise UserError(f"--over {text} begins at {low:g}, which has no logarithm: begin above 0.")
    whole = isinstance(default, int)
    if isinstance(default, str):  # such as auto, in the place of a number
        whole = all(part.strip().isdecimal() for part in span.split(".."))
    if isinstance(default, bool):
        raise UserError(f"{key} is {default} by default and no number: write {key}=true|false.")
    if whole and not (low.is_integer() and high.is_integer()):
        raise UserError(f"--over {text} is not between whole numbers, and {key} is one: write whole numbers.")
    return Over(setting, low, high, bool(scale), whole, default=default)


def _setting(key: str, method: Mapping[str, Any], experiment: Experiment) -> tuple[str, Value | None]:
    """Where a setting stands in an experiment, and its value there."""
    table, _, inner = key.partition(".")
    if table in Experiment.model_fields and inner:
        if table == "budget" and inner in SAME_FOR_ALL:
            what = {"rounds": "rounds", "cohort": "clients"}.get(inner, "work")
            raise UserError(
                f"{key} cannot be searched: every method gets the same {what}, or the comparison is not fair."
            )
        if table not in ("budget", "model"):
            raise UserError(
                f"{key} cannot be searched: it changes what is compared; search hyperparameters of methods, "
                "budget or model."
            )
        fields: Any = getattr(experiment, table)
        if table == "budget" and inner not in type(fields).model_fields:
            raise unknown("setting of budget", inner, type(fields).model_fields)
        return key, getattr(fields, inner, None)
    parts = [part.strip() for part in str(method["name"]).split("+")]
    if len(parts) == 1:
        options = find(parts[0]).options
        if not options:
            raise UserError(f"{parts[0]} has no hyperparameters: search settings such as budget.lr for it.")
        if key not in options:
            raise unknown(f"hyperparameter of {parts[0]}", key, options)
        return f"method.{key}", method.get(key, options[key])
    owners = [part for part in parts if key == f"{part}.{inner}" or key in find(part).options]
    if len(owners) != 1:
        why = "is a hyperparameter of several parts" if owners else "is of no part"
        raise UserError(f"{key} {why} of {method['name']}: write PART.NAME, such as {parts[0]}.NAME.")
    name = key.removeprefix(f"{owners[0]}.")
    options = find(owners[0]).options
    if name not in options:
        raise unknown(f"hyperparameter of {owners[0]}", name, options)
    return f"method.{owners[0]}.{name}", method.get(owners[0], {}).get(name, options[name])


def _value(text: str) -> Value:
    """A value as `--set` reads it."""
    text = text.strip()
    value = assign({}, [f"value={text}"])["value"]
    if not text or not isinstance(value, bool | int | float | str):
        raise UserError(f"'{text}' cannot be tried: write numbers, words, true or false between the bars.")
    return value


def _number(text: str, whole: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not abs(number) < float("inf"):
        raise UserError(f"--over is '{whole}' but '{text}' is not a number: write LOW..HIGH.")
    return number


# What search.json and trials.jsonl hold


@dataclass(frozen=True)
class Searched:
    """A method and what is searched of it, as they were typed."""

    method: str
    over: list[str]
    table: dict[str, Any]
    """The method as an experiment has it."""


@dataclass(frozen=True)
class Search:
    """search.json: all that a search depends on."""

    methods: list[Searched]
    trials: int
    """How many trials each method has."""
    seeds: list[int]
    """The seeds of each trial; its score is the mean over them."""
    sampler: str
    at_once: int
    """How many trials of a method are chosen before the first of them is known."""
    experiment: dict[str, Any]
    """The settings that all trials share."""
    data_sha256: str = ""
    """The hash of the dataset and of the validation set; filled in."""
    version: int = 1

    @property
    def metric(self) -> str:
        """The metric by which trials are compared, and by which their rounds are chosen."""
        return Stop.parse(str(self.experiment.get("stop", "none"))).metric

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is."""
        return -1 if self.metric == "loss" else 1


@dataclass(frozen=True)
class TrialLine:
    """A line of trials.jsonl: what one trial was and came to."""

    method: str
    number: int
    """The number of the trial, counted from 0."""
    values: dict[str, Value]
    """The values by setting."""
    score: float | None
    """The search's metric on validation data, the mean over seeds; None where a run has failed."""
    by_seed: list[float | None]
    folders: list[str]
    """The folders of its runs, in the search's folder."""
    errors: list[str] = field(default_factory=list)


SEARCH: Format[Search] = Format(Search)
TRIAL: Format[TrialLine] = Format(TrialLine)


def default_values(overs: Sequence[Over]) -> dict[str, Value] | None:
    """The values without a search, where they may be tried."""
    values = {each.setting: each.default for each in overs}
    if all(each.holds(each.default) for each in overs):
        return {name: value for name, value in values.items() if value is not None}
    return None


def grid(overs: Sequence[Over]) -> list[dict[str, Value]]:
    """All combinations of the values of the settings."""
    for each in overs:
        if not each.choices:
            name = called(each.setting)
            raise UserError(f"--sampler grid needs values for {name}: write {name}=A|B|C, no range.")
    return [
        dict(zip([each.setting for each in overs], values, strict=True))
        for values in itertools.product(*(each.choices for each in overs))
    ]


def trials_of(search: Search, overs: Sequence[Over]) -> int:
    """How many trials a method is given: a grid has as many as it has points."""
    return len(grid(overs)) if search.sampler == "grid" else search.trials


def choose(
    search: Search, overs: Sequence[Over], done: Sequence[TrialLine], count: int
) -> Iterator[dict[str, Value]]:
    """The values of the next `count` trials of a method, whose trials so far are `done`. The first has the
    values that the method has without a search, where they lie in the ranges."""
    first = len(done)
    if search.sampler == "grid":
        yield from grid(overs)[first : first + count]
        return
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    number = draw_seed(search.seeds[0], Purpose.SEARCH, first) % (1 << 32)
    kinds = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    study = optuna.create_study(
        direction="maximize" if search.sign > 0 else "minimize",
        sampler=kinds[search.sampler](seed=number),
    )
    distributions = {each.setting: each.distribution() for each in overs}
    for line in done:
        failed = line.score is None
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.FAIL if failed else optuna.trial.TrialState.COMPLETE,
                value=line.score,
                params=line.values,
                distributions=distributions,
            )
        )
    default = default_values(overs)
    if not first and default is not None:
        study.enqueue_trial(default)
    for _ in range(count):
        yield dict(study.ask(distributions).params)


def best(search: Search, lines: Sequence[TrialLine]) -> TrialLine | None:
    """The trial with the best score, the first of several; None where all have failed."""
    known = [line for line in lines if line.score is not None]
    return max(known, key=lambda line: search.sign * (line.score or 0.0), default=None)


def called(setting: str) -> str:
    """A setting as a person writes it behind --over."""
    return setting.removeprefix("method.")


def describe(values: Mapping[str, Value]) -> str:
    """Values as a person writes them."""
    return ", ".join(f"{called(name)}={_short(value)}" for name, value in values.items())


def _short(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
