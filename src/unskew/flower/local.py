"""A federation of Flower's own processes on this machine: a SuperLink and some SuperNodes.

All of it lies in one folder: certificate, keys, database, logs, and `state.json`, which names the processes.
TLS and registered node keys are the default; telemetry, update checks and run-time installations are off.
"""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import sysconfig
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from unskew.errors import UserError
from unskew.files import write_file
from unskew.flower import processes, security
from unskew.lock import locked
from unskew.record import to_json

CONNECTION = "unskew"
"""The SuperLink's name in Flower's configuration: `flwr run APP unskew`."""
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
NO_INSTALLS = {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "RAY_USAGE_STATS_ENABLED": "0"}
START, START_NODE = 60.0, 10.0
"""Seconds that all may take until they are online, and more for each node."""
REACHED = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where this machine itself reaches a server that listens everywhere."""
SETTING = re.compile(r"""([^\s=]+)=('[^']*'|"[^"]*"|\S+)""")
"""One of a node's settings, as Flower reads them."""


@dataclass(frozen=True)
class Process:
    """One that was started. Numbers are used again: when it began tells it from others."""

    name: str
    pid: int
    started: int
    port: int
    log: str
    command: list[str]


@dataclass(frozen=True)
class LocalFederation:
    """What runs in a folder, as `state.json` has it."""

    folder: str
    address: str
    secure: bool
    mark: str
    processes: tuple[Process, ...] = ()

    @property
    def nodes(self) -> tuple[Process, ...]:
        return self.processes[1:]


@dataclass(frozen=True)
class ProcessStatus:
    """How a process is doing: `online` is that the SuperLink answers, or that it says so of a node."""

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
    """Start a SuperLink, and a SuperNode for each of `nodes`, which are settings such as `data="csv:a.csv"`;
    return when all are online. If that fails, nothing of it is left running."""
    processes.need_proc()
    _command("flower-superlink")
    _refuse_exposure(host, names, insecure)
    _refuse_proxy()
    if not nodes:
        raise UserError("a federation needs a node: give --nodes 1 or more.")
    configs = [_node_config(text, number, len(nodes)) for number, text in enumerate(nodes)]
    security.private_folder(folder)
    folder = folder.resolve()
    reached = REACHED.get(host, host)
    with _alone(folder):
        _clear(folder)
        write_file(folder / ".gitignore", "*\n")
        if not insecure:
            _make_keys(folder, [reached, *names], len(nodes))
        port, *ports = _ports(host, port, len(nodes))
        address = f"[{reached}]:{port}" if ":" in reached else f"{reached}:{port}"
        federation = LocalFederation(str(folder), address, not insecure, secrets.token_hex(16))
        _write_config(federation)
        _write(federation)
        try:
            return _start_all(federation, host, port, list(zip(configs, ports, strict=True)), tell)
        except BaseException:
            processes.end(federation.mark)
            (folder / "state.json").unlink()
            raise


def down(folder: Path) -> tuple[list[Process], int]:
    """End what `up` has started in a folder, and all that this has started: returns the processes of `up`
    that ran, and the number of others. Nodes go first: they tell the SuperLink that they leave."""
    processes.need_proc()
    folder = folder.resolve()
    if not (folder / "state.json").exists():
        return [], 0
    with _alone(folder):
        federation = _read(folder)
        if federation is None:
            return [], 0
        before = processes.running(federation.mark)
        ran = [each for each in federation.processes if before.get(each.pid) == each.started]
        ended = processes.end(federation.mark, [each.pid for each in ran if each in federation.nodes])
        (folder / "state.json").unlink()
        return ran, len(ended) - len(ran)


def status(folder: Path) -> list[ProcessStatus]:
    """How the processes are doing that `up` has started in a folder; none where it is not up."""
    processes.need_proc()
    federation = _read(folder.resolve())
    if federation is None:
        return []
    there = processes.running(federation.mark)
    running = {each.name: there.get(each.pid) == each.started for each in federation.processes}
    listed = None
    if any(running.values()):
        _command("flower-superlink")
        with _control(federation) as control:
            listed = _listed(control)
    offline = (
        _offline(federation, listed) if listed is not None else [each.name for each in federation.processes]
    )
    return [
        ProcessStatus(each, running[each.name], running[each.name] and each.name not in offline)
        for each in federation.processes
    ]


def run_command(folder: Path) -> str:
    """The line that runs an app on the federation in a folder."""
    variables = {"FLWR_HOME": str(folder.resolve() / "flwr"), **QUIET}
    words = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    flwr = _command("flwr")
    return " ".join(
        [*words, "flwr" if shutil.which("flwr") == flwr else flwr, "run APP", CONNECTION, "--stream"]
    )


