"""The weights of short runs on the `loop` engine, as hashes: one line a method, so that two commits can be
compared line by line. `python -m benchmarks.hashes > before.txt`
"""

from __future__ import annotations

import torch

from unskew import Budget, Trial, federate, load
from unskew.methods import METHODS
from unskew.runs import weights_sha256
from unskew.testing import hard_trial, normed_model
from unskew.train import train


def main() -> None:
    torch.set_num_threads(1)
    digits = federate(load("digits"), "dirichlet:0.1", clients=6, seed=1)
    budget = Budget(rounds=5, cohort=3, epochs=1, batch_size=32, lr=0.05)
    trials = {
        "hard": hard_trial(normed_model),
        "mlp": Trial(digits, "mlp", budget=budget, engine="loop", device="cpu"),
        "resnet8": Trial(digits, "resnet8", budget=budget, engine="loop", device="cpu"),
    }
    for name in METHODS:
        runs = (train(trial, METHODS[name]()) for trial in trials.values())
        print(name, *(weights_sha256(run.weights.params)[:16] for run in runs), flush=True)


if __name__ == "__main__":
    main()
