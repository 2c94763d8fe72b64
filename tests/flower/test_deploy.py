"""A run through a real SuperLink and real SuperNodes. tests/deploy has more of them."""

import pytest

pytest.importorskip("flwr", reason="Flower has an environment of its own: make test-flower")

from deployment import SETTINGS, Deployment, until
from simulations import assert_same, simulated
from unskew.report.read import read_run


def test_a_run_through_real_processes_gives_the_bits_of_a_simulation(tmp_path, unskew):
    with Deployment(tmp_path) as federation:
        app = federation.app("sites")
        started = federation.begin(app, "run")
        seen = {
            name: until(lambda name=name: federation.environments(name), f"{name} runs")
            for name in ("flwr-serverapp", "flwr-clientapp")
        }
        said = started.end()
        (told,) = federation.runs()
    assert told["status"] == "finished:completed", said
    assert "unskew: round 2 of 2: 2 of 2 clients" in said
    assert f"unskew: the run folder is {tmp_path / 'run'}" in said
    for environment in (each for found in seen.values() for each in found):
        assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
        assert environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
        assert environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert not list(tmp_path.rglob("runtime-envs"))
    assert not list(federation.place.rglob("*.tensors"))  # the run has ended: nodes have forgotten it

    run = read_run(tmp_path / "run")
    assert_same(run, simulated(SETTINGS))
    assert [line.faults for line in run.rounds] == [None, None]
    answer = unskew("table", "run")
    assert answer.code == 0, answer.err
    assert "scaffold" in answer.out
