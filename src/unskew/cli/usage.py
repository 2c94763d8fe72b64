"""What is wrong with a command line, in words of our own: Typer's differ from version to version."""

from __future__ import annotations

import difflib
import re
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from unskew.errors import UserError, unknown

# Whether these are click's or Typer's own copies depends on the version of Typer.
_exceptions: Any = sys.modules[typer.BadParameter.__module__]
UsageError: type[Exception] = _exceptions.UsageError


class Commands(TyperGroup):
    """A group of commands that knows which one was meant."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands:
            raise unknown("command", args[0], self.commands)
        return super().resolve_command(ctx, args)


def explain(error: Any) -> UserError:
    """A UsageError as one sentence on what is wrong and what to do."""
    if isinstance(error, _exceptions.NoSuchOption):
        parameters = error.ctx.command.get_params(error.ctx)
        known = sorted(name[2:] for each in parameters for name in each.opts if name.startswith("--"))
        near = difflib.get_close_matches(error.option_name.lstrip("-"), known, n=1)  # dashes are no likeness
        hint = f"did you mean '--{near[0]}'?" if near else f"choose one of --{', --'.join(known)}."
        return UserError(f"unknown option '{error.option_name}': {hint}")
    if isinstance(error, _exceptions.BadOptionUsage):
        name = error.option_name
        if "not take" in error.message:
            return UserError(f"option '{name}' takes no value: write {name} alone.")
        return UserError(f"option '{name}' needs a value: write {name} VALUE.")
    more = f"see {error.ctx.command_path} --help." if error.ctx else "see unskew --help."
    if isinstance(error, _exceptions.MissingParameter):
        return UserError(f"{error.param.name.upper()} is missing: {more}")
    if extra := re.search(r"extra argument\S* \((.*)\)", error.message):
        return UserError(f"'{extra[1]}' is more than this command takes: {more}")
    return UserError(f"{error.message.rstrip('.')}: {more}")