def is_loopback(host: str) -> bool:
    """Whether a host can be reached from this machine alone."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _refuse_exposure(host: str, names: Sequence[str], insecure: bool) -> None:
    if insecure and not is_loopback(host):
        raise UserError(
            f"--insecure has no TLS and no keys, and --host {host} is open to other machines: leave one out."
        )
    if host in REACHED and not names:
        raise UserError(
            f"--host {host} is for other machines: give with --name the name or address they reach it by."
        )


def _refuse_proxy() -> None:
    """Flower sends everything through the proxy that is set, even what goes to this machine."""
    if urllib.request.getproxies().keys() & {"http", "https", "all"} and not urllib.request.proxy_bypass(
        "127.0.0.1"
    ):
        raise UserError(
            "Flower would reach this machine through your proxy: set NO_PROXY=localhost,127.0.0.1, here and "
            "for flwr run."
        )


def _node_config(text: str, number: int, nodes: int) -> str:
    """A node's settings: its own, and which of how many it is unless that is among them."""
    own: dict[str, Any] = {}
    with contextlib.suppress(tomllib.TOMLDecodeError):
        own = tomllib.loads("\n".join(f"{key} = {value}" for key, value in SETTING.findall(text)))
    if text.strip() and (not own or SETTING.sub("", text).strip()):
        raise UserError(
            f"--node '{text}' is not a node's settings: write name=value, with quotes around text, such as "
            'data="csv:a.csv" batch=8.'
        )
    more = {"partition-id": number, "num-partitions": nodes}
    return " ".join(
        [text.strip(), *(f"{key}={value}" for key, value in more.items() if key not in own)]
    ).strip()


def _ports(host: str, port: int | None, nodes: int) -> list[int]:
    """The port of the SuperLink, and one for each node: free ones, as long as nobody else takes them."""
    with contextlib.ExitStack() as held:
        found = []
        for where, wanted in [(host, port or 0), *[("127.0.0.1", 0)] * nodes]:
            family = socket.AF_INET6 if ":" in where else socket.AF_INET
            bound = held.enter_context(socket.socket(family))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                bound.bind((where, wanted))
            except (OSError, OverflowError) as error:
                at = f"{where}, port {wanted}" if wanted else where
                raise UserError(
                    f"cannot listen at {at} ({error}): choose another --host or --port."
                ) from None
            found.append(int(bound.getsockname()[1]))
    return found


def _command(name: str) -> str:
    """Where a command of Flower's is: that of this environment, if it has one."""
    found = shutil.which(name, path=_path())
    if not found or not importlib.util.find_spec("flwr"):
        raise UserError(f"{name} is not here: install Flower with pip install 'unskew[flower]'.")
    return found


def _path() -> str:
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])


def _make_keys(folder: Path, hosts: Sequence[str], nodes: int) -> None:
    """Make the certificate and the nodes' keys, as far as they are not there."""
    tls, keys = folder / "tls", folder / "keys"
    if not (tls / security.SERVER).exists():
        security.make_certificate(tls, hosts)
    security.check_certificate(tls, hosts)
    for name in (f"node-{number}" for number in range(nodes)):
        if not (keys / name).exists():
            security.make_node_key(keys, name)


def _write_config(federation: LocalFederation) -> None:
    """Tell Flower's own command where the SuperLink is."""
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
    """Start the SuperLink, then a node for each of these settings and ports, and wait for them."""
    until = time.monotonic() + START + START_NODE * len(nodes)
    folder = Path(federation.folder)
    tls, keys, home = folder / "tls", folder / "keys", folder / "flwr"
    own = ["--insecure"]
    if federation.secure:
        own = ["--ssl-ca-certfile", str(tls / security.CA), "--ssl-certfile", str(tls / security.SERVER)]
        own += ["--ssl-keyfile", str(tls / security.SERVER_KEY)]
    tell(f"starting the SuperLink at {federation.address}")
    link = ["--host", host, "--port", str(port), "--database", str(home / "superlink.db"), *own]
    link += ["--disable-runtime-dependency-installation", *["--enable-supernode-auth"] * federation.secure]
    federation = _start(federation, "superlink", "flower-superlink", link, port, home)
    with _control(federation) as control:
        _wait(federation, lambda: [] if _listed(control) is not None else ["superlink"], until)
        if federation.secure:
            _register(federation, control, [keys / f"node-{number}" for number in range(len(nodes))])
        tell(f"starting {len(nodes)} SuperNode{'s' * (len(nodes) > 1)}")
        for number, (config, mine) in enumerate(nodes):
            name = f"node-{number}"
            node = ["--superlink", federation.address, "--port", str(mine), "--node-config", config, *own]
            if federation.secure:
                node += ["--root-certificates", str(tls / security.CA)]
                node += ["--auth-supernode-private-key", str(keys / name)]
            # A home each: nodes that unpack an app into the same one can meet it half-copied.
            federation = _start(federation, name, "flower-supernode", node, mine, folder / name)
        _wait(federation, lambda: _offline(federation, _listed(control)), until)
    return federation


def _start(
    federation: LocalFederation, name: str, command: str, options: list[str], port: int, home: Path
) -> LocalFederation:
    """The federation with one more process in it, which has been started."""
    log = Path(federation.folder, "logs", f"{name}.log")
    security.private_folder(log.parent)
    security.private_folder(home)
    line = [_command(command), *options]
    more = {"FLWR_HOME": str(home), "PATH": _path(), processes.MARK: federation.mark}
    pid, started = processes.start(line, {**os.environ, **QUIET, **NO_INSTALLS, **more}, log)
    process = Process(name, pid, started, port, str(log), line)
    federation = replace(federation, processes=(*federation.processes, process))
    _write(federation)
    return federation


