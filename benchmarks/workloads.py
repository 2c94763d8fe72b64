"""The three workloads of the race. Each is made once, and all competitors read it from the same files."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

import unskew
from benchmarks.work import MODELS, Budget, Work

SEED = 1


@dataclass(frozen=True)
class Workload:
    title: str
    budget: Budget
    dataset: str | None
    """A name that `unskew.load` knows; None: made by `prototypes`."""


WORKLOADS: dict[str, Workload] = {
    "cnn": Workload(
        "CNN 32-64-512 (582,026 parameters) on synthetic 28×28 images",
        Budget("cnn", clients=100, samples=100, cohort=10, rounds=50, epochs=1, batch_size=20, lr=0.05),
        None,
    ),
    "digits": Workload(
        "perceptron 64-64-10 (4,810 parameters) on the 8×8 digits of scikit-learn",
        Budget("mlp", clients=10, samples=144, cohort=10, rounds=50, epochs=5, batch_size=10, lr=0.05),
        "digits",
    ),
    "fashion": Workload(
        "LeNet-5 (61,706 parameters) on Fashion-MNIST",
        Budget("lenet5", clients=100, samples=600, cohort=10, rounds=50, epochs=1, batch_size=50, lr=0.05),
        "fashion-mnist",
    ),
}


def make(workload: Workload, *, rounds: int | None, cores: int, channels_last: bool) -> Work:
    """Make the work of a workload; raise UserError if its data are not on this machine."""
    budget = workload.budget if rounds is None else replace(workload.budget, rounds=rounds)
    dataset = prototypes() if workload.dataset is None else unskew.load(workload.dataset)
    order = np.random.default_rng(SEED).permutation(len(dataset.train))
    shares = order[: budget.clients * budget.samples].reshape(budget.clients, budget.samples)
    torch.manual_seed(SEED)
    return Work(
        budget=budget,
        pixels=dataset.train.inputs,
        labels=dataset.train.labels,
        test_pixels=dataset.test.inputs,
        test_labels=dataset.test.labels,
        mean=dataset.mean[0],
        std=dataset.std[0],
        holdings=list(torch.from_numpy(shares)),
        initial=MODELS[budget.model]().state_dict(),
        cores=cores,
        channels_last=channels_last,
    )


def prototypes(train: int = 10_000, test: int = 2_000) -> unskew.Dataset:
    """Make a dataset of ten random pictures with noise of 1.5 times their standard deviation."""
    random = np.random.default_rng(SEED)
    centres = random.normal(size=(10, 1, 28, 28))

    def draw(samples: int) -> tuple[Tensor, Tensor]:
        labels = random.integers(10, size=samples)
        values = centres[labels] + 1.5 * random.normal(size=(samples, 1, 28, 28))
        pixels = np.clip(128 + values * 20, 0, 255).astype(np.uint8)
        return torch.from_numpy(pixels), torch.from_numpy(labels)

    (x, y), (x_test, y_test) = draw(train), draw(test)
    return unskew.data.from_arrays(x, y, x_test, y_test, name="prototypes", layout="chw")
