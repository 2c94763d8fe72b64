"""A node: what its clients do for a server that runs on `unskew.flower`, or by a strategy of Flower."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from torch import Tensor

from unskew import engines
from unskew.data.dataset import Dataset, Split
from unskew.data.federation import Federation
from unskew.engines.cpu.pool import Pool
from unskew.engines.cuda.graphs import Graphs
from unskew.engines.evaluate import Evaluator
from unskew.engines.job import Failed, Fit, Job, Task, completed
from unskew.engines.loop import Loop
from unskew.errors import UserError, unknown
from unskew.flower.form import form_of
from unskew.flower.memory import NodeMemory, memory_folder
from unskew.flower.messages import (
    MISSING,
    ORDER,
    PROBLEM,
    Order,
    failed_content,
    fit_content,
    remote_failure,
    totals_content,
)
from unskew.flower.records import FROZEN, from_record, to_record, unpacked, within
from unskew.flower.replay import MissingError, Reached, reach
from unskew.flower.settings import AnyMethod, FlowerSettings, settings_of
from unskew.flower.site import MeanAndStd, Site, scaled, site_of
from unskew.method import Method
from unskew.program import PassCount
from unskew.trial import Trial
from unskew.types import Look, Scope, Server, Tensors, Weights

INITIAL = "initial model of engine {}"
LoadSite = Callable[[], Site]
log = logging.getLogger("flwr")


def respond(message: Message, context: Context, settings: FlowerSettings, load: LoadSite) -> Message:
    """What a node answers to a message. A mistake is told to the server in a sentence."""
    try:
        if ORDER not in message.content.config_records:
            content = _for_strategy(message, context, settings, load())
        else:
            content = _Node(Order.of(message.content), context, settings, _loaded(load)).content()
    except MissingError as missing:
        content = RecordDict({MISSING: ConfigRecord({"stage": missing.stage})})
    except _NoDataError:
        content = _problem("its data cannot be loaded, its own log says why")
    except UserError as error:
        if ORDER not in message.content.config_records:
            raise
        log.error("unskew: %s", error)
        content = _problem(str(error))
    except Exception as error:
        if ORDER not in message.content.config_records:
            raise
        log.exception("unskew: a client failed")
        content = _problem(f"{type(error).__name__}, its own log says more")
    return Message(content, reply_to=message)


class _NoDataError(Exception):
    """A node's data cannot be loaded: what is wrong with them is not for the server."""


def _loaded(load: LoadSite) -> Site:
    try:
        return load()
    except Exception as error:
        if isinstance(error, UserError):
            log.error("unskew: %s", error)
        else:
            log.exception("unskew: the data of this node cannot be loaded")
        raise _NoDataError from None


def _problem(sentence: str) -> RecordDict:
    return RecordDict({PROBLEM: ConfigRecord({"sentence": sentence})})


