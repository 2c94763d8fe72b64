"""The search space of hyperparameters: the settings that are searched, and the values tried for each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from unskew.errors import UserError, unknown
from unskew.experiment import Experiment, assign
from unskew.methods.assemble import find
from unskew.notation import method_parts
from unskew.record import SAME_FOR_ALL

if TYPE_CHECKING:
    import optuna

Value = bool | int | float | str


@dataclass(frozen=True)
class Dimension:
    """A setting that is searched, and the values tried for it: a range, or a list of values."""

    setting: str
    """The name of the setting in an experiment, such as method.mu."""
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    """Whether values are drawn on a logarithmic scale."""
    whole: bool = False
    """Whether only whole numbers of the range are tried."""
    choices: tuple[Value, ...] = ()
    """The values to choose from, instead of a range."""
    default: Value | None = None
    """The value that the setting has without a search; None if it has none."""

    def distribution(self) -> optuna.distributions.BaseDistribution:
        """Return the values as a distribution of Optuna."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices:
            return CategoricalDistribution(self.choices)
        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)

    def ends(self) -> tuple[Value, ...]:
        """Return the smallest and the largest value of the range, or all values of the list."""
        if self.choices:
            return self.choices
        return (int(self.low), int(self.high)) if self.whole else (self.low, self.high)

    def holds(self, value: object) -> bool:
        """Say whether the value is one that may be tried."""
        if self.choices:
            return value in self.choices
        return isinstance(value, int | float) and self.low <= value <= self.high

    def at_edge(self, value: Value) -> bool:
        """Say whether a better value may lie outside of what is tried: this one lies in the outermost
        hundredth of the range, or is the smallest or the largest of the numbers in the list."""
        if self.choices:
            numbers = [each for each in self.choices if _is_number(each)]
            return len(numbers) == len(self.choices) > 1 and value in (min(numbers), max(numbers))
        if not _is_number(value) or self.low == self.high:
            return False
        scale = math.log if self.log else float
        low, high, here = scale(self.low), scale(self.high), scale(value)
        return min(here - low, high - here) < 0.01 * (high - low)


def _is_number(value: Value) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def parse_over(text: str, method: Mapping[str, Any], experiment: Experiment | None = None) -> Dimension:
    """Read SETTING=LOW..HIGH, with :log behind it for a logarithmic scale, or SETTING=A|B|C. The setting is a
    hyperparameter of the method, given as its table in an experiment, or a setting of the experiment such as
    budget.lr. Its value without a search is taken from that table or from the experiment."""
    key, sign, values = (part.strip() for part in text.partition("="))
    if not (key and sign and values):
        raise UserError(f"--over is '{text}' but should be such as mu=0.001..1:log or beta=1|2|3.")
    setting, default = _setting(key, method, experiment or Experiment())
    if ".." not in values:
        choices = tuple(_value(part) for part in values.split("|"))
        if len(set(choices)) < len(choices):
            raise UserError(f"--over {text} names a value twice: name each once.")
        return Dimension(setting, choices=choices, default=default)
    span, _, scale = values.partition(":")
    low, high = (_number(part, text) for part in span.split("..", 1))
    if scale not in ("", "log"):
        raise UserError(f"--over {text} ends with ':{scale}': write :log, or nothing.")
    if low > high:
        raise UserError(f"--over {text} goes downwards: write {key}={high:g}..{low:g}.")
    if scale and low <= 0:
        raise UserError(f"--over {text} begins at {low:g}, which has no logarithm: begin above 0.")
    whole = isinstance(default, int)
    if isinstance(default, str):  # such as auto, instead of a number
        whole = all(part.strip().isdecimal() for part in span.split(".."))
    if isinstance(default, bool):
        raise UserError(f"{key} is {default} by default and no number: write {key}=true|false.")
    if whole and not (low.is_integer() and high.is_integer()):
        raise UserError(f"--over {text} is not between whole numbers, and {key} is one: write whole numbers.")
    return Dimension(setting, low, high, bool(scale), whole, default=default)


def _setting(key: str, method: Mapping[str, Any], experiment: Experiment) -> tuple[str, Value | None]:
    """Return the name of a setting in an experiment, and its value there."""
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
    parts = method_parts(str(method["name"]))
    if len(parts) == 1:
        options = find(parts[0]).options
        if not options:
            raise UserError(f"{parts[0]} has no hyperparameters: search settings such as budget.lr for it.")
        if key not in options:
            _refuse_short_name(key, experiment)
            raise unknown(f"hyperparameter of {parts[0]}", key, options)
        return f"method.{key}", method.get(key, options[key])
    owners = [part for part in parts if key == f"{part}.{inner}" or key in find(part).options]
    if len(owners) != 1:
        _refuse_short_name(key, experiment)
        why = "is a hyperparameter of several parts" if owners else "is of no part"
        raise UserError(f"{key} {why} of {method['name']}: write PART.NAME, such as {parts[0]}.NAME.")
    name = key.removeprefix(f"{owners[0]}.")
    options = find(owners[0]).options
    if name not in options:
        raise unknown(f"hyperparameter of {owners[0]}", name, options)
    return f"method.{owners[0]}.{name}", method.get(owners[0], {}).get(name, options[name])


def _refuse_short_name(key: str, experiment: Experiment) -> None:
    """Refuse a setting of the budget without its table, such as lr."""
    if key in type(experiment.budget).model_fields and key not in SAME_FOR_ALL:
        raise UserError(f"{key} is no hyperparameter of the method but a setting: write budget.{key}.")


def _value(text: str) -> Value:
    """Read a value as `--set` does."""
    text = text.strip()
    value = assign({}, [f"value={text}"])["value"]
    if not text or not isinstance(value, bool | int | float | str):
        raise UserError(f"'{text}' cannot be tried: write numbers, words, true or false between the bars.")
    return value


def _number(text: str, over: str) -> float:
    """Read a finite number. `over` is the whole text of --over, for the error."""
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not abs(number) < float("inf"):
        raise UserError(f"--over is '{over}' but '{text}' is not a number: write LOW..HIGH.")
    return number


def default_values(space: Sequence[Dimension]) -> dict[str, Value] | None:
    """Return the values that the settings have without a search; None if one of them may not be tried."""
    values = {each.setting: each.default for each in space}
    if all(each.holds(each.default) for each in space):
        return {name: value for name, value in values.items() if value is not None}
    return None


def grid(space: Sequence[Dimension]) -> list[dict[str, Value]]:
    """Return all combinations of the settings' values."""
    for each in space:
        if not each.choices:
            name = called(each.setting)
            raise UserError(f"--sampler grid needs values for {name}: write {name}=A|B|C, no range.")
    return [
        dict(zip([each.setting for each in space], values, strict=True))
        for values in itertools.product(*(each.choices for each in space))
    ]


def called(setting: str) -> str:
    """Return the name of a setting as it is written behind --over."""
    return setting.removeprefix("method.")


def describe(values: Mapping[str, Value]) -> str:
    """Return values as a text for people, such as "mu=0.1, budget.lr=0.01"."""
    return ", ".join(f"{called(name)}={_short(value)}" for name, value in values.items())


def _short(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
