"""FedLab's standalone simulation: one process, several threads."""

from __future__ import annotations

import random

import torch

import benchmarks.peers.vision  # noqa: F401  (before fedlab imports torchvision)

# isort: split
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from torch import Tensor

from benchmarks.work import Batches, Laps, arguments


class Clients:
    def __init__(self, data: list[tuple[Tensor, Tensor]]) -> None:
        self.data = data

    def get_dataloader(self, client: int, batch_size: int) -> Batches:
        return Batches(self.data[client], batch_size)


class Pipeline(StandalonePipeline):
    def __init__(self, laps: Laps, *parts: object) -> None:
        super().__init__(*parts)
        self.evaluate = laps


def main() -> None:
    work, report, setting = arguments()
    torch.set_num_threads(int(setting))
    random.seed(1)
    budget, laps = work.budget, Laps()
    trainer = SGDSerialClientTrainer(work.build(), budget.clients)
    trainer.setup_dataset(Clients(work.client_data()))
    trainer.setup_optim(budget.epochs, budget.batch_size, budget.lr)
    handler = SyncServerHandler(work.build(), budget.rounds, budget.cohort / budget.clients)
    Pipeline(laps, handler, trainer).main()
    laps.finish(report, work.accuracy(handler.model), "fedlab")


if __name__ == "__main__":
    main()
