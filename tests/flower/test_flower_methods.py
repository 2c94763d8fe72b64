"""Every method across the nodes of a federation gives the bits of a simulation in one place."""

import pytest

pytest.importorskip("flwr", reason="Flower has an environment of its own: make test-flower")

from grids import InProcessGrid

from simulations import assert_same, simulated
from unskew import flower
from unskew.errors import UserError
from unskew.flower.run_config import read_config, settings_in
from unskew.flower.server import serve
from unskew.methods import METHODS

ONE_PLACE = {
    "centralised": "it trains on all data in one place",
    "fedconcat": "its last layer is trained on features that all clients' data are turned into in one place",
    "local-only": "its clients exchange nothing: each site trains alone",
}
OPTIONS = {"pkd": "pkd:warmup=1,expert_rounds=1,groups=3/8", "dp": "dp:noise_multiplier=0"}
NODES = [{"partition-id": "0-1"}, {"partition-id": 2}, {"partition-id": 3}]
"""The configs of the nodes, the first of which has two clients."""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Return Flower's home. The working directory is no repository, so that runs do not look up its state."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    return tmp_path / "flwr"


def config_of(tmp_path, method="fedavg", settings=()):
    plain = {
        "method": OPTIONS.get(method, method),
        "data.name": "digits",
        "skew.recipe": "part:0.25+dirichlet:0.1",
        "skew.clients": 4,
        "model.name": "mlp-small",
        "budget.rounds": 2,
        "budget.cohort": 3,
        "budget.epochs": 1,
        "federation.test": "server",
        "federation.out": str(tmp_path / "run"),
    }
    return plain | dict(settings)


def federated(config, nodes=NODES, change=None):
    """Run a config across nodes, and return the run and its grid."""
    grid = InProcessGrid(flower.client_app(), nodes, config)
    if change:
        grid.change = change
    experiment, spec = read_config(config)
    return serve(grid, experiment, spec, settings_in(experiment)), grid


@pytest.mark.parametrize("method", sorted(METHODS.keys() - ONE_PLACE.keys()))
def test_the_bits_of_a_simulation(method, tmp_path, home):
    config = config_of(tmp_path, method)
    run, _ = federated(config)
    result = simulated(config)
    assert_same(run, result)
    assert run.summary.cost == pytest.approx(result.cost, nan_ok=True)
    assert not list(home.rglob("*.tensors"))  # the run has ended: nodes have forgotten it


@pytest.mark.parametrize("method", sorted(ONE_PLACE))
def test_what_cannot_train_across_machines_says_why(method, tmp_path):
    with pytest.raises(
        UserError, match=f"{method} cannot train across machines, because {ONE_PLACE[method]}"
    ):
        federated(config_of(tmp_path, method))


@pytest.mark.parametrize(
    "settings",
    [
        {"model.name": "resnet8", "model.norm": "batch", "model.statistics": "local"},
        {"model.name": "resnet8", "model.norm": "batch", "model.statistics": "average"},
        {"budget.optimizer_state": "kept"},
        {"budget.optimizer": "adamw"},
        {"budget.schedule": "cosine:final=0.001", "budget.steps": 3},
        {"model.freeze": "body"},
        {"model.lora": 2, "method": "moon"},
        {"data.augment": "crop:1"},
        {"validation": 0.2, "stop": "patience=1"},
    ],
    ids=str,
)
def test_conditions_hold_at_every_node(settings, tmp_path):
    config = config_of(tmp_path, settings=settings)
    if "budget.steps" in config:
        del config["budget.epochs"]
    run, _ = federated(config)
    assert_same(run, simulated(config))
