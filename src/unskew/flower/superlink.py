"""Asks a SuperLink which nodes are online, and registers their keys."""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from unskew.errors import UserError
from unskew.flower import security
from unskew.flower.local_state import LocalFederation


@contextlib.contextmanager
def connect(federation: LocalFederation) -> Iterator[Any]:
    """Yield a connection to the SuperLink for commands of its operator. A refused command raises a
    UserError."""
    from flwr.supercore.control import ControlHttpClient

    httpx: Any = importlib.import_module("httpx")
    client = ControlHttpClient.from_server_address(*_access(federation), _interceptors())
    with contextlib.closing(client):
        try:
            yield client
        except httpx.HTTPStatusError as error:
            said = " ".join(error.response.text.split())[:300]
            log = Path(federation.folder, "logs", "superlink.log")
            raise UserError(f"the SuperLink refuses what is asked of it ({said}): see {log}.") from None


def _access(federation: LocalFederation) -> tuple[str, bool, bytes | None]:
    """Return the SuperLink's address, whether it runs without TLS, and the certificate of its CA."""
    ca = Path(federation.folder, "tls", security.CA).read_bytes() if federation.secure else None
    return federation.address, not federation.secure, ca


def _interceptors() -> list[Any]:
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    return [RuntimeVersionHttpInterceptor(component_name="unskew")]


def list_nodes(control: Any) -> dict[int, Any] | None:
    """Return what the SuperLink knows of each node, by the node's number there, or None if it does not
    answer."""
    from flwr.proto.control_pb2 import ListNodesRequest

    httpx: Any = importlib.import_module("httpx")
    try:
        return {node.node_id: node for node in control.ListNodes(ListNodesRequest()).nodes_info}
    except httpx.TransportError:
        return None


def offline_nodes(federation: LocalFederation, listed: dict[int, Any] | None) -> list[str]:
    """Return the names of the nodes that are not online in `listed`, the answer of `list_nodes`. The number
    of a node at the SuperLink is read from the node's log."""
    online = {number for number, node in (listed or {}).items() if node.status == "online"}
    numbers = {
        each.name: re.findall(r"SuperNode ID: (\d+)", Path(each.log).read_text(encoding="utf-8"))
        for each in federation.nodes
    }
    return [name for name, found in numbers.items() if not found or int(found[-1]) not in online]


def register_keys(federation: LocalFederation, control: Any, keys: Sequence[Path]) -> None:
    """Register the nodes' keys. The SuperLink shows a node that was killed as online for another minute, and
    refuses a second node with its key until then, so such a node is logged off."""
    from flwr.proto.control_pb2 import RegisterNodeRequest
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    known = {node.public_key: node for node in (list_nodes(control) or {}).values()}
    for path in keys:
        private = security.read_node_key(path)
        public = private.public_key()
        node = known.get(public_key_to_bytes(public))
        if node is None:
            control.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(public), name=path.name))
        elif node.status == "online":
            signing = [*_interceptors(), NodeAuthHttpInterceptor(private, public)]
            fleet = FleetHttpClient.from_server_address(*_access(federation), signing)
            with contextlib.closing(fleet):
                fleet.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))
