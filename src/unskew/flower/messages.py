"""The orders of a server and the answers of a node, as the content of Flower's messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from unskew.engines.evaluate import EvaluationSet
from unskew.engines.job import Failed, Fit, Job, LostError, RemoteError
from unskew.errors import UserError
from unskew.flower.records import (
    BUFFERS,
    PARAMS,
    from_record,
    in_order_of,
    pack,
    to_record,
    unpack,
    with_prefix,
    without_prefix,
)
from unskew.record import ClientStage, FaultKind
from unskew.types import Tensors, Weights

Action = Literal["describe", "fit", "ask", "evaluate", "forget"]
ORDER, MODEL, SHARED, RESULT = "unskew", "model", "shared", "result/"
REPORTED, TALLIES, LOSS = "reported/", "tallies/", "loss"
MISSING, PROBLEM = "missing", "problem"
INITIAL = "initial model of engine {}"
"""The name under which a node asks for the initial model of an engine, by the engine's number."""
VERSION = "flower/version"
"""The name of the only entry of a client's memory at the server: the version number of what the client
itself keeps."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """A server's order to a node. Tuples of clients have an entry for each client that is asked."""

    action: Action
    run: str = ""
    """Identifies the run. It is the same if the run is resumed after its server was stopped."""
    agreement: str = ""
    """The settings that server and node have to share, as JSON."""
    stage: str = ""
    engine: int = 0
    """The number of the engine, in the order in which the run starts them. Each has one model of the run."""
    round: int = 0
    """Counted from 0."""
    rounds: int = 1
    """How many rounds the whole run has."""
    clients: tuple[int, ...] = ()
    places: tuple[int, ...] = ()
    """The index of each client among the node's own."""
    versions: tuple[int, ...] = ()
    """The version of what each client kept last; 0 if it has kept nothing."""
    version: int = 0
    """The version of what the clients keep after this order."""
    samples: EvaluationSet = "test"
    names: tuple[str, ...] = ()
    """The names of the clients."""
    stages: tuple[str, ...] = ()
    """The names of the results that a node may ask for: of stages that have ended, and initial models."""
    digests: tuple[str, ...] = ()
    """The digests of these results, since a node may still have results of an earlier attempt at the run."""
    share: tuple[str, ...] = ()
    """The class counts that a node reports of its data: "counts" (training), "test", "validation"."""
    frozen: bool = False
    """Whether the node needs the initial model from the server: the model has frozen parts, or clients begin
    with weights that do not follow from the seed."""
    weights: Weights | None = None
    shared: Tensors = field(default_factory=dict)
    results: Mapping[str, Tensors] = field(default_factory=dict)
    """The results that the node has asked for."""

    def content(self) -> RecordDict:
        """Return the order as records."""
        plain: dict[str, Any] = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
            if name not in ("weights", "shared", "results")
        }
        content = RecordDict({ORDER: ConfigRecord(plain)})
        if self.weights is not None:
            content[MODEL] = to_record(pack(self.weights))
        if self.shared:
            content[SHARED] = to_record(self.shared)
        for name, tensors in self.results.items():
            content[f"{RESULT}{name}"] = to_record(tensors)
        return content

    @classmethod
    def of(cls, content: RecordDict) -> Order:
        """Return the order in a message's content. One that cannot be read raises a UserError."""
        try:
            plain = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in content.config_records[ORDER].items()
            }
            arrays = content.array_records
            order = cls(
                **plain,  # type: ignore[arg-type]
                weights=unpack(from_record(arrays[MODEL])) if MODEL in arrays else None,
                shared=from_record(arrays[SHARED]) if SHARED in arrays else {},
                results={
                    name.removeprefix(RESULT): from_record(record)
                    for name, record in arrays.items()
                    if name.startswith(RESULT)
                },
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"the server's message cannot be read ({error}): use the same unskew at server and sites."
            ) from None
        if order.action not in get_args(Action):
            raise UserError(f"the server asks for '{order.action}': use the same unskew at server and sites.")
        numbers = (order.round, order.rounds, order.version, *order.clients, *order.places, *order.versions)
        if not all(type(number) is int and number >= 0 for number in numbers):  # they become file names
            raise UserError("the server sends invalid numbers: use the same unskew at server and sites.")
        return order


# A client's training


