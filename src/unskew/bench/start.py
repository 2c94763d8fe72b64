"""Measures what a user waits for before training begins: the start of the program, and loading data."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from unskew.bench.child import child
from unskew.bench.race import Settings
from unskew.bench.report import Line, Section, Target
from unskew.data.sources import SOURCES, data_folder

REPEATS = 5

RUN = ("-m", "unskew", "run", "--dataset", "digits", "--rounds", "1", "--epochs", "1", "--quiet")
TORCH = ("-c", "import torch")
LOAD = (
    "-c",
    "import sys, time; from pathlib import Path; from unskew import load; began = time.perf_counter(); "
    "load('cifar10', Path(sys.argv[1])); print(time.perf_counter() - began)",
)


def startup(name: str, settings: Settings, tell: Callable[[str], None]) -> Section:
    """Time a whole command in a process of its own, alternating with one that only imports PyTorch."""
    begun, ended, torch = [], [], []
    repeats = settings.repeats or REPEATS
    for turn in range(repeats):
        tell(f"{name}: run {turn + 1} of {repeats}")
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "run")
            began = time.time()
            child(*RUN, "--out", str(out))
            ended.append(time.time() - began)
            rounds = out / "rounds.jsonl"
            # The round's line is written when the round ends, and has its duration.
            written, lasted = (
                rounds.stat().st_mtime,
                json.loads(rounds.read_text(encoding="utf-8"))["seconds"],
            )
            begun.append(written - lasted - began)
        started = time.perf_counter()
        child(*TORCH)
        torch.append(time.perf_counter() - started)
    return Section(
        name,
        "`unskew run` on digits, one round: from the command to the beginning of the round, and to the end",
        [
            Line("first round begins", repeats=repeats, seconds=statistics.median(begun), target=Target(3)),
            Line("the whole command", repeats=repeats, seconds=statistics.median(ended)),
            Line("python -c 'import torch'", repeats=repeats, seconds=statistics.median(torch)),
        ],
    )


def loading(name: str, settings: Settings, tell: Callable[[str], None]) -> Section:
    """Time the loading of CIFAR-10, each time in a process of its own, so that no memory is allocated yet."""
    root, repeats = data_folder(settings.data), settings.repeats or REPEATS
    notes: tuple[str, ...] = ()
    with tempfile.TemporaryDirectory() as scratch:
        if not SOURCES["cifar10"].find(root):
            notes = (f"CIFAR-10 is not in {root}: files of its layout with random pixels took its place.",)
            root = Path(scratch)
            _write_cifar10(root / "cifar-10-batches-bin")
        times = []
        for turn in range(repeats):
            tell(f"{name}: run {turn + 1} of {repeats}")
            times.append(float(child(*LOAD, str(root))))
    line = Line("unskew.load('cifar10')", repeats=repeats, seconds=statistics.median(times), target=Target(2))
    return Section(
        name, "CIFAR-10 from its publisher's files, which the system has read before", [line], notes
    )


def _write_cifar10(folder: Path) -> None:
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        records = random.integers(0, 256, (10_000, 3073), np.uint8)
        records[:, 0] %= 10
        (folder / f"{name}.bin").write_bytes(records.tobytes())
