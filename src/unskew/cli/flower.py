"""`unskew flower`: a federation on Flower, on this machine and across machines."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from unskew.cli import options
from unskew.cli.closing import say_next
from unskew.cli.flags import experiment_settings, given_flags, refuse_unshared
from unskew.cli.terminal import console, say
from unskew.cli.usage import Commands
from unskew.errors import UserError
from unskew.experiment import Experiment
from unskew.notation import flatten
from unskew.record import to_json

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    rich_markup_mode=None,
)

Folder = Annotated[
    Path, options.option("--dir", "PATH", "The federation's folder: keys, database, logs and state.")
]
Out = Annotated[Path, options.option("--out", "PATH", "The folder to write to.")]
HERE = Path(".unskew-flower")


@app.callback(invoke_without_command=True)
def flower(context: typer.Context) -> None:
    """Start and stop a federation on Flower, and make its certificates and keys."""
    if not context.invoked_subcommand:
        print(context.get_help())


@app.command("init")
def init(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to create for the app.")],
    method: Annotated[
        str, options.option("--method", "NAME", "A method of `unskew methods`, such as fedvls or scaffold.")
    ] = "fedavg",
    like: Annotated[
        str | None,
        options.option(
            "--like",
            "DATA",
            "Sample data in the form of every site's own data, such as csv:sample.csv,label=COLUMN. Without "
            "it, nodes take parts of --dataset.",
        ),
    ] = None,
    dataset: options.Dataset = None,
    skew: options.Skew = None,
    model: options.Model = None,
    nodes: Annotated[
        str,
        options.option(
            "--nodes", "NUMBER", "Number of nodes: one for each site, or for each client of the dataset."
        ),
    ] = "3",
    rounds: options.Rounds = None,
    cohort: options.Cohort = None,
    epochs: options.Epochs = None,
    steps: options.Steps = None,
    batch_size: options.BatchSize = None,
    lr: options.Lr = None,
    schedule: options.Schedule = None,
    seed: options.Seed = None,
    set_: options.Set = None,
) -> None:
    """Write a small app for `flwr run`."""
    number = _number("nodes", nodes, 1000)
    refuse_unshared(set_, None)
    if like is not None and (dataset is not None or skew is not None):
        raise UserError("--like is for sites with data of their own: leave --dataset and --skew out.")
    from unskew.flower import need_flower

    need_flower()
    from unskew.flower.new_app import write_app

    clients = None if like else str(number)
    given = experiment_settings(None, set_, clients=clients, **given_flags(context))
    values = dict(flatten(Experiment(**given).model_dump(mode="json", exclude_none=True)))
    shown = ("seed", "data.name", "skew.recipe", "skew.clients", "model.name")
    chosen = [*shown, *(key for key in values if key.startswith("budget.")), *dict(flatten(given))]
    settings = {"method": method, **{key: values[key] for key in chosen if key in values}}
    files = write_app(folder, settings, like=like, nodes=number)
    screen = console()
    for file in files:
        screen.print(f"{folder / file}", soft_wrap=True)
    up = "unskew flower up" + (" --node ..." if like else f" --nodes {number}")
    say_next(up, f"flwr run {shlex.quote(str(folder))} unskew --stream")


@app.command("up")
def up(
    nodes: Annotated[
        str | None, options.option("--nodes", "NUMBER", "Number of nodes.", "2, or as many as --node")
    ] = None,
    node: Annotated[
        list[str] | None,
        options.option(
            "--node",
            "SETTINGS",
            "Settings of one node, such as 'data=\"csv:a.csv\"'; give it once for each node.",
        ),
    ] = None,
    folder: Folder = HERE,
    host: Annotated[
        str,
        options.option(
            "--host",
            "ADDRESS",
            "Address that the SuperLink listens on: 127.0.0.1 lets only this machine connect.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        str | None, options.option("--port", "NUMBER", "The SuperLink's port; by default a free one.")
    ] = None,
    name: Annotated[
        list[str] | None,
        options.option(
            "--name", "HOST", "Another name or address that the certificate is valid for; may be repeated."
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Run without TLS and node keys; only for this machine.")
    ] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Start a SuperLink and SuperNodes on this machine.

    They keep running when the command ends. TLS, with a certificate made here, and registered node keys are
    on; telemetry, update checks and installations at run time are off. `unskew flower down` stops what was
    started; keys and runs are kept.
    """
    if nodes is not None and node:
        raise UserError("--nodes and --node are both given: keep one, there are as many nodes as --node.")
    settings = node or [""] * _number("nodes", nodes or "2", 1000)
    wanted = None if port is None else _number("port", port, 65535)
    from unskew.flower import local, local_options

    federation = local.up(
        folder,
        settings,
        host=host,
        port=wanted,
        names=name or [],
        insecure=insecure,
        tell=(lambda _: None) if quiet else say,
    )
    command = local.run_command(folder)
    if json:
        print(to_json({**asdict(federation), "run": command}, indent=None))
        return
    screen = console()
    screen.print(
        f"{len(settings)} of {len(settings)} nodes are online at {federation.address}", soft_wrap=True
    )
    if insecure:
        screen.print("note: without TLS and node keys, as asked for.")
    if not local_options.is_loopback(host):
        screen.print(
            "note: whoever reaches this port can run apps here and register nodes, since Flower asks for no "
            "account: let a firewall admit the nodes alone.",
            soft_wrap=True,
        )
    say_next(command, _again("status", folder), _again("down", folder))


