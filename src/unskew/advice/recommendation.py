"""The advice about a federation: the recommended method and its evidence, as text and for programs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from unskew import metrics, notebook
from unskew.advice.command import PLACES, STRONG_FEDAVG, commands_to_try, search_rates
from unskew.advice.evidence import GOALS, TUNED_TITLE, Setting
from unskew.advice.facts import Contrast, SkewFacts
from unskew.advice.verdict import Candidate, ChosenCandidate, StrongestFedAvg, Verdict
from unskew.record import Json
from unskew.report.differences import points
from unskew.report.differences import verdict as how_sure
from unskew.report.standings import REFERENCE, TITLES

Goal = Literal["accuracy", "worst", "vacant"]
OTHER_DATA = 0.5
"""What other data add to the distance of a setting."""
POINTS = {"accuracy": "of accuracy", "worst": "on the worst class", "vacant": "on vacant classes"}
MOST = 3
"""The most settings shown after the nearest, and the most differences and methods that a sentence names."""
NOTABLE = 0.3
"""A larger difference than this is shown."""
FACTS = (
    "classes", "clients", "cohort", "vacant", "effective", "lacked", "per_client", "largest", "tail",
)  # fmt: skip
"""The facts of a federation that the JSON has."""


@dataclass(frozen=True)
class Match:
    """A setting of the evidence, compared with the federation that advice is asked for."""

    setting: Setting
    verdict: Verdict
    contrasts: tuple[Contrast, ...]
    """The differences between the two, the largest first."""
    same_data: bool
    same: bool
    """Whether data, skew, clients and cohort are the same."""

    @property
    def near(self) -> bool:
        """Whether the two are alike enough for the evidence to apply."""
        return self.contrasts[0].distance <= 1

    @property
    def distance(self) -> float:
        """The distance over all facts."""
        apart = math.sqrt(math.fsum(each.distance**2 for each in self.contrasts))
        return round(apart + OTHER_DATA * (not self.same_data), 1)

    @property
    def differs(self) -> list[str]:
        """The notable differences in words; if the two are not alike, the ones that make them so."""
        return [each.words for each in self.contrasts if each.distance > (NOTABLE if self.near else 1)]


@dataclass(frozen=True, repr=False)
class Advice:
    """A recommendation with its evidence. Both `print` and a notebook show it."""

    title: str
    """The federation that advice is asked for, in one line."""
    facts: SkewFacts
    by: Goal
    """The measure by which a method is chosen."""
    near: tuple[Match, ...]
    """The settings of the evidence that are like the federation, the nearest first."""
    others: tuple[Match, ...]
    """The other settings of the evidence."""
    tuned: Match | None
    """The nearest setting that is like the federation and where each method was tuned by itself."""
    given: Mapping[str, Any]
    """Known settings of the experiment, by their paths, which the command takes over."""
    notes: tuple[str, ...] = ()

    @cached_property
    def choices(self) -> dict[str, ChosenCandidate]:
        """The choice by each measure in the nearest setting; empty if no setting is near."""
        if not self.near:
            return {}
        found = {goal: self.near[0].verdict.choose(goal) for goal in GOALS}
        return {goal: choice for goal, choice in found.items() if choice is not None}

    @property
    def recommended(self) -> ChosenCandidate | None:
        """The method to take; None if none is significantly above the reference."""
        choice = self.choices.get(self.by)
        return choice if choice is not None and choice.backed else None

    @cached_property
    def when_tuned(self) -> dict[str, ChosenCandidate]:
        """FedAvg, the recommended method and the choice by the measure, where each method was tuned.

        The keys are "fedavg", "method" and "choice"; those that were not measured there are missing, and so
        is the choice if it is one of the other two.
        """
        if self.tuned is None:
            return {}
        verdict, known = self.tuned.verdict, dict[str, ChosenCandidate]()
        if verdict.reference.plain:
            known["fedavg"] = ChosenCandidate(verdict, self.by, verdict.reference, backed=False)
        if self.recommended is not None:
            mine = verdict.choose(self.by, self.recommended.candidate.method.family)
            known |= {} if mine is None else {"method": mine}
        choice = verdict.choose(self.by)
        if choice is None or choice.candidate in [each.candidate for each in known.values()]:
            return known
        return known | {"choice": choice}

    @property
    def method(self) -> str | None:
        """The name of the recommended method, as --method takes it."""
        return None if self.recommended is None else self.recommended.candidate.method.name

    @property
    def sentence(self) -> str:
        """The conclusion from the evidence, in one sentence."""
        if not self.near:
            return self._none_near()
        choice = self.choices.get(self.by)
        if choice is None:
            return f"There is evidence where labels are skewed alike, but none by {TITLES[self.by]}."
        where = "in this setting" if self.near[0].same else "in the nearest measured setting"
        name, reference, seeds = choice.candidate.name, choice.verdict.reference.name, choice.seeds
        if choice.verdict.answer is None:
            return (
                f"Nothing is backed: {where} {name} has the highest {TITLES[self.by]}, with "
                f"{'one seed, which backs' if seeds == 1 else f'{seeds} seeds, which back'} no claim."
            )
        found = choice.difference
        if found is None:
            return (
                f"Nothing is backed above {reference}: {where} it has the highest {TITLES[self.by]} itself."
            )
        change = f"{points(found)} points {POINTS[self.by]} against {reference}"
        if not choice.backed:
            return f"Nothing is backed: {where} {name} has the highest mean, {change}; {how_sure(found)}."
        above = " and above every other method measured there" if choice.best else ""
        return (
            f"Take {name}: {where} it has {change}, over {seeds} seeds, beyond chance{above}."
            f"{self._gain_when_tuned()}"
        )

    def _gain_when_tuned(self) -> str:
        found = self.when_tuned.get("method")
        if found is None or found.difference is None:
            return ""
        assert self.tuned is not None
        title = self.tuned.setting.title.removesuffix(TUNED_TITLE)
        elsewhere = "" if title == self.near[0].setting.title else f" of {title}"
        best = self.when_tuned.get("choice")
        more = ""
        if not found.backed and best is not None and best.backed and best.difference is not None:
            more = f" With {_on_network(best.candidate)} it is {points(best.difference)}: significant."
        return (
            f" With each method tuned on validation data{elsewhere}, {_on_network(found.candidate)} has "
            f"{points(found.difference)} points in the round that validation chose: "
            f"{how_sure(found.difference)}.{more}"
        )

    def _none_near(self) -> str:
        if not self.others:
            return "Nothing was measured yet that could be asked."
        nearest = self.others[0]
        more = len(nearest.differs) - MOST
        differences = [*nearest.differs[:MOST], *([f"and {more} more"] if more > 0 else [])]
        return (
            f"None of the measured settings is like this one: in the nearest ({nearest.setting.title}) "
            f"{'; '.join(differences)}."
        )

    @property
    def command(self) -> str | None:
        """The command that tries the recommended method next to FedAvg, at one learning rate; None if no
        method is recommended."""
        return self._commands[0]

    @property
    def search_command(self) -> str:
        """The command that tries it with a learning rate chosen for each method, or where no method is
        recommended, steady and a stronger FedAvg."""
        return self._commands[1]

    @cached_property
    def _commands(self) -> tuple[str | None, str]:
        if self.recommended is None:
            wanted = {**PLACES, "skew.clients": self.facts.clients, **self.given}
            return None, search_rates((REFERENCE, STRONG_FEDAVG, "steady"), wanted)
        return commands_to_try(
            self.recommended,
            self.near[0].setting,
            same_data=self.near[0].same_data,
            clients=self.facts.clients,
            given=self.given,
            more=[self.when_tuned["choice"].candidate.method.name] if "choice" in self.when_tuned else [],
        )

    def to_json(self) -> dict[str, Json]:
        """Return the advice for programs, with accuracies and differences as fractions."""
        return {
            "title": self.title,
            "skew": self.facts.words,
            "facts": {name: getattr(self.facts, name) for name in FACTS},
            "by": self.by,
            "evidence": bool(self.near),
            "sentence": self.sentence,
            "method": self.method,
            "network": dict(self.recommended.candidate.network.changed) if self.recommended else None,
            "command": self.command,
            "search_command": self.search_command,
            "choices": {goal: _choice_json(choice) for goal, choice in self.choices.items()},
            "when_tuned": self._when_tuned_json(),
            "settings": [_match_json(each) for each in (*self.near, *self.others)],
            "notes": list(self.notes),
        }

    def _when_tuned_json(self) -> dict[str, Json] | None:
        if self.tuned is None:
            return None
        choices = {key: _choice_json(choice) for key, choice in self.when_tuned.items()}
        return {"setting": self.tuned.setting.title, **choices}

    def lines(self) -> list[str]:
        """Return the whole advice as lines of text."""
        said = [self.title, f"{self.facts.words}.", "", self.sentence]
        if self.near:
            said += ["", *self._evidence()]
        said += ["", *([f"try it: {self.command}"] if self.command else [])]
        said.append(f"with a rate for each: {self.search_command}")
        return [*said, *(f"note: {note}" for note in self.notes)]

    def _evidence(self) -> list[str]:
        nearest, choices = self.near[0], self.choices
        said = [f"measured on {nearest.setting.title}", f"  budget: {nearest.setting.budget}"]
        if nearest.differs:
            said.append(f"  unlike here: {'; '.join(nearest.differs)}")
        if self.by in choices:
            chosen = choices[self.by]
            said += [f"  {chosen.candidate.name}", *(f"    {line}" for line in _about(chosen))]
        for goal, choice in choices.items():
            if choice.candidate != choices.get(self.by, choice).candidate:
                said.append(f"  by {TITLES[goal]} alone: {_brief(choice)}")
        for match in self.near[1 : 1 + MOST]:
            if (other := match.verdict.choose(self.by)) is not None:
                said.append(f"also like this: {match.setting.title}: {_brief(other)}")
        if self.tuned is not None:
            said.append(
                f"with rate, hyperparameters and round chosen by validation: {self.tuned.setting.title}"
            )
            said += [
                f"  {_named(each) if each.difference is None else _brief(each)}"
                for each in self.when_tuned.values()
            ]
        return said

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        """Return the whole advice as HTML."""
        return notebook.panel(self.title, *(notebook.paragraph(line) for line in self.lines()[1:] if line))


def _on_network(candidate: Candidate) -> str:
    return f"{candidate.method.name} on {candidate.network.title}"


def _named(choice: ChosenCandidate) -> str:
    value = "" if choice.value is None else f" {metrics.plus_minus(choice.value, scale=100)} %"
    return f"{choice.candidate.name}{value}"


def _brief(choice: ChosenCandidate) -> str:
    found = choice.difference
    change = "" if found is None else f", {points(found)} points against {choice.verdict.reference.name}"
    if choice.backed:
        doubt = ""
    elif found is not None:
        doubt = ", not significant"
    elif len(choice.verdict.candidates) == 1:
        doubt = ", with nothing to compare it with"
    elif choice.verdict.answer is None:
        doubt = ", too few seeds to compare"
    else:
        doubt = ", nothing significantly above it"
    return f"{_named(choice)}{change}{doubt}"


def _about(choice: ChosenCandidate) -> list[str]:
    """Describe a candidate in lines: its values, its costs, and the candidates that are as good."""
    verdict, name, plain = choice.verdict, choice.candidate.name, choice.verdict.reference
    lines = []
    for goal in GOALS:
        value, theirs = verdict.value(name, goal), verdict.value(plain.name, goal)
        if value is None:
            continue
        found = verdict.difference(name, goal)
        change = "" if found is None else f": {points(found)} points, {how_sure(found)}"
        against = (
            ""
            if theirs is None or name == plain.name
            else f" against {metrics.plus_minus(theirs, scale=100)} %"
        )
        lines.append(f"{TITLES[goal]} {metrics.plus_minus(value, scale=100)} %{against}{change}")
    if (strongest := choice.strongest_fedavg) is not None:
        doubt = "not " if strongest.candidate in choice.alike else ""
        lines.append(
            f"against the strongest FedAvg, {strongest.candidate.name}, "
            f"{metrics.plus_minus(strongest.value, scale=100)} %: {points(strongest.gain)} points "
            f"{POINTS[choice.measure]}, {doubt}significant after correction"
        )
    costs = [
        f"{mine / base:.2f} times the {words}"
        for what, words in (("work", "computing at clients"), ("traffic", "traffic"))
        if (mine := choice.candidate.method.mean(what)) is not None and (base := plain.method.mean(what))
    ]
    lines += [f"costs {' and '.join(costs)} of {plain.name}"] if costs else []
    if choice.alike:
        lines.append(f"not told apart from it: {_some(choice.alike)}")
    if choice.cheaper:
        lines.append(f"of these cheaper for clients: {_some(choice.cheaper)}")
    return lines


def _some(candidates: Sequence[Candidate]) -> str:
    """Write the first names as a list, separated by semicolons since names may have commas."""
    more = len(candidates) - MOST
    names = [each.name for each in candidates[:MOST]]
    return "; ".join([*names, f"{more} more"] if more > 0 else names)


def _choice_json(choice: ChosenCandidate) -> dict[str, Json]:
    found, value, strongest = choice.difference, choice.value, choice.strongest_fedavg
    method = choice.candidate.method
    return {
        "method": method.name,
        "network": {"name": choice.candidate.network.name, **choice.candidate.network.changed},
        "backed": choice.backed,
        "best": choice.best,
        "mean": None if value is None else value.mean,
        "std": None if value is None else value.std,
        "reference": choice.verdict.reference.name,
        "difference": None if found is None else found.difference,
        "interval": None if found is None or found.interval is None else list(found.interval),
        "p": None if found is None else found.adjusted,
        "strongest_fedavg": None if strongest is None else _strongest_json(strongest),
        "seeds": choice.seeds,
        "alike": [each.name for each in choice.alike],
        "cheaper": [each.name for each in choice.cheaper],
        "cost": {name: method.mean(name) for name in ("work", "traffic", "seconds")},
    }


def _strongest_json(strongest: StrongestFedAvg) -> dict[str, Json]:
    candidate, gain = strongest.candidate, strongest.gain
    return {
        "method": candidate.method.name,
        "network": {"name": candidate.network.name, **candidate.network.changed},
        "mean": strongest.value.mean,
        "std": strongest.value.std,
        "difference": gain.difference,
        "interval": None if gain.interval is None else list(gain.interval),
    }


def _match_json(match: Match) -> dict[str, Json]:
    return {
        "title": match.setting.title,
        "near": match.near,
        "same_data": match.same_data,
        "distance": match.distance,
        "differs": list(match.differs),
        "claims": match.verdict.answer is not None,
        "commits": list(match.setting.commits),
        "devices": list(match.setting.devices),
    }
