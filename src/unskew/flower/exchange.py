"""Sends orders to nodes through the SuperLink, and waits for their answers."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from unskew.errors import UserError
from unskew.flower.messages import PROBLEM, Order
from unskew.record import FaultKind

TYPES = {"fit": MessageType.TRAIN, "evaluate": MessageType.EVALUATE}
"""The types of messages, by their action; all others are queries."""
LOST = (3, 4, 5, 8)
"""Flower's error codes for a message, an answer, a node or a process that is gone."""
MOST_PAUSE = 1.0
"""The longest pause in seconds between two checks for new answers or new nodes."""


@dataclass(frozen=True)
class Trouble:
    """Why a node has not answered as it should."""

    kind: FaultKind
    reason: str


def node_ids(grid: Grid) -> set[int]:
    """Return the numbers of the nodes that are connected to the SuperLink."""
    with _refusal_explained():
        return set(grid.get_node_ids())


def exchange(grid: Grid, orders: Mapping[int, Order], timeout: float) -> dict[int, RecordDict | Trouble]:
    """Send orders, given by node, and return the answers by node. A node that does not answer within
    `timeout` seconds counts as lost."""
    if not orders:
        return {}
    messages = [
        Message(
            order.content(), node, TYPES.get(order.action, MessageType.QUERY), group_id=str(order.round + 1)
        )
        for node, order in orders.items()
    ]
    answers: dict[int, RecordDict | Trouble] = {}
    with _refusal_explained():
        pushed = zip(orders, grid.push_messages(messages), strict=False)
    waiting: dict[str, int] = {name: node for node, name in pushed if name}
    end, pause = time.monotonic() + timeout, 0.05
    while waiting and time.monotonic() < end:
        with _refusal_explained():
            arrived = list(grid.pull_messages(list(waiting)))
        for reply in arrived:
            name = reply.metadata.reply_to_message_id
            if name in waiting:
                answers[waiting.pop(name)] = _content(reply)
        pause = 0.05 if arrived else min(1.5 * pause, MOST_PAUSE)
        if waiting:
            time.sleep(pause)
    for node in orders.keys() - answers.keys():
        sent = node in waiting.values()
        reason = f"it did not answer within {round(timeout, 1):g} s" if sent else "it could not be reached"
        answers[node] = Trouble("lost", reason)
    return answers


@contextmanager
def _refusal_explained() -> Iterator[None]:
    """Raise a UserError if the SuperLink refuses a request because the run was stopped."""
    httpx: Any = importlib.import_module("httpx")
    try:
        yield
    except httpx.HTTPStatusError as error:
        if error.response.status_code not in (401, 403):
            raise
        raise UserError(
            "the SuperLink does not listen to this run any more, as after flwr stop: start the app again; "
            "where federation.out names the same folder, it resumes."
        ) from None


def _content(reply: Message) -> RecordDict | Trouble:
    if reply.has_error():
        error = reply.error
        reason = " ".join((error.reason or "an error").split()).removesuffix(".")
        return Trouble("lost" if error.code in LOST else "error", reason)
    content = reply.content
    if PROBLEM in content.config_records:
        sentence = str(content.config_records[PROBLEM].get("sentence", "an error"))
        return Trouble("error", " ".join(sentence.split())[:500].removesuffix("."))
    return content
