"""Hashes of the weights after short runs, a line for each method.

Two commits, engines or processes can be compared line by line:
`python -m benchmarks.hashes > before.txt`, `--engine pool --workers 4`
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from unskew import Budget, Trial, federate, load
from unskew.errors import UserError
from unskew.method import Method
from unskew.methods import METHODS
from unskew.program import Program
from unskew.runs import weights_sha256
from unskew.testing import hard_trial, normed_model
from unskew.train import train


def on_digits(model: str) -> Trial:
    digits = federate(load("digits"), "dirichlet:0.1", clients=6, seed=1)
    budget = Budget(rounds=5, cohort=3, epochs=1, batch_size=32, lr=0.05)
    return Trial(digits, model, budget=budget, device="cpu")


TRIALS: dict[str, Callable[[], Trial]] = {
    "hard": partial(hard_trial, normed_model),
    "mlp": partial(on_digits, "mlp"),
    "resnet8": partial(on_digits, "resnet8"),
}
"""The trials, by name."""


def hash_of(trial: Trial, method: Method | Program) -> str:
    """Return a hash of the weights after training.

    If the method refuses to average BatchNorm statistics, they are those of the batch.
    """
    try:
        result = train(trial, method)
    except UserError:
        result = train(replace(trial, statistics="batch"), method)
    return weights_sha256(result.weights.params)[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="loop")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--trials", nargs="+", default=list(TRIALS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [replace(TRIALS[name](), engine=given.engine, workers=given.workers) for name in given.trials]
    for name in given.methods:
        print(name, *(hash_of(trial, METHODS[name]()) for trial in chosen), flush=True)


if __name__ == "__main__":
    main()
