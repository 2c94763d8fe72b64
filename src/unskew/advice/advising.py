"""From how labels are skewed to the method that the evidence backs there."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from unskew import metrics, notebook
from unskew.advice.counts import check_counts, notes_on
from unskew.advice.evidence import GOALS, NetworkResult, Setting, evidence, in_words
from unskew.advice.facts import Contrast, SkewFacts, contrasts, measure
from unskew.advice.verdict import Candidate, ChosenCandidate, Verdict, in_setting
from unskew.data.federation import Federation
from unskew.data.importers import Import
from unskew.data.loading import OWN
from unskew.data.partitions import own_skew, parse_skew, write_skew
from unskew.data.sources import SOURCES, spelled
from unskew.errors import UserError, unknown, whole_number
from unskew.notation import joined, named
from unskew.record import Json
from unskew.report.answer import REFERENCE, TITLES, join, points
from unskew.report.answer import verdict as how_sure
from unskew.trial import Budget

Goal = Literal["accuracy", "worst", "vacant"]
OTHER_DATA = 0.5
"""By how much a setting on other data counts as farther away."""
POINTS = {"accuracy": "of accuracy", "worst": "on the worst class", "vacant": "on vacant classes"}
MOST = 3
"""Settings that are shown beside the nearest, and differences and methods that a sentence names."""
NOTABLE = 0.3
"""The distance from which a difference is shown."""
FACTS = (
    "classes", "clients", "cohort", "vacant", "effective", "lacked", "per_client", "largest", "tail",
)  # fmt: skip
"""What programs are told of a federation."""
PLACES = {"data.name": "DATA", "skew.recipe": "SKEW"}
"""What stands in a command in the place of what is not known."""
INSTEAD = {
    "budget.epochs": "budget.steps",
    "budget.steps": "budget.epochs",
    "budget.schedule": "budget.lr_decay",
}
"""Settings of the budget, each with the one that may be given in its place."""
UNCHANGED = {"model.norm": "auto"}
"""Settings of a network, each with the value that leaves it as it was published."""
FLAGS = ("rounds", "epochs", "steps", "batch_size", "lr", "schedule", "optimizer", "augment")
"""Settings that have a flag of their name on the command line."""


@dataclass(frozen=True)
class Match:
    """A setting of the evidence beside what is asked for."""

    setting: Setting
    verdict: Verdict
    contrasts: tuple[Contrast, ...]
    """In what they differ, the most first."""
    same_data: bool
    same: bool
    """Whether data, skew, clients and cohort are the same."""

    @property
    def near(self) -> bool:
        """Whether what was measured there says something about here."""
        return self.contrasts[0].distance <= 1

    @property
    def distance(self) -> float:
        """Over all facts."""
        apart = math.sqrt(math.fsum(each.distance**2 for each in self.contrasts))
        return round(apart + OTHER_DATA * (not self.same_data), 1)

    @property
    def differs(self) -> list[str]:
        """In what they differ much, in words; first what makes them not alike."""
        return [each.words for each in self.contrasts if each.distance > (NOTABLE if self.near else 1)]


@dataclass(frozen=True, repr=False)
class Advice:
    """A recommendation, and the evidence that it rests on. `print` shows it, and a notebook too."""

    title: str
    """What is asked for."""
    facts: SkewFacts
    by: Goal
    """By which measure a method is chosen."""
    near: tuple[Match, ...]
    """The settings of the evidence that are like this one, the nearest first."""
    others: tuple[Match, ...]
    """Those that are not."""
    given: Mapping[str, Any]
    """What the command that tries it is given, by the paths of an experiment's settings."""
    notes: tuple[str, ...] = ()

    @property
    def choices(self) -> dict[str, ChosenCandidate]:
        """In the nearest setting, by measure; empty where no setting is near."""
        if not self.near:
            return {}
        found = {goal: self.near[0].verdict.choose(goal) for goal in GOALS}
        return {goal: choice for goal, choice in found.items() if choice is not None}

    @property
    def recommended(self) -> ChosenCandidate | None:
        """The method to take; None where nothing is backed."""
        choice = self.choices.get(self.by)
        return choice if choice is not None and choice.backed else None

    @property
    def method(self) -> str | None:
        """Its name, as --method takes it."""
        return None if self.recommended is None else self.recommended.candidate.method.name

    @property
    def sentence(self) -> str:
        """What the evidence says, and no more."""
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
        return f"Take {name}: {where} it has {change}, over {seeds} seeds, beyond chance{above}."

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
        """The command that tries the recommended method beside FedAvg, with the budget of the evidence, and
        where FedAvg had another network, both of them on both; None where nothing is backed."""
        choice = self.recommended
        if choice is None:
            return None
        setting, candidate = self.near[0].setting, choice.candidate
        same = self.near[0].same_data
        wanted = {**PLACES, "skew.clients": self.facts.clients, **self.given}
        for key, value in (setting.settings | candidate.method.tuned).items():
            if self._excludes(key):
                continue
            if key.startswith("budget.") or (key == "data.augment" and same):
                wanted.setdefault(key, value)
        if same:
            wanted.setdefault("model.name", candidate.network.name)
        reference, varied = choice.verdict.reference.network, list[str]()
        for key, value in candidate.network.changed.items():
            if key in UNCHANGED and key not in wanted and key not in reference.changed:
                varied += ["--vary", f"{key}={UNCHANGED[key]}", "--vary", f"{key}={value}"]
            else:
                wanted.setdefault(key, value)
        names = {"data.name": "--dataset", "skew.recipe": "--skew", "skew.clients": "--clients"}
        names |= {"budget.cohort": "--cohort", "model.name": "--model"}
        names |= {
            f"{table}.{name}": f"--{name.replace('_', '-')}" for name in FLAGS for table in ("budget", "data")
        }
        words = ["unskew", "compare", REFERENCE, candidate.method.name]
        for key in sorted(wanted, key=lambda key: key not in names):
            words += [names[key], str(wanted[key])] if key in names else ["--set", f"{key}={wanted[key]}"]
        return shlex.join([*words, *varied, "--seeds", "1-3"])

    def _excludes(self, key: str) -> bool:
        """Whether what is given stands in the place of a setting of the budget."""
        if key == "budget.momentum":
            return named(str(self.given.get("budget.optimizer", "sgd")))[0] != "sgd"
        return INSTEAD.get(key) in self.given

    def to_json(self) -> dict[str, Json]:
        """For programs: accuracies and differences are fractions."""
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
            "choices": {goal: _choice_json(choice) for goal, choice in self.choices.items()},
            "settings": [_match_json(each) for each in (*self.near, *self.others)],
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """All of it as text."""
        said = [self.title, f"{self.facts.words}.", "", self.sentence]
        if self.near:
            said += ["", *self._evidence()]
        if self.command:
            said += ["", f"try it: {self.command}"]
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
        return said

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        """The same for a notebook."""
        return notebook.panel(self.title, *(notebook.paragraph(line) for line in self.lines()[1:] if line))


