"""A federation of Flower's own processes on this machine: started, refused, ended, and a run through it.
tests/deploy has more runs."""

import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import time
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower has an environment of its own: make test-flower")

from deployment import SETTINGS, Deployment, until
from simulations import assert_same, simulated
from unskew.errors import UserError
from unskew.flower import local, local_state, processes, security
from unskew.report.read import read_run


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Start two nodes, with TLS and keys."""
    folder = tmp_path_factory.mktemp("federation") / "shared"
    state = local.up(folder, [f'memory="{folder}/of site 0" batch=8', ""])
    yield state
    local.down(folder)


def environment(pid):
    pairs = Path(f"/proc/{pid}/environ").read_text().rstrip("\0").split("\0")
    return dict(pair.split("=", 1) for pair in pairs)


def states(folder):
    return {each.process.name: (each.running, each.online) for each in local.status(Path(folder))}


def supernode(federation, tmp_path, *options):
    """Start another node of a federation, and return its log when it has given up."""
    command = Path(federation.nodes[0].command[0])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = {"FLWR_HOME": str(tmp_path / "flwr"), "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}
    with (tmp_path / "log").open(
        "w+"
    ) as log:  # no pipe: processes that the node has started would hold it open
        done = subprocess.run(
            [command, "--superlink", federation.address, "--port", str(port), "--max-retries", "0", *options],
            env={**os.environ, **local.QUIET, **own},
            stdout=log,
            stderr=log,
        )
        log.seek(0)
        assert done.returncode
        return log.read()


def test_all_nodes_are_online_with_tls(federation, unskew):
    assert states(federation.folder) == dict.fromkeys(("superlink", "node-0", "node-1"), (True, True))
    trusted = ssl.create_default_context(cafile=Path(federation.folder, "tls", "ca.crt"))
    for each in federation.processes:
        with (
            socket.create_connection(("127.0.0.1", each.port)) as plain,
            trusted.wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            assert secured.version() == "TLSv1.3"
    told = unskew("flower", "status", "--dir", federation.folder, "--json")
    assert [each["online"] for each in json.loads(told.out)["processes"]] == [True] * 3
    shown = unskew("flower", "status", "--dir", federation.folder).out.splitlines()
    assert [line.split()[:2] for line in shown[1:]] == [
        [each.name, "online"] for each in federation.processes
    ]


def test_flowers_own_command_reaches_it(federation):
    line = local.run_command(Path(federation.folder)).replace("run APP unskew --stream", "supernode list")
    done = subprocess.run(f"{line} --format json", shell=True, capture_output=True, text=True, check=True)
    assert [each["status"] for each in json.loads(done.stdout)["nodes"]] == ["online", "online"]
    config = tomllib.loads(Path(federation.folder, "flwr", "config.toml").read_text())["superlink"]["unskew"]
    assert config == {
        "address": federation.address,
        "root-certificates": str(Path(federation.folder, "tls", "ca.crt")),
    }


def test_a_process_shows_its_mark_from_the_moment_it_is_started(tmp_path):
    """A process has to be found by its mark even if `up` fails right after its start."""
    for _ in range(100):  # on a busy machine, five of 100 did not show it
        pid, _ = processes.start(["/bin/sleep", "60"], {processes.MARK: "a"}, tmp_path / "log")
        shown = environment(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert shown == {processes.MARK: "a"}


def test_no_process_reports_updates_or_installs_anything(federation):
    there = processes.running(federation.mark)
    assert len(there) == 2 * len(federation.processes)  # each has one that starts apps
    for pid in there:
        found = environment(pid)
        assert found["FLWR_TELEMETRY_ENABLED"] == "0"
        assert found["FLWR_DISABLE_UPDATE_CHECK"] == "1"
        assert found["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
        assert Path(found["FLWR_HOME"]).parent == Path(federation.folder)
        command = Path(f"/proc/{pid}/cmdline").read_text()
        assert "--allow-runtime-dependency-installation" not in command
        assert "--insecure" not in command


def test_nodes_get_their_own_settings(federation):
    first, second = (each.command[each.command.index("--node-config") + 1] for each in federation.nodes)
    memory = f"{federation.folder}/of site 0"
    assert first == f'memory="{memory}" batch=8 partition-id=0 num-partitions=2'
    assert second == "partition-id=1 num-partitions=2"


def test_an_unregistered_node_is_refused(federation, tmp_path):
    private, _ = security.make_node_key(tmp_path, "stranger")
    ca = str(Path(federation.folder, "tls", "ca.crt"))
    said = supernode(
        federation, tmp_path, "--root-certificates", ca, "--auth-supernode-private-key", str(private)
    )
    assert "Failed to activate SuperNode" in said


def test_a_node_that_trusts_another_ca_does_not_connect(federation, tmp_path):
    security.make_certificate(tmp_path)
    ca, key = str(tmp_path / "ca.crt"), str(Path(federation.folder, "keys", "node-0"))
    said = supernode(federation, tmp_path, "--root-certificates", ca, "--auth-supernode-private-key", key)
    assert "CERTIFICATE_VERIFY_FAILED" in said


def test_private_keys_are_for_their_owner_alone(federation):
    folder = Path(federation.folder)
    private = [folder / "tls" / "ca.key", folder / "tls" / "server.key", *folder.glob("keys/node-?")]
    assert [stat.S_IMODE(path.stat().st_mode) for path in private] == [0o600] * 4
    folders = [folder, *(path for path in folder.iterdir() if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}


def test_a_folder_that_is_up_is_refused(federation, unskew):
    answer = unskew("flower", "up", "--dir", federation.folder)
    assert answer.code == 2
    assert "is up already (superlink, node-0, node-1)" in answer.err
    assert all(running for running, _ in states(federation.folder).values())


def test_a_run_through_real_processes_gives_the_bits_of_a_simulation(federation, tmp_path, unskew):
    deployment = Deployment(tmp_path, federation)
    app = deployment.app("sites")
    started = deployment.begin(app, "run")
    seen = {
        name: until(lambda name=name: deployment.environments(name), f"{name} runs")
        for name in ("flwr-serverapp", "flwr-clientapp")
    }
    said = started.end()
    (told,) = deployment.runs()
    assert told["status"] == "finished:completed", said
    assert "unskew: round 2 of 2: 2 of 2 clients" in said
    assert f"unskew: the run folder is {tmp_path / 'run'}" in said
    for found in (each for several in seen.values() for each in several):
        assert found["FLWR_TELEMETRY_ENABLED"] == "0"
        assert found["FLWR_DISABLE_UPDATE_CHECK"] == "1"
        assert found["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    for place in (tmp_path, deployment.place):
        assert not list(place.rglob("runtime-envs"))
        assert not list(place.rglob("*.tensors"))  # the run has ended: nodes have forgotten it

    run = read_run(tmp_path / "run")
    assert_same(run, simulated(SETTINGS))
    assert [line.faults for line in run.rounds] == [None, None]
    answer = unskew("table", "run")
    assert answer.code == 0, answer.err
    assert "scaffold" in answer.out


HELD = """
import subprocess, time
from pathlib import Path
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@server.main()
def main(grid, context):
    started = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path("ready").write_text(str(started.pid))
    time.sleep(600)
