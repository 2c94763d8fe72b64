"""Carries out a server's orders for the clients of a node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import torch
from flwr.app import Context, MetricRecord, RecordDict
from torch import Tensor

from unskew import engines
from unskew.data.dataset import Split
from unskew.engines.cpu.pool import Pool
from unskew.engines.cuda.graphs import Graphs
from unskew.engines.evaluate import Evaluator
from unskew.engines.job import CLIENT_ERRORS, Failed, Fit, Job, Task
from unskew.engines.loop import Loop
from unskew.errors import UserError, unknown
from unskew.flower.description import description_content
from unskew.flower.memory import NodeMemory, memory_folder
from unskew.flower.messages import (
    INITIAL,
    Order,
    failed_content,
    fit_content,
    remote_failure,
    totals_content,
)
from unskew.flower.records import FROZEN, to_record, unpack, without_prefix
from unskew.flower.replay import FoundStage, MissingResultError, find_stage
from unskew.flower.settings import FlowerSettings
from unskew.flower.site import Site
from unskew.program import PassCount
from unskew.trial import Trial
from unskew.types import Look, Scope, Tensors, Weights

log = logging.getLogger("flwr")


class Node:
    """Carries out one order for the clients of this node."""

    def __init__(self, order: Order, context: Context, settings: FlowerSettings, site: Site) -> None:
        self.order, self.site, self.settings = order, site, settings
        self.config = context.node_config
        self.memory = NodeMemory(memory_folder(self.config.get("memory")), order.run)

    def answer(self) -> RecordDict:
        """Do what the order asks for, and return the answer as records."""
        actions: Mapping[str, Callable[[], RecordDict]] = {
            "describe": self.describe,
            "fit": self.fit,
            "ask": self.ask,
            "evaluate": self.evaluate,
            "forget": self.forget,
        }
        return actions[self.order.action]()

    def describe(self) -> RecordDict:
        """Return the names and sizes of the clients, the form of the data, and the class counts that the
        server asks for."""
        if "counts" in self.order.share and self.config.get("label_counts") == "never":
            raise UserError("this node keeps its label counts (label_counts=never in its config).")
        shared = [*(f"{kind} by class" for kind in self.order.share), "the form of the data"]
        log.info("unskew: the server is told how many samples there are, and %s", ", ".join(shared))
        return description_content(self.site, self.order.share)

    def fit(self) -> RecordDict:
        """Train the clients from the model that was sent."""
        order, content = self.order, RecordDict()
        found = self._find_stage()
        with closing(self._start(found.trial, len(order.clients))) as engine:
            jobs = []
            for job in self._jobs(found.trial):
                if isinstance(job, Failed):
                    content.update(failed_content(job))
                    continue
                try:
                    memory = job.memory or engine.start_memory(found.method, job.task)
                except CLIENT_ERRORS as error:
                    failed = Failed.of(job.task, "prepare", error)
                    content.update(self._fit_content(found.trial, job, failed))
                    continue
                jobs.append(replace(job, memory=memory))
            outcomes = engine.fit(found.method, self._sent(), order.shared, jobs)
        for job, outcome in zip(jobs, outcomes, strict=True):
            content.update(self._fit_content(found.trial, job, outcome))
        return content

    def _fit_content(self, trial: Trial, job: Job, outcome: Fit | Failed) -> dict[str, Any]:
        """Return the records about a client's training for the server, and keep what stays with the client
        on disk."""
        client = job.task.client
        if isinstance(outcome, Failed):
            if outcome.kind == "error":  # its message may quote samples
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
        """Return the clients' answers to a question about their data."""
        found, content, count = self._find_stage(), RecordDict(), PassCount()

        def counted(scope: Scope, look: Look) -> Tensors:
            return found.query(scope, count.passes_of(look))

        jobs = _without_failures(self._jobs(found.trial))
        with closing(self._start(found.trial, len(jobs))) as engine:
            answers = engine.ask(self.order.stage, counted, self._sent(), self.order.shared, jobs)
        for job, answer in zip(jobs, answers, strict=True):
            content[f"answer/{job.task.client}"] = to_record(answer)
        content["passes"] = MetricRecord({"forward": count.forward})
        return content

    def evaluate(self) -> RecordDict:
        """Test the model that was sent on each client's own samples."""
        order, content = self.order, RecordDict()
        trial = self._find_stage().trial
        splits = self.site.tests if order.samples == "test" else self.site.validations
        with closing(self._start(trial, 1)) as engine, engine.deterministic():
            for client, place in zip(order.clients, order.places, strict=True):
                C = len(trial.federation.dataset.classes)
                confusion, loss = evaluate_model(engine, self._sent(), splits[place], C)
                content.update(totals_content(client, {"confusion": confusion, "loss": loss}))
        return content

    def forget(self) -> RecordDict:
        """Remove what the clients have kept of a run that has ended."""
        self.memory.forget()
        return RecordDict()

    def _find_stage(self) -> FoundStage:
        """Return what clients are asked to do in the order's stage, under a trial on their own data with the
        server's settings."""
        self._check_names()
        for tensors in self.order.results.values():
            self.memory.keep_result(tensors)
        trial = self.settings.node_trial(self.site.federation, self.order.rounds)
        self.settings.check_agreement(self.order.agreement, trial)
        return find_stage(self.settings.program, trial, self.order, self._result)

    def _check_names(self) -> None:
        """Refuse an order for clients that this node does not have."""
        for name, place in zip(self.order.names, self.order.places, strict=True):
            if place >= len(self.site.names) or self.site.names[place] != name:
                raise UserError(f"this node has other clients than when the run began: '{name}' is not here.")

    def _result(self, name: str) -> Tensors | None:
        """Return what the server has sent of an earlier stage, or None if it has not sent it."""
        digests = dict(zip(self.order.stages, self.order.digests, strict=True))
        return self.memory.result(digests[name]) if name in digests else None

    def _start(self, trial: Trial, clients: int) -> Loop | Pool | Graphs:
        """Start an engine on this node, with the server's initial model if that does not follow from the
        seed."""
        device = str(self.config.get("device", trial.device))
        kind = str(self.config.get("engine", "loop" if clients == 1 else "auto"))
        if kind not in (known := ("auto", "loop", "pool", "graphs")):
            raise unknown("engine of this node's config", kind, known)
        engine = engines.start(replace(trial, device=device, engine=kind))
        assert isinstance(engine, Loop | Pool | Graphs)
        if self.order.frozen:
            name = INITIAL.format(self.order.engine)
            initial = self._result(name)
            if initial is None:
                raise MissingResultError(name)
            engine.initial = unpack(initial)
            engine.local.network.load_frozen(without_prefix(FROZEN, initial))
        return engine

    def _sent(self) -> Weights:
        if self.order.weights is None:
            raise UserError("the server sent no model: use the same unskew at server and sites.")
        return self.order.weights

    def _jobs(self, trial: Trial) -> list[Job | Failed]:
        """Return a job for each client of the order, with what the client has kept, or a failure if that is
        no longer on disk."""
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


def evaluate_model(
    engine: Loop | Pool | Graphs, sent: Weights, split: Split | None, classes: int
) -> tuple[Tensor, Tensor]:
    """Return the confusion matrix [C, C] of a model on a split, and the sum of its losses."""
    if split is None or not len(split):
        return torch.zeros(classes, classes, dtype=torch.int64), torch.zeros((), dtype=torch.float64)
    dataset, size = engine.trial.federation.dataset, engine.trial.evaluation.batch_size
    test = Evaluator(dataset, engine.local.network, engine.device, size, split)
    totals = test.sum(test.batch_totals(sent, n) for n in range(len(test)))
    return totals["confusion"].view(-1, classes, classes).sum(0).cpu(), totals["loss"].cpu()


def _without_failures(jobs: list[Job | Failed]) -> list[Job]:
    """Return the jobs, or raise a UserError if one of them is a failure."""
    for job in jobs:
        if isinstance(job, Failed):
            raise UserError(f"client {job.client} cannot answer, because {job.reason()}: begin the run anew.")
    return [job for job in jobs if isinstance(job, Job)]
