"""A whole app: its settings are Flower's run config, its data what each node's config names."""

from __future__ import annotations

import json
import logging
from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from unskew.errors import Interrupted, UserError
from unskew.flower.client import respond
from unskew.flower.node_data import site_in
from unskew.flower.run_config import read_config, settings_in, with_code
from unskew.flower.server import serve
from unskew.flower.site import Site


def client_app(folder: Path | str | None = None) -> ClientApp:
    """A ClientApp whose node's config says where its data are. `folder` is the app's own, in which the form
    of the data may lie."""
    app = ClientApp()
    place = None if folder is None else Path(folder)

    def answer(message: Message, context: Context) -> Message:
        experiment = with_code(read_config(context.run_config)[0], place)
        key = json.dumps([dict(context.run_config), dict(context.node_config)], sort_keys=True)

        def load() -> Site:
            return _site(key, place, context.node_id)

        return respond(message, context, settings_in(experiment), load)

    app.train()(answer)
    app.evaluate()(answer)
    app.query()(answer)
    return app


@lru_cache(maxsize=4)  # in a simulation one process answers for many nodes
def _site(key: str, folder: Path | None, node: int) -> Site:
    run_config, node_config = json.loads(key)
    return site_in(read_config(run_config)[0], node_config, folder, node)


def server_app(folder: Path | str | None = None) -> ServerApp:
    """A ServerApp that trains what the run config says, across all nodes, into a run folder. `folder` is the
    app's own, in which its own model and method may lie."""
    app = ServerApp()
    place = None if folder is None else Path(folder)

    def main(grid: Grid, context: Context) -> None:
        try:
            experiment, spec = read_config(context.run_config)
            experiment = with_code(experiment, place)
            serve(grid, experiment, spec, settings_in(experiment))
        except (UserError, Interrupted) as error:
            logging.getLogger("flwr").error("unskew: %s", error)
            # Flower takes note of errors alone: of a process that just ends it hears no more heartbeats.
            raise UserError(str(error)) from None

    app.main()(main)
    return app
