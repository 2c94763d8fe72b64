"""The time that Flower adds to a round: the same work on a real SuperLink with two SuperNodes, there with
Flower's own FedAvg and a plain training loop, and in a simulation.

`python -m benchmarks.flower [--rounds 5]` needs the environment of `make test-flower` and a quiet machine.
Each number is the median in seconds over the rounds after the first; "whole" is the time of the command. All
processes run on this machine: a network takes time in addition.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from unskew.experiment import Experiment, load_data, prepare
from unskew.flower import local
from unskew.flower.new_app import write_app
from unskew.train import train

SETTINGS = {
    "method": "fedavg",
    "seed": 1,
    "data.name": "digits",
    "skew.recipe": "dirichlet:0.5",
    "skew.clients": 2,
    "model.name": "mlp",
    "budget.epochs": 1,
    "budget.batch_size": 32,
    "budget.lr": 0.05,
}
STOCK = '''"""Flower's FedAvg with a plain loop, on the same clients' samples."""

import json
import time

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from unskew import Trial, federate, load

federation = federate(load("digits"), "dirichlet:0.5", clients=2, seed=1)


def net():
    return Trial(federation, "mlp").build()


client = ClientApp()
server = ServerApp()


@client.train()
def train(message, context):
    model, number = net(), context.node_config["partition-id"]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = federation.dataset.train.take(federation.indices(number))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for rows in torch.split(torch.randperm(len(y)), 32):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[rows].float() / 255).logits, y[rows]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message
    )


@server.main()
def main(grid, context):
    times = []

    def note_time(round, arrays):
        times.append(time.time())

    strategy = FedAvg(fraction_evaluate=0.0)
    rounds = context.run_config["budget.rounds"]
    strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=rounds, evaluate_fn=note_time)
    with open(context.run_config["federation.out"], "w") as file:
        json.dump([after - before for before, after in zip(times, times[1:])], file)
'''


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    settings = {**SETTINGS, "budget.rounds": rounds}
    folder = Path(tempfile.mkdtemp())
    os.chdir(folder)
    write_app(folder / "ours", settings, like=None, nodes=2)
    write_app(folder / "stock", settings, like=None, nodes=2)
    for name in ("client", "server"):
        (folder / f"stock/stock/{name}_app.py").write_text(f"{STOCK}\n\napp = {name}\n")
    found = {}
    local.up(
        folder / "federation", ["", ""], host="127.0.0.1", port=None, names=[], insecure=False, tell=print
    )
    try:
        for name, out in (("ours", folder / "run"), ("stock", folder / "stock.json")):
            command = local.run_command(folder / "federation").replace("APP", f"./{name}")
            began = time.monotonic()
            config = f'federation.out="{out}"'
            subprocess.run(f"{command} -c {shlex.quote(config)}", shell=True, check=True, stdout=sys.stderr)
            found[name] = {"whole": time.monotonic() - began}
        lines = (folder / "run/rounds.jsonl").read_text().splitlines()
        found["ours"]["rounds"] = [json.loads(line)["seconds"] for line in lines]
        found["stock"]["rounds"] = json.loads((folder / "stock.json").read_text())
    finally:
        local.down(folder / "federation")
    experiment = Experiment(
        seed=1,
        engine="loop",
        data={"name": "digits"},
        skew={"recipe": "dirichlet:0.5", "clients": 2},
        model={"name": "mlp"},
        budget={"rounds": rounds, "epochs": 1, "batch_size": 32, "lr": 0.05},
    )
    began = time.monotonic()
    prepared = prepare(experiment, load_data(experiment))
    result = train(prepared.trial, prepared.method)
    found["simulation"] = {
        "whole": time.monotonic() - began,
        "rounds": [each.seconds for each in result.rounds],
    }
    medians = {name: statistics.median(each["rounds"][1:]) for name, each in found.items()}
    print(json.dumps({"rounds": found, "median": medians, "python": platform.python_version()}))
    print(
        f"a round: unskew on Flower {medians['ours']:.2f} s, Flower's FedAvg {medians['stock']:.2f} s "
        f"(ratio {medians['ours'] / medians['stock']:.2f}), simulation {medians['simulation']:.4f} s"
    )
    whole = {name: f"{each['whole']:.1f} s" for name, each in found.items()}
    print(f"whole: {whole['ours']}, {whole['stock']}, {whole['simulation']}")


if __name__ == "__main__":
    main()
