"""The search space of hyperparameters: the settings that are searched, and the values tried for each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unskew.errors import UserError, unknown
from unskew.experiment import Experiment, assign
from unskew.methods.assemble import find
from unskew.record import SAME_FOR_ALL

if TYPE_CHECKING:
    import optuna

Value = bool | int | float | str


@dataclass(frozen=True)
class Dimension:
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


def parse_over(text: str, method: Mapping[str, Any], experiment: Experiment | None = None) -> Dimension:
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
        return Dimension(setting, choices=choices, default=default)
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
    return Dimension(setting, low, high, bool(scale), whole, default=default)


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


def default_values(space: Sequence[Dimension]) -> dict[str, Value] | None:
    """The values without a search, where they may be tried."""
    values = {each.setting: each.default for each in space}
    if all(each.holds(each.default) for each in space):
        return {name: value for name, value in values.items() if value is not None}
    return None


def grid(space: Sequence[Dimension]) -> list[dict[str, Value]]:
    """All combinations of the values of the settings."""
    for each in space:
        if not each.choices:
            name = called(each.setting)
            raise UserError(f"--sampler grid needs values for {name}: write {name}=A|B|C, no range.")
    return [
        dict(zip([each.setting for each in space], values, strict=True))
        for values in itertools.product(*(each.choices for each in space))
    ]


def called(setting: str) -> str:
    """A setting as a person writes it behind --over."""
    return setting.removeprefix("method.")


def describe(values: Mapping[str, Value]) -> str:
    """Values as a person writes them."""
    return ", ".join(f"{called(name)}={_short(value)}" for name, value in values.items())


def _short(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
