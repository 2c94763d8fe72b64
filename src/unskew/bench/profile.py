"""Profiles where the time of rounds goes."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as Profiler

from unskew.method import Method
from unskew.program import Program
from unskew.result import Round
from unskew.runs import writing
from unskew.train import train
from unskew.trial import Trial

WARM_UP, PROFILED = 2, 3
"""Numbers of rounds. Several are profiled, since an engine may begin one before the previous one has
ended."""
MOST = 25
"""Rows of the table."""
STEPS = 1000
"""About the number of steps in a profiled round: a profiler keeps every kernel of each."""


def profile(trial: Trial, method: Method | Program, title: str, path: Path) -> None:
    """Append a table of the rounds after the warm-up to a file: kernels on a GPU, on a CPU the operators of
    this process."""
    device = trial.pick_device()
    cuda = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    profiler = Profiler(activities=[ProfilerActivity.CPU, *cuda])

    def on_round(round: Round) -> None:
        if round.number == WARM_UP:
            profiler.start()

    epochs, every = shortened(trial)
    budget = trial.budget.model_copy(update={"rounds": WARM_UP + PROFILED, "epochs": epochs, "steps": None})
    evaluation = trial.evaluation.model_copy(update={"every": every})
    train(replace(trial, budget=budget, evaluation=evaluation), method, on_round=on_round)
    if cuda:
        torch.cuda.synchronize(device)
    profiler.stop()
    text = _kernels(profiler) if cuda else _operators(profiler)
    with writing(path), path.open("a", encoding="utf-8") as file:
        file.write(f"## {title}, {PROFILED} rounds of {epochs} epoch{'s' * (epochs > 1)}\n\n{text}\n")


def shortened(trial: Trial) -> tuple[int, int]:
    """Return the epochs of a round that is short enough to profile, and the number of such rounds between two
    tests, so that tests keep their share of the work."""
    batches = (trial.federation.sizes / trial.budget.batch_size).ceil()
    steps = max(1.0, trial.cohort * float(batches.mean()))
    epochs = max(1, min(int(trial.epochs), int(STEPS / steps)))
    return epochs, trial.evaluation.every * math.ceil(trial.epochs / epochs)


def _kernels(profiler: Profiler) -> str:
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for event in profiler.events() or []:  # type: ignore[no-untyped-call]
        if event.device_type.name == "CUDA" and not event.is_user_annotation:
            spans[event.name].append((event.time_range.start, event.time_range.end))
    every = sorted(span for each in spans.values() for span in each)
    if not every:
        return "no kernel was seen.\n"
    whole = max(end for _, end in every) - every[0][0]
    busy, total = _covered(every), sum(end - start for start, end in every)
    head = (
        f"{len(every):,} kernels and copies in {whole / 1000:,.1f} ms, idle {100 * (1 - busy / whole):.1f} % "
        f"of it; {total / busy:.2f} side by side while busy.\n"
    )
    return head + _table("kernel", {name: [b - a for a, b in each] for name, each in spans.items()})


def _covered(spans: list[tuple[float, float]]) -> float:
    """Return the total time that is covered by spans, which are sorted by their start."""
    covered, until = 0.0, float("-inf")
    for start, end in spans:
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered


def _operators(profiler: Profiler) -> str:
    return _table(
        "operator",
        {each.key: [each.self_cpu_time_total / each.count] * each.count for each in profiler.key_averages()},
    )


def _table(kind: str, times: dict[str, list[float]]) -> str:
    """Return a Markdown table of microseconds by name, the largest total first."""
    total = sum(map(sum, times.values()))
    rows = sorted(times.items(), key=lambda row: -sum(row[1]))[:MOST]
    lines = [f"\n| {kind} | count | total us | mean us | share |", "|---|---|---|---|---|"]
    for name, each in rows:
        short = name.replace("|", "/")[:90]
        lines.append(
            f"| `{short}` | {len(each):,} | {sum(each):,.0f} | {sum(each) / len(each):,.1f} | "
            f"{100 * sum(each) / total:.1f} % |"
        )
    return "\n".join(lines) + "\n"
