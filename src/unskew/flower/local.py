"""Starts and ends a federation of Flower's own processes on this machine: a SuperLink and SuperNodes.

All its files lie in one folder: certificate, keys, database, logs, and `state.json`, which records the
processes. TLS and registered node keys are the default; telemetry, update checks and run-time installations
are off.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
import shlex
import shutil
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tomli_w

from unskew.errors import UserError
from unskew.files import write_file
from unskew.flower import processes, security
from unskew.flower.local_options import REACHED, free_ports, node_settings, refuse_exposure, refuse_proxy
from unskew.flower.local_state import LocalFederation, Process, read_state, running_processes, write_state
from unskew.flower.superlink import connect, list_nodes, offline_nodes, register_keys
from unskew.lock import locked

CONNECTION = "unskew"
"""The SuperLink's name in Flower's configuration: `flwr run APP unskew`."""
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
NO_INSTALLS = {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "RAY_USAGE_STATS_ENABLED": "0"}
START, START_NODE = 60.0, 10.0
"""Seconds that all processes together may take until they are online: a base, and more for each node."""


@dataclass(frozen=True)
class ProcessStatus:
    """Whether a process runs, and whether it is online: the SuperLink if it answers, a node if the SuperLink
    says so."""

    process: Process
    running: bool
    online: bool


def up(
    folder: Path,
    nodes: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    names: Sequence[str] = (),
    insecure: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> LocalFederation:
    """Start a SuperLink, and a SuperNode for each of `nodes`, which are settings such as `data="csv:a.csv"`.
    Return when all are online. If that fails, end all that were started. `names` are the names by which other
    machines reach the SuperLink."""
    processes.need_proc()
    _command("flower-superlink")
    refuse_exposure(host, names, insecure)
    refuse_proxy()
    if not nodes:
        raise UserError("a federation needs a node: give --nodes 1 or more.")
    configs = [node_settings(text, number, len(nodes)) for number, text in enumerate(nodes)]
    security.private_folder(folder)
    folder = folder.resolve()
    reached = REACHED.get(host, host)
    with _alone(folder):
        _clear(folder)
        write_file(folder / ".gitignore", "*\n")
        if not insecure:
            _make_keys(folder, [reached, *names], len(nodes))
        port, *ports = free_ports(host, port, len(nodes))
        address = f"[{reached}]:{port}" if ":" in reached else f"{reached}:{port}"
        federation = LocalFederation(str(folder), address, not insecure, secrets.token_hex(16))
        _write_config(federation)
        write_state(federation)
        try:
            return _start_all(federation, host, port, list(zip(configs, ports, strict=True)), tell)
        except BaseException:
            processes.end(federation.mark)
            (folder / "state.json").unlink()
            raise


def down(folder: Path) -> tuple[list[Process], int]:
    """End the processes that `up` has started in a folder, and all their descendants. Return the processes of
    `up` that were running, and the number of the others. Nodes are ended first, since they log off from the
    SuperLink."""
    processes.need_proc()
    folder = folder.resolve()
    if not (folder / "state.json").exists():
        return [], 0
    with _alone(folder):
        federation = read_state(folder)
        if federation is None:
            return [], 0
        ran = running_processes(federation)
        ended = processes.end(federation.mark, [each.pid for each in ran if each in federation.nodes])
        (folder / "state.json").unlink()
        return ran, len(ended) - len(ran)


def status(folder: Path) -> list[ProcessStatus]:
    """Return the status of each process that `up` has started in a folder; an empty list if it is not up."""
    processes.need_proc()
    federation = read_state(folder.resolve())
    if federation is None:
        return []
    running = running_processes(federation)
    listed = None
    if running:
        _command("flower-superlink")
        with connect(federation) as control:
            listed = list_nodes(control)
    offline = (
        offline_nodes(federation, listed)
        if listed is not None
        else [each.name for each in federation.processes]
    )
    return [
        ProcessStatus(each, each in running, each in running and each.name not in offline)
        for each in federation.processes
    ]


def run_command(folder: Path) -> str:
    """Return the command that runs an app on the federation in a folder."""
    variables = {"FLWR_HOME": str(folder.resolve() / "flwr"), **QUIET}
    words = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    flwr = _command("flwr")
    return " ".join(
        [*words, "flwr" if shutil.which("flwr") == flwr else flwr, "run APP", CONNECTION, "--stream"]
    )


def _command(name: str) -> str:
    """Return the path of one of Flower's commands, from this environment if it has it."""
    found = shutil.which(name, path=_path())
    if not found or not importlib.util.find_spec("flwr"):
        raise UserError(f"{name} is not here: install Flower with pip install 'unskew[flower]'.")
    return found


def _path() -> str:
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])


def _make_keys(folder: Path, hosts: Sequence[str], nodes: int) -> None:
    """Make the certificate and the nodes' keys that do not exist yet."""
    tls, keys = folder / "tls", folder / "keys"
    if not (tls / security.SERVER).exists():
        security.make_certificate(tls, hosts)
    security.check_certificate(tls, hosts)
    for name in (f"node-{number}" for number in range(nodes)):
        if not (keys / name).exists():
            security.make_node_key(keys, name)