def _wait(federation: LocalFederation, missing: Callable[[], Sequence[str]], until: float) -> None:
    """Wait for some of the processes, which are named as long as they are not ready."""
    while left := missing():
        there = processes.running(federation.mark)
        ended = [each for each in federation.processes if there.get(each.pid) != each.started]
        late = time.monotonic() > until
        if ended or late:
            found = ended[0] if ended else next(each for each in federation.processes if each.name in left)
            what = "has ended" if ended else "did not come online in time"
            said = _last_words(Path(found.log))
            raise UserError(f"{found.name} {what} ({said}): see {found.log}; all that was started is ended.")
        time.sleep(0.3)


def _last_words(log: Path) -> str:
    """The last line of a log that tells of an error, else the last one."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(encoding="utf-8", errors="replace"))
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()] or ["its log is empty"]
    errors = [
        line for line in lines if re.search(r"ERROR|CRITICAL|(Error|Exception)\b.*:|F(ailed|AILED)", line)
    ]
    return (errors or lines)[-1].rstrip(".")[:300]


@contextlib.contextmanager
def _control(federation: LocalFederation) -> Iterator[Any]:
    """A connection to the SuperLink, for those who operate it."""
    from flwr.supercore.control import ControlHttpClient

    httpx: Any = importlib.import_module("httpx")
    with contextlib.closing(
        ControlHttpClient.from_server_address(*_access(federation), _interceptors())
    ) as client:
        try:
            yield client
        except httpx.HTTPStatusError as error:
            said = " ".join(error.response.text.split())[:300]
            log = Path(federation.folder, "logs", "superlink.log")
            raise UserError(f"the SuperLink refuses what is asked of it ({said}): see {log}.") from None


def _access(federation: LocalFederation) -> tuple[str, bool, bytes | None]:
    """Where the SuperLink is, whether without TLS, and the CA to trust."""
    ca = Path(federation.folder, "tls", security.CA).read_bytes() if federation.secure else None
    return federation.address, not federation.secure, ca


def _interceptors() -> list[Any]:
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    return [RuntimeVersionHttpInterceptor(component_name="unskew")]


def _listed(control: Any) -> dict[int, Any] | None:
    """What the SuperLink says of each node, by its number there; None where it does not answer."""
    from flwr.proto.control_pb2 import ListNodesRequest

    httpx: Any = importlib.import_module("httpx")
    try:
        return {node.node_id: node for node in control.ListNodes(ListNodesRequest()).nodes_info}
    except httpx.TransportError:
        return None


def _offline(federation: LocalFederation, listed: dict[int, Any] | None) -> list[str]:
    """The nodes that are not online by what the SuperLink says. A node's log tells its number there."""
    online = {number for number, node in (listed or {}).items() if node.status == "online"}
    numbers = {
        each.name: re.findall(r"SuperNode ID: (\d+)", Path(each.log).read_text(encoding="utf-8"))
        for each in federation.nodes
    }
    return [name for name, found in numbers.items() if not found or int(found[-1]) not in online]


def _register(federation: LocalFederation, control: Any, keys: Sequence[Path]) -> None:
    """Register the nodes' keys. One whose node was killed is online for a minute more as the SuperLink sees
    it, which would refuse a second: the node is logged off."""
    from flwr.proto.control_pb2 import RegisterNodeRequest
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    known = {node.public_key: node for node in (_listed(control) or {}).values()}
    for path in keys:
        private = security.read_node_key(path)
        public = private.public_key()
        node = known.get(public_key_to_bytes(public))
        if node is None:
            control.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(public), name=path.name))
        elif node.status == "online":
            signing = [*_interceptors(), NodeAuthHttpInterceptor(private, public)]
            with contextlib.closing(
                FleetHttpClient.from_server_address(*_access(federation), signing)
            ) as fleet:
                fleet.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Be the only `up` or `down` in a folder."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder))
        except UserError:
            raise UserError(
                f"another `unskew flower` is at work in {folder}: wait until it is done."
            ) from None
        yield


def _clear(folder: Path) -> None:
    """Refuse a folder that is up; put away what a crash has left."""
    federation = _read(folder)
    if federation is None:
        return
    there = processes.running(federation.mark)
    if ran := [each for each in federation.processes if there.get(each.pid) == each.started]:
        raise UserError(
            f"{folder} is up already ({', '.join(each.name for each in ran)}): see `unskew flower status`, "
            "or end it with `unskew flower down`."
        )
    processes.end(federation.mark)


def _write(federation: LocalFederation) -> None:
    write_file(Path(federation.folder, "state.json"), to_json(asdict(federation)))


def _read(folder: Path) -> LocalFederation | None:
    path = folder / "state.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        started = tuple(Process(**each) for each in found.pop("processes"))
        return LocalFederation(**found, processes=started)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{path} is damaged: end by hand what it names, then remove it.") from None
