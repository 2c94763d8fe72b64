"""Checks the options of a local federation, and completes its nodes' settings and ports."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import tomllib
import urllib.request
from collections.abc import Sequence
from typing import Any

from unskew.errors import UserError

REACHED = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The address by which this machine reaches a server that listens at all addresses."""
SETTING = re.compile(r"""([^\s=]+)=('[^']*'|"[^"]*"|\S+)""")
"""One of a node's settings, in the notation of Flower."""


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach a host."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def refuse_exposure(host: str, names: Sequence[str], insecure: bool) -> None:
    """Refuse a server that other machines can reach without TLS, or one that listens at all addresses and
    has no name that other machines can use."""
    if insecure and not is_loopback(host):
        raise UserError(
            f"--insecure has no TLS and no keys, and --host {host} is open to other machines: leave one out."
        )
    if host in REACHED and not names:
        raise UserError(
            f"--host {host} is for other machines: give with --name the name or address they reach it by."
        )


def refuse_proxy() -> None:
    """Refuse a proxy for this machine's own address: Flower would send everything through it."""
    if urllib.request.getproxies().keys() & {"http", "https", "all"} and not urllib.request.proxy_bypass(
        "127.0.0.1"
    ):
        raise UserError(
            "Flower would reach this machine through your proxy: set NO_PROXY=localhost,127.0.0.1, here and "
            "for flwr run."
        )


def node_settings(text: str, number: int, nodes: int) -> str:
    """Return a node's settings with its partition-id and num-partitions, unless they set these already."""
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


def free_ports(host: str, port: int | None, nodes: int) -> list[int]:
    """Return a port for the SuperLink (`port`, if one is given) and one for each node. They are free now, but
    another process could still take them."""
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
