"""An engine whose clients are on the nodes of a Flower federation, and the run that uses it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from flwr.app import RecordDict

from unskew.engines.base import Base
from unskew.engines.evaluate import EvaluationSet
from unskew.engines.job import Job, Outcome, Pending, Task
from unskew.errors import UserError
from unskew.flower.exchange import Trouble
from unskew.flower.link import Link
from unskew.flower.memory import digest_of
from unskew.flower.messages import INITIAL, VERSION, Action, Order, read_fit, read_totals, remote_failure
from unskew.flower.records import FROZEN, from_record, pack, with_prefix
from unskew.flower.settings import FlowerSettings
from unskew.method import Method
from unskew.metrics import Assessment, ProbabilityScores
from unskew.program import Run, StageStore, Trained
from unskew.result import Result, Stage
from unskew.rounds import OnRound
from unskew.trial import Trial
from unskew.types import NO_MEMORY, Query, Tensors, View, Weights


class FederatedRun(Run):
    """A run whose clients are on the nodes of a federation."""

    def __init__(
        self,
        trial: Trial,
        base: Method,
        on_round: OnRound = lambda _: None,
        keeper: StageStore | None = None,
        *,
        link: Link,
        settings: FlowerSettings,
        test_at_sites: bool,
    ) -> None:
        super().__init__(trial, base, on_round, keeper)
        self.link, self.test_at_sites = link, test_at_sites
        self.agreement = settings.agreement(trial)
        self.stage = ""
        """The present stage."""
        self.results: dict[str, Tensors] = {}
        """The results that nodes may ask for, by name: initial models, and the models and values of stages
        that have ended."""
        self.digests: dict[str, str] = {}
        """The digests of these results."""
        self.untested: dict[str, tuple[int, str]] = {}
        """The clients that were left out of tests, by name: of how many tests, and the last reason."""
        self._started = 0

    def _start(self, trial: Trial) -> FlowerEngine:
        engine = FlowerEngine(trial, self, self._started)
        self._started += 1
        return engine

    def train(self, name: str, method: Method, trial: Trial | None = None, **options: Any) -> Trained:
        trained = super().train(name, method, trial, **options)
        self.offer(name, pack(trained.served) | with_prefix(FROZEN, trained.frozen))
        return trained

    def value(self, name: str, make: Callable[[], Tensors], *, shared: bool = True) -> Tensors:
        found = super().value(name, make, shared=shared)
        if shared:
            self.offer(name, found)
        return found

    def offer(self, name: str, tensors: Tensors) -> None:
        """Keep a result for nodes that ask for it."""
        self.results[name], self.digests[name] = tensors, digest_of(tensors)

    def result(self, *arguments: Any, notes: Sequence[str] = (), **options: Any) -> Result:
        untested = [
            f"{times} test{'s' * (times > 1)} went without '{name}', because {why}."
            for name, (times, why) in self.untested.items()
        ]
        return super().result(*arguments, notes=[*notes, *untested], **options)

    def _stage(self, name: str, *arguments: Any) -> Stage:
        self.stage = name
        return super()._stage(name, *arguments)

    def count_passes(self, forward: int) -> None:
        """Add the samples that clients have passed through a model for their answers."""
        self._passes.forward += forward


class FlowerEngine(Base):
    """An engine for one model of a run, which clients on other machines train."""

    def __init__(self, trial: Trial, run: FederatedRun, number: int) -> None:
        super().__init__(trial)
        self._run, self._number, self._link = run, number, run.link
        if self.frozen or trial.init is not None:  # otherwise every node makes it from the seed
            run.offer(INITIAL.format(number), pack(self.initial) | with_prefix(FROZEN, self.frozen))

    def start_memory(self, method: Method, task: Task) -> Tensors:
        """Return nothing, since what a client keeps stays at its node."""
        return {}

    def fit(
        self,
        method: Method,
        sent: Weights,
        shared: Tensors,
        jobs: Iterable[Job],
        upcoming: Sequence[Task] = (),
    ) -> list[Outcome]:
        jobs = list(jobs)
        asked = [job for job in jobs if len(job.task.holding)]
        # Clients whose memory begins with the initial model receive it if it does not follow from the seed.
        begins = method.memory.init is not NO_MEMORY.init and self.trial.init is not None
        answers = self._ask_nodes("fit", asked, sent, shared, initial=begins)
        tallies = frozenset(tally.name for tally in method.tallies)
        outcomes: dict[int, Outcome] = {}
        for job in asked:
            answer = answers[job.task.client]
            if isinstance(answer, Trouble):
                outcomes[job.task.client] = remote_failure(job, answer.kind, answer.reason)
                continue
            steps = self.local.samples.steps(job.task)
            outcomes[job.task.client] = read_fit(answer, job, sent, tallies, steps, self._version(job))
        idle = self.local.clients.without_data
        return [outcomes.get(job.task.client) or idle(job, sent) for job in jobs]

    def ask(
        self, name: str, query: Query, weights: Weights, shared: Tensors, jobs: Iterable[Job]
    ) -> list[Tensors]:
        """Return the clients' answers to the question of the present stage, in the order of the jobs. `query`
        is not sent: nodes find it by the name of the stage."""
        jobs = list(jobs)
        answers, found = self._ask_nodes("ask", jobs, weights, shared), list[Tensors]()
        for job in jobs:
            client, answer = job.task.client, answers[job.task.client]
            if isinstance(answer, Trouble):
                why = answer.reason
            else:
                try:
                    found.append(from_record(answer.array_records[f"answer/{client}"]))
                    continue
                except (KeyError, TypeError, ValueError, RuntimeError) as error:
                    why = f"its answer cannot be read ({error})"
            raise UserError(
                f"client {client} ('{self._link.names[client]}') did not answer stage '{self._run.stage}', "
                f"because {why}: all have to; fix it, and start the run again, which resumes from here."
            )
        nodes = {id(each): each for each in answers.values() if isinstance(each, RecordDict)}
        for content in nodes.values():
            forward = content.metric_records.get("passes", {}).get("forward", 0)
            self._run.count_passes(forward if type(forward) is int and forward > 0 else 0)
        return found

    def look(self, task: Task, weights: Weights) -> Iterator[View]:
        raise UserError("clients' samples are on other machines, where nobody looks: choose another method.")

    def evaluate(self, weights: Weights, samples: EvaluationSet = "test") -> Pending[Assessment]:
        federation = self.trial.federation
        # Test samples without owners are at the server, as is the one sample of models that are not tested.
        if samples == "test" and (not self._run.test_at_sites or federation.dataset.test.owners is None):
            return super().evaluate(weights, samples)
        jobs = [Job(Task(client, 0, federation.holding(client))) for client in range(federation.clients)]
        answers = self._ask_nodes("evaluate", jobs, weights, {}, samples=samples)
        return Pending.done(self._assessment(answers, samples))

    def probability_scores(self, weights: Weights) -> ProbabilityScores | None:
        return None if self._run.test_at_sites else super().probability_scores(weights)

    def _assessment(self, answers: dict[int, RecordDict | Trouble], samples: EvaluationSet) -> Assessment:
        """Return the sum of the clients' test results. A client without a usable answer is left out of the
        test, and its samples count as not asked."""
        federation, C = self.trial.federation, len(self.trial.federation.dataset.classes)
        split = federation.dataset.test if samples == "test" else federation.validation
        assert split is not None
        assert split.owners is not None
        counts = np.bincount(
            split.owners.numpy() * C + split.labels.numpy(), minlength=federation.clients * C
        ).reshape(-1, C)
        total, losses, predictions = np.zeros((C, C), np.int64), 0.0, list[np.ndarray]()
        for client in range(federation.clients):
            answer = answers[client]
            totals = answer.reason if isinstance(answer, Trouble) else read_totals(answer, client, C)
            if not isinstance(totals, str) and not np.array_equal(totals[0].sum(axis=1), counts[client]):
                totals = "it was tested on other samples than it said it has"
            if isinstance(totals, str):
                name = self._link.names[client]
                self._link.say(f"'{name}' is left out of the test, because {totals}")
                self._run.untested[name] = self._run.untested.get(name, (0, ""))[0] + 1, totals
                predictions.append(np.full(int(counts[client].sum()), C))
                continue
            confusion, loss = totals
            total, losses = total + confusion, losses + loss
            predictions.append(np.repeat(np.tile(np.arange(C), C), confusion.ravel()))
        if not total.any():
            raise UserError("no site has sent a test result: see why above, fix it, and start again.")
        unknown = np.full((C, C), np.nan)
        return Assessment(
            confusion=total,
            loss=losses / int(total.sum()),
            mean_probability=unknown,
            mean_features=unknown,
            domains=None,
            answers=np.concatenate(predictions).astype(np.int32) if samples == "test" else None,
        )

    def _ask_nodes(
        self,
        action: Action,
        jobs: Sequence[Job],
        weights: Weights,
        shared: Tensors,
        *,
        samples: EvaluationSet = "test",
        initial: bool = False,
    ) -> dict[int, RecordDict | Trouble]:
        """Send each node an order for its clients, and return the answers by client."""
        connected = self._link.refresh()
        by_node: dict[int, list[Job]] = {}
        for job in jobs:
            by_node.setdefault(self._link.place(job.task.client)[0], []).append(job)
        orders = {
            node: Order(
                action=action,
                run=self._link.run,
                agreement=self._run.agreement,
                stage=self._run.stage,
                engine=self._number,
                round=mine[0].task.round,
                rounds=self._run.trial.budget.rounds,
                clients=tuple(job.task.client for job in mine),
                places=tuple(self._link.place(job.task.client)[1] for job in mine),
                names=tuple(self._link.names[job.task.client] for job in mine),
                versions=tuple(int(job.memory[VERSION]) if VERSION in job.memory else 0 for job in mine),
                version=self._version(mine[0]),
                samples=samples,
                stages=tuple(self._run.digests),
                digests=tuple(self._run.digests.values()),
                frozen=bool(self.frozen) or initial,
                weights=weights,
                shared=shared,
            )
            for node, mine in by_node.items()
        }
        answers = self._link.send(orders, connected, self._run.results.get)
        return {job.task.client: answers[node] for node, mine in by_node.items() for job in mine}

    def _version(self, job: Job) -> int:
        """Return the version number of what clients keep after a round of the present stage. It is the same
        if the round is repeated."""
        text = f"{self._run.stage}\0{job.task.round}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") + 1
