"""Three clients on Flower's simulation, evaluated under every stock strategy.

It is run in a folder that has the app of docs/deploy.md as app.py.
"""

import json
from functools import partial
from pathlib import Path

import app
import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp import strategy as stock
from flwr.simulation import run_simulation

from unskew import flower

STRATEGIES = {
    "FedAvg": {},
    "FedAvgM": {},
    "FedAdam": {},
    "FedAdagrad": {},
    "FedYogi": {},
    "FedMedian": {},
    "FedTrimmedAvg": {},
    "FedProx": {"proximal_mu": 0.1},
    "QFedAvg": {"client_learning_rate": 0.1},
    "Krum": {},
    "MultiKrum": {},
    "Bulyan": {},
}

client = ClientApp()
client.train()(app.train)


@client.evaluate()
def evaluate(message, context):
    reply = app.evaluate(message, context)
    site, config = context.node_config["partition-id"], message.content["config"]
    if "broken" in config:
        reply.content["metrics"]["site"] = float(site)
        if config["broken"] == site:
            reply.content["metrics"]["confusion"] = [-1] * app.CLASSES**2
    return reply


server = ServerApp()


@server.main()
def main(grid, context):
    app.main(grid, context)
    arrays = ArrayRecord(torch.load("model.pt"))
    told = {}
    for name, options in STRATEGIES.items():
        classwise = partial(flower.classwise, confusion=True)
        strategy = getattr(stock, name)(fraction_train=0.0, evaluate_metrics_aggr_fn=classwise, **options)
        told[name] = strategy.start(grid, arrays, num_rounds=1, evaluate_config=ConfigRecord({"broken": -1}))
    strategy = stock.FedAvg(fraction_train=0.0, evaluate_metrics_aggr_fn=flower.classwise)
    told["broken"] = strategy.start(grid, arrays, num_rounds=1, evaluate_config=ConfigRecord({"broken": 1}))
    by_name = {name: dict(result.evaluate_metrics_clientapp[1]) for name, result in told.items()}
    Path("strategies.json").write_text(json.dumps(by_name))


if __name__ == "__main__":
    import federation  # as a module: what clients run is then imported, not copied

    run_simulation(
        federation.server,
        federation.client,
        num_supernodes=3,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            # Not the cluster that another program has started on this machine.
            "init_args": {"address": "local", "num_cpus": 1, "include_dashboard": False},
        },
    )
