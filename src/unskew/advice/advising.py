"""The choice of a method for a federation, by the evidence from federations with a similar skew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike

from unskew.advice.command import PLACES
from unskew.advice.counts import check_counts, notes_on
from unskew.advice.evidence import NetworkResult, Setting, evidence, in_words
from unskew.advice.facts import Contrast, SkewFacts, contrasts, measure
from unskew.advice.recommendation import Advice, Goal, Match
from unskew.advice.verdict import ChosenCandidate, in_setting
from unskew.data.federation import Federation
from unskew.data.importers import Import
from unskew.data.loading import OWN
from unskew.data.partitions import own_skew, parse_skew, write_skew
from unskew.data.sources import SOURCES, spelled
from unskew.errors import UserError, unknown, whole_number
from unskew.notation import joined, named
from unskew.report.sentences import join
from unskew.trial import Budget

ONE_RATE = (
    "all methods ran there with one learning rate, which suits some better than others: search it for each "
    "before you rely on the difference."
)


def advise(
    federation: Federation | ArrayLike,
    *,
    cohort: int | None = None,
    by: Goal = "accuracy",
    model: str | None = None,
    dataset: str | None = None,
) -> Advice:
    """Recommend a method for a federation, by measurements on federations with a similar label skew.

    federation: a Federation, or label counts [clients, classes].
    cohort: how many clients take part in a round; None: all.
    by: accuracy, worst (class) or vacant (the classes that clients lack).
    model: the network to use, if only measurements on that network count.
    dataset: the dataset that the counts belong to, if unskew knows it."""
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
        check_classes(counts, name, "the table of counts")
        shown, notes = {"data.name": name}, notes_on(counts)
    if all(named(part)[0] in kinds for part in joined(name)):
        given |= {"data.name": name}
    given |= {} if model is None else {"model.name": model}
    cohort = None if cohort is None else whole_number("cohort", cohort, 1)
    return advise_on(
        counts, cohort=cohort, clients=clients, samples=samples, by=by, given=given, shown=shown, notes=notes
    )


def check_classes(counts: np.typing.NDArray[np.int64], data: str, what: str) -> None:
    """Refuse label counts for more or fewer classes than the dataset has, if that is known; `what` names
    their source in errors."""
    known = {name: source.classes for name, source in SOURCES.items()}
    known |= {setting.data: setting.facts.classes for setting in evidence()}
    if counts.shape[1] != known.get(data, counts.shape[1]):
        raise UserError(
            f"{what} has {counts.shape[1]} classes and {data} has {known[data]}: give a count for each of "
            "them, 0 where a client has none, or leave the dataset out."
        )


def typed_skew(recipe: str) -> str | None:
    """Return a recipe in the short form that --skew takes; None for the recipe of a user's own partition."""
    try:
        skew = parse_skew(recipe)
    except UserError:
        return None
    return recipe if isinstance(skew, Import) or own_skew(skew) else write_skew(skew, brief=True)


def _rows(table: Any) -> Any:
    """Return an array or a DataFrame as rows of plain numbers, and anything that is no table unchanged."""
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
    """Recommend a method for a federation with these label counts.

    `given` has the known settings of the experiment by their paths, `shown` the texts that the title has
    instead of some of them, and `known` other evidence than the package's.
    """
    if by not in get_args(Goal):
        raise unknown("goal", by, get_args(Goal))
    clients = len(counts) if clients is None else clients
    if cohort is not None and not 1 <= cohort <= clients:
        raise UserError(f"the cohort is {cohort} but should be 1 to {clients}, the number of clients.")
    facts = measure(counts, cohort=cohort, clients=clients, samples=samples)
    given = {**given, **({} if cohort is None else {"budget.cohort": cohort})}
    settings = evidence() if known is None else known
    matches = [_match(each, facts, given) for each in settings if "attack" not in each.settings]
    matches.sort(key=lambda each: (each.verdict.answer is None, each.distance, -len(each.verdict.compared)))
    tuned = next((each for each in matches if each.setting.tuned and each.near), None)
    matches = [each for each in matches if not each.setting.tuned]
    near = tuple(each for each in matches if each.near)
    found = Advice(
        title=_title({**given, **(shown or {})}, clients, cohort),
        facts=facts,
        by=by,  # type: ignore[arg-type]
        near=near,
        others=tuple(each for each in matches if not each.near),
        tuned=tuned,
        given=given,
        notes=(*notes, *(_notes_on_nearest(near[0], by, given) if near else ())),
    )
    if found.recommended is not None and "method" not in found.when_tuned:
        found = replace(found, notes=(*found.notes, ONE_RATE))
    places = [place for key, place in PLACES.items() if key not in given]
    if not places:
        return found
    owned = "; where samples have owners, SKEW is natural" if "SKEW" in places else ""
    write = f"write what is yours in the place of {join(places)}{owned}."
    return replace(found, notes=(*found.notes, write))


def _title(shown: Mapping[str, Any], clients: int, cohort: int | None) -> str:
    parts = [
        shown.get("data.name"),
        shown.get("skew.recipe"),
        f"{clients} client{'s' * (clients != 1)}",
        f"{cohort} per round" if cohort and cohort < clients else "all in every round",
    ]
    return ", ".join(str(part) for part in parts if part)


def _notes_on_nearest(nearest: Match, by: str, given: Mapping[str, Any]) -> list[str]:
    """Return notes on data, network and budget, if the nearest setting was measured with other ones."""
    notes = []
    if not nearest.same_data:
        notes.append(f"measured on {nearest.setting.data}, not on these data: try it before you rely on it.")
    networks = nearest.setting.networks
    if networks and not any(_fits(each, networks, given) for each in networks):
        there = join([network.title for network in networks])
        notes.append(f"the network that is asked for was not measured there: the numbers are of {there}.")
    if other := _other_budget(nearest.setting, nearest.verdict.choose(by), given):
        notes.append(other)
    return notes


def _other_budget(setting: Setting, choice: ChosenCandidate | None, given: Mapping[str, Any]) -> str:
    """Return a note on how the given budget differs from the measured one; empty if it does not."""
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
    # It is not always known what samples are. If it is, a setting with other samples is never near.
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
    """Say whether a network agrees with the given settings.

    A setting that the network does not change has its default, which is not known here. It counts as agreeing
    unless another network was changed to the given value.
    """
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
