"""BlazeFL: one process, a pool of threads, or a pool of processes of one thread each."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.multiprocessing as mp
from blazefl.contrib.fedavg import (
    FedAvgBaseClientTrainer,
    FedAvgBaseServerHandler,
    FedAvgProcessPoolClientTrainer,
    FedAvgThreadPoolClientTrainer,
)
from blazefl.core import IPCMode
from torch import nn

from benchmarks.work import Batches, Laps, arguments

WORK, _, SETTING = arguments()
DATA = WORK.client_data()


class Data:
    """The clients' samples. They are a variable of the module, so that the pool's forked processes have them
    without receiving them with every client's task."""

    def get_dataloader(self, type_: object, cid: int, batch_size: int, generator: object) -> Batches:
        batches = Batches(DATA[cid], batch_size)
        batches.dataset = None
        return batches

    def set_dataset(self, type_: object, cid: int, dataset: object) -> None:
        pass


class Models:
    """The race's model, whatever the name."""

    def select_model(self, name: str) -> nn.Module:
        torch.set_num_threads(1 if SETTING in {"processes", "pool of threads"} else int(SETTING))
        return WORK.build()


def main() -> None:
    mp.set_start_method("fork")
    scratch, report = Path(sys.argv[1]), Path(sys.argv[2])
    budget, laps, models, data = WORK.budget, Laps(), Models(), Data()
    of_clients = {
        "model_selector": models,
        "model_name": budget.model,
        "dataset": data,
        "device": "cpu",
        "num_clients": budget.clients,
        "epochs": budget.epochs,
        "batch_size": budget.batch_size,
        "lr": budget.lr,
        "seed": 1,
    }
    handler = FedAvgBaseServerHandler(
        model_selector=models,
        model_name=budget.model,
        dataset=data,
        global_round=budget.rounds,
        num_clients=budget.clients,
        sample_ratio=budget.cohort / budget.clients,
        device="cpu",
        batch_size=budget.batch_size,
        seed=1,
    )
    if SETTING == "processes":
        trainer = FedAvgProcessPoolClientTrainer(
            share_dir=scratch / "shared",
            state_dir=scratch / "states",
            ipc_mode=IPCMode.SHARED_MEMORY,
            num_parallels=WORK.cores,
            **of_clients,
        )
    elif SETTING == "pool of threads":
        trainer = FedAvgThreadPoolClientTrainer(num_parallels=WORK.cores, **of_clients)
    else:
        trainer = FedAvgBaseClientTrainer(**of_clients)
    while not handler.if_stop():
        clients = handler.sample_clients()
        trainer.local_process(handler.downlink_package(), clients)
        for package in trainer.uplink_package():
            handler.load(package)
        laps()
    laps.finish(report, WORK.accuracy(handler.model), "blazefl")


if __name__ == "__main__":
    main()
