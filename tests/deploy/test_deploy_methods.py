"""Through a real SuperLink and real SuperNodes every kind of method gives the bits of a simulation."""

import pytest

pytest.importorskip("flwr", reason="Flower has an environment of its own: make test-deploy")

from deployment import SETTINGS, Deployment
from simulations import assert_same, simulated

METHODS = {
    "fedavg": 1,
    "fedvls": 1,
    "fedlmd": 1,
    "scaffold": 1,
    "fedexp": 1,
    "pkd:warmup=1,expert_rounds=1,groups=3/8": 2,
}
"""With the rounds that it takes to see all of each."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with Deployment(tmp_path_factory.mktemp("methods")) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def app(federation):
    return federation.app("sites")


@pytest.mark.parametrize("method", METHODS)
def test_the_bits_of_a_simulation(federation, app, method):
    settings = {"method": method, "budget.rounds": METHODS[method]}
    name = method.partition(":")[0]
    run, _ = federation.run(app, name, settings)
    assert run.label.partition(":")[0] == name
    assert_same(run, simulated(SETTINGS | settings))
    assert [line.faults for line in run.rounds] == [None] * METHODS[method]
