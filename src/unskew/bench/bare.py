"""Plain PyTorch on the same work: the steps that every federated simulator needs, and the rate of one
model."""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from unskew.bench.report import Line, median_and_quartiles
from unskew.engines.cpu.pool import cores
from unskew.engines.loop import Loop
from unskew.engines.numerics import kernels
from unskew.rounds import sample_cohort
from unskew.trial import Budget, Trial

Batches = list[tuple[Tensor, Tensor]]
"""The batches of one client in one round."""

ENOUGH = 0.5
"""Seconds over which the dense limit is measured, after a warm-up."""


def round_batches(loop: Loop, t: int) -> list[Batches]:
    """Return each client's batches of round t, ready for the model."""
    return [list(loop.local.samples.batches(task)) for task in sample_cohort(loop.trial, t)]


def train_bare(model: nn.Module, budget: Budget, clients: Sequence[Batches], *, threads: int) -> float:
    """Train the model on each client's batches, always from the same weights, and return the seconds."""
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
    """Processes of one thread each, over which a round's clients are distributed, largest first."""

    def __init__(self, model: nn.Module, budget: Budget, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.connections: list[Connection] = []
        self.workers = []
        for _ in range(workers):
            mine, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, model, budget), daemon=True)
            process.start()
            theirs.close()
            self.connections.append(mine)
            self.workers.append(process)

    def train(self, clients: Sequence[Batches]) -> float:
        """Train clients, and return the seconds from the common start until the last process is done."""
        shares: list[list[Batches]] = [[] for _ in self.connections]
        for batches in sorted(clients, key=len, reverse=True):
            min(shares, key=lambda share: sum(map(len, share))).append(batches)
        for connection, share in zip(self.connections, shares, strict=True):
            # As arrays: tensors would travel through shared memory, of which a container may have little.
            connection.send([[(x.numpy(), y.numpy()) for x, y in batches] for batches in share])
        for connection in self.connections:
            connection.recv()
        began = time.perf_counter()
        for connection in self.connections:
            connection.send("begin")
        for connection in self.connections:
            connection.recv()
        return time.perf_counter() - began

    @property
    def processes(self) -> list[int]:
        return [worker.pid for worker in self.workers if worker.pid is not None]

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        for worker in self.workers:
            worker.join()


def _work(connection: Connection, model: nn.Module, budget: Budget) -> None:
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError):  # the other end is closed: the work is done
        while True:
            share = [
                [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in batches]
                for batches in connection.recv()
            ]
            connection.send("ready")
            connection.recv()
            train_bare(model, budget, share, threads=1)
            connection.send("done")


class Bare:
    """Measures the training steps of rounds and nothing else: with one thread, with PyTorch's own number of
    threads, and in parallel processes like those of the pool engine."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self.loop = trial, Loop(trial)
        self.model = trial.build().train()
        self.threads = torch.get_num_threads()
        # PyTorch loads parts of itself in a process's first steps, so some are taken before any is timed.
        self.first = [batches[:2] for batches in round_batches(self.loop, 0)]
        train_bare(self.model, trial.budget, self.first[:1], threads=1)
        self.measured: dict[str, list[tuple[int, float]]] = {}

    def train(self, engine: str, t: int) -> float:
        """Train a round on as many cores as an engine uses, and return the seconds."""
        batches = round_batches(self.loop, t)
        samples = sum(len(y) for client in batches for _, y in client)

        def note(what: str, seconds: float) -> float:
            self.measured.setdefault(f"bare steps, {what}", []).append((samples, seconds))
            return seconds

        if engine == "pool":
            processes = self.pool.processes
            return note(f"{len(processes)} processes", self.pool.train(batches))
        alone = note("1 thread", train_bare(self.model, self.trial.budget, batches, threads=1))
        if self.threads > 1:
            many = train_bare(self.model, self.trial.budget, batches, threads=self.threads)
            note(f"{self.threads} threads", many)
        return alone

    def lines(self, dense: float | None) -> list[Line]:
        """Return a line for each number of threads or processes; `dense` is the rate of the dense limit."""
        lines = []
        for what, pairs in sorted(self.measured.items()):
            middle, spread = median_and_quartiles([seconds for _, seconds in pairs])
            rate = sum(samples for samples, _ in pairs) / sum(seconds for _, seconds in pairs)
            lines.append(
                Line(
                    what,
                    precision="fp32",
                    round_seconds=middle,
                    round_quartiles=spread,
                    samples_per_second=rate,
                    dense_share=dense and rate / dense,
                )
            )
        return lines

    @cached_property
    def pool(self) -> Processes:
        pool = Processes(self.model, self.trial.budget, self.trial.workers or cores())
        pool.train(self.first)
        return pool

    @property
    def processes(self) -> list[int]:
        return self.pool.processes if "pool" in vars(self) else []

    def close(self) -> None:
        if self.processes:
            self.pool.close()


def dense_rate(trial: Trial, batch_size: int) -> float:
    """Return the samples per second of plain training of one model on random batches of this size.

    It uses a CUDA graph on a GPU and PyTorch's own number of threads on a CPU, and the faster of PyTorch's
    two memory layouts.
    """
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
    """Return the median seconds of a step on the CPU."""
    step()
    times: list[float] = []
    while len(times) < 3 or sum(times) < ENOUGH:
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _replayed(step: Callable[[], None]) -> float:
    """Return the mean seconds of a step as a CUDA graph, replayed without pauses."""
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
