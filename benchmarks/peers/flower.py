"""Flower's simulation on Ray: one actor per core, one thread each."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn

from benchmarks.work import Batches, Laps, Work, arguments, load

FOLDER = "UNSKEW_RACE"
client_app = ClientApp()


@cache
def prepared() -> tuple[Work, list[tuple[Tensor, Tensor]], nn.Module]:
    """Make the work, the data and the model of an actor, once in each."""
    torch.set_num_threads(1)
    work = load(Path(os.environ[FOLDER]))
    return work, work.client_data(), work.build()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    work, data, model = prepared()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=work.budget.lr)
    mine = data[int(context.node_config["partition-id"])]
    batches = Batches(mine, work.budget.batch_size)
    for _ in range(work.budget.epochs):
        for inputs, labels in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    answer = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": work.budget.samples}),
    }
    return Message(content=RecordDict(answer), reply_to=message)


def main() -> None:
    work, report, _ = arguments()
    os.environ[FOLDER] = sys.argv[1]
    budget, laps, model = work.budget, Laps(), work.build()
    server_app = ServerApp()

    def after_round(round: int, arrays: ArrayRecord) -> None:
        if round:  # it is called before the first one too
            laps()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=budget.cohort / budget.clients,
            fraction_evaluate=0.0,
            min_train_nodes=budget.cohort,
            min_available_nodes=budget.clients,
        )
        result = strategy.start(
            grid, ArrayRecord(work.initial), num_rounds=budget.rounds, evaluate_fn=after_round
        )
        model.load_state_dict(result.arrays.to_torch_state_dict())

    run_simulation(
        server_app,
        client_app,
        num_supernodes=budget.clients,
        backend_config={
            "init_args": {"address": "local", "num_cpus": work.cores, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    laps.finish(report, work.accuracy(model), "flwr", "ray")


if __name__ == "__main__":
    # Imported by name: Ray would pickle the definitions of __main__ by value with every message, with caches.
    from benchmarks.peers.flower import main as named

    named()
