"""PFLlib: its own server, clients and data files, in one process, from a checkout of its repository."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import torch

from benchmarks.environments import PREPARE, checkout
from benchmarks.work import Laps, Work, arguments

sys.path.insert(0, str(checkout("pfllib") / "system"))

from flcore.servers.serveravg import FedAvg

DATASET = "race"


def prepare(work: Work, folder: Path) -> None:
    """Write a file for each client, as PFLlib's scripts for datasets do.

    It requires a test set of every client. Each has one sample, since the race tests the model only once, at
    the end.
    """
    for split in ("train", "test"):
        (folder / "dataset" / DATASET / split).mkdir(parents=True)
    for client, (x, y) in enumerate(work.client_data()):
        for split, samples in (("train", len(y)), ("test", 1)):
            content = {"x": x[:samples].numpy(), "y": y[:samples].numpy()}
            np.savez_compressed(folder / "dataset" / DATASET / split / f"{client}.npz", data=content)


class Server(FedAvg):
    """PFLlib's FedAvg, which notes the time instead of testing every client's model."""

    laps: Laps

    def evaluate(self) -> None:
        self.rs_test_acc.append(0.0)

    def aggregate_parameters(self) -> None:
        super().aggregate_parameters()
        self.laps()


def settings(work: Work) -> Namespace:
    """Return the settings that PFLlib's command line would make for this work, with its defaults for the
    rest."""
    budget = work.budget
    return Namespace(
        model=work.build(),
        algorithm="FedAvg",
        dataset=DATASET,
        device="cpu",
        num_classes=10,
        num_clients=budget.clients,
        join_ratio=budget.cohort / budget.clients,
        random_join_ratio=False,
        global_rounds=budget.rounds - 1,  # it trains one more
        local_epochs=budget.epochs,
        batch_size=budget.batch_size,
        local_learning_rate=budget.lr,
        learning_rate_decay=False,
        learning_rate_decay_gamma=0.99,
        few_shot=0,
        eval_gap=budget.rounds,
        auto_break=False,
        top_cnt=100,
        time_select=False,
        time_threthold=10_000,
        client_drop_rate=0.0,
        train_slow_rate=0.0,
        send_slow_rate=0.0,
        dlg_eval=False,
        dlg_gap=100,
        batch_num_per_client=2,
        num_new_clients=0,
        fine_tuning_epoch_new=0,
        save_folder_name="items",
        goal="race",
    )


def main() -> None:
    work, report, setting = arguments()
    folder = Path(sys.argv[1]) / "pfllib"
    if setting == PREPARE:
        prepare(work, folder)
        return
    torch.set_num_threads(int(setting))
    (folder / "system").mkdir(exist_ok=True)
    os.chdir(folder / "system")  # its paths are relative to this folder
    server = Server(settings(work), 0)
    server.laps = Laps()
    server.train()
    server.laps.finish(report, work.accuracy(server.global_model), PFLlib=checkout("pfllib"))


if __name__ == "__main__":
    main()
