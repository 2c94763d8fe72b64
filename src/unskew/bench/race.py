"""Measures a cell on several engines, whose runs alternate, so that other load affects all of them."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tomli_w
import torch

from unskew.bench.bare import Bare, dense_rate
from unskew.bench.cells import BenchCell
from unskew.bench.child import child
from unskew.bench.data import dataset, made
from unskew.bench.memory import Peak, forget, peak
from unskew.bench.report import Line, Section, median_and_quartiles
from unskew.data import Augment, Federation, federate
from unskew.engines import choose, compiles
from unskew.method import Method
from unskew.methods.assemble import assemble
from unskew.notation import method_parts
from unskew.program import Program
from unskew.record import SUMMARY
from unskew.result import Round
from unskew.train import train
from unskew.trial import Evaluation, Precision, Trial

COMPARED = {"cpu": ("loop", "auto"), "cuda": ("auto",)}
"""The default engines. On a GPU, `loop` can take minutes."""
NEVER = 1_000_000
"""A number of rounds that no run has."""
MOST_ON_CPU = 500
"""The most samples in a batch of the dense limit: with 5,000 the first layers of `cnn-pfl` alone would keep 3
GB."""


@dataclass(frozen=True)
class Settings:
    """The options that apply to every cell."""

    rounds: int | None = None
    repeats: int | None = None
    methods: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    precisions: tuple[Precision, ...] = ()
    device: str | None = None
    workers: int = 0
    fast: bool = False
    data: Path | None = None
    profile: Path | None = None


@dataclass(frozen=True)
class Entry:
    """A method on an engine that takes part in the measurement."""

    name: str
    method: Method | Program
    trial: Trial

    @property
    def what(self) -> str:
        parts = [self.name, choose(self.trial), self.trial.pick_precision(), "fast" * compiles(self.trial)]
        return ", ".join(filter(None, parts))


@dataclass(frozen=True)
class TimedRun:
    """The times of one training."""

    whole: float
    rounds: list[float]
    """Seconds of each round; the first one includes all time outside of rounds."""
    samples: list[int]
    memory: Peak
    bare: list[float]
    """Seconds of the bare training steps of each round after the first, if they were measured."""


def race(
    name: str, cell: BenchCell, settings: Settings, tell: Callable[[str], None]
) -> tuple[Section, list[Entry]]:
    """Measure a cell; return its section of the report, and the entries that took part."""
    data, notes = (
        (made("images", (1, 28, 28), 10_000, 2_000), ())
        if cell.data == "images"
        else dataset(cell.data, settings.data)
    )
    tell(f"{name}: dividing the data")
    federation = federate(data, cell.skew, clients=cell.clients, seed=cell.skew_seed)
    entries = enter(cell, federation, settings)
    rounds, repeats = settings.rounds or cell.budget.rounds, settings.repeats or cell.repeats
    on_cpu = entries[0].trial.pick_device().type == "cpu"
    bare = Bare(entries[0].trial) if on_cpu else None
    runs: list[list[TimedRun]] = [[] for _ in entries]
    for turn in range(repeats):
        for entry, done in zip(entries, runs, strict=True):
            tell(f"{name}: {entry.what}, run {turn + 1} of {repeats}")
            done.append(last := run(entry, rounds, bare))
            middle, _ = median_and_quartiles(last.rounds[1:])
            tell(f"{name}: {entry.what}: {last.whole:.2f} s, {1000 * middle:.1f} ms a round")
    runnable = isinstance(cell.model, str) and cell.data != "images" and not notes
    commands: list[tuple[float, dict[str, float]] | None] = []
    for entry in entries:
        if runnable:
            tell(f"{name}: {entry.what}, the whole command")
        commands.append(command(cell, entry, rounds, settings) if runnable else None)
    dense: dict[Precision, float] = {}
    batch_size = min(cell.dense_batch, MOST_ON_CPU) if on_cpu else cell.dense_batch
    for entry in entries:
        precision = entry.trial.pick_precision()
        if precision not in dense:
            tell(f"{name}: the dense limit in {precision}")
            dense[precision] = dense_rate(entry.trial, batch_size)
    lines = [
        _line_of(entry, done, cell, rounds, dense[entry.trial.pick_precision()], whole)
        for entry, done, whole in zip(entries, runs, commands, strict=True)
    ]
    if bare:
        lines += bare.lines(dense.get("fp32"))
        bare.close()
    for precision, rate in dense.items():
        what = f"dense limit, batch {batch_size}, {precision}"
        lines.append(Line(what, precision=precision, samples_per_second=rate))
    return Section(name, cell.title, lines, notes), entries


def enter(cell: BenchCell, federation: Federation, settings: Settings) -> list[Entry]:
    """Return the methods and engines to measure, each with its trial."""
    device = settings.device or ("auto" if cell.device == "cuda" else "cpu")
    rounds = settings.rounds or cell.budget.rounds
    # The last round is always tested. If no test is to be timed, one more round is trained and not counted.
    more = 1 if cell.every is None else 0
    first = Trial(
        federation,
        cell.model,
        budget=cell.budget.model_copy(update={"rounds": rounds + more}),
        evaluation=Evaluation(every=cell.every or NEVER),
        augment=Augment.parse(cell.augment),
        device=device,
        workers=settings.workers,
        fast=settings.fast,
    )
    methods = {name: find(name) for name in settings.methods or cell.methods}
    asked = settings.engines or COMPARED[first.pick_device().type]
    engines = dict.fromkeys(choose(replace(first, engine=engine)) for engine in asked)
    return [
        Entry(name, method, replace(first, engine=engine, precision=precision))
        for precision in settings.precisions or cell.precisions
        for name, method in methods.items()
        for engine in engines
    ]


def find(name: str) -> Method | Program:
    """Return the method of a name, or of several names joined by +."""
    return assemble({part: {} for part in method_parts(name)})[0]


def run(entry: Entry, rounds: int, bare: Bare | None) -> TimedRun:
    """Train, and time every round.

    The bare steps of a round are measured right after it, so that other load on the machine affects both.
    """
    trial, device = entry.trial, entry.trial.pick_device()
    engine = choose(trial)
    times, samples, memory, bare_times = [], [], [], []
    forget(device)
    whole, mark = 0.0, time.perf_counter()

    def on_round(round: Round) -> None:
        nonlocal whole, mark
        whole += time.perf_counter() - mark
        times.append(round.seconds)
        samples.append(round.samples)
        if round.number == trial.budget.rounds:
            memory.append(peak(device, without=bare.processes if bare else ()))
        if bare and 1 < round.number <= rounds:
            bare_times.append(bare.train(engine, round.number - 1))
        mark = time.perf_counter()

    train(trial, entry.method, on_round=on_round)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    whole += time.perf_counter() - mark
    times[0] = whole - sum(times[1:])
    return TimedRun(whole, times[:rounds], samples[:rounds], memory[0], bare_times)


def command(cell: BenchCell, entry: Entry, rounds: int, settings: Settings) -> tuple[float, dict[str, float]]:
    """Run `unskew run` on the same work in a process of its own; return its seconds, and the seconds of its
    parts."""
    trial = entry.trial
    experiment = {
        "engine": trial.engine,
        "device": trial.device,
        "workers": trial.workers,
        "precision": trial.pick_precision(),
        "fast": trial.fast,
        "data": {"name": cell.data, "folder": str(settings.data or ""), "augment": cell.augment},
        "skew": {"recipe": cell.skew, "clients": cell.clients, "seed": cell.skew_seed},
        "model": {"name": cell.model},
        "method": {"name": entry.name},
        "budget": cell.budget.model_copy(update={"rounds": rounds}).model_dump(exclude_none=True),
        "evaluation": {"every": trial.evaluation.every},
    }
    with tempfile.TemporaryDirectory() as scratch:
        file, out = Path(scratch, "cell.toml"), Path(scratch, "run")
        file.write_text(tomli_w.dumps(experiment), encoding="utf-8")
        began = time.perf_counter()
        child("-m", "unskew", "run", str(file), "--quiet", "--out", str(out))
        seconds = time.perf_counter() - began
        time_record = SUMMARY.parse((out / "summary.json").read_text(encoding="utf-8")).time
    parts = {
        **time_record.start,
        "first round": time_record.first_round,
        "rounds": time_record.rounds,
        "end": time_record.end,
    }
    return seconds, parts


def _line_of(
    entry: Entry,
    runs: Sequence[TimedRun],
    cell: BenchCell,
    rounds: int,
    dense: float,
    command: tuple[float, dict[str, float]] | None,
) -> Line:
    """Return the line of an entry; `dense` is the rate of the dense limit in samples per second."""
    steady = [time for run in runs for time in run.rounds[1:]]
    rate = sum(n for run in runs for n in run.samples[1:]) / sum(steady)
    first = statistics.median(run.rounds[0] for run in runs)
    projected = rounds != cell.budget.rounds
    whole = statistics.median(
        run.rounds[0] + statistics.mean(run.rounds[1:]) * (cell.budget.rounds - 1)
        if projected or cell.every is None
        else run.whole
        for run in runs
    )
    middle, spread = median_and_quartiles(steady)
    beyond = [
        time / bare - 1 for run in runs for time, bare in zip(run.rounds[1:], run.bare, strict=bool(run.bare))
    ]
    return Line(
        entry.what,
        method=entry.name,
        engine=choose(entry.trial),
        precision=entry.trial.pick_precision(),
        rounds=rounds,
        repeats=len(runs),
        seconds=whole,
        projected=projected,
        first_round_seconds=first,
        command_seconds=None if command is None else command[0] + middle * (cell.budget.rounds - rounds),
        command_parts=None if command is None else command[1],
        once_seconds=max(0.0, first - middle) if compiles(entry.trial) else None,
        round_seconds=middle,
        round_quartiles=spread,
        samples_per_second=rate,
        overhead=statistics.median(beyond) if beyond else None,
        dense_share=rate / dense,
        memory_bytes=max(run.memory.used or 0 for run in runs) or None,
        reserved_bytes=max(run.memory.reserved or 0 for run in runs) or None,
        target=cell.methods.get(entry.name),
    )
