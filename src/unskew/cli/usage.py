"""The commands, which are imported when they are called, and our own messages for wrong command lines.

Typer's messages differ from version to version.
"""

from __future__ import annotations

import functools
import gc
import importlib
import itertools
import re
import shlex
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from unskew.cli.interrupt import leaving_at_once
from unskew.errors import UserError, nearest, unknown
from unskew.garbage_collection import without_collection

# Whether these are click's or Typer's own copies depends on the version of Typer.
_exceptions: Any = sys.modules[typer.BadParameter.__module__]
UsageError: type[Exception] = _exceptions.UsageError

COMMANDS = {
    "run": "Train one method and show the accuracy of every class.",
    "compare": "Train several methods under the same conditions.",
    "reproduce": "Run a paper's table again, beside the published numbers.",
    "tune": "Search hyperparameters on validation data.",
    "resume": "Resume an interrupted run, compare or search.",
    "predict": "Predict the classes of the samples in a file or folder.",
    "export": "Export a trained model for other programs.",
    "skew": "Show which client holds which classes.",
    "advise": "Recommend a method, with the evidence.",
    "figure": "Draw figures for print.",
    "table": "Make a table of methods over their seeds.",
    "report": "Write an interactive HTML report.",
    "watch": "Serve the report of a run live, while it trains.",
    "methods": "List the methods, or show one.",
    "bench": "Measure training speed on this machine.",
    "data": "List the datasets, or download one.",
    "flower": "Start and stop a federation on Flower.",
}
"""The commands with their lines in `unskew --help`. Each is the function of its name in `unskew.cli.NAME`, or
the group `app` there."""


class Commands(TyperGroup):
    """A group of commands that suggests the nearest one for an unknown name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        if args[0] not in known:
            raise unknown("command", args[0], known)
        return super().resolve_command(ctx, args)


class LazyCommands(Commands):
    """The commands of `COMMANDS`: each is imported when it is called, since most need PyTorch."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _command(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@functools.cache
def _command(name: str) -> Any:
    """Import one of `COMMANDS`; cached, since a process may call it many times."""
    # Garbage collection would take a tenth of the time of these imports, and later, searching what they
    # created, 0.06 s of every command.
    with leaving_at_once(), without_collection():
        module = importlib.import_module(f"unskew.cli.{name}")
    gc.freeze()
    group = getattr(module, "app", None)
    if group is None:
        group = typer.Typer(add_completion=False, rich_markup_mode=None)
        group.command(name)(getattr(module, name))
    command = typer.main.get_command(group)
    command.name = name
    return command


def explain(error: Any) -> UserError:
    """Turn a UsageError into one sentence that says what is wrong and what to do."""
    if isinstance(error, _exceptions.NoSuchOption):
        if hyperparameter := _hyperparameter(error.option_name):
            return hyperparameter
        parameters = error.ctx.command.get_params(error.ctx)
        known = sorted(name[2:] for each in parameters for name in each.opts if name.startswith("--"))
        near = nearest(error.option_name.lstrip("-"), known)  # dashes do not count as similarity
        hint = f"did you mean '--{near}'?" if near else f"choose one of --{', --'.join(known)}."
        return UserError(f"unknown option '{error.option_name}': {hint}")
    if isinstance(error, _exceptions.BadOptionUsage):
        name = error.option_name
        if "not take" in error.message:
            return UserError(f"option '{name}' takes no value: write {name} alone.")
        return UserError(f"option '{name}' needs a value: write {name} VALUE.")
    more = f"see {error.ctx.command_path} --help." if error.ctx else "see unskew --help."
    if isinstance(error, _exceptions.MissingParameter):
        flags = [name for name in error.param.opts if name.startswith("--")]
        return UserError(
            f"{flags[0] if flags else error.param.metavar or error.param.name} is missing: {more}"
        )
    if extra := re.search(r"extra argument\S* \((.*)\)", error.message):
        return UserError(f"'{extra[1]}' is more than this command takes: {more}")
    return UserError(f"{error.message.rstrip('.')}: {more}")


def _hyperparameter(option: str) -> UserError | None:
    """Return the error for an option that is a hyperparameter of a method on the command line; None for any
    other option."""
    if "unskew.experiment" not in sys.modules:  # the command takes no methods, and importing them takes long
        return None
    from unskew.experiment import method_table
    from unskew.methods import METHODS
    from unskew.notation import method_parts, write_method

    key, words = option.lstrip("-").replace("-", "_"), sys.argv[1:]
    for before, word in itertools.pairwise(["", *words]):
        flag = "--method " * (before == "--method" or word.startswith("--method="))
        try:
            table = method_table(word.removeprefix("--method="))
        except UserError:
            continue
        parts = method_parts(table["name"])
        owner = next((part for part in parts if part in METHODS and key in METHODS[part].options), None)
        if owner is not None:
            options = table if len(parts) == 1 else table[owner]
            options[key] = _value_of(option, words)
            text = shlex.quote(write_method(table))
            return UserError(
                f"unknown option '{option}': it is a hyperparameter of {owner}, so write {flag}{text}."
            )
    return None


def _value_of(option: str, words: list[str]) -> str:
    """Return the value that the words of a command line give an option; VALUE if they give it none."""
    for word, after in itertools.pairwise([*words, "--"]):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and not after.startswith("--"):
            return after
    return "VALUE"
