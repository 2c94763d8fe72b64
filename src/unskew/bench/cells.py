"""The named workloads that are measured: those with published times, and those with targets of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from unskew.bench.report import Target
from unskew.trial import Budget, Precision


@dataclass(frozen=True)
class BenchCell:
    """A workload: training under fixed conditions, to be timed."""

    title: str
    data: str
    """A dataset of `unskew data`, or `images`: 10,000 random images of 28×28."""
    skew: str
    clients: int
    model: str | Callable[[], nn.Module]
    budget: Budget
    """The budget of a run, with as many rounds as the published run, or enough for a stable median."""
    dense_batch: int
    """The batch size of the one model that shows how fast plain training is."""
    device: Literal["cpu", "cuda"]
    """The device on which its times are meaningful; another can be chosen."""
    skew_seed: int = 1
    augment: str = "none"
    every: int | None = 1
    """The model is tested every so many rounds; None: in no round that is timed."""
    methods: Mapping[str, Target | None] = field(default_factory=lambda: {"fedavg": None})
    precisions: tuple[Precision, ...] = ("fp32",)
    repeats: int = 1


def cnn_28() -> nn.Module:
    """Build a CNN for 28×28 images with 582,026 parameters: two 5×5 convolutions without padding, 32 and 64
    maps, then 512 hidden units."""
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


def _plain(
    rounds: int, cohort: Literal["all"] | int, batch_size: int, lr: float, *, epochs: int = 1
) -> Budget:
    """Return a budget of SGD without momentum and weight decay."""
    return Budget(
        rounds=rounds,
        cohort=cohort,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        momentum=0.0,
        weight_decay=0.0,
    )


def _blazefl(model: str, target: Target | None, repeats: int) -> BenchCell:
    # https://github.com/blazefl/blazefl, its benchmark page: about 30 s, and Flower 93 s, on an A100.
    return BenchCell(
        title="CIFAR-10, 100 clients of 2 shards, all in every round, 5 epochs of batch 50 (BlazeFL)",
        data="cifar10",
        skew="shards:2",
        clients=100,
        model=model,
        budget=_plain(5, "all", 50, 0.1, epochs=5),
        dense_batch=5000,
        device="cuda",
        methods={"fedavg": target},
        repeats=repeats,
    )


CELLS: dict[str, BenchCell] = {
    "cnn": BenchCell(
        title="CNN 32-64-512 (582,026 parameters), 28×28, 100 clients of 100, 10 per round, batch 20",
        data="images",
        skew="iid",
        clients=100,
        model=cnn_28,
        budget=_plain(8, 10, 20, 0.05),
        dense_batch=200,
        device="cpu",
        every=None,
        repeats=3,
    ),
    "digits": BenchCell(
        title="Digits, perceptron 64-64-10, 10 clients, all in every round, 5 epochs of batch 10",
        data="digits",
        skew="iid",
        clients=10,
        model="mlp-small",
        budget=_plain(12, "all", 10, 0.05, epochs=5),
        dense_batch=100,
        device="cpu",
        every=None,
        repeats=3,
    ),
    "fashion": BenchCell(
        title="Fashion-MNIST, LeNet-5, 100 clients of 600, 10 per round, batch 50",
        data="fashion_mnist",
        skew="iid",
        clients=100,
        model="lenet5",
        budget=_plain(8, 10, 50, 0.05),
        dense_batch=500,
        device="cpu",
        every=None,
        repeats=3,
    ),
    # Table 2 of FedLMD (Lu et al., MM 2023), as docs/results/fedlmd-table3.md reproduces it.
    "fedlmd": BenchCell(
        title="CIFAR-10, 2-conv CNN, 100 clients, Dirichlet 0.05, 10 per round, 5 epochs, batch 50 (FedLMD)",
        data="cifar10",
        skew="dirichlet:0.05,variant=fedntd",
        skew_seed=19940817,
        clients=100,
        model="cnn",
        budget=Budget(rounds=200, cohort=10, epochs=5, batch_size=50, lr=0.01, lr_decay=0.99),
        dense_batch=5000,
        device="cuda",
        augment="crop:4,flip,cutout:16",
        methods={"fedavg": Target(12), "fedlmd": Target(16), "fedvls": Target(16)},
    ),
    "blazefl": _blazefl("simple-cnn", Target(3), 3),
    "blazefl-resnet18": _blazefl("resnet18", None, 1),
    # Granqvist et al., NeurIPS 2024, the CIFAR-10 IID benchmark of pfl-research, tested every 10 rounds.
    "pfl": BenchCell(
        title="CIFAR-10, pfl-research's CNN, 1,000 clients of 50, 50 per round, batch 10 (its IID benchmark)",
        data="cifar10",
        skew="iid",
        clients=1000,
        model="cnn-pfl",
        budget=_plain(1500, 50, 10, 0.1),
        dense_batch=5000,
        device="cuda",
        every=10,
        methods={"fedavg": Target(45)},
    ),
    # Guo et al., AAAI 2025, the setting of its CIFAR-10 tables; 100 rounds there.
    "fedvls": BenchCell(
        title="CIFAR-10, MobileNetV2, 10 clients, Dirichlet 0.05, 10 epochs, batch 64, AutoAugment (FedVLS)",
        data="cifar10",
        skew="dirichlet:0.05,variant=fedvls",
        clients=10,
        model="mobilenetv2",
        budget=Budget(rounds=3, epochs=10, batch_size=64, lr=0.01),
        dense_batch=640,
        device="cuda",
        augment="crop:4,flip,autoaugment",
        methods={"fedavg": Target(35_000, "samples/s"), "fedvls": Target(27_000, "samples/s")},
        precisions=("fp32", "bf16"),
    ),
}
