"""What the evidence of a setting backs, by the rules of docs/claims.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from unskew import metrics
from unskew.advice.evidence import GOALS, MethodResult, NetworkResult, Setting
from unskew.metrics import Difference
from unskew.metrics.reference import corrected
from unskew.report.standings import REFERENCE, Standing, Standings, compare_values


@dataclass(frozen=True)
class Candidate:
    """A method on a network: what a user may choose."""

    network: NetworkResult
    method: MethodResult
    name: str
    """What it is called beside the others: the method, and the network where there are several."""

    @property
    def plain(self) -> bool:
        """Whether it is FedAvg."""
        return self.method.name == REFERENCE

    @property
    def combined(self) -> bool:
        """Whether it is several methods in one."""
        return "+" in self.method.name


@dataclass(frozen=True)
class Verdict:
    """Candidates under the same conditions against one of them, each over the seeds that both have, and those
    that cannot be compared."""

    answer: Standings | None
    """None where no other candidate has three seeds in common with the reference."""
    candidates: Mapping[str, Candidate]
    """All of them, by name."""
    reference: Candidate

    @property
    def compared(self) -> dict[str, Standing]:
        """Where the candidates stand that have enough seeds."""
        return {each.name: each for each in self.answer.standings} if self.answer else {}

    def value(self, name: str, measure: str) -> metrics.SeedsSummary | None:
        """A candidate over its seeds; None where nothing is known."""
        return over_seeds(self.candidates[name].method, measure)

    def difference(self, name: str, measure: str) -> Difference | None:
        """A candidate's difference to the reference; None for that itself and where it is not compared."""
        standing = self.compared.get(name)
        return None if standing is None else standing.differences.get(measure)

    def ranked(self, measure: str) -> list[str]:
        """The candidates that are compared, the highest difference to the reference first: means over other
        seeds do not compare. Where none is compared, all, by their means."""

        def height(name: str) -> float | None:
            if not self.compared:
                value = self.value(name, measure)
                return None if value is None else value.mean
            if name == self.reference.name:
                return None if self.value(name, measure) is None else 0.0
            found = self.difference(name, measure)
            return None if found is None else found.difference

        heights = {name: height(name) for name in self.compared or self.candidates}
        known = {name: value for name, value in heights.items() if value is not None}
        return sorted(known, key=lambda name: -known[name])

    def choose(self, measure: str) -> ChosenCandidate | None:
        """The first of those that are above the reference beyond chance; where there is none, the first of
        all. None where nothing is known by this measure."""
        ranked = self.ranked(measure)
        backed = [
            name
            for name in ranked
            if (found := self.difference(name, measure)) and found.settled and found.difference > 0
        ]
        if not ranked:
            return None
        name = backed[0] if backed else ranked[0]
        return ChosenCandidate(self, measure, self.candidates[name], name in backed)


@dataclass(frozen=True)
class ChosenCandidate:
    """The candidate to take by one measure."""

    verdict: Verdict
    measure: str
    candidate: Candidate
    backed: bool
    """Whether it is above the reference beyond chance."""

    @property
    def difference(self) -> Difference | None:
        """To the reference."""
        return self.verdict.difference(self.candidate.name, self.measure)

    @property
    def value(self) -> metrics.SeedsSummary | None:
        """Over its seeds."""
        return self.verdict.value(self.candidate.name, self.measure)

    @property
    def on_same_network(self) -> Difference | None:
        """Its difference to FedAvg on its own network, where that is not the reference's; None where it is,
        and where it was not measured."""
        network, name = self.candidate.network, self.candidate.method.name
        if network.title == self.verdict.reference.network.title:
            return None
        there = on_network(network)
        return there.difference(name, self.measure) if there.reference.plain else None

    @property
    def seeds(self) -> int:
        """How many the difference, or else the value, is over."""
        return len(self.difference.seeds) if self.difference else len(self.candidate.method.seeds)

    @property
    def best(self) -> bool:
        """Whether it is above every other candidate beyond chance."""
        answer = self.verdict.answer
        return answer is not None and answer.best.get(self.measure) == self.candidate.name

    @cached_property
    def alike(self) -> list[Candidate]:
        """The others that it is not above beyond chance, by paired tests after Holm's correction over all of
        them, the highest first; none where it is above all at once."""
        if self.verdict.answer is None or self.best:
            return []
        ranked = {name: self.verdict.candidates[name] for name in self.verdict.ranked(self.measure)}
        values = {name: {self.measure: _seeds(each.method, self.measure)} for name, each in ranked.items()}
        against = metrics.against_reference(values, self.candidate.name)
        return [
            ranked[name]
            for name, differences in against.items()
            if not ((pair := differences[self.measure]) and pair.settled and pair.difference < 0)
        ]

    @property
    def cheaper(self) -> list[Candidate]:
        """Those of them with which clients compute less."""
        mine = self.candidate.method.mean("work")
        return [
            each
            for each in self.alike
            if mine is not None and (work := each.method.mean("work")) is not None and work < 0.99 * mine
        ]