class _Node:
    """An order, and the clients of this node."""

    def __init__(self, order: Order, context: Context, settings: FlowerSettings, site: Site) -> None:
        self.order, self.site, self.settings = order, site, settings
        self.config = context.node_config
        self.memory = NodeMemory(memory_folder(self.config.get("memory")), order.run)

    def content(self) -> RecordDict:
        """What the node answers."""
        actions: Mapping[str, Callable[[], RecordDict]] = {
            "describe": self.describe,
            "fit": self.fit,
            "ask": self.ask,
            "evaluate": self.evaluate,
            "forget": self.forget,
        }
        return actions[self.order.action]()

    def describe(self) -> RecordDict:
        """Say who the clients are and how many samples they have, and what else the server asks for."""
        site, federation = self.site, self.site.federation
        if "counts" in self.order.share and self.config.get("label_counts") == "never":
            raise UserError("this node keeps its label counts (label_counts=never in its config).")
        shared = [*(f"{kind} by class" for kind in self.order.share), "the form of the data"]
        log.info("unskew: the server is told how many samples there are, and %s", ", ".join(shared))
        about: dict[str, Any] = {
            "names": list(site.names),
            "numbers": list(site.numbers),
            "of": site.of,
            "samples": federation.partition.sizes.tolist(),
            "form": form_of(federation.dataset),
        }
        C, counts = len(federation.dataset.classes), dict[str, Tensor]()
        if "counts" in self.order.share:
            counts["counts"] = federation.counts
        for kind, splits in (("test", site.tests), ("validation", site.validations)):
            if kind in self.order.share:
                counts[kind] = torch.stack([_counted(split, C) for split in splits])
        content = RecordDict({"site": ConfigRecord(about)})
        if counts:
            content["counts"] = to_record(counts)
        return content

    def fit(self) -> RecordDict:
        """Train clients from the model that was sent."""
        order, content = self.order, RecordDict()
        reached = self._reach()
        with closing(self._start(reached.trial, len(order.clients))) as engine:
            jobs = []
            for job in self._jobs(reached.trial):
                if isinstance(job, Failed):
                    content.update(failed_content(job))
                else:
                    memory = job.memory or engine.start_memory(reached.method, job.task)
                    jobs.append(replace(job, memory=memory))
            outcomes = engine.fit(reached.method, self._sent(), order.shared, jobs)
        for job, outcome in zip(jobs, outcomes, strict=True):
            content.update(self._fit_content(reached.trial, job, outcome))
        return content

    def _fit_content(self, trial: Trial, job: Job, outcome: Fit | Failed) -> dict[str, Any]:
        """What the server is told of a client's training. What the client keeps stays here."""
        client = job.task.client
        if isinstance(outcome, Failed):
            if outcome.kind == "error":  # which may speak of samples
                log.error("unskew: client %d failed", client, exc_info=outcome.error)
                reason = f"{type(outcome.error).__name__}, its node's log says more"
                outcome = remote_failure(job, "error", reason, outcome.stage)
            return failed_content(outcome)
        parts = {
            "memory": outcome.memory,
            "buffers": outcome.weights.buffers if trial.keeps_buffers else {},
            "optimizer": outcome.optimizer,
        }
        for name, value in (item for part in parts.values() for item in part.items()):
            if value.is_floating_point() and not bool(value.isfinite().all()):
                reason = f"'{name}' of what it keeps holds NaN or infinite values"
                return failed_content(remote_failure(job, "not finite", reason, "update"))
        kept = any(parts.values())
        if kept:
            at = self.order.clients.index(client)
            self.memory.keep(client, self.order.stage, self.order.version, parts, self.order.versions[at])
        return fit_content(client, outcome, send_buffers=trial.statistics == "average", kept=kept)

    def ask(self) -> RecordDict:
        """Ask clients a question about their data."""
        reached, content, count = self._reach(), RecordDict(), PassCount()

        def counted(scope: Scope, look: Look) -> Tensors:
            return reached.query(scope, count.passes_of(look))

        jobs = completed_jobs(self._jobs(reached.trial))
        with closing(self._start(reached.trial, len(jobs))) as engine:
            answers = engine.ask(counted, self._sent(), self.order.shared, jobs)
        for job, answer in zip(jobs, answers, strict=True):
            content[f"answer/{job.task.client}"] = to_record(answer)
        content["passes"] = MetricRecord({"forward": count.forward})
        return content

    def evaluate(self) -> RecordDict:
        """Test a model on the clients' own samples."""
        order, content = self.order, RecordDict()
        trial = self._reach().trial
        splits = self.site.tests if order.samples == "test" else self.site.validations
        with closing(self._start(trial, 1)) as engine, engine.deterministic():
            for client, place in zip(order.clients, order.places, strict=True):
                C = len(trial.federation.dataset.classes)
                confusion, loss = _test(engine, self._sent(), splits[place], C)
                content.update(totals_content(client, {"confusion": confusion, "loss": loss}))
        return content

    def forget(self) -> RecordDict:
        """The run has ended."""
        self.memory.forget()
        return RecordDict()

    def _reach(self) -> Reached:
        """What clients are asked, under a trial on their own data that the server agrees with."""
        self._check_names()
        for tensors in self.order.results.values():
            self.memory.keep_result(tensors)
        trial = self.settings.node_trial(self.site.federation, self.order.rounds)
        self.settings.check_agreement(self.order.agreement, trial)
        return reach(self.settings.program, trial, self.order, self._find)

    def _check_names(self) -> None:
        """Refuse to take the place of other clients."""
        for name, place in zip(self.order.names, self.order.places, strict=True):
            if place >= len(self.site.names) or self.site.names[place] != name:
                raise UserError(f"this node has other clients than when the run began: '{name}' is not here.")

    def _find(self, name: str) -> Tensors | None:
        """What the server has sent of an earlier stage."""
        digests = dict(zip(self.order.stages, self.order.digests, strict=True))
        return self.memory.result(digests[name]) if name in digests else None

    def _start(self, trial: Trial, clients: int) -> Loop | Pool | Graphs:
        """The engine on this node. Its initial model is the server's where that does not follow from the
        seed."""
        device = str(self.config.get("device", trial.device))
        kind = str(self.config.get("engine", "loop" if clients == 1 else "auto"))
        if kind not in (known := ("auto", "loop", "pool", "graphs")):
            raise unknown("engine of this node's config", kind, known)
        engine = engines.start(replace(trial, device=device, engine=kind))
        assert isinstance(engine, Loop | Pool | Graphs)
        if self.order.frozen:
            name = INITIAL.format(self.order.engine)
            initial = self._find(name)
            if initial is None:
                raise MissingError(name)
            engine.initial = unpacked(initial)
            engine.local.network.load_frozen(within(FROZEN, initial))
        return engine

    def _sent(self) -> Weights:
        if self.order.weights is None:
            raise UserError("the server sent no model: use the same unskew at server and sites.")
        return self.order.weights

    def _jobs(self, trial: Trial) -> list[Job | Failed]:
        """The clients that are asked, with what they have kept; failures where that is not there any more."""
        order, jobs = self.order, list[Job | Failed]()
        for client, place, version in zip(order.clients, order.places, order.versions, strict=True):
            job = Job(Task(client, order.round, trial.federation.holding(place)))
            parts = self.memory.recall(client, version) if version else {}
            if parts is None:
                reason = "its node no longer has what it kept after an earlier round"
                jobs.append(remote_failure(job, "lost", reason, "prepare"))
                continue
            memory, optimizer = parts.get("memory", {}), parts.get("optimizer", {})
            jobs.append(replace(job, memory=memory, buffers=parts.get("buffers"), optimizer=optimizer))
        return jobs


