"""The cost of checkpoints: runs without any, with the default period, every five seconds and every round.

`python -m benchmarks.checkpoints [--device cuda]` trains SCAFFOLD, whose clients keep as much as the model,
with each period in turn and then in reverse order. It prints the seconds of a run and the number of its
checkpoints.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np
import torch

from unskew import Budget, Checkpoints, Trial, federate, methods, train
from unskew.data.dataset import Dataset, Split

KINDS = ("never", "auto", "5s", "every=1")


def trial_of(device: str, rounds: int) -> Trial:
    """Return a trial on random pixels, since the time does not depend on the pixels."""
    rng = np.random.default_rng(0)

    def split(samples: int) -> Split:
        pixels = rng.integers(0, 256, (samples, 3, 32, 32), dtype=np.uint8)
        return Split(torch.from_numpy(pixels), torch.from_numpy(np.arange(samples) % 10))

    samples = 50_000 if device == "cuda" else 2_000
    dataset = Dataset("noise", split(samples), split(1000), tuple("abcdefghij"), (0.5,) * 3, (0.25,) * 3)
    budget = Budget(rounds=rounds, cohort=10, epochs=1, batch_size=50, lr=0.01)
    return Trial(federate(dataset, "iid", clients=100, seed=1), "cnn", budget=budget, device=device)


def timed(trial: Trial, every: str) -> tuple[float, int]:
    """Run a trial; return the seconds, and the number of checkpoints it wrote."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        mine = replace(trial, client_files=Path(folder, "clients"))
        keeper = Checkpoints(Path(folder, "checkpoints"), mine, "it", every=every)
        began = time.perf_counter()
        train(mine, methods.scaffold(), keeper=keeper)
        keeper.wait()
        return time.perf_counter() - began, keeper.written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=2)
    given = parser.parse_args()
    trial = trial_of(given.device, given.rounds)
    timed(replace(trial, budget=trial.budget.model_copy(update={"rounds": 3})), "never")  # to warm up
    found: dict[str, list[tuple[float, int]]] = {kind: [] for kind in KINDS}
    for turn in range(given.repeats):
        for kind in KINDS if turn % 2 == 0 else KINDS[::-1]:
            found[kind].append(timed(trial, kind))
    without = mean(seconds for seconds, _ in found["never"])
    print("| checkpoint | written | seconds | times never |\n|---|---|---|---|")
    for kind, runs in found.items():
        seconds, written = (mean(values) for values in zip(*runs, strict=True))
        print(f"| {kind} | {written:g} | {seconds:.1f} | {seconds / without:.3f} |")


if __name__ == "__main__":
    main()
