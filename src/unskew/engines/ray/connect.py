"""How this process joins a Ray cluster."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from typing import Any

from unskew.errors import UserError

HOW_TO_START = (
    "start one with `ray start --head` here and `ray start --address=HOST:6379` on the other machines"
)


def connect() -> Any:
    """Return Ray, connected to the cluster that RAY_ADDRESS names, or else to the one that this machine is
    part of. An existing connection of this process is used as it is."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        from ray._private.services import canonicalize_bootstrap_address
    except ImportError:
        raise UserError("engine 'ray' needs Ray: install it with pip install 'unskew[ray]'.") from None
    if ray.is_initialized():
        return ray
    wanted = os.environ.get("RAY_ADDRESS", "")
    if "://" in wanted:
        raise UserError(f"RAY_ADDRESS is '{wanted}' but should be HOST:PORT of a cluster's first machine.")
    try:
        address = canonicalize_bootstrap_address("auto")
    except (ConnectionError, ValueError):
        address = None
    # Checked first, because Ray tries for many minutes before it says that nothing answers.
    if address is None or not reachable(address):
        where = f"at RAY_ADDRESS {wanted}" if wanted else "on this machine"
        raise UserError(f"engine 'ray' finds no Ray cluster {where}: {HOW_TO_START}.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # tips on coming releases of Ray
        try:
            # With "auto" Ray finds this machine's cluster and its token.
            ray.init(address=wanted or "auto", log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError as error:
            if "AuthToken" not in f"{error}{error.__cause__}":
                raise
            raise UserError(
                f"the Ray cluster at {address} asks for a token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN "
                "to what `ray get-auth-token` prints there."
            ) from error
    return ray


def reachable(address: str) -> bool:
    """Say whether anything listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError:
        return False
    return True
