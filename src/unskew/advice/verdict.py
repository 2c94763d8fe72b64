"""The conclusions from the evidence of a setting, by the rules of docs/claims.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from unskew import metrics
from unskew.advice.evidence import GOALS, MethodResult, NetworkResult, Setting
from unskew.metrics import Comparison, Difference
from unskew.metrics.reference import corrected
from unskew.report.standings import REFERENCE, Standing, Standings, compare_values


@dataclass(frozen=True)
class Candidate:
    """A method on a network, which a user may choose."""

    network: NetworkResult
    method: MethodResult
    name: str
    """The name of the method, and of the network if there are several."""

    @property
    def plain(self) -> bool:
        """Whether it is FedAvg."""
        return self.method.name == REFERENCE

    @property
    def combined(self) -> bool:
        """Whether it is a combination of methods."""
        return "+" in self.method.name


@dataclass(frozen=True)
class Verdict:
    """Candidates under the same conditions, compared with one of them on the seeds that both have. Candidates
    with too few such seeds are not compared."""

    answer: Standings | None
    """None if no other candidate has three seeds in common with the reference."""
    candidates: Mapping[str, Candidate]
    """All candidates by name."""
    reference: Candidate

    @property
    def compared(self) -> dict[str, Standing]:
        """The standings of the candidates that are compared, by name."""
        return {each.name: each for each in self.answer.standings} if self.answer else {}

    def value(self, name: str, measure: str) -> metrics.SeedsSummary | None:
        """Return a measure of a candidate over its seeds; None if no seed has it."""
        return over_seeds(self.candidates[name].method, measure)

    def difference(self, name: str, measure: str) -> Difference | None:
        """Return the difference to the reference; None for the reference itself, or without a comparison."""
        standing = self.compared.get(name)
        return None if standing is None else standing.differences.get(measure)

    def ranked(self, measure: str) -> list[str]:
        """Return the compared candidates by their differences to the reference, the highest first.

        Differences are used since means over different seeds cannot be compared. If no candidate is compared,
        all are returned in the order of their means.
        """

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

    def choose(self, measure: str, family: str | None = None) -> ChosenCandidate | None:
        """Choose the first candidate that is significantly above the reference, or else the first of all.

        If a family of methods is given, only candidates of it count. None if no candidate has a value by this
        measure.
        """
        ranked = [
            name for name in self.ranked(measure) if family in (None, self.candidates[name].method.family)
        ]
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
class StrongestFedAvg:
    """FedAvg with the server and on the network where it has the highest mean of a measure."""

    candidate: Candidate
    value: metrics.SeedsSummary
    """The measure over its seeds."""
    gain: Comparison
    """The difference of the chosen candidate to it, taken alone: it backs no claim."""


@dataclass(frozen=True)
class ChosenCandidate:
    """The candidate to take by one measure."""

    verdict: Verdict
    measure: str
    candidate: Candidate
    backed: bool
    """Whether it is significantly above the reference."""

    @property
    def difference(self) -> Difference | None:
        """The difference to the reference."""
        return self.verdict.difference(self.candidate.name, self.measure)

    @property
    def value(self) -> metrics.SeedsSummary | None:
        """The measure over the candidate's seeds."""
        return self.verdict.value(self.candidate.name, self.measure)

    @cached_property
    def strongest_fedavg(self) -> StrongestFedAvg | None:
        """FedAvg with the server and on the network where it has the highest mean, which shows what part of
        the gain server and network alone would give.

        None if it is the reference, if the candidate itself trains as FedAvg does, or without enough seeds in
        common.
        """
        if self.candidate.method.client == REFERENCE:
            return None
        found = {
            each.name: value
            for each in _sharing(self.candidate, list(self.verdict.candidates.values()))
            if each.method.client == REFERENCE and (value := over_seeds(each.method, self.measure))
        }
        strongest = max(found, key=lambda name: found[name].mean, default=self.verdict.reference.name)
        if strongest == self.verdict.reference.name:
            return None
        theirs = self.verdict.candidates[strongest]
        gain = metrics.compare(
            _seeds(self.candidate.method, self.measure),
            _seeds(theirs.method, self.measure),
            bounds=metrics.DIFFERENCE,
        )
        return None if gain is None else StrongestFedAvg(theirs, found[strongest], gain)

    @property
    def seeds(self) -> int:
        """The number of seeds of the difference, or of the value if there is no difference."""
        return len(self.difference.seeds) if self.difference else len(self.candidate.method.seeds)

    @property
    def best(self) -> bool:
        """Whether it is significantly above every other candidate."""
        answer = self.verdict.answer
        return answer is not None and answer.best.get(self.measure) == self.candidate.name

    @cached_property
    def alike(self) -> list[Candidate]:
        """The other candidates that it is not significantly above, the highest first; none if it is the best.

        They are found by paired tests with Holm's correction over all candidates.
        """
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
        """The candidates of `alike` with which clients compute less."""
        mine = self.candidate.method.mean("work")
        return [
            each
            for each in self.alike
            if mine is not None and (work := each.method.mean("work")) is not None and work < 0.99 * mine
        ]


def over_seeds(method: MethodResult, measure: str) -> metrics.SeedsSummary | None:
    """Return a measure of a method over all its seeds; None if no seed has it."""
    return metrics.over_seeds(_seeds(method, measure).values(), bounds=metrics.SHARE)


def _seeds(method: MethodResult, measure: str) -> dict[int, float | None]:
    return {seed: getattr(found, measure) for seed, found in method.seeds.items()}


def judge(candidates: Sequence[Candidate]) -> Verdict:
    """Compare the candidates of one setting with FedAvg.

    It is FedAvg on the first network where it shares enough seeds with another candidate; if there is no such
    network, the first candidate that does. Claims about methods and about combinations of methods are
    corrected separately, since what is known about a method does not depend on how many combinations were
    tried.
    """
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
    """Return the candidates, including this one, that have enough seeds in common with it for a claim."""
    mine = one.method.seeds.keys()
    return [each for each in candidates if len(mine & each.method.seeds.keys()) >= metrics.FEWEST]


def on_network(network: NetworkResult) -> Verdict:
    """Compare the methods on one network with FedAvg on it."""
    return judge(_on(network))


def in_setting(setting: Setting, networks: Sequence[NetworkResult] | None = None) -> Verdict:
    """Compare all methods on all networks of a setting, or on some, with FedAvg on the first that has it."""
    chosen = setting.networks if networks is None else networks
    several = len(setting.networks) > 1
    return judge([each for network in chosen for each in _on(network, named=several)])


def _on(network: NetworkResult, *, named: bool = False) -> list[Candidate]:
    more = f" on {network.title}" if named else ""
    return [Candidate(network, method, f"{method.name}{more}") for method in network.methods]


@dataclass(frozen=True)
class Equal:
    """Methods with one server on one network, compared with FedAvg with the same server on this network."""

    network: NetworkResult
    server: str
    """The name of the server's part; empty for plain averaging."""
    verdict: Verdict

    @property
    def gains(self) -> dict[str, Difference]:
        """The difference in accuracy of each method, by its part at the clients."""
        found = {
            each.method.client: self.verdict.difference(name, "accuracy")
            for name, each in self.verdict.candidates.items()
        }
        return {client: gain for client, gain in found.items() if gain is not None}


def under_equal_conditions(setting: Setting) -> list[Equal]:
    """Compare the clients' parts of methods on every network and server that FedAvg was measured with.

    Methods whose loss and server are one part are left out.
    """
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
    """Return each method's difference in accuracy between a network and the first one, by network title.

    The differences of a network are corrected together for all methods that both networks have.
    """
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
