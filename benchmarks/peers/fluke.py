"""fluke: one process, several threads (its parallel server needs two GPUs)."""

from __future__ import annotations

import torch

import benchmarks.peers.vision  # noqa: F401  (before fluke imports torchvision)

# isort: split
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import FastDataLoader
from fluke.utils import FederationObserver

from benchmarks.work import Laps, Work, arguments


class Splitter:
    """Gives clients the samples of the race's own partition."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def assign(self, clients: int, batch_size: int) -> tuple[tuple[list[FastDataLoader], list[None]], None]:
        shares = [
            FastDataLoader(x, y, num_labels=10, batch_size=batch_size, shuffle=True, skip_singleton=False)
            for x, y in self.work.client_data()
        ]
        return (shares, [None] * clients), None


class Clock(FederationObserver):
    def __init__(self, laps: Laps) -> None:
        self.laps = laps

    def end_round(self, round: int) -> None:
        self.laps()


def main() -> None:
    work, report, setting = arguments()
    torch.set_num_threads(int(setting))
    budget, laps = work.budget, Laps()
    FlukeENV().set_seed(1)
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    algorithm = FedAVG(
        budget.clients,
        Splitter(work),
        DDict(
            model=work.build(),
            client=DDict(
                batch_size=budget.batch_size,
                local_epochs=budget.epochs,
                loss="CrossEntropyLoss",
                optimizer=DDict(name="SGD", lr=budget.lr),
                scheduler=DDict(name="StepLR", step_size=1, gamma=1),
            ),
            server=DDict(weighted=True),
        ),
    )
    algorithm.set_callbacks(Clock(laps))
    algorithm.run(budget.rounds, budget.cohort / budget.clients)
    laps.finish(report, work.accuracy(algorithm.server.model), "fluke-fl")


if __name__ == "__main__":
    main()