def _test(
    engine: Loop | Pool | Graphs, sent: Weights, split: Split | None, classes: int
) -> tuple[Tensor, Tensor]:
    """What a model answers on some samples, [C, C], and the sum of its losses."""
    if split is None or not len(split):
        return torch.zeros(classes, classes, dtype=torch.int64), torch.zeros((), dtype=torch.float64)
    dataset, size = engine.trial.federation.dataset, engine.trial.evaluation.batch_size
    test = Evaluator(dataset, engine.local.network, engine.device, size, split)
    totals = test.sum(test.batch_totals(sent, n) for n in range(len(test)))
    return totals["confusion"].view(-1, classes, classes).sum(0).cpu(), totals["loss"].cpu()


def completed_jobs(jobs: list[Job | Failed]) -> list[Job]:
    """The jobs, where all of them can begin."""
    for job in jobs:
        if isinstance(job, Failed):
            raise UserError(f"client {job.client} cannot answer, because {job.reason()}: begin the run anew.")
    return [job for job in jobs if isinstance(job, Job)]


def _counted(split: Split | None, classes: int) -> Tensor:
    labels = torch.zeros(0, dtype=torch.int64) if split is None else split.labels
    return torch.bincount(labels, minlength=classes)


# By a strategy of Flower's own


def _for_strategy(message: Message, context: Context, settings: FlowerSettings, site: Site) -> RecordDict:
    """Train or test one client for a strategy that averages, which knows of no method."""
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
            return _tested_for_strategy(engine, sent, site)
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


def _tested_for_strategy(engine: Loop, sent: Weights, site: Site) -> RecordDict:
    """What a model answers on a client's own test samples, as `class_counts` has it, and its mean loss."""
    C, (split,) = len(site.federation.dataset.classes), site.tests
    confusion, loss = _test(engine, sent, split, C)
    samples = int(confusion.sum())
    numbers = {"num-examples": samples, "confusion": confusion.flatten().tolist()}
    return RecordDict({"metrics": MetricRecord({**numbers, "loss": float(loss) / max(samples, 1)})})


# What an app calls


def train(
    message: Message,
    context: Context,
    data: Dataset | Federation,
    *,
    method: AnyMethod,
    model: Any,
    scale: MeanAndStd | None = None,
    **conditions: Any,
) -> Message:
    """Train, test or ask the clients of a node for a method: the body of `@app.train()`, `@app.evaluate()`
    and `@app.query()` alike, since the message says what is wanted.

    `data` are the node's own: a dataset of one client, or a federation of several. The rest is what
    `unskew.flower.strategy` is given: a method by its name or as such, a model, and conditions such as
    `budget` and `seed`. For methods that change the client alone the server may also run a strategy of
    Flower's own, such as FedAvg. Images of a dataset are scaled by a mean and a deviation for each channel,
    which all sites share: `scale`, or 0.5 each.
    """
    name = str(context.node_config.get("site", context.node_config.get("partition-id", context.node_id)))
    site = site_of(scaled(data, scale) if isinstance(data, Dataset) else data, name)
    if "partition-id" in context.node_config and len(site.names) == 1:
        number = int(context.node_config["partition-id"])
        site = replace(site, numbers=(number,), of=int(context.node_config.get("num-partitions", 0)))
    return respond(message, context, settings_of(method, model, **conditions), lambda: site)
