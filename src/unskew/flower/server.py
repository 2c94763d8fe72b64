"""A federation's server: it gathers the nodes, trains by a method, and writes a run folder."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult
from flwr.serverapp.strategy import Strategy
from pydantic import Field
from torch import nn

from unskew import record
from unskew.data.remote import remote_federation
from unskew.data.validation import parse as parse_validation
from unskew.engines import FLOWER
from unskew.errors import UserError
from unskew.experiment import Experiment, load_data, prepare
from unskew.flower.engine import FederatedRun
from unskew.flower.evaluation import class_metrics
from unskew.flower.form import dataset_of_form
from unskew.flower.link import Link
from unskew.flower.records import from_record, to_record
from unskew.flower.settings import AnyMethod, FlowerSettings, settings_of
from unskew.methods import METHODS
from unskew.models import frozen_tensors
from unskew.report.read import SavedRun as FinishedRun
from unskew.result import Result, Round, Stage
from unskew.runs import free_folder
from unskew.spec import Spec
from unskew.sweep import execute
from unskew.train import train
from unskew.trial import weights_of
from unskew.types import ServerState, Weights


class FederationSpec(Spec):
    """Settings of a federation on Flower, beside those of an experiment."""

    nodes: int = Field(default=1, ge=1)
    """Nodes to wait for before the run begins; where nodes have a partition-id, all of them are waited
    for."""
    wait: float = Field(default=600.0, gt=0)
    """Seconds to wait for them."""
    timeout: float = Field(default=3600.0, gt=0)
    """Seconds that a node may take to answer."""
    out: str = ""
    """The run's folder at the server: an unfinished run in it is resumed. Empty: a new one in runs/."""
    test: Literal["sites", "server"] = "sites"
    """Where the model is tested: by each site on samples of its own, or by the server on the test samples of
    the experiment's dataset."""
    label_counts: Literal["keep", "share"] = "keep"
    """Whether clients share how many samples of each class they have, for results on their majority, minority
    and vacant classes."""


def log(sentence: str) -> None:
    """Write a line into Flower's log."""
    logging.getLogger("flwr").info("unskew: %s", sentence)


def what_leaves(settings: FlowerSettings, spec: FederationSpec, *, test_at_sites: bool) -> list[str]:
    """What of a client's data its server comes to know, one sentence each."""
    sentences = ["what leaves a client: its model after training, how many samples it has and its mean loss."]
    for name in settings.method.parts:
        card = METHODS.get(name)
        if card is not None and card.sends != "nothing":
            sentences.append(f"{name} also sends {card.sends}.")
    if test_at_sites:
        sentences.append(
            "each site also sends how its own test samples of each class are answered, as counts."
        )
    if any(name not in METHODS for name in settings.method.parts) or not settings.method.parts:
        sentences.append("the method is your own: what its clients report is sent too.")
    if spec.label_counts == "share":
        sentences.append("label counts are shared, as federation.label_counts asks.")
    return sentences