"""
PROJECT = """
[project]
name = "held"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "unskew"
[tool.flwr.app.components]
serverapp = "held:server"
clientapp = "held:client"
"""


def test_down_ends_all_and_what_it_has_started_and_up_goes_on_with_the_same_keys(unskew, tmp_path):
    """This holds for the processes of a node that is killed by hand while an app runs, too."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "held.py").write_text(HELD)
    (tmp_path / "app" / "pyproject.toml").write_text(PROJECT)
    answer = unskew("flower", "up", "--nodes", "1", "--json")
    assert answer.code == 0, answer.err
    told = json.loads(answer.out.splitlines()[-1])
    folder = tmp_path / ".unskew-flower"
    try:
        run = told["run"].replace("APP", "app").removesuffix(" --stream")
        subprocess.run(run, shell=True, capture_output=True, text=True, check=True)
        while not (tmp_path / "ready").exists() or not (tmp_path / "ready").read_text():
            assert states(folder)["superlink"] == (True, True)
            time.sleep(0.2)
        before = processes.running(told["mark"])
        assert int((tmp_path / "ready").read_text()) in before
        node = told["processes"][1]
        key = (folder / "keys" / "node-0").read_bytes()
        os.kill(node["pid"], signal.SIGKILL)
        while node["pid"] in processes.running(told["mark"]):
            time.sleep(0.1)
        assert states(folder) == {"superlink": (True, True), "node-0": (False, False)}
    finally:
        answer = unskew("flower", "down")
    assert f"ended superlink (process {told['processes'][0]['pid']})" in answer.out
    assert not processes.running(told["mark"])
    for pid in before:  # not even in a session of their own, or orphaned
        assert not Path(f"/proc/{pid}/exe").exists()
    assert "nothing to end" in unskew("flower", "down").out
    assert "nothing runs" in unskew("flower", "status").out

    try:
        assert unskew("flower", "up", "--nodes", "1").code == 0  # the SuperLink has not missed the node yet
        assert states(folder) == {"superlink": (True, True), "node-0": (True, True)}
        assert (folder / "keys" / "node-0").read_bytes() == key
    finally:
        local.down(folder)


