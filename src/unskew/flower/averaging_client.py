"""Trains and tests one client for a strategy of Flower's own, such as FedAvg, which averages models."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from flwr.app import Context, Message, MessageType, MetricRecord, RecordDict

from unskew import engines
from unskew.engines.job import Job, Task, completed
from unskew.engines.loop import Loop
from unskew.errors import UserError
from unskew.flower.node import evaluate_model
from unskew.flower.records import from_record, to_record
from unskew.flower.settings import FlowerSettings
from unskew.flower.site import Site
from unskew.method import Method
from unskew.types import Server, Weights


def answer_strategy(message: Message, context: Context, settings: FlowerSettings, site: Site) -> RecordDict:
    """Train or test the one client of a node, as the type of the message asks, and return the answer as
    records. Only methods that change nothing but the client's training can run so."""
    method = settings.method
    if not isinstance(method, Method) or method.server != Server():
        raise UserError(
            f"{settings.name} has a server of its own, which a strategy of Flower has not: use "
            f"unskew.flower.strategy({settings.name!r}, ...)."
        )
    if len(site.names) != 1:
        raise UserError("a strategy of Flower knows one client at a node: give it the data of one.")
    if message.metadata.message_type == MessageType.QUERY:
        raise UserError("this query is none of unskew's: let another function answer it.")
    record, config = next(iter(message.content.array_records.values())), message.content.config_records
    round = next((int(each["server-round"]) for each in config.values() if "server-round" in each), 1) - 1
    arrays = from_record(record)
    trial = settings.trial(site.federation)
    if trial.keeps_buffers or trial.budget.optimizer_state == "kept":
        raise UserError(
            "clients keep statistics or an optimiser between rounds, which a strategy of Flower has no place "
            f"for: use unskew.flower.strategy({settings.name!r}, ...)."
        )
    number = int(context.node_config.get("partition-id", 0))
    with closing(engines.start(replace(trial, engine="loop"))) as engine:
        own = engine.initial
        if lacking := sorted((own.params.keys() | own.buffers.keys()) - arrays.keys()):
            raise UserError(
                f"the model that was sent lacks '{lacking[0]}': send the state_dict of this model."
            )
        sent = Weights(*({name: arrays[name] for name in part} for part in (own.params, own.buffers)))
        assert isinstance(engine, Loop)
        engine.local.network.load_frozen({name: arrays[name] for name in engine.frozen if name in arrays})
        if message.metadata.message_type == MessageType.EVALUATE:
            return _test(engine, sent, site)
        job = Job(Task(number, round, trial.federation.holding(0)))
        job = replace(job, memory=engine.start_memory(method, job.task))
        [fit] = completed(engine.fit(method, sent, {}, [job]))
    if fit.memory or fit.reported:
        raise UserError(
            f"clients of {settings.name} keep or report more than their model, which a strategy of Flower "
            f"has no place for: use unskew.flower.strategy({settings.name!r}, ...)."
        )
    trained = arrays | fit.weights.params | fit.weights.buffers
    metrics = MetricRecord({"num-examples": fit.samples, "train-loss": float(fit.loss), "steps": fit.steps})
    return RecordDict({"arrays": to_record(trained), "metrics": metrics})


def _test(engine: Loop, sent: Weights, site: Site) -> RecordDict:
    """Test a model on the client's own test samples, and return the confusion matrix in the form of
    `class_counts`, with the mean loss."""
    C, (split,) = len(site.federation.dataset.classes), site.tests
    confusion, loss = evaluate_model(engine, sent, split, C)
    samples = int(confusion.sum())
    numbers = {"num-examples": samples, "confusion": confusion.flatten().tolist()}
    return RecordDict({"metrics": MetricRecord({**numbers, "loss": float(loss) / max(samples, 1)})})