def serve(grid: Grid, experiment: Experiment, spec: FederationSpec, settings: FlowerSettings) -> FinishedRun:
    """Train an experiment across the nodes of a federation, into a run folder. A run that was stopped is
    resumed after its last round where its folder is named."""
    test_at_sites, validates = spec.test == "sites", experiment.validation != "none"
    if experiment.probe.every:
        raise UserError("a probe looks at clients' models one by one, which stay theirs: set probe.every=0.")
    if isinstance(parse_validation(experiment.validation), str):
        raise UserError(
            f"validation is '{experiment.validation}', but clients on other machines validate on a share of "
            "their own samples: give one, such as 0.1."
        )
    asked = {"counts": spec.label_counts == "share", "test": test_at_sites, "validation": validates}
    share = [name for name, wanted in asked.items() if wanted]
    link = Link(grid, share=share, timeout=spec.timeout, say=log)
    form, clients = link.gather(spec.nodes, spec.wait)
    like = dataset_of_form(form, experiment.data.name)
    seed = experiment.seed if experiment.skew.seed is None else experiment.skew.seed
    test = None if test_at_sites else load_data(experiment).test
    recipe = experiment.skew.recipe if link.numbered else "natural"
    federation = remote_federation(like, clients, seed=seed, recipe=recipe, test=test)
    here = experiment.model_copy(update={"engine": FLOWER, "device": "cpu", "fast": False})
    prepared = prepare(here, like, federation)
    for sentence in what_leaves(settings, spec, test_at_sites=test_at_sites):
        log(sentence)
    folder = Path(spec.out).expanduser() if spec.out else free_folder("-".join(prepared.experiment.words()))
    words = f"{folder.resolve()} {prepared.experiment.identity()} {federation.partition.index_sha256}"
    link.run = hashlib.sha256(words.encode()).hexdigest()[:32]
    make_run = partial(FederatedRun, link=link, settings=settings, test_at_sites=test_at_sites)
    try:
        finished = execute(prepared, folder, LogWatch(prepared.experiment.budget.rounds), make_run=make_run)
    except UserError as error:
        raise UserError(str(error).replace("with --out", "with federation.out")) from error.__cause__
    link.end()
    for sentence in _outcome(finished):
        log(sentence)
    log(f"the run folder is {folder.resolve()}")
    return finished


def _outcome(run: FinishedRun) -> list[str]:
    """What the final model knows, of every class and at every site."""
    summary = run.summary
    assert summary is not None
    by_class = zip(run.classes, summary.class_accuracy, strict=True)
    lines = ["accuracy by class: " + ", ".join(f"{name} {_percent(value)}" for name, value in by_class)]
    if summary.sites is not None:
        each = ", ".join(f"{site.name} {_percent(site.accuracy)}" for site in summary.sites.each)
        lines.append(f"accuracy by site: {each}")
    return lines + [f"note: {note}" for note in summary.notes]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