def _brief(choice: ChosenCandidate) -> str:
    value = "" if choice.value is None else f" {metrics.plus_minus(choice.value, scale=100)} %"
    found = choice.difference
    change = "" if found is None else f", {points(found)} points against {choice.verdict.reference.name}"
    return f"{choice.candidate.name}{value}{change}" + ("" if choice.backed else ", not significant")


def _about(choice: ChosenCandidate) -> list[str]:
    """A candidate by every measure, what it costs, and what is as good."""
    verdict, name, plain = choice.verdict, choice.candidate.name, choice.verdict.reference
    lines = []
    for goal in GOALS:
        value, theirs, found = (
            verdict.value(name, goal),
            verdict.value(plain.name, goal),
            verdict.difference(name, goal),
        )
        if value is None:
            continue
        change = "" if found is None else f": {points(found)} points, {how_sure(found)}"
        beside = (
            ""
            if theirs is None or name == plain.name
            else f" against {metrics.plus_minus(theirs, scale=100)} %"
        )
        lines.append(f"{TITLES[goal]} {metrics.plus_minus(value, scale=100)} %{beside}{change}")
    if (same := choice.on_same_network) is not None:
        lines.append(
            f"on its own network against {REFERENCE}: {points(same)} points {POINTS[choice.measure]}, "
            f"{how_sure(same)}"
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
    """Their names, in which there may be commas."""
    more = len(candidates) - MOST
    names = [each.name for each in candidates[:MOST]]
    return "; ".join([*names, f"{more} more"] if more > 0 else names)


def _choice_json(choice: ChosenCandidate) -> dict[str, Json]:
    found, value, same = choice.difference, choice.value, choice.on_same_network
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
        "on_same_network": None if same is None else same.difference,
        "seeds": choice.seeds,
        "alike": [each.name for each in choice.alike],
        "cheaper": [each.name for each in choice.cheaper],
        "cost": {name: method.mean(name) for name in ("work", "traffic", "seconds")},
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


def advise(
    federation: Federation | ArrayLike,
    *,
    cohort: int | None = None,
    by: Goal = "accuracy",
    model: str | None = None,
    dataset: str | None = None,
) -> Advice:
    """Which method to take, by what was measured where labels are skewed alike.

    federation: a Federation, or label counts [clients, classes].
    cohort: how many clients take part in a round; None: all.
    by: accuracy, worst (class) or vacant (the classes that clients lack).
    model: one's network, where only what was measured on it is of use.
    dataset: whose counts these are, where they are those of a dataset that unskew knows."""
    if isinstance(federation, Federation):
        data = federation.dataset
        counts, clients, samples = federation.partition.counts, federation.clients, data.samples
        name = spelled(dataset or data.spec or data.name)
        kinds = {*SOURCES, *OWN} if dataset or data.spec else {*SOURCES}
        skew = typed_skew(federation.partition.recipe)
        given: dict[str, Any] = {} if skew is None else {"skew.recipe": skew}
        given |= {"skew.clients": clients}
        shown, notes = {"data.name": name, "skew.recipe": federation.skew}, list[str]()
    else:
        counts, clients, samples = check_counts(_rows(federation), "the table of counts"), None, "samples"
        name, kinds, given = spelled(dataset or ""), {*SOURCES, *OWN}, {}
        shown, notes = {"data.name": name}, notes_on(counts)
    if all(named(part)[0] in kinds for part in joined(name)):
        given |= {"data.name": name}
    given |= {} if model is None else {"model.name": model}
    cohort = None if cohort is None else whole_number("cohort", cohort, 1)
    return advise_on(
        counts, cohort=cohort, clients=clients, samples=samples, by=by, given=given, shown=shown, notes=notes
    )


def typed_skew(recipe: str) -> str | None:
    """A recipe as --skew takes it, in brief; None for that of a partition of one's own."""
    try:
        skew = parse_skew(recipe)
    except UserError:
        return None
    return recipe if isinstance(skew, Import) or own_skew(skew) else write_skew(skew, brief=True)


def _rows(table: Any) -> Any:
    """Rows of plain numbers, also of an array or a DataFrame; as they are where they are no table."""
    try:
        return np.asarray(table).tolist()
    except ValueError:  # rows of unequal length
        return table


def advise_on(
    counts: np.typing.NDArray[np.int64],
    *,
    given: Mapping[str, Any],
    shown: Mapping[str, str] | None = None,
    cohort: int | None = None,
    clients: int | None = None,
    samples: str = "samples",
    by: str = "accuracy",
    notes: Sequence[str] = (),
    known: Sequence[Setting] | None = None,
) -> Advice:
    """The same from label counts; `given` is what is known of the experiment, by the paths of its settings,
    `shown` what the title says in its place, and `known` the evidence, where it is not the package's."""
    if by not in get_args(Goal):
        raise unknown("goal", by, get_args(Goal))
    clients = len(counts) if clients is None else clients
    if cohort is not None and not 1 <= cohort <= clients:
        raise UserError(f"the cohort is {cohort} but should be 1 to {clients}, the number of clients.")
    facts = measure(counts, cohort=cohort, clients=clients, samples=samples)
    given = {**given, **({} if cohort is None else {"budget.cohort": cohort})}
    titled = {**given, **(shown or {})}
    some = f"{cohort} per round" if cohort and cohort < clients else "all in every round"
    title = ", ".join(
        str(part)
        for part in (
            titled.get("data.name"),
            titled.get("skew.recipe"),
            f"{clients} client{'s' * (clients != 1)}",
            some,
        )
        if part
    )
    settings = evidence() if known is None else known
    matches = [_match(each, facts, given) for each in settings if "attack" not in each.settings]
    matches.sort(key=lambda each: (each.verdict.answer is None, each.distance, -len(each.verdict.compared)))
    told_notes = list(notes)
    near = tuple(each for each in matches if each.near)
    if near and not near[0].same_data:
        told_notes.append(
            f"measured on {near[0].setting.data}, not on these data: try it before you rely on it."
        )
    networks = near[0].setting.networks if near else []
    if networks and not any(_fits(each, networks, given) for each in networks):
        there = join([network.title for network in networks])
        told_notes.append(
            f"the network that is asked for was not measured there: the numbers are of {there}."
        )
    choice = near[0].verdict.choose(by) if near else None
    if near and (other := _other_budget(near[0].setting, choice, given)):
        told_notes.append(other)
    found = Advice(
        title=title,
        facts=facts,
        by=by,  # type: ignore[arg-type]
        near=near,
        others=tuple(each for each in matches if not each.near),
        given=given,
        notes=tuple(told_notes),
    )
    places = [place for key, place in PLACES.items() if key not in given]
    if found.command is None or not places:
        return found
    owned = "; where samples have owners, SKEW is natural" if "SKEW" in places else ""
    write = f"write what is yours in the place of {join(places)}{owned}."
    return replace(found, notes=(*found.notes, write))


def _other_budget(setting: Setting, choice: ChosenCandidate | None, given: Mapping[str, Any]) -> str:
    """What of the budget that is asked for is not what was measured, as a note; empty where nothing is."""
    tuned = {} if choice is None else choice.candidate.method.tuned
    budgets = [
        {key.removeprefix("budget."): value for key, value in settings.items() if key.startswith("budget.")}
        for settings in (setting.settings | tuned, given)
    ]
    names = {"lr_decay": "schedule"}
    asked = [names.get(key, key) for key in budgets[1] if key != "cohort"]
    asked += ["epochs"] if "steps" in asked else ["steps"] if "epochs" in asked else []
    there, here = (Budget(**budget).model_dump(include=set(asked)) for budget in budgets)
    differ = [key for key in dict.fromkeys(asked) if there[key] != here[key]]
    if not differ:
        return ""
    measured, wanted = (
        in_words({key: each[key] for key in differ if each[key] is not None}) for each in (there, here)
    )
    return f"measured with {measured}, not with {wanted}: try it before you rely on it."


def _match(setting: Setting, facts: SkewFacts, given: Mapping[str, Any]) -> Match:
    fitting = [network for network in setting.networks if _fits(network, setting.networks, given)]
    # What samples are is not always known; where it is, other kinds are other things altogether.
    kinds = {setting.facts.samples, facts.samples}
    found = contrasts(setting.facts, facts)
    if len(kinds) > 1 and "samples" not in kinds:
        words = f"samples are {setting.facts.samples}, here {facts.samples}"
        found = [Contrast(2 + found[0].distance, words), *found]
    return Match(
        setting,
        in_setting(setting, fitting or None),
        tuple(found),
        same_data=setting.data == given.get("data.name"),
        same=all(
            given.get(key) == setting.settings[key] for key in ("data.name", "skew.recipe", "skew.clients")
        )
        and facts.cohort == setting.facts.cohort,
    )


def _fits(network: NetworkResult, networks: Sequence[NetworkResult], given: Mapping[str, Any]) -> bool:
    """Whether a network is one that was asked for, as far as it was. What a setting is by default is not
    told; it is not what another network was changed to."""
    for key, value in given.items():
        if key == "model.name":
            if network.name != value:
                return False
        elif key in network.changed:
            if network.changed[key] != value:
                return False
        elif any(other.changed.get(key) == value for other in networks):
            return False
    return True