def fit_content(
    client: int, fit: Fit, *, send_buffers: bool, kept: bool
) -> dict[str, ArrayRecord | MetricRecord]:
    """Return the result of training a client as records. Of what the client keeps they say only whether there
    is any."""
    tensors = {
        **with_prefix(PARAMS, fit.weights.params),
        **(with_prefix(BUFFERS, fit.weights.buffers) if send_buffers else {}),
        **with_prefix(REPORTED, fit.reported),
        **with_prefix(TALLIES, fit.tallies),
        LOSS: fit.loss,
    }
    numbers = {"samples": fit.samples, "steps": fit.steps, "passed": fit.passed, "kept": int(kept)}
    return {f"fit/{client}": to_record(tensors), f"numbers/{client}": MetricRecord(numbers)}


def failed_content(failed: Failed) -> dict[str, ConfigRecord]:
    """Return the failure of a client as records."""
    failure = {"stage": failed.stage, "kind": failed.kind, "reason": failed.reason()}
    return {f"failed/{failed.client}": ConfigRecord(failure)}


def remote_failure(job: Job, kind: FaultKind, reason: str, stage: ClientStage = "train") -> Failed:
    """Return the failure of a client on another machine."""
    error = LostError(reason) if kind == "lost" else RemoteError(reason)
    return Failed(job.task.client, job.task.round, stage, error, kind)


def read_fit(
    content: RecordDict, job: Job, sent: Weights, tallies: frozenset[str], expected_steps: int, version: int
) -> Fit | Failed:
    """Return the result of a client's training from a node's answer, or a failure if the answer cannot be
    read, has other tallies than `tallies`, or other numbers of samples or steps than the server expects. The
    names, shapes and values of the model and of reported tensors are checked later, as for every engine."""
    client = job.task.client
    if (failure := content.config_records.get(f"failed/{client}")) is not None:
        return _reported_failure(job, failure)
    try:
        tensors = from_record(content.array_records[f"fit/{client}"])
        numbers = dict(content.metric_records[f"numbers/{client}"])
        samples, steps, passed = (numbers[name] for name in ("samples", "steps", "passed"))
        if not all(type(number) is int for number in (samples, steps, passed)):
            raise ValueError("its numbers are no whole numbers")
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        return remote_failure(job, "form", f"its answer cannot be read ({error})", "update")
    assert isinstance(samples, int) and isinstance(steps, int) and isinstance(passed, int)  # noqa: PT018
    if samples != len(job.task.holding):
        reason = f"it says that it has {samples} samples, and said {len(job.task.holding)} before"
        return remote_failure(job, "form", reason, "update")
    if steps != expected_steps or passed < 0:
        return remote_failure(
            job, "form", f"it says that it took {steps} steps, and should {expected_steps}", "update"
        )
    counted = without_prefix(TALLIES, tensors)
    if counted.keys() != tallies or any(value.shape for value in counted.values()):
        return remote_failure(job, "form", "its tallies are not those of the method", "update")
    buffers = without_prefix(BUFFERS, tensors)
    weights = Weights(
        in_order_of(without_prefix(PARAMS, tensors), sent.params),
        in_order_of(buffers, sent.buffers) if buffers else sent.buffers,
    )
    return Fit(
        weights=weights,
        samples=samples,
        steps=steps,
        loss=tensors.get(LOSS, torch.zeros(1)),
        memory={VERSION: torch.tensor(version)} if numbers.get("kept") else {},
        reported=without_prefix(REPORTED, tensors),
        tallies=counted,
        passed=passed,
    )


def _reported_failure(job: Job, failure: ConfigRecord) -> Failed:
    stage, kind, reason = (failure.get(name) for name in ("stage", "kind", "reason"))
    if stage not in get_args(ClientStage) or kind not in get_args(FaultKind) or not isinstance(reason, str):
        return remote_failure(job, "form", "its answer cannot be read", "update")
    return remote_failure(job, kind, " ".join(reason.split())[:500], stage)


# A client's test


def totals_content(client: int, totals: Tensors) -> dict[str, ArrayRecord]:
    """Return the totals of a test on a client's own samples as records: the confusion matrix, and the sum of
    the losses."""
    return {f"totals/{client}": to_record({name: totals[name] for name in ("confusion", LOSS)})}


def read_totals(content: RecordDict, client: int, classes: int) -> tuple[np.ndarray, float] | str:
    """Return the confusion matrix [C, C] and the sum of the losses of a client's test, or the reason why they
    cannot be used."""
    try:
        totals = from_record(content.array_records[f"totals/{client}"])
        confusion, loss = totals["confusion"], totals[LOSS]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        return f"its answer cannot be read ({error})"
    if confusion.dtype != torch.int64 or confusion.shape != (classes, classes) or bool((confusion < 0).any()):
        return "its confusion matrix does not fit the classes"
    if loss.shape or not loss.is_floating_point() or not bool(loss.isfinite()):
        return "its loss is not one finite number"
    return confusion.numpy(), float(loss)