class LogWatch:
    """Tells Flower's log how a run goes."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def label(self, text: str) -> None:
        log(text)

    def say(self, notes: Iterable[str]) -> None:
        for note in notes:
            log(f"note: {note}")

    def skip(self, rounds: int) -> None:
        pass

    def __call__(self, line: record.RoundRecord, probe: record.ProbeRecord | None) -> None:
        parts = [f"round {line.round} of {self._rounds}: {len(line.trained)} of {len(line.cohort)} clients"]
        if line.train_loss is not None:
            parts.append(f"loss {line.train_loss:.4f}")
        if isinstance(line, record.TestedRound) and line.accuracy is not None and line.min_class is not None:
            parts.append(f"accuracy {_percent(line.accuracy)}, worst class {_percent(line.min_class)}")
        log(", ".join([*parts, f"{line.seconds:.1f} s"]))
        for fault in line.faults or ():
            log(left_out(fault, line.round))


def left_out(fault: record.Fault, round: int) -> str:
    """Say that a round continued without a client."""
    return f"client {fault.client} is left out of round {round}, stage '{fault.stage}': {fault.reason}"


class UnskewStrategy(Strategy):  # type: ignore[misc]
    """A method behind the interface of Flower's strategies: called as one of them, `start` trains."""

    def __init__(
        self, method: AnyMethod, model: Any, conditions: Mapping[str, Any], nodes: int, wait: float
    ) -> None:
        self._method, self._model, self._conditions = method, model, dict(conditions)
        self._nodes, self._wait = nodes, wait
        self._name = settings_of(method, model, **conditions).name
        self.result: Result | None = None
        """What training came to, when it has ended: with every class, as `unskew.train` returns it."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> FlowerResult:
        """Train so many rounds, from these arrays where some are given, and test every round at the nodes.
        `evaluate_fn` is called after each, as Flower calls it."""
        self.summary()
        link = Link(grid, share=("test",), timeout=timeout, say=log)
        form, clients = link.gather(self._nodes, self._wait)
        federation = remote_federation(dataset_of_form(form, "sites"), clients, seed=None)
        begin = {} if initial_arrays is None else {"init": from_record(initial_arrays)}
        settings = settings_of(self._method, self._model, **self._conditions, **begin)
        trial = settings.server_trial(federation, num_rounds)
        for sentence in what_leaves(settings, FederationSpec(), test_at_sites=True):
            log(sentence)
        link.run = secrets.token_hex(16)
        serve = settings.program.base.server.serve
        keeper = _Tells(FlowerResult(), serve, evaluate_fn, trial.build())
        if evaluate_fn is not None and initial_arrays is not None:
            keeper.test(0, initial_arrays)
        make_run = partial(FederatedRun, link=link, settings=settings, test_at_sites=True)
        self.result = train(
            trial, settings.method, on_round=keeper.on_round, keeper=keeper, make_run=make_run
        )
        keeper.found.arrays = to_record(self.result.weights.params | self.result.weights.buffers)
        link.end()
        return keeper.found

    def summary(self) -> None:
        """Say what it trains by."""
        log(f"method {self._name}")

    def configure_train(self, *_: object) -> NoReturn:
        """It is never asked: `start` runs the rounds."""
        raise UserError(
            "this strategy runs its rounds itself: call its start, and put methods together by name, such as "
            "'fedvls+dp', in the place of wrapping strategies."
        )

    aggregate_train = configure_evaluate = aggregate_evaluate = configure_train


@dataclass(frozen=True, eq=False)
class _Tells:
    """Puts what rounds come to into Flower's result."""

    found: FlowerResult
    serve: Callable[[ServerState], Weights]
    evaluate: Callable[[int, ArrayRecord], MetricRecord | None] | None
    network: nn.Module
    """The run's own model: experts and the like have rounds too."""

    def on_round(self, round: Round) -> None:
        numbers = {
            "train-loss": round.train_loss,
            "clients": len(round.trained),
            "left-out": len(round.faults),
        }
        self.found.train_metrics_clientapp[round.number] = MetricRecord(numbers)
        if round.test is not None:
            self.found.evaluate_metrics_clientapp[round.number] = MetricRecord(
                class_metrics(round.test.confusion)
            )
        log(f"round {round.number}: {len(round.trained)} of {len(round.cohort)} clients")
        for fault in round.faults:
            log(left_out(fault, round.number))

    def find(self, name: str) -> None:
        return None

    def after_round(self, name: str, stage: Stage) -> None:
        if self.evaluate is None or not stage.rounds:
            return
        model, own = self.serve(stage.states[0].server), weights_of(self.network)
        if {n: v.shape for n, v in model.params.items()} == {n: v.shape for n, v in own.params.items()}:
            whole = model.with_frozen(frozen_tensors(self.network))
            self.test(stage.rounds[-1].number, to_record(whole.params | whole.buffers))

    def test(self, number: int, arrays: ArrayRecord) -> None:
        """Ask the server's own test."""
        found = None if self.evaluate is None else self.evaluate(number, arrays)
        if found is not None:
            self.found.evaluate_metrics_serverapp[number] = found

    def end(self, name: str, stage: Stage) -> None:
        return None


def strategy(
    method: AnyMethod,
    *,
    model: str | nn.Module | Callable[[], nn.Module],
    nodes: int = 2,
    wait: float = 600.0,
    **conditions: Any,
) -> UnskewStrategy:
    """The server of a method as a strategy of Flower: `strategy("scaffold", model=Net).start(grid, ...)`.

    Clients train by `unskew.flower.train` with the same method, model and conditions: those of
    `unskew.Trial`, such as `budget` and `seed`. It waits for `nodes` nodes, at most `wait` seconds.
    """
    return UnskewStrategy(method, model, conditions, nodes, wait)
