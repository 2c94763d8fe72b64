"""pfl-research's simulation: in one process, or in several of one thread each (torchrun)."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("PFL_PYTORCH_DEVICE", "cpu")

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks.work import Laps, arguments


class Classifier(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, object]:
        return {}


class Clock(TrainingProcessCallback[PyTorchModel]):
    def __init__(self, laps: Laps) -> None:
        self.laps = laps

    def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
        self.laps()
        return False, Metrics()


def main() -> None:
    work, report, setting = arguments()
    torch.set_num_threads(1 if setting == "processes" else int(setting))
    np.random.seed(1)  # every process must draw the same cohorts
    budget, data, laps = work.budget, work.client_data(), Laps()

    def make_dataset(client: int) -> Any:
        return PyTorchTensorDataset(data[client])

    # It reuses no client before all others took part: with full participation all do so in every round.
    sampler = get_user_sampler("minimize_reuse", list(range(budget.clients)))
    net = work.build()
    classifier = Classifier(net)
    model = PyTorchModel(
        classifier,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(classifier.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=budget.rounds,
            evaluation_frequency=budget.rounds,
            train_cohort_size=budget.cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(FederatedDataset(make_dataset, sampler), val_data=None),
        model,
        NNTrainHyperParams(
            local_num_epochs=budget.epochs, local_learning_rate=budget.lr, local_batch_size=budget.batch_size
        ),
        callbacks=[Clock(laps)],
        send_metrics_to_platform=False,
    )
    if int(os.environ.get("RANK", "0")) == 0:
        laps.finish(report, work.accuracy(net), "pfl")


if __name__ == "__main__":
    main()
