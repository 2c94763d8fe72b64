"""A method of unskew as a strategy of Flower, for a ServerApp of your own."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult
from flwr.serverapp.strategy import Strategy
from torch import nn

from unskew.data.remote import remote_federation
from unskew.errors import UserError
from unskew.flower.engine import FederatedRun
from unskew.flower.evaluation import class_metrics
from unskew.flower.form import dataset_of_form
from unskew.flower.link import Link
from unskew.flower.records import from_record, to_record
from unskew.flower.run_config import FederationSpec
from unskew.flower.server_log import left_out, log, what_clients_send
from unskew.flower.settings import AnyMethod, settings_of
from unskew.models import frozen_tensors
from unskew.result import Result, Round, Stage
from unskew.train import train
from unskew.trial import weights_of
from unskew.types import ServerState, Weights


class UnskewStrategy(Strategy):  # type: ignore[misc]
    """A method behind the interface of Flower's strategies: `start` trains by it."""

    def __init__(
        self, method: AnyMethod, model: Any, conditions: Mapping[str, Any], nodes: int, wait: float
    ) -> None:
        self._method, self._model, self._conditions = method, model, dict(conditions)
        self._nodes, self._wait = nodes, wait
        self._name = settings_of(method, model, **conditions).name
        self.result: Result | None = None
        """The result of training, as `unskew.train` returns it; None until training has ended."""

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
        """Train `num_rounds` rounds, from `initial_arrays` if they are given, and test each at the nodes.
        `evaluate_fn` is called after each round, as Flower's strategies call it."""
        self.summary()
        link = Link(grid, share=("test",), timeout=timeout, say=log)
        form, clients = link.gather(self._nodes, self._wait)
        federation = remote_federation(dataset_of_form(form, "sites"), clients, seed=None)
        begin = {} if initial_arrays is None else {"init": from_record(initial_arrays)}
        settings = settings_of(self._method, self._model, **self._conditions, **begin)
        trial = settings.server_trial(federation, num_rounds)
        for sentence in what_clients_send(settings, FederationSpec(), test_at_sites=True):
            log(sentence)
        link.run = secrets.token_hex(16)
        serve = settings.program.base.server.serve
        writer = _ResultWriter(FlowerResult(), serve, evaluate_fn, trial.build())
        if evaluate_fn is not None and initial_arrays is not None:
            writer.test(0, initial_arrays)
        make_run = partial(FederatedRun, link=link, settings=settings, test_at_sites=True)
        self.result = train(
            trial, settings.method, on_round=writer.on_round, keeper=writer, make_run=make_run
        )
        writer.result.arrays = to_record(self.result.weights.params | self.result.weights.buffers)
        link.end()
        return writer.result

    def summary(self) -> None:
        """Write the name of the method into the log."""
        log(f"method {self._name}")

    def configure_train(self, *_: object) -> NoReturn:
        """Refuse to run a single step, since `start` runs the rounds."""
        raise UserError(
            "this strategy runs its rounds itself: call its start, and put methods together by name, such as "
            "'fedvls+dp', in the place of wrapping strategies."
        )

    aggregate_train = configure_evaluate = aggregate_evaluate = configure_train


@dataclass(frozen=True, eq=False)
class _ResultWriter:
    """Writes the rounds of training into Flower's result. It is given to `train` as the store of stages."""

    result: FlowerResult
    serve: Callable[[ServerState], Weights]
    evaluate: Callable[[int, ArrayRecord], MetricRecord | None] | None
    network: nn.Module
    """The model of the run. Rounds that train models of other shapes are not given to `evaluate`."""

    def on_round(self, round: Round) -> None:
        numbers = {
            "train-loss": round.train_loss,
            "clients": len(round.trained),
            "left-out": len(round.faults),
        }
        self.result.train_metrics_clientapp[round.number] = MetricRecord(numbers)
        if round.test is not None:
            self.result.evaluate_metrics_clientapp[round.number] = MetricRecord(
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
        """Test a model by `evaluate`, the server's own test."""
        found = None if self.evaluate is None else self.evaluate(number, arrays)
        if found is not None:
            self.result.evaluate_metrics_serverapp[number] = found

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
    """Return a method's server as a strategy of Flower: `strategy("scaffold", model=Net).start(grid, ...)`.

    Its clients call `unskew.flower.train` with the same method, model and conditions. Conditions are those of
    `unskew.Trial`, such as `budget` and `seed`. The strategy waits for `nodes` nodes, at most `wait` seconds.
    """
    return UnskewStrategy(method, model, conditions, nodes, wait)
