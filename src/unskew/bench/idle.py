"""Measures the cost of clients that do not take part in a round."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from unskew.bench.data import made
from unskew.bench.memory import forget, peak
from unskew.bench.race import Settings
from unskew.bench.report import Line, Section, median_and_quartiles
from unskew.data import federate
from unskew.experiment import Experiment, MethodSpec, ModelSpec, Prepared, SkewSpec, prepare
from unskew.result import Round
from unskew.runs import RunFolder
from unskew.train import train
from unskew.trial import Budget

CLIENTS = (100, 1_000, 10_000)
EACH = 40
"""Samples of each client."""
METHODS = ("fedavg", "scaffold")
"""The second one keeps tensors for each client that ever took part."""
ROUNDS, REPEATS = 20, 3


def idle(name: str, settings: Settings, tell: Callable[[str], None]) -> Section:
    """Measure rounds of 10 among many clients, tested and written to a run folder as by `unskew run`."""
    rounds, repeats = settings.rounds or ROUNDS, settings.repeats or REPEATS
    entries = [
        (clients, method, _prepare(clients, method, rounds, settings))
        for method in METHODS
        for clients in CLIENTS
    ]
    times: list[list[float]] = [[] for _ in entries]
    firsts: list[list[float]] = [[] for _ in entries]
    memory: list[int] = [0 for _ in entries]
    for turn in range(repeats):
        for place, (clients, method, prepared) in enumerate(entries):
            tell(f"{name}: {clients:,} clients, {method}, run {turn + 1} of {repeats}")
            first, rest, used = _run(prepared)
            firsts[place].append(first)
            times[place] += rest
            memory[place] = max(memory[place], used)
    lines = []
    for place, (clients, method, prepared) in enumerate(entries):
        middle, spread = median_and_quartiles(times[place])
        lines.append(
            Line(
                f"{clients:,} clients, {method}",
                method=method,
                engine=prepared.experiment.engine,
                precision="fp32",
                rounds=rounds,
                repeats=repeats,
                first_round_seconds=median_and_quartiles(firsts[place])[0],
                round_seconds=middle,
                round_quartiles=spread,
                samples_per_second=10 * EACH / middle,
                memory_bytes=memory[place] or None,
            )
        )
    title = f"10 clients of {EACH} images per round, of 100, 1,000 or 10,000; tested and written each round"
    return Section(name, title, lines)


def _prepare(clients: int, method: str, rounds: int, settings: Settings) -> Prepared:
    data = made(f"images-{clients}", (1, 8, 8), clients * EACH, 1_000)
    experiment = Experiment(
        engine=settings.engines[0] if settings.engines else "auto",
        device=settings.device or "auto",
        workers=settings.workers,
        skew=SkewSpec(recipe="iid", clients=clients),
        model=ModelSpec(name="mlp-small"),
        method=MethodSpec(name=method),
        budget=Budget(rounds=rounds, cohort=10, epochs=1, batch_size=10),
    )
    return prepare(experiment, data, federate(data, "iid", clients=clients, seed=1))


def _run(prepared: Prepared) -> tuple[float, list[float], int]:
    """Train; return the seconds of the first round and of each other one, and the memory of the process."""
    device = prepared.trial.pick_device()
    forget(device)
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder(Path(scratch, "run"), prepared)
        marks = [time.perf_counter()]

        def on_round(round: Round) -> None:
            folder.append(round)
            marks.append(time.perf_counter())
            if round.number == prepared.trial.budget.rounds:
                memory.append(peak(device).used or 0)

        memory: list[int] = []
        train(prepared.trial, prepared.method, on_round=on_round)
    first, *rest = (after - before for before, after in pairwise(marks))
    return first, rest, memory[0]
