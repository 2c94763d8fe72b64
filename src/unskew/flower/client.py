"""A node's answers to the messages of a server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict

from unskew.data.dataset import Dataset
from unskew.data.federation import Federation
from unskew.errors import UserError
from unskew.flower.averaging_client import answer_strategy
from unskew.flower.messages import MISSING, ORDER, PROBLEM, Order
from unskew.flower.node import Node
from unskew.flower.replay import MissingResultError
from unskew.flower.settings import AnyMethod, FlowerSettings, settings_of
from unskew.flower.site import MeanAndStd, Site, scaled, site_of

LoadSite = Callable[[], Site]
log = logging.getLogger("flwr")


def train(
    message: Message,
    context: Context,
    data: Dataset | Federation,
    *,
    method: AnyMethod,
    model: Any,
    scale: MeanAndStd | None = None,
    **conditions: Any,
) -> Message:
    """Train or test the clients of a node, or answer a method's question about their data, as the message
    asks. Call it in each of `@app.train()`, `@app.evaluate()` and `@app.query()`.

    `data` are the node's own: a dataset of one client, or a federation of several. Pass the same method,
    model and conditions (such as `budget` and `seed`) as to `unskew.flower.strategy` at the server. For
    methods that change nothing but clients' training, the server may also run a strategy of Flower's own,
    such as FedAvg. Images of a dataset are scaled by `scale`, a mean and a standard deviation for each
    channel that all sites share; by default all are 0.5.
    """
    name = str(context.node_config.get("site", context.node_config.get("partition-id", context.node_id)))
    site = site_of(scaled(data, scale) if isinstance(data, Dataset) else data, name)
    if "partition-id" in context.node_config and len(site.names) == 1:
        number = int(context.node_config["partition-id"])
        site = replace(site, numbers=(number,), of=int(context.node_config.get("num-partitions", 0)))
    return respond(message, context, settings_of(method, model, **conditions), lambda: site)


def respond(message: Message, context: Context, settings: FlowerSettings, load: LoadSite) -> Message:
    """Return a node's reply to a message: to an order of unskew's server, or to a strategy of Flower's own.
    `load` returns the node's data."""
    if ORDER in message.content.config_records:
        content = _answer_order(message, context, settings, load)
    else:
        content = answer_strategy(message, context, settings, load())
    return Message(content, reply_to=message)


def _answer_order(message: Message, context: Context, settings: FlowerSettings, load: LoadSite) -> RecordDict:
    """Carry out an order and return the answer. If that fails, the answer is a sentence that says why."""
    try:
        return Node(Order.of(message.content), context, settings, _loaded(load)).answer()
    except MissingResultError as missing:
        return RecordDict({MISSING: ConfigRecord({"stage": missing.stage})})
    except _NoDataError:
        return _problem("its data cannot be loaded, its own log says why")
    except UserError as error:
        log.error("unskew: %s", error)
        return _problem(str(error))
    except Exception as error:
        log.exception("unskew: a client failed")
        return _problem(f"{type(error).__name__}, its own log says more")


class _NoDataError(Exception):
    """A node's data cannot be loaded. The reason stays in the node's log, since it may quote samples."""


def _loaded(load: LoadSite) -> Site:
    try:
        return load()
    except Exception as error:
        if isinstance(error, UserError):
            log.error("unskew: %s", error)
        else:
            log.exception("unskew: the data of this node cannot be loaded")
        raise _NoDataError from None


def _problem(sentence: str) -> RecordDict:
    return RecordDict({PROBLEM: ConfigRecord({"sentence": sentence})})
