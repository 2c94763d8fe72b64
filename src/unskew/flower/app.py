"""A whole app: its settings come from Flower's run config, its data from each node's config."""

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
from unskew.flower.node_data import load_site
from unskew.flower.run_config import read_config, settings_in, with_code
from unskew.flower.server import serve
from unskew.flower.site import Site


def client_app(folder: Path | str | None = None) -> ClientApp:
    """Return a ClientApp that trains on the data that its node's config names. `folder` is that of the app,
    which may contain its own model and method, and the form of the data."""
    app = ClientApp()
    app_folder = None if folder is None else Path(folder)

    def answer(message: Message, context: Context) -> Message:
        experiment = with_code(read_config(context.run_config)[0], app_folder)
        configs = [dict(context.run_config), dict(context.node_config), context.node_id]
        key = json.dumps(configs, sort_keys=True)

        def load() -> Site:
            return _site(key, app_folder)

        return respond(message, context, settings_in(experiment), load)

    app.train()(answer)
    app.evaluate()(answer)
    app.query()(answer)
    return app


@lru_cache(maxsize=4)  # in a simulation one process answers for many nodes
def _site(key: str, folder: Path | None) -> Site:
    run_config, node_config, _ = json.loads(key)
    return load_site(read_config(run_config)[0], node_config, folder)


def server_app(folder: Path | str | None = None) -> ServerApp:
    """Return a ServerApp that trains the run config's experiment across all nodes, and writes a run folder.
    `folder` is that of the app, which may contain its own model and method."""
    app = ServerApp()
    app_folder = None if folder is None else Path(folder)

    def main(grid: Grid, context: Context) -> None:
        try:
            experiment, spec = read_config(context.run_config)
            experiment = with_code(experiment, app_folder)
            serve(grid, experiment, spec, settings_in(experiment))
        except (UserError, Interrupted) as error:
            logging.getLogger("flwr").error("unskew: %s", error)
            # Flower records a failure if an error is raised. If the process just ended, Flower would only
            # notice that its heartbeats are missing.
            raise UserError(str(error)) from None

    app.main()(main)
    return app