@app.command("down")
def down(folder: Folder = HERE, json: options.Json = False) -> None:
    """Stop what `unskew flower up` started, and nothing else."""
    from unskew.flower import local

    ended, others = local.down(folder)
    if json:
        print(to_json({"ended": [each.name for each in ended], "others": others}, indent=None))
        return
    screen = console()
    for each in ended:
        screen.print(f"ended {each.name} (process {each.pid})")
    if others:
        screen.print(f"ended {others} process{'es' * (others > 1)} that these had started")
    if not ended and not others:
        screen.print(f"nothing runs in {folder}: there is nothing to end", soft_wrap=True)


@app.command("status")
def status(folder: Folder = HERE, json: options.Json = False) -> None:
    """List the processes, and whether the nodes are online."""
    from unskew.flower import local

    found = local.status(folder)
    if json:
        rows = [{**asdict(each.process), "running": each.running, "online": each.online} for each in found]
        print(to_json({"folder": str(folder.resolve()), "processes": rows}, indent=None))
        return
    screen = console()
    if not found:
        screen.print(f"nothing runs in {folder}: start it with {_again('up', folder)}", soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("name", "state", "process", "port", "log"):
        table.add_column(title, justify="right" if title in ("process", "port") else "left")
    for each in found:
        state = "online" if each.online else "offline" if each.running else "ended"
        process = each.process
        table.add_row(process.name, state, str(process.pid), str(process.port), process.log)
    screen.print(table)


@app.command("certificate")
def certificate(
    out: Out,
    name: Annotated[
        list[str],
        options.option("--name", "HOST", "Name or address by which nodes reach the server; may be repeated."),
    ],
) -> None:
    """Make a server's certificate.

    The CA that signs it is made too, unless the folder has one.
    """
    from unskew.flower import security

    security.make_certificate(out, name)
    screen = console()
    for file, use in (
        (security.CA, "for every node: flower-supernode --root-certificates"),
        (security.SERVER, "for the server: flower-superlink --ssl-certfile"),
        (security.SERVER_KEY, "for the server alone: flower-superlink --ssl-keyfile"),
        (security.CA_KEY, "for nobody else: it signs the next certificate"),
    ):
        screen.print(f"{out / file}  {use}", soft_wrap=True)


@app.command("key")
def key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The node's name.")],
    out: Out,
) -> None:
    """Make a node's key pair.

    The private key stays with the node; the public key is registered at the server.
    """
    from unskew.flower import security

    private, public = security.make_node_key(out, name)
    screen = console()
    screen.print(
        f"{private}  for the node alone: flower-supernode --auth-supernode-private-key", soft_wrap=True
    )
    screen.print(f"{public}  for the server's operator: flwr supernode register", soft_wrap=True)


def _again(command: str, folder: Path) -> str:
    return f"unskew flower {command}" + ("" if folder == HERE else f" --dir {shlex.quote(str(folder))}")


def _number(flag: str, text: str, most: int) -> int:
    if not text.strip().isdecimal() or not 1 <= int(text) <= most:
        raise UserError(f"--{flag} is '{text}' but should be a whole number from 1 to {most}.")
    return int(text)