@pytest.fixture
def stranger():
    """Start a process that belongs to no federation."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def left_behind(folder, pid):
    """Make a folder whose state has a process of this number, as after a crash long ago."""
    folder.mkdir()
    started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    process = local_state.Process(
        "superlink", pid, started, 1, str(folder / "superlink.log"), ["flower-superlink"]
    )
    state = local_state.LocalFederation(str(folder), "127.0.0.1:1", True, "mark-of-then", (process,))
    (folder / "state.json").write_text(json.dumps(asdict(state)))


def test_a_process_that_has_the_number_of_an_old_one_is_left_alone(tmp_path, stranger, unskew):
    left_behind(tmp_path / "old", stranger.pid)
    shown = unskew("flower", "status", "--dir", "old").out.splitlines()
    assert shown[1].split()[:2] == ["superlink", "ended"]
    assert "nothing to end" in unskew("flower", "down", "--dir", "old").out
    assert stranger.poll() is None


def test_insecure_by_name_on_this_machine_and_after_a_crash(tmp_path, stranger, unskew):
    left_behind(tmp_path / "old", stranger.pid)
    try:
        answer = unskew("flower", "up", "--dir", "old", "--node", "site=3", "--insecure")
        assert answer.code == 0, answer.err
        assert "without TLS and node keys" in answer.out
        assert states(tmp_path / "old") == {"superlink": (True, True), "node-0": (True, True)}
        assert not (tmp_path / "old" / "keys").exists()
    finally:
        ended, others = local.down(tmp_path / "old")
    assert (len(ended), others) == (2, 2)
    assert stranger.poll() is None


def test_what_does_not_start_is_told_with_the_words_of_its_log_and_nothing_is_left(tmp_path, unskew):
    (tmp_path / "bad" / "flwr").mkdir(parents=True)
    (tmp_path / "bad" / "flwr" / "superlink.db").write_text("no database, but long enough to be read as one")
    answer = unskew("flower", "up", "--dir", "bad", "--nodes", "1")
    assert answer.code == 2
    assert "superlink has ended (" in answer.err
    assert "file is not a database" in answer.err
    assert not (tmp_path / "bad" / "state.json").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--insecure", "--host", "0.0.0.0"), "--host 0.0.0.0 is open to other machines: leave one out"),
        (("--insecure", "--host", "server.example.org"), "is open to other machines"),
        (("--host", "0.0.0.0"), "give with --name the name or address"),
        (("--host", "192.0.2.1"), "cannot listen at 192.0.2.1"),
        (("--nodes", "0"), "--nodes is '0' but should be a whole number from 1"),
        (("--nodes", "2", "--node", "a=1"), "--nodes and --node are both given"),
        (("--node", "data=csv:a.csv"), "is not a node's settings"),
        (("--node", "nonsense"), "is not a node's settings"),
        (("--port", "70000"), "--port is '70000' but should be"),
    ],
)
def test_what_cannot_be_started_is_refused(unskew, tmp_path, options, said):
    answer = unskew("flower", "up", *options)
    assert answer.code == 2
    assert said in answer.err
    assert not (tmp_path / ".unskew-flower" / "state.json").exists()


def test_a_proxy_that_loopback_would_go_through_is_told_of(unskew, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.org:3128")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert "set NO_PROXY=localhost,127.0.0.1" in unskew("flower", "up").err


def test_a_certificate_is_for_the_names_it_is_asked_for(tmp_path, unskew):
    answer = unskew(
        "flower", "certificate", "--out", "tls", "--name", "server.example.org", "--name", "192.0.2.7"
    )
    assert answer.code == 0, answer.err
    assert len(answer.out.splitlines()) == 4
    tls = tmp_path / "tls"
    security.check_certificate(tls, ["localhost", "127.0.0.1", "server.example.org", "192.0.2.7"])
    with pytest.raises(UserError, match=r"is not for other\.example\.org: remove"):
        security.check_certificate(tls, ["other.example.org"])
    before = {path.name: path.read_bytes() for path in tls.iterdir()}
    answer = unskew("flower", "certificate", "--out", "tls", "--name", "other.example.org")
    assert answer.code == 2
    assert "server.crt is there and is not overwritten" in answer.err
    assert {path.name: path.read_bytes() for path in tls.iterdir()} == before
    (tls / "server.crt").unlink()
    (tls / "server.key").unlink()
    security.make_certificate(tls, ["other.example.org"])  # by the CA that nodes trust already
    security.check_certificate(tls, ["other.example.org"])
    assert (tls / "ca.crt").read_bytes() == before["ca.crt"]


def test_a_node_key_is_what_ssh_makes_and_is_never_overwritten(tmp_path, unskew):
    assert unskew("flower", "key", "--out", "keys", "berlin").code == 0
    private, public = tmp_path / "keys" / "berlin", tmp_path / "keys" / "berlin.pub"
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")
    held = private.read_bytes(), public.read_bytes()
    answer = unskew("flower", "key", "--out", "keys", "berlin")
    assert answer.code == 2
    assert "berlin is there and is not overwritten" in answer.err
    assert (private.read_bytes(), public.read_bytes()) == held
    assert "is no name for a key" in unskew("flower", "key", "--out", "keys", "../berlin").err
