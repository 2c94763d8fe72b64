"""The command line."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import sys
from io import TextIOWrapper

from unskew.cli.interrupt import leaving_at_once
from unskew.errors import UserError
from unskew.version import VERSION

with leaving_at_once():
    try:
        import typer
    except ModuleNotFoundError:  # installed with --no-deps, for the losses
        print(
            "unskew: the command needs what --no-deps left out: install unskew without it.", file=sys.stderr
        )
        sys.exit(2)

    from unskew.cli.usage import LazyCommands, UsageError, explain

app = typer.Typer(
    name="unskew",
    help="Federated learning when clients' labels are skewed.",
    cls=LazyCommands,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
) -> None:
    if version:
        print(f"unskew {VERSION}")
        raise typer.Exit
    if not context.invoked_subcommand:
        print(context.get_help())


TOO_LITTLE_MEMORY = "there is not enough memory for this: choose less data, a smaller model or fewer clients."


def command() -> None:
    """Run the command line and end the process.

    If a GPU was used the process ends at once when all output is written: freeing the memory of the GPU and
    of a compiler takes up to three seconds.
    """
    try:
        main()
    except SystemExit as end:
        gc.freeze()  # or Python looks for garbage in PyTorch once more, which takes 0.4 s
        torch = sys.modules.get("torch")
        others = {"mlflow", "ray", "wandb"} & sys.modules.keys()  # they have work to do when Python ends
        if torch is None or others or not torch.cuda.is_initialized() or not isinstance(end.code, int):
            raise
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code)


def main() -> None:
    """Run the command line.

    Exit codes: 0 for success, 2 with one sentence for bad input, 130 for Ctrl-C, 1 if the reader of the
    output has closed it.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: no other file may take its number
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
        stream = getattr(sys, name)
        if isinstance(stream, TextIOWrapper):  # a terminal that lacks a character gets a question mark
            stream.reconfigure(errors="replace")
    try:
        _invoke()
        sys.stdout.flush()
    except UserError as error:
        _say(error, 2)
    except MemoryError:
        _say(TOO_LITTLE_MEMORY, 2)
    except UsageError as error:
        _say(explain(error), 2)
    except KeyboardInterrupt as error:
        _say(str(error) or "stopped.", 130)
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        _drop_output()
        sys.exit(1)
    except RuntimeError as error:
        if not any(words in str(error) for words in ("can't allocate memory", "out of memory")):
            raise
        _say(TOO_LITTLE_MEMORY, 2)
    except OSError as error:  # the path is too long or not permitted, or the disk is full
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT):
            _drop_output()
            _say(f"the output cannot be written ({error.strerror}): write it elsewhere.", 2)
        if error.filename is None:
            raise
        _say(f"{error.filename} cannot be used ({error.strerror}): check the path.", 2)
    sys.exit(0)


def _invoke() -> None:
    """Run the command without Typer's handling of errors, which would lose the message of an interruption."""
    command = typer.main.get_command(app)
    with contextlib.suppress(typer.Exit), command.make_context("unskew", sys.argv[1:]) as context:
        command.invoke(context)


def _drop_output() -> None:
    """Discard what is still buffered for stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(sentence: object, code: int) -> None:
    words = " ".join(str(sentence).split())
    # Text from a file must not reach the terminal as a control sequence.
    print("unskew:", "".join(each if each.isprintable() else "?" for each in words), file=sys.stderr)
    sys.exit(code)
