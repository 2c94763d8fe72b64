"""Faults in a real federation: nodes and servers that are killed, clients that fail or send bad updates.

tests/flower/test_local.py has the nodes that are refused: one without a key, one that trusts another CA.
"""

import os
import signal

import pytest

pytest.importorskip("flwr", reason="Flower has an environment of its own: make test-deploy")

from deployment import SETTINGS, Deployment, kill, until
from simulations import assert_same, assert_same_weights, simulated, simulated_without
from unskew.report.read import read_run

THREE = {"budget.rounds": 3}


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with Deployment(tmp_path_factory.mktemp("faults")) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def written(federation):
    return federation.instructed_app("sites")


@pytest.fixture
def app(federation, written):
    """Return an app whose clients have no instructions yet."""
    federation.clear_instructions()
    return written


@pytest.fixture(scope="module")
def undisturbed():
    return simulated(SETTINGS | THREE)


def faults(run):
    return [[(each.client, each.kind, each.reason) for each in line.faults or ()] for line in run.rounds]


def assert_left_out(run, client, rounds):
    """Assert that a run equals one without this client in these rounds, to the last bit, and says so."""
    weights, expected = simulated_without(SETTINGS | {"budget.rounds": len(run.rounds)}, client, rounds)
    assert_same_weights(run, weights)
    for line, round in zip(run.rounds, expected, strict=True):
        assert (line.trained, line.train_loss) == (round.trained, round.train_loss)
    (note,) = (each for each in run.summary.notes if "rounds continued without" in each)
    for round in rounds[:3]:  # others are in rounds.jsonl alone
        assert f"client {client} in round {round}, " in note


def test_clients_that_fail_or_send_what_cannot_be_used_are_left_out_and_named(federation, app):
    for round, what in enumerate(["raise", "nan", "shapes", "hold"], 1):
        federation.instruct(what, 1, round)
    started = federation.begin(app, "faulty-client", {"budget.rounds": 5})
    federation.held(1, 4)
    federation.kill_client(1)
    federation.release(1, 4)
    said = started.end()
    run = read_run(started.folder)
    assert [line.trained for line in run.rounds] == [[0], [0], [0], [0], [0, 1]], said
    assert faults(run) == [
        [(1, "error", "<class 'RuntimeError'>:<'the disk of this site is gone'>")],
        [(1, "not finite", "'body.fc1.weight' of its model holds NaN or infinite values")],
        [(1, "form", "'body.fc1.weight' of its model has shape [64, 64, 1] and should have [64, 64]")],
        [(1, "lost", "ClientApp stopped responding")],
        [],
    ]
    assert "unskew: client 1 is left out of round 1, stage 'train'" in said
    assert_left_out(run, 1, [1, 2, 3, 4])


def test_a_node_that_is_killed_is_left_out_and_comes_back_with_what_its_client_kept(federation, app):
    federation.instruct("hold", 1, 2)
    federation.instruct("hold", 0, 3)
    started = federation.begin(app, "killed-node", {"budget.rounds": 4})
    federation.held(1, 2)
    killed = federation.kill_node(1)
    federation.release(1, 2)
    federation.held(0, 3)  # round 2 has ended without it, and round 3 has begun
    federation.start_node(*killed)
    federation.release(0, 3)
    said = started.end()
    run = read_run(started.folder)
    assert [line.trained for line in run.rounds] == [[0, 1], [0], [0], [0, 1]], said
    first, ((client, kind, why),), third, last = faults(run)
    assert (first, third, last) == ([], [(1, "lost", "its node is not there")], [])
    assert (client, kind) == (1, "lost")
    assert "Node Unavailable" in why
    assert_left_out(run, 1, [2, 3])


def resumed(federation, app, out):
    """Resume the run that was stopped in this folder, check that it kept its rounds, and return it."""
    before = (federation.folder / out / "rounds.jsonl").read_text()
    assert before.count("\n") in (1, 2)
    run, said = federation.run(app, out, THREE)
    assert (run.path / "rounds.jsonl").read_text().startswith(before)
    assert "cannot be used" not in said
    assert run.failure is None
    assert federation.runs()[0]["status"] == "finished:completed", said
    return run


def test_a_server_that_is_killed_goes_on(federation, app, undisturbed):
    federation.instruct("hold", 0, 2)
    started = federation.begin(app, "killed-server", THREE)
    federation.held(0, 2)
    kill(federation.named("flwr-serverapp"))
    started.end()
    federation.release(0, 2)
    found = federation.runs()[0]
    assert (found["status"], found["status-details"]) == (
        "finished:failed",
        "No heartbeat received from the task",
    )
    assert_same(resumed(federation, app, "killed-server"), undisturbed)


def test_a_server_that_is_asked_to_end_ends_its_round_and_goes_on(federation, app, undisturbed):
    federation.instruct("hold", 0, 2)
    started = federation.begin(app, "ended-server", THREE)
    federation.held(0, 2)
    (server,) = federation.named("flwr-serverapp")
    os.kill(server, signal.SIGTERM)
    federation.release(0, 2)
    said = started.end()
    found = federation.runs()[0]
    sentence = (
        f"stopped after round 2 of 3; resume with the same flwr run and federation.out={started.folder}"
    )
    assert f"unskew: {sentence}" in said
    assert found["status"] == "finished:failed"
    assert sentence in found["status-details"]
    assert_same(resumed(federation, app, "ended-server"), undisturbed)


def test_a_run_that_is_stopped_by_flower_goes_on(federation, app, undisturbed):
    federation.instruct("hold", 0, 2)
    started = federation.begin(app, "stopped-run", THREE)
    federation.held(0, 2)
    federation.flwr("stop", federation.runs()[0]["run-id"], "unskew")
    started.end()
    federation.release(0, 2)
    until((started.folder / "error.json").exists, "the server has noticed that its run was stopped")
    assert federation.runs()[0]["status"] == "finished:stopped"
    assert "as after flwr stop: start the app again" in read_run(started.folder).failure.error
    assert_same(resumed(federation, app, "stopped-run"), undisturbed)


def test_a_superlink_that_is_killed_and_started_again_goes_on(federation, app):
    """A client that was left out of an earlier round stays left out of it."""
    federation.instruct("raise", 1, 1)
    federation.instruct("hold", 0, 2)
    started = federation.begin(app, "killed-superlink", THREE)
    federation.held(0, 2)
    kill([federation.state.processes[0].pid])
    federation.down()
    federation.clear_instructions()
    assert "Connection to the SuperLink is unavailable" in started.end()
    federation.up()
    run = resumed(federation, app, "killed-superlink")
    assert [line.trained for line in run.rounds] == [[0], [0, 1], [0, 1]]
    assert_left_out(run, 1, [1])
