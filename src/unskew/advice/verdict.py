"""What the evidence of a setting backs, by the rules of docs/claims.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unskew import metrics
from unskew.advice.evidence import GOALS, MethodResult, NetworkResult, Setting
from unskew.metrics import Difference
from unskew.report.answer import REFERENCE, Answer, Standing, compare_values, shared_seeds


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


@dataclass(frozen=True)
class Verdict:
    """Candidates under the same conditions against one of them, and those that cannot be compared."""

    answer: Answer | None
    """None where fewer than two candidates have three seeds in common."""
    candidates: Mapping[str, Candidate]
    """All of them, by name."""
    reference: Candidate

    @property
    def compared(self) -> dict[str, Standing]:
        """Where the candidates stand that have enough seeds in common."""
        return {each.name: each for each in self.answer.standings} if self.answer else {}

    @property
    def left_out(self) -> list[Candidate]:
        """Those that have not."""
        return [each for name, each in self.candidates.items() if name not in self.compared]

    def mean(self, name: str, measure: str) -> float | None:
        """The mean of a candidate over the seeds that are compared, or where it is not, over its own."""
        if name in self.compared:
            value = self.compared[name].values.get(measure)
            return None if value is None else value.mean
        return self.candidates[name].method.mean(measure)

    def ranked(self, measure: str) -> list[str]:
        """The candidates that are compared, the highest mean first; where none is, all."""
        found = {name: self.mean(name, measure) for name in self.compared or self.candidates}
        known = {name: value for name, value in found.items() if value is not None}
        return sorted(known, key=lambda name: -known[name])

    def difference(self, name: str, measure: str) -> Difference | None:
        """A candidate's difference to the reference; None for that itself and where it is not compared."""
        standing = self.compared.get(name)
        return None if standing is None else standing.differences.get(measure)

    def choose(self, measure: str) -> Choice | None:
        """The candidate with the highest mean of those that are above the reference beyond chance; where
        there is none, the one with the highest mean. None where nothing is known by this measure."""
        ranked = self.ranked(measure)
        backed = [
            name
            for name in ranked
            if (found := self.difference(name, measure)) and found.settled and found.difference > 0
        ]
        if not ranked:
            return None
        name = backed[0] if backed else ranked[0]
        return Choice(self, measure, self.candidates[name], name in backed)


@dataclass(frozen=True)
class Choice:
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
    def value(self) -> metrics.Summary | None:
        """Over the seeds that are compared, or its own."""
        standing = self.verdict.compared.get(self.candidate.name)
        if standing is not None:
            return standing.values.get(self.measure)
        return over_seeds(self.candidate.method, self.measure)

    @property
    def best(self) -> bool:
        """Whether it is above every other candidate beyond chance."""
        told = self.verdict.answer
        return told is not None and told.best.get(self.measure) == self.candidate.name

    @property
    def alike(self) -> list[Candidate]:
        """The others that it is not above beyond chance, by paired tests at 5 %, the highest mean first."""
        if self.verdict.answer is None:
            return []
        mine = _seeds(self.candidate.method, self.measure, self.verdict.answer.seeds)
        found = []
        for name in self.verdict.ranked(self.measure):
            other = self.verdict.candidates[name]
            pair = metrics.compare(
                mine, _seeds(other.method, self.measure, self.verdict.answer.seeds), bounds=metrics.DIFFERENCE
            )
            above = pair and pair.difference > 0 and pair.t_test is not None and pair.t_test <= metrics.LEVEL
            if name != self.candidate.name and not above:
                found.append(other)
        return found

    @property
    def cheaper(self) -> list[Candidate]:
        """Those of them with which clients compute less."""
        mine = self.candidate.method.mean("work")
        return [
            each
            for each in self.alike
            if mine is not None and (work := each.method.mean("work")) is not None and work < 0.99 * mine
        ]


def over_seeds(method: MethodResult, measure: str) -> metrics.Summary | None:
    """A measure of a method over all its seeds."""
    return metrics.over_seeds(
        [getattr(seed, measure) for seed in method.seeds.values()], bounds=metrics.SHARE
    )


def _seeds(method: MethodResult, measure: str, seeds: Sequence[int]) -> dict[int, float | None]:
    return {seed: getattr(method.seeds[seed], measure) for seed in seeds if seed in method.seeds}


def judge(candidates: Sequence[Candidate]) -> Verdict:
    """Candidates of one setting against FedAvg, on the first network that has it; without it, against the
    first."""
    named = {each.name: each for each in candidates}
    reference = next((each for each in candidates if each.plain), candidates[0])
    kept, seeds = shared_seeds({name: each.method.seeds.keys() for name, each in named.items()})
    if len(seeds) < metrics.FEWEST or len(kept) < 2 or reference.name not in kept:
        return Verdict(None, named, reference)
    values = {
        name: {measure: _seeds(each.method, measure, sorted(seeds)) for measure in GOALS}
        for name, each in named.items()
        if name in kept
    }
    known = tuple(
        measure
        for measure in GOALS
        if all(None not in each[measure].values() for each in values.values())
    )
    return Verdict(compare_values(values, reference.name, known), named, reference)


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
    Methods that bring a server of their own are not among them."""
    found = []
    for network in setting.networks:
        servers = dict.fromkeys(method.server for method in network.methods)
        for server in servers:
            with_it = [
                each
                for each in _on(network)
                if each.method.server == server and not each.method.own_server
            ]
            plain = [each for each in with_it if each.method.client == REFERENCE]
            others = [each for each in with_it if each.method.client != REFERENCE]
            if plain and others and (verdict := judge([plain[0], *others])).answer is not None:
                found.append(Equal(network, server, verdict))
    return found


def of_networks(setting: Setting) -> list[tuple[NetworkResult, dict[str, Difference]]]:
    """For each network but the first: by method, what it adds to the same method on the first, corrected for
    all methods that both have."""
    first, *more = setting.networks
    on_first = {method.name: method for method in first.methods}
    found = []
    for network in more:
        pairs = {
            method.name: metrics.compare(
                _seeds(method, "accuracy", sorted(method.seeds)),
                _seeds(on_first[method.name], "accuracy", sorted(method.seeds)),
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
        adjusted = metrics.holm([pair.t_test for pair in known.values()])
        gains = {
            name: Difference(
                pair.seeds, pair.difference, pair.std, pair.interval, pair.t_test, p, None
            )
            for (name, pair), p in zip(known.items(), adjusted, strict=True)
        }
        if gains:
            found.append((network, gains))
    return found