def over_seeds(method: MethodResult, measure: str) -> metrics.SeedsSummary | None:
    """A measure of a method over all its seeds."""
    return metrics.over_seeds(_seeds(method, measure).values(), bounds=metrics.SHARE)


def _seeds(method: MethodResult, measure: str) -> dict[int, float | None]:
    return {seed: getattr(found, measure) for seed, found in method.seeds.items()}


def judge(candidates: Sequence[Candidate]) -> Verdict:
    """Candidates of one setting against FedAvg, on the first network where it shares enough seeds with
    another candidate; where it does so on none, against the first candidate that does. Claims about methods
    and about combinations of them are corrected apart: how many combinations were tried has no bearing on
    what is known of a method."""
    named = {each.name: each for each in candidates}
    first = sorted(candidates, key=lambda each: not each.plain)
    reference = next((each for each in first if len(_sharing(each, candidates)) > 1), first[0])
    kept = [each.name for each in _sharing(reference, candidates)]
    if len(kept) < 2:
        return Verdict(None, named, reference)
    values = {name: {goal: _seeds(named[name].method, goal) for goal in GOALS} for name in kept}
    known = tuple(goal for goal in GOALS if all(None not in each[goal].values() for each in values.values()))
    combined = {name for name in kept if named[name].combined}
    groups = [group for group in (set(kept) - combined, combined) if group - {reference.name}]
    return Verdict(compare_values(values, reference.name, known, groups), named, reference)


def _sharing(one: Candidate, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates, this one among them, that have enough seeds in common with it for a claim."""
    mine = one.method.seeds.keys()
    return [each for each in candidates if len(mine & each.method.seeds.keys()) >= metrics.FEWEST]


def on_network(network: NetworkResult) -> Verdict:
    """The methods on one network against FedAvg there."""
    return judge(_on(network))


def in_setting(setting: Setting, networks: Sequence[NetworkResult] | None = None) -> Verdict:
    """All methods on all networks, or on these, against FedAvg on the first that has it."""
    chosen = setting.networks if networks is None else networks
    several = len(setting.networks) > 1
    return judge([each for network in chosen for each in _on(network, named=several)])


def _on(network: NetworkResult, *, named: bool = False) -> list[Candidate]:
    more = f" on {network.title}" if named else ""
    return [Candidate(network, method, f"{method.name}{more}") for method in network.methods]


@dataclass(frozen=True)
class Equal:
    """Methods with one server, on one network, against FedAvg with both."""

    network: NetworkResult
    server: str
    """Empty: plain averaging."""
    verdict: Verdict

    @property
    def gains(self) -> dict[str, Difference]:
        """By what a method changes at the clients: its difference in accuracy."""
        found = {
            each.method.client: self.verdict.difference(name, "accuracy")
            for name, each in self.verdict.candidates.items()
        }
        return {client: gain for client, gain in found.items() if gain is not None}


def under_equal_conditions(setting: Setting) -> list[Equal]:
    """For every network and server that FedAvg was measured with: what the clients' part of methods adds.
    Methods whose loss and server are one are not among them."""
    found = []
    for network in setting.networks:
        servers = dict.fromkeys(method.server for method in network.methods)
        for server in servers:
            with_it = [
                each for each in _on(network) if each.method.server == server and not each.method.own_server
            ]
            plain = [each for each in with_it if each.method.client == REFERENCE]
            others = [each for each in with_it if each.method.client != REFERENCE]
            if plain and others and (verdict := judge([plain[0], *others])).answer is not None:
                found.append(Equal(network, server, verdict))
    return found


def of_networks(setting: Setting) -> dict[str, dict[str, Difference]]:
    """For each network but the first, by its title: by method, what it adds to the same method on the first,
    corrected for all methods that both have."""
    first, *more = setting.networks
    on_first = {method.name: method for method in first.methods}
    found = {}
    for network in more:
        pairs = {
            method.name: metrics.compare(
                _seeds(method, "accuracy"),
                _seeds(on_first[method.name], "accuracy"),
                bounds=metrics.DIFFERENCE,
            )
            for method in network.methods
            if method.name in on_first
        }
        known = {
            name: pair
            for name, pair in pairs.items()
            if pair is not None and len(pair.seeds) >= metrics.FEWEST
        }
        if known:
            found[network.title] = corrected(known)
    return found
