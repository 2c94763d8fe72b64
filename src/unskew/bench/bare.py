"""Plain PyTorch on the same work: what no federated simulator can do without, and what one model could do."""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from unskew.engines.loop import Loop
from unskew.engines.numerics import kernels
from unskew.rounds import sample_cohort
from unskew.trial import Budget, Trial

Batches = list[tuple[Tensor, Tensor]]
"""Of one client in one round."""

ENOUGH = 0.5
"""Seconds over which the dense limit is measured, after a warm-up."""


def round_batches(loop: Loop, t: int) -> list[Batches]:
    """Every client's batches of a round, ready for the model."""
    return [list(loop.local.samples.batches(task)) for task in sample_cohort(loop.trial, t)]


def train_bare(model: nn.Module, budget: Budget, clients: Sequence[Batches], *, threads: int) -> float:
    """Seconds to train the model on each client's batches, from the same weights."""
    start = {name: value.clone() for name, value in model.state_dict().items()}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        began = time.perf_counter()
        for batches in clients:
            model.load_state_dict(start)
            optimizer = _sgd(model, budget)
            for x, y in batches:
                optimizer.zero_grad()
                torch.autograd.backward(cross_entropy(model(x).logits, y))
                optimizer.step()
        return time.perf_counter() - began
    finally:
        torch.set_num_threads(before)
        model.load_state_dict(start)


class Processes:
    """Processes of one thread each that share a round's clients, largest first."""

    def __init__(self, model: nn.Module, budget: Budget, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.lines: list[Connection] = []
        self.members = []
        for _ in range(workers):
            mine, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, model, budget), daemon=True)
            process.start()
            theirs.close()
            self.lines.append(mine)
            self.members.append(process)

    def train(self, clients: Sequence[Batches]) -> float:
        """Seconds from the word to begin until the last has ended."""
        shares: list[list[Batches]] = [[] for _ in self.lines]
        for batches in sorted(clients, key=len, reverse=True):
            min(shares, key=lambda share: sum(map(len, share))).append(batches)
        for line, share in zip(self.lines, shares, strict=True):
            # As arrays: tensors would travel through shared memory, of which a container may have little.
            line.send([[(x.numpy(), y.numpy()) for x, y in batches] for batches in share])
        for line in self.lines:
            line.recv()
        began = time.perf_counter()
        for line in self.lines:
            line.send("begin")
        for line in self.lines:
            line.recv()
        return time.perf_counter() - began

    @property
    def processes(self) -> list[int]:
        return [member.pid for member in self.members if member.pid is not None]

    def close(self) -> None:
        for line in self.lines:
            line.close()
        for member in self.members:
            member.join()


def _work(line: Connection, model: nn.Module, budget: Budget) -> None:
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError):  # the other end is closed: the work is done
        while True:
            share = [
                [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in batches] for batches in line.recv()
            ]
            line.send("ready")
            line.recv()
            train_bare(model, budget, share, threads=1)
            line.send("done")


def dense_rate(trial: Trial, batch_size: int) -> float:
    """Samples per second of one model that is trained plainly on random batches of this size: on a GPU as a
    CUDA graph, on a CPU with PyTorch's own number of threads; the faster of PyTorch's two memory layouts."""
    device, dataset = trial.pick_device(), trial.federation.dataset
    x = torch.randn(batch_size, *dataset.inputs.shape, device=device)
    y = torch.randint(len(dataset.classes), (batch_size,), device=device)
    rates = []
    # No race among cuDNN's kernels: for a deep network it lasts minutes.
    with kernels(tf32=trial.pick_precision() != "fp32", choice="default"):
        for layout in (torch.contiguous_format, torch.channels_last):
            model = trial.build().to(device).train()
            model.to(memory_format=layout)  # type: ignore[call-overload]  # PyTorch's stub lacks it
            step = _step(model, trial, x.contiguous(memory_format=layout), y)
            rates.append(batch_size / (_replayed(step) if device.type == "cuda" else _repeated(step)))
    return max(rates)


def _step(model: nn.Module, trial: Trial, x: Tensor, y: Tensor) -> Callable[[], None]:
    optimizer = _sgd(model, trial.budget)
    narrow = trial.pick_precision() == "bf16"

    def step() -> None:
        optimizer.zero_grad()
        # Under capture, autocast's cache of cast weights would outlive the step it belongs to.
        with torch.autocast(x.device.type, torch.bfloat16, enabled=narrow, cache_enabled=False):
            out = model(x)
        torch.autograd.backward(cross_entropy(out.logits.float(), y))
        optimizer.step()

    return step


def _sgd(model: nn.Module, budget: Budget) -> torch.optim.SGD:
    return torch.optim.SGD(
        model.parameters(), budget.lr, momentum=budget.momentum or 0.0, weight_decay=budget.weight_decay
    )


def _repeated(step: Callable[[], None]) -> float:
    """Median seconds of a step on the CPU."""
    step()
    times: list[float] = []
    while len(times) < 3 or sum(times) < ENOUGH:
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _replayed(step: Callable[[], None]) -> float:
    """Mean seconds of a step as a CUDA graph, replayed back to back."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(times: int) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(times):
            graph.replay()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    times = 3
    while (seconds := replay(times)) < ENOUGH:
        times *= 2
    return seconds / times
