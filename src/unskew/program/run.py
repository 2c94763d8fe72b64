"""What a program may do with the clients of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from unskew import engines, metrics
from unskew.engines.job import Job, Task
from unskew.errors import UserError
from unskew.method import Method, Tally
from unskew.metrics import BACKWARD, Assessment, ProbabilityScores, Traffic
from unskew.models import level_ends
from unskew.program.cost import PassCount, samples_per_round
from unskew.program.stages import NoStore, StageStore
from unskew.record import ClientModel
from unskew.result import NOTHING_SENT, BestRound, Result, Round, Stage, State, Validation
from unskew.rounds import (
    OnRound,
    check_compatible,
    check_fits,
    divergence,
    initial_state,
    model_to_serve,
    notes_of_faults,
    rounds_cost,
    train_rounds,
)
from unskew.trial import Trial
from unskew.types import Look, Query, Scope, Tensors, Weights


@dataclass(frozen=True, eq=False)
class Trained:
    """A model that a stage trained."""

    state: State
    """After the last round."""
    rounds: tuple[Round, ...]
    served: Weights
    """The model to use, as it is sent: of the last round, or of the run's last stage that of the round which
    validation chose."""
    frozen: Tensors

    @property
    def weights(self) -> Weights:
        """The whole model to use, including the frozen parameters."""
        return self.served.with_frozen(self.frozen)


class Run:
    """What a program is given: the trial, the base method, and the operations on clients."""

    def __init__(
        self,
        trial: Trial,
        base: Method,
        on_round: OnRound = lambda _: None,
        keeper: StageStore | None = None,
    ) -> None:
        check_compatible(trial, base)
        self.trial, self.base = trial, base
        self.stages: list[Stage] = []
        """The stages that have ended, in their order."""
        self._on_round, self._keeper = on_round, keeper or NoStore()
        self._engines: dict[int, tuple[Trial, engines.Engine]] = {}
        self._names: set[str] = set()
        self._tallies: dict[Tally, None] = {}
        self._choice: BestRound | None = None
        """The best round of the run's last stage; None without a validation set."""
        self._trained_by: engines.Engine | None = None
        """The engine of the main model."""
        self._began = time.perf_counter()
        self._passes = PassCount()
        """Counts the passes that clients make for the answers of the present stage."""

    def engine(self, trial: Trial | None = None) -> engines.Engine:
        """Return the engine of a trial, by default the run's own. It is started once."""
        trial = trial or self.trial
        if id(trial) not in self._engines:  # the trial is kept, so that no other gets its id
            self._engines[id(trial)] = trial, self._start(trial)
        return self._engines[id(trial)][1]

    def _start(self, trial: Trial) -> engines.Engine:
        return engines.start(trial)

    def train(
        self,
        name: str,
        method: Method,
        trial: Trial | None = None,
        *,
        start: State | None = None,
        until: int | None = None,
        aside: bool = False,
        record: Callable[[Round], Round | None] = lambda round: round,
    ) -> Trained:
        """Train with a method until so many rounds are done. `record` may change a round before it is
        reported, or return None to hide it; it is called again for stored rounds. `aside=True` trains an
        auxiliary model: its rounds are not reported, and its traffic and cost are counted outside the budget.
        In the last stage of a run, which goes to the end of the budget, validation chooses a round and may
        stop training."""
        trial = trial or self.trial
        engine = self.engine(trial)
        last = trial.budget.rounds if until is None else until
        chooses = not aside and trial.federation.validation is not None and last >= trial.budget.rounds
        if not aside:
            self._trained_by = engine
        self._tallies |= dict.fromkeys(() if aside else method.tallies)

        def report(round: Round) -> Round:
            changed = None if aside else record(round)
            if changed is not None:
                self.report(changed)
            return changed or round

        def make(before: Stage | None) -> Stage:
            rounds = list(before.rounds) if before else []
            best, choice = before.best if before else None, BestRound(trial.stop, rounds if chooses else ())

            def stage(state: State) -> Stage:
                cost = rounds_cost(trial, method, len(rounds))
                return Stage(
                    states=(state,),
                    rounds=tuple(rounds),
                    traffic=sum((round.traffic for round in rounds), NOTHING_SENT) if aside else NOTHING_SENT,
                    cost=None if cost is None else cost * self.share_of_samples(trial),
                    best=best,
                )

            def after(round: Round, state: State) -> bool:
                nonlocal best
                rounds.append(report(round))
                if chooses and choice.add(rounds[-1]):
                    best = model_to_serve(method, state.server)
                self._keeper.after_round(name, stage(state))
                return choice.over

            state = before.states[0] if before else start or initial_state(method, engine.initial)
            check_fits(method, state, engine.initial, trial)
            if choice.over:  # it was stopped when it had just ended
                return stage(state)
            return stage(train_rounds(trial, method, engine, state, until=until, after_round=after))

        stage = self._stage(name, make, report)
        if chooses:
            self._choice = BestRound(trial.stop, stage.rounds)
        (state,) = stage.states
        model = model_to_serve(method, state.server) if stage.best is None else stage.best
        trained = Trained(state, stage.rounds, model, engine.frozen)
        if aside:  # this model is finished: free its engine's memory for the main one
            self._engines.pop(id(trial))
            engine.close()
        return trained

    def train_all(self, method: Method, trial: Trial | None = None, *, start: State | None = None) -> Result:
        """Train all rounds in one stage: for plain methods, and for programs that only change the model."""
        trained = self.train("training", method, trial, start=start)
        return self.result(trained.weights, trained.state, trained.rounds, trial=trial)

    def ask(
        self,
        name: str,
        query: Query,
        weights: Weights | None = None,
        *,
        trial: Trial | None = None,
        clients: Sequence[int] | None = None,
        state: State | None = None,
        local: bool = False,
        models: int = 1,
        sends: Tensors | None = None,
    ) -> tuple[Tensors, ...]:
        """Ask clients, by default all of them, the same question and return their answers in that order.

        `weights` are sent to all of them; a `state` provides what each client keeps. The answers count as
        traffic unless they are `local` and stay with the clients. What clients compute for them counts as the
        run's cost, `models` times if the model they are asked with is as large as so many of the run's.
        `sends` has the tensors of `weights` that count as traffic, by default those that a round sends."""
        trial = trial or self.trial
        engine, federation = self.engine(trial), trial.federation

        def make(_: Stage | None) -> Stage:
            sent = weights or engine.initial
            asked = range(federation.clients) if clients is None else clients
            jobs = (  # one after another: what all clients keep may not fit into memory
                Job(
                    Task(client, state.round if state else 0, federation.holding(client)),
                    state.memories.get(client, {}) if state else {},
                    state.buffers.get(client) if state else None,
                )
                for client in asked
            )
            count = self._passes = PassCount()

            def counted(scope: Scope, look: Look) -> Tensors:
                return query(scope, count.passes_of(look))

            answers = tuple(engine.ask(name, counted, sent, {}, jobs))
            for client, answer in zip(asked, answers, strict=True):
                if unusable := [key for key, value in answer.items() if not bool(value.isfinite().all())]:
                    raise UserError(
                        f"client {client} answered stage '{name}' with NaN or infinite values in "
                        f"'{unusable[0]}': all have to answer; if the model diverged, try a smaller lr."
                    )
            down = metrics.nbytes(trial.sent_of(sent) if sends is None else sends) if weights else 0
            up = 0 if local else sum(map(metrics.nbytes, answers))
            return Stage(
                values=answers,
                traffic=Traffic(up=up, down=down * len(asked)),
                cost=self._cost_of(models * count.forward),
            )

        return self._stage(name, make).values

    def value(self, name: str, make: Callable[[], Tensors], *, shared: bool = True) -> Tensors:
        """Compute a value at the server, once. If it is `shared`, clients on other machines may receive it
        when later stages need it; otherwise it is empty there."""
        (value,) = self._stage(name, lambda _: Stage(values=(make(),))).values
        return value

    def repeat(
        self,
        name: str,
        begin: Callable[[], Stage],
        advance: Callable[[Stage], Stage],
        *,
        rounds: int,
        model: Callable[[Stage], Weights] | None = None,
    ) -> Stage:
        """Train a stage whose rounds are not those of `train`: `begin` makes the stage before its first
        round, `advance` trains the next one. Each round is reported, and the stage may be stored after it.
        `model` is given for the last stage of a run and makes its model: validation then chooses a round,
        whose model is `Stage.best`, and may stop training."""
        chooses = model is not None and self.trial.federation.validation is not None

        def make(stage: Stage | None) -> Stage:
            stage = stage or begin()
            choice = BestRound(self.trial.stop, stage.rounds if chooses else ())
            while len(stage.rounds) < rounds and not choice.over:
                stage = advance(stage)
                if chooses and model is not None and choice.add(stage.rounds[-1]):
                    stage = replace(stage, best=model(stage))
                self.report(stage.rounds[-1])
                self._keeper.after_round(name, stage)
            return stage

        stage = self._stage(name, make, self.report)
        if chooses:
            self._choice = BestRound(self.trial.stop, stage.rounds)
        return stage

    def _stage(
        self,
        name: str,
        make: Callable[[Stage | None], Stage],
        report_again: Callable[[Round], object] = lambda _: None,
    ) -> Stage:
        """Return the stage of this name: as it was stored, or made, starting from what of it was stored."""
        if name in self._names:
            raise ValueError(f"two stages are named '{name}': give each a name of its own")
        self._names.add(name)
        kept = self._keeper.find(name)
        for round in kept.stage.rounds if kept else ():
            report_again(round)
        if kept and kept.ended:
            stage = kept.stage
        else:
            stage = make(kept.stage if kept else None)
            self._keeper.end(name, stage)
        self.stages.append(stage)
        return stage

    def report(self, round: Round) -> None:
        """Report a round of the main model that no stage reports."""
        self._on_round(round)

    def result(
        self,
        weights: Weights,
        state: State,
        rounds: Iterable[Round],
        *,
        trial: Trial | None = None,
        owners: Sequence[ClientModel] | None = None,
        notes: Sequence[str] = (),
        traffic: Traffic = NOTHING_SENT,
        final: Assessment | None = None,
        validated: Assessment | None = None,
        scores: ProbabilityScores | None = None,
    ) -> Result:
        """Make the result of the run. `trial` is the one whose model the weights are, by default the run's
        own. `owners` names the clients if the weights hold a model of each, stacked on the first axis.
        `traffic` is what was sent outside of rounds and stages. `final` and `validated` are the tests of a
        model that is not one of the rounds', and `scores` are those of a model that is not of the trial's
        form."""
        federation = self.trial.federation
        costs = [stage.cost for stage in self.stages]
        known = [cost for cost in costs if cost is not None]
        rounds = list(rounds)
        chosen = self._chosen(rounds)
        final = final or chosen.test
        assert final is not None  # the last round is always tested, and so is one that was validated
        trained = dict.fromkeys([*rounds, *(round for stage in self.stages for round in stage.rounds)])
        return Result(
            weights=weights,
            network=replace((trial or self.trial).network, clients=None if owners is None else list(owners)),
            rounds=rounds,
            classes=federation.dataset.classes,
            counts=federation.counts.numpy(),
            seconds=time.perf_counter() - self._began,
            state=state,
            final=final,
            scores=scores or self._scores(weights),
            validation=self._validation(rounds, chosen, validated),
            notes=(
                *self.trial.notes,
                *self.base.notes,
                *self._note_of_levels(),
                *notes,
                *notes_of_faults(trained),
                *divergence(weights),
            ),
            extra_traffic=sum((stage.traffic for stage in self.stages), traffic),
            cost=sum(known) if len(known) == len(costs) else None,
            tallies=tuple(self._tallies | dict.fromkeys(self.base.tallies)),
            owners=federation.sites,
        )

    def _note_of_levels(self) -> list[str]:
        if not self.base.levels or level_ends(self.trial.build()):
            return []
        return ["the method looks at a network's levels, and this model has none: it saw the features alone."]

    def _chosen(self, rounds: Sequence[Round]) -> Round:
        """Return the round whose model the run has: the one that validation chose, or the last."""
        number = self._choice.round if self._choice else None
        return next((round for round in rounds if round.number == number), rounds[-1])

    def _validation(
        self, rounds: Sequence[Round], chosen: Round, validated: Assessment | None
    ) -> Validation | None:
        found, samples = validated or chosen.validation, self.trial.federation.validation
        if self._choice is None or found is None or samples is None:
            return None
        stop, last = self._choice.stop, rounds[-1].number
        early = self._choice.over and last < self.trial.budget.rounds
        return Validation(
            metric=stop.metric,
            round=chosen.number,
            line=chosen.number if validated is None else last,
            stopped=last if early else None,
            samples=len(samples),
            assessment=found,
        )

    def _scores(self, weights: Weights) -> ProbabilityScores | None:
        """Compute how good a model's probabilities are; None if it is not of the form of the trained
        model."""
        engine = self._trained_by or self.engine()
        own = engine.initial.with_frozen(engine.frozen)
        for mine, theirs in ((own.params, weights.params), (own.buffers, weights.buffers)):
            if {name: value.shape for name, value in mine.items()} != {
                name: value.shape for name, value in theirs.items()
            }:
                return None
        return engine.probability_scores(weights)

    def close(self) -> None:
        """Stop the run's engines and their processes."""
        for _, engine in self._engines.values():
            engine.close()

    def share_of_samples(self, trial: Trial) -> float:
        """Return how many samples a round of a trial trains on, relative to a round of the run's own
        trial."""
        return samples_per_round(trial) / max(samples_per_round(self.trial), 1e-9)

    def _cost_of(self, forward: float) -> float:
        """Convert forward passes of single samples to rounds of FedAvg."""
        unit = (1 + BACKWARD) * samples_per_round(self.trial)
        return forward / max(unit, 1e-9)


MakeRun = Callable[[Trial, Method, OnRound, StageStore | None], Run]
