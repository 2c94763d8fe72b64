"""The work that every competitor receives, and the report that it returns.

Needs only PyTorch and NumPy, because it runs in every competitor's own environment.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Budget:
    """The amount of training: FedAvg by plain SGD without momentum and weight decay."""

    model: str
    clients: int
    samples: int
    """The samples of each client: all have equally many, so that every cohort is the same work."""
    cohort: int
    rounds: int
    epochs: int
    batch_size: int
    lr: float


@dataclass(frozen=True, eq=False)
class Work:
    """Data, initial weights and budget, as the race wrote them."""

    budget: Budget
    pixels: Tensor
    """uint8 [n, channels, height, width]."""
    labels: Tensor
    test_pixels: Tensor
    test_labels: Tensor
    mean: float
    std: float
    holdings: list[Tensor]
    """The rows of the samples that each client holds."""
    initial: dict[str, Tensor]
    cores: int
    channels_last: bool
    """Whether every competitor receives its model in that memory format."""

    def build(self) -> nn.Module:
        """Build the model with its initial weights."""
        model = MODELS[self.budget.model]()
        model.load_state_dict(self.initial)
        return model.to(memory_format=torch.channels_last) if self.channels_last else model

    def normalised(self, pixels: Tensor) -> Tensor:
        return (pixels.float() / 255 - self.mean) / self.std

    def client_data(self) -> list[tuple[Tensor, Tensor]]:
        """Return each client's normalised inputs and its labels; call it once, before the first round."""
        x = self.normalised(self.pixels)
        return [(x[mine], self.labels[mine]) for mine in self.holdings]

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        """Return the accuracy on the test set."""
        model.eval()
        guesses = [model(self.normalised(x)).argmax(dim=1) for x in torch.split(self.test_pixels, 500)]
        return float((torch.cat(guesses) == self.test_labels).float().mean())


def cnn() -> nn.Module:
    """Build two 5×5 convolutions without padding and a hidden layer of 512: 582,026 parameters at 28×28."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def mlp() -> nn.Module:
    """Build a perceptron with a hidden layer of 64 for 8×8 digits: 4,810 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def lenet5() -> nn.Module:
    """Build LeNet-5: 61,706 parameters at 28×28."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


MODELS = {"cnn": cnn, "mlp": mlp, "lenet5": lenet5}


def save(work: Work, folder: Path) -> None:
    arrays = {
        "pixels": work.pixels,
        "labels": work.labels,
        "test_pixels": work.test_pixels,
        "test_labels": work.test_labels,
        "holdings": torch.stack(work.holdings),
        **{f"initial.{name}": value for name, value in work.initial.items()},
    }
    np.savez(folder / "work.npz", **{name: value.numpy() for name, value in arrays.items()})
    settings = {
        "budget": asdict(work.budget),
        "mean": work.mean,
        "std": work.std,
        "cores": work.cores,
        "channels_last": work.channels_last,
    }
    (folder / "work.json").write_text(json.dumps(settings))


def load(folder: Path) -> Work:
    settings = json.loads((folder / "work.json").read_text())
    with np.load(folder / "work.npz") as content:
        arrays = {name: torch.from_numpy(content[name]) for name in content.files}
    return Work(
        budget=Budget(**settings["budget"]),
        pixels=arrays["pixels"],
        labels=arrays["labels"],
        test_pixels=arrays["test_pixels"],
        test_labels=arrays["test_labels"],
        mean=settings["mean"],
        std=settings["std"],
        holdings=list(arrays["holdings"]),
        initial={
            name.removeprefix("initial."): value
            for name, value in arrays.items()
            if name.startswith("initial.")
        },
        cores=settings["cores"],
        channels_last=settings["channels_last"],
    )


@dataclass
class Laps:
    """The times at which rounds end. A competitor calls it at the end of every round, and `finish` at its
    end."""

    at: list[float] = field(default_factory=list)

    def __call__(self) -> None:
        # This clock is the same in all processes, so that the race can subtract the time of the start.
        self.at.append(time.monotonic())

    def finish(self, report: Path, accuracy: float, *packages: str, **checkouts: Path) -> None:
        """Write the report, with the versions of packages and the commits of libraries that run from a
        clone."""
        versions = {name: version(name) for name in ("torch", *packages)}
        versions |= {name: commit(folder) for name, folder in checkouts.items()}
        report.write_text(
            json.dumps({"laps": self.at, "accuracy": accuracy, "versions": versions}), encoding="utf-8"
        )


def commit(checkout: Path) -> str:
    """Return the commit of a library that runs from a clone."""
    git = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"


def arguments() -> tuple[Work, Path, str]:
    """Return the arguments of a competitor's process: the work, the path of its report, and its setting."""
    folder, report, setting = sys.argv[1:]
    return load(Path(folder)), Path(report), setting


class Batches:
    """Shuffled batches of a client's tensors, for libraries that accept any iterable: much faster than a
    DataLoader, which takes samples one by one."""

    def __init__(self, data: tuple[Tensor, Tensor], size: int) -> None:
        self.x, self.y = data
        self.size = size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.y))
        return zip(torch.split(self.x[order], self.size), torch.split(self.y[order], self.size), strict=True)

    def __len__(self) -> int:
        return -(-len(self.y) // self.size)
