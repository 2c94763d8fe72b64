# ruff: noqa: E402 (late imports need the checkout on the path)
"""FL-bench: its own server and clients, in one process or on Ray, from a checkout of its repository."""

from __future__ import annotations

import json
import os
import pickle
import sys
from importlib import import_module
from pathlib import Path

import torch

import benchmarks.peers.vision  # noqa: F401  (before FL-bench imports torchvision)
from benchmarks.environments import PREPARE, checkout
from benchmarks.work import Laps, Work, arguments

# isort: split
SOURCE = checkout("flbench")
sys.path.insert(0, str(SOURCE))
# Ray's workers import FL-bench too.
os.environ["PYTHONPATH"] = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])

import ray
import src.server.fedavg as fedavg
from data.utils.datasets import BaseDataset
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from src.utils.models import DecoupledModel
from torch import nn

DATASET = "mnist"


def prepare(work: Work, folder: Path) -> None:
    """Write the partition, as FL-bench's generate_data.py does."""
    target = folder / "data" / DATASET
    target.mkdir(parents=True)
    clients = list(range(work.budget.clients))
    partition = {
        "separation": {"train": clients, "val": [], "test": clients, "total": len(clients)},
        "data_indices": [{"train": mine.tolist(), "val": [], "test": []} for mine in work.holdings],
    }
    (target / "partition.pkl").write_bytes(pickle.dumps(partition))
    (target / "args.json").write_text(json.dumps({"split": "sample", "client_num": len(clients)}))


class Model(DecoupledModel):
    """The race's model in FL-bench's two parts."""

    def __init__(self, net: nn.Sequential) -> None:
        super().__init__()
        self.base, self.classifier = net[:-1], net[-1]


class Server(fedavg.FedAvgServer):
    """FL-bench's FedAvg with the race's model and data, which are normalised already."""

    def __init__(self, work: Work, args: DictConfig) -> None:
        self.work, self.laps = work, Laps()
        super().__init__(args=args)

    def init_model(self) -> None:
        super().init_model(Model(self.work.build()))

    def get_dataset(self) -> BaseDataset:
        x = self.work.normalised(self.work.pixels)
        dataset = BaseDataset(torch.zeros(1), self.work.labels, list(range(10)))
        dataset.data = x
        return dataset

    def train_one_round(self) -> None:
        super().train_one_round()
        self.laps()


def settings(work: Work, folder: Path, setting: str) -> DictConfig:
    """Return FL-bench's own configuration with the budget of this work, and without tests of clients."""
    budget = work.budget
    overrides = {
        "method": "fedavg",
        "dataset.name": DATASET,
        "optimizer.lr": budget.lr,
        "mode": "parallel" if setting == "actors" else "serial",
        "parallel.num_workers": work.cores,
        "parallel.num_cpus": work.cores,
        "parallel.num_gpus": 0,
        "common.join_ratio": budget.cohort / budget.clients,
        "common.global_epoch": budget.rounds,
        "common.local_epoch": budget.epochs,
        "common.batch_size": budget.batch_size,
        "common.client_side_evaluation": "false",
        "common.test.client.interval": -1,
        "common.test.client.test": "false",
        "common.use_cuda": "false",
        "common.save_log": "false",
    }
    with initialize_config_dir(config_dir=str(SOURCE / "config"), version_base=None):
        config = compose(
            "defaults", [f"{name}={value}" for name, value in overrides.items()], return_hydra_config=True
        )
    OmegaConf.set_struct(config, False)
    config.hydra.runtime.output_dir = str(folder / "out")
    HydraConfig.instance().set_config(config)
    del config.hydra
    return config


def set_up_worker() -> None:
    """Prepare a worker of Ray before it imports torchvision."""
    import_module("benchmarks.peers.vision")


def main() -> None:
    work, report, setting = arguments()
    folder = Path(sys.argv[1]) / "flbench"
    if setting == PREPARE:
        prepare(work, folder)
        return
    if setting == "actors":
        torch.set_num_threads(1)
        ray.init(
            num_cpus=work.cores,
            num_gpus=0,
            include_dashboard=False,
            log_to_driver=False,
            runtime_env={"worker_process_setup_hook": set_up_worker},
        )
    else:
        torch.set_num_threads(int(setting))
    fedavg.FLBENCH_ROOT = folder
    server = Server(work, settings(work, folder, setting))
    server.train()
    server.model.load_state_dict(server.public_model_params)
    server.laps.finish(report, work.accuracy(server.model), "ray", **{"FL-bench": SOURCE})


if __name__ == "__main__":
    main()