def _write_config(federation: LocalFederation) -> None:
    """Write the configuration by which Flower's own command `flwr` finds the SuperLink."""
    home = Path(federation.folder, "flwr")
    security.private_folder(home)
    ca = str(Path(federation.folder, "tls", security.CA))
    access = {"root-certificates": ca} if federation.secure else {"insecure": True}
    connections = {"default": CONNECTION, CONNECTION: {"address": federation.address, **access}}
    write_file(home / "config.toml", tomli_w.dumps({"superlink": connections}))


def _start_all(
    federation: LocalFederation,
    host: str,
    port: int,
    nodes: list[tuple[str, int]],
    tell: Callable[[str], None],
) -> LocalFederation:
    """Start the SuperLink at a host and port, then a node for each pair of settings and port, and wait until
    all are online. Return the federation with its processes."""
    until = time.monotonic() + START + START_NODE * len(nodes)
    folder = Path(federation.folder)
    tls, keys, home = folder / "tls", folder / "keys", folder / "flwr"
    tls_options = ["--insecure"]
    if federation.secure:
        tls_options = ["--ssl-ca-certfile", str(tls / security.CA)]
        tls_options += ["--ssl-certfile", str(tls / security.SERVER)]
        tls_options += ["--ssl-keyfile", str(tls / security.SERVER_KEY)]
    tell(f"starting the SuperLink at {federation.address}")
    link_options = ["--host", host, "--port", str(port), *tls_options]
    link_options += ["--database", str(home / "superlink.db"), "--disable-runtime-dependency-installation"]
    link_options += ["--enable-supernode-auth"] * federation.secure
    federation = _start(federation, "superlink", "flower-superlink", link_options, port, home)
    with connect(federation) as control:
        _wait(federation, lambda: [] if list_nodes(control) is not None else ["superlink"], until)
        if federation.secure:
            register_keys(federation, control, [keys / f"node-{number}" for number in range(len(nodes))])
        tell(f"starting {len(nodes)} SuperNode{'s' * (len(nodes) > 1)}")
        for number, (config, node_port) in enumerate(nodes):
            name = f"node-{number}"
            node_options = ["--superlink", federation.address, "--port", str(node_port), *tls_options]
            node_options += ["--node-config", config]
            if federation.secure:
                node_options += ["--root-certificates", str(tls / security.CA)]
                node_options += ["--auth-supernode-private-key", str(keys / name)]
            # Each node has its own home: in a shared one, a node could read an app that another is unpacking.
            federation = _start(federation, name, "flower-supernode", node_options, node_port, folder / name)
        _wait(federation, lambda: offline_nodes(federation, list_nodes(control)), until)
    return federation


def _start(
    federation: LocalFederation, name: str, command: str, options: list[str], port: int, home: Path
) -> LocalFederation:
    """Start a process and return the federation with it."""
    log = Path(federation.folder, "logs", f"{name}.log")
    security.private_folder(log.parent)
    security.private_folder(home)
    line = [_command(command), *options]
    more = {"FLWR_HOME": str(home), "PATH": _path(), processes.MARK: federation.mark}
    pid, started = processes.start(line, {**os.environ, **QUIET, **NO_INSTALLS, **more}, log)
    process = Process(name, pid, started, port, str(log), line)
    federation = replace(federation, processes=(*federation.processes, process))
    write_state(federation)
    return federation


def _wait(federation: LocalFederation, missing: Callable[[], Sequence[str]], until: float) -> None:
    """Wait until `missing` returns no names of processes any more. Raise a UserError if a process has ended,
    or at the time `until`."""
    while left := missing():
        running = running_processes(federation)
        ended = [each for each in federation.processes if each not in running]
        late = time.monotonic() > until
        if ended or late:
            found = ended[0] if ended else next(each for each in federation.processes if each.name in left)
            what = "has ended" if ended else "did not come online in time"
            said = _last_words(Path(found.log))
            raise UserError(f"{found.name} {what} ({said}): see {found.log}; all that was started is ended.")
        time.sleep(0.3)


def _last_words(log: Path) -> str:
    """Return the last line of a log that looks like an error, or else its last line."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(encoding="utf-8", errors="replace"))
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()] or ["its log is empty"]
    errors = [
        line for line in lines if re.search(r"ERROR|CRITICAL|(Error|Exception)\b.*:|F(ailed|AILED)", line)
    ]
    return (errors or lines)[-1].rstrip(".")[:300]


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, so that no other `up` or `down` works in it."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder))
        except UserError:
            raise UserError(
                f"another `unskew flower` is at work in {folder}: wait until it is done."
            ) from None
        yield


def _clear(folder: Path) -> None:
    """Refuse a folder whose federation is running, and end processes that a crash has left behind."""
    federation = read_state(folder)
    if federation is None:
        return
    if running := running_processes(federation):
        raise UserError(
            f"{folder} is up already ({', '.join(each.name for each in running)}): see "
            "`unskew flower status`, or end it with `unskew flower down`."
        )
    processes.end(federation.mark)
