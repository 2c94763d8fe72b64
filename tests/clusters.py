"""Ray clusters on this machine."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NODE = "from ray.scripts.scripts import main; main()"


@contextmanager
def running(*nodes: list[str], token: str = "", **resources: float) -> Iterator[str]:
    """The address of a cluster of nodes with these options, once it has these resources. Each node is a
    process that takes its own along when it ends. With a token, the cluster asks for it, and this process has
    it."""
    import ray

    folder = tempfile.mkdtemp(prefix="ray")  # short: it holds sockets, whose paths may have 107 characters
    address = f"127.0.0.1:{free_port()}"
    head = ["--head", f"--port={address.rpartition(':')[2]}", "--include-dashboard=false"]
    head += ["--no-monitor"]  # of an autoscaler, which no test asks anything
    started = []
    # Whether or not this user has a token.
    access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {"RAY_AUTH_MODE": "disabled"}
    environment = {**os.environ, **access, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    environment["RAY_worker_niceness"] = "0"  # not 15: what runs beside it would keep its workers waiting
    with _having({"RAY_ADDRESS": address, **access}):
        try:
            for n, options in enumerate(nodes):
                place = [f"--address={address}"] if n else [*head, f"--temp-dir={folder}"]
                place += ["--node-ip-address=127.0.0.1", "--include-log-monitor=false"]
                command = [sys.executable, "-c", NODE, "start", "--block", *place, *options]
                with (Path(folder) / f"node{n}.log").open("w") as log:
                    started.append(
                        subprocess.Popen(
                            [*command, "--object-store-memory=200000000"],
                            env=environment,
                            stdout=log,
                            stderr=log,
                        )
                    )
                if n == 0:
                    until(lambda: reached(address))
            for kind, number in resources.items():
                until(lambda kind=kind, number=number: has(kind) == number)
            yield address
        finally:
            ray.shutdown()
            for node in reversed(started):
                node.terminate()
            for node in started:
                node.wait(60)
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _having(environment: dict[str, str]) -> Iterator[None]:
    """With these variables in this process, which Ray reads when it is imported and then only if told."""
    from ray._private.authentication_test_utils import reset_auth_token_state

    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        reset_auth_token_state()
        yield
    reset_auth_token_state()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(true, seconds: float = 120) -> None:
    """Wait; the limit is there only so that what is broken does not hang the tests."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def reached(address: str) -> bool:
    from unskew.engines.ray.connect import reachable

    return reachable(address)


def has(kind: str, of: str = "cluster_resources") -> float:
    """How many CPUs or GPUs there are, or are free with `of="available_resources"`."""
    import ray

    from unskew.engines.ray.connect import connect

    connect()
    return getattr(ray, of)().get(kind, 0)
