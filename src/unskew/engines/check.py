"""Checks of whether the answer of a client can be used: its form, which is known at once, and its values,
which a device may still be computing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from unskew.engines.job import Fit, Job
from unskew.record import ClientStage, Fault
from unskew.types import Params, Tensors, Weights

ClientAnswer = tuple[Job, Fit]
"""The job of a client that trained, with the result."""


def check_fit(job: Job, fit: Fit, sent: Weights, max_norm: float = 0.0) -> Fault | None:
    """Return the fault of a client's answer to the model that it was sent, or None. This waits for the
    device."""
    if fault := check_form(job, fit, sent):
        return fault
    check = ValueCheck([(job, fit)], sent, max_norm)
    return next(iter(check.faults(check.values)), None)


# The form


def check_form(job: Job, fit: Fit, sent: Weights) -> Fault | None:
    """Return the fault in the names, shapes and types of a client's model and loss, or None."""
    anchor = job.anchor(sent)
    wrong = _difference(anchor.params, fit.weights.params)
    wrong = wrong or _difference(anchor.buffers, fit.weights.buffers)
    if not wrong and fit.loss.shape:
        wrong = f"its loss has shape {list(fit.loss.shape)} and should be one number"
    return Fault(job.task.client, "update", "form", wrong) if wrong else None


def check_reports(answers: Sequence[ClientAnswer]) -> list[Fault]:
    """Return a fault for each client that reports other names, shapes or types than most clients do: there is
    nothing else to compare a report with. Of forms that are equally frequent the first client's is right."""
    forms = [_form(fit.reported) for _, fit in answers]
    usual = Counter(forms).most_common(1)[0][0] if forms else frozenset()
    return [
        Fault(
            job.task.client, "update", "form", f"what it reports differs in {_odd(form, usual)} from others"
        )
        for (job, _), form in zip(answers, forms, strict=True)
        if form != usual
    ]


def _difference(expected: Tensors, sent: Tensors) -> str:
    if missing := sorted(expected.keys() - sent.keys()):
        return f"its model lacks '{missing[0]}'"
    if unknown := sorted(sent.keys() - expected.keys()):
        return f"its model has '{unknown[0]}', which the one it received has not"
    for name, value in expected.items():
        mine = sent[name]
        if mine.shape != value.shape:
            return f"'{name}' of its model has shape {list(mine.shape)} and should have {list(value.shape)}"
        if mine.dtype != value.dtype:
            return f"'{name}' of its model is of {mine.dtype} and should be of {value.dtype}"
    return ""


ReportForm = frozenset[tuple[str, torch.Size, torch.dtype]]


def _form(tensors: Tensors) -> ReportForm:
    return frozenset((name, value.shape, value.dtype) for name, value in tensors.items())


def _odd(form: ReportForm, usual: ReportForm) -> str:
    return f"'{min(name for name, _, _ in form ^ usual)}'"


# The values


class ValueCheck:
    """Whether the values of answers are finite, and the norms of their updates."""

    def __init__(self, answers: Sequence[ClientAnswer], sent: Weights, max_norm: float = 0.0) -> None:
        self._clients, self._max_norm = [job.task.client for job, _ in answers], max_norm
        self._places: list[list[tuple[int, ClientStage, str]]] = []
        """For each number in `values`: the index of its answer, the stage of the fault, and the tensor's
        name."""
        self.values: Tensors = {}
        """A number for each tensor on the device, which is finite only if the whole tensor is, and the norms.
        They can be fetched to the host and given to `faults`."""
        groups: dict[tuple[torch.device, torch.dtype], list[tuple[tuple[int, ClientStage, str], Tensor]]] = {}
        for n, (_, fit) in enumerate(answers):
            for stage, what, value in _parts(fit):
                if value.is_complex():
                    value = torch.view_as_real(value)
                if value.is_floating_point() and value.numel():
                    groups.setdefault((value.device, value.dtype), []).append(((n, stage, what), value))
        for number, group in enumerate(groups.values()):
            self._places.append([place for place, _ in group])
            self.values[f"check/{number}"] = _magnitudes([value.detach() for _, value in group])
        if max_norm and answers:
            norms = [_norm_of_update(fit.weights.params, sent.params) for _, fit in answers]
            self.values["check/norm"] = torch.stack(norms)

    def faults(self, values: Tensors) -> list[Fault]:
        """Return one fault for each client whose values cannot be used, from the numbers that have
        arrived."""
        found: dict[int, Fault] = {}
        for number, places in enumerate(self._places):
            finite = values[f"check/{number}"].isfinite().tolist()
            for (n, stage, what), fine in zip(places, finite, strict=True):
                if not fine and (n not in found or found[n].stage == "update"):
                    reason = f"{what} holds NaN or infinite values"
                    found[n] = Fault(self._clients[n], stage, "not finite", reason)
        if self._max_norm and self._clients:
            for n, norm in enumerate(values["check/norm"].tolist()):
                if n not in found and not norm <= self._max_norm:
                    reason = f"its update has norm {norm:.4g}, above faults.max_norm {self._max_norm:.4g}"
                    found[n] = Fault(self._clients[n], "train", "norm", reason)
        return [found[n] for n in sorted(found)]


def _parts(fit: Fit) -> Iterable[tuple[ClientStage, str, Tensor]]:
    yield "train", "its loss", fit.loss
    groups: tuple[tuple[ClientStage, str, Tensors], ...] = (
        ("train", "of its model", fit.weights.params),
        ("train", "of its model", fit.weights.buffers),
        ("train", "of its optimiser", fit.optimizer),
        ("update", "of what it keeps", fit.memory),
        ("update", "of what it reports", fit.reported),
    )
    for stage, where, tensors in groups:
        for name, value in tensors.items():
            yield stage, f"'{name}' {where}", value


def _magnitudes(tensors: list[Tensor]) -> Tensor:
    """Return a number for each tensor, which is finite only if the whole tensor is. A GPU takes a few kernels
    for all tensors together."""
    if tensors[0].is_cuda:
        return torch.stack(torch._foreach_norm(tensors, math.inf))
    half = tensors[0].dtype in (torch.float16, torch.bfloat16)
    # A sum takes a CPU a fraction of the time of any test, and finite values seldom have an infinite one.
    sums = torch.stack([value.sum(dtype=torch.float32 if half else None) for value in tensors])
    for n in (~sums.isfinite()).nonzero().flatten().tolist():
        sums[n] = tensors[n].abs().amax()
    return sums


def _norm_of_update(after: Params, before: Params) -> Tensor:
    names = list(before)
    moves = torch._foreach_sub([after[name] for name in names], [before[name] for name in names])
    norm: Tensor = torch.stack([each.double() for each in torch._foreach_norm(moves, 2)]).norm()
    return norm
