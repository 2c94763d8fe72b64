"""Which modules are imported: a command that needs no PyTorch does not wait for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def answered(folder: Path, *arguments: str) -> tuple[int, set[str]]:
    """Run a command in a process of its own; return its exit code and the modules it has loaded."""
    program = (
        "import sys; from unskew.cli import main\n"
        f"sys.argv = {['unskew', *arguments]!r}\n"
        "try: main()\n"
        "except SystemExit as stop: print('\\n', stop.code, *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True
    )
    code, *loaded = done.stdout.splitlines()[-1].split()
    return int(code), set(loaded)


@pytest.mark.parametrize(
    ("argument", "code"), [("--version", 0), ("--help", 0), ("rnu", 2), ("--verison", 2)]
)
def test_what_the_command_line_answers_by_itself_needs_no_pytorch(tmp_path, argument, code):
    found, loaded = answered(tmp_path, argument)
    assert found == code
    assert "torch" not in loaded


def test_a_run_loads_nothing_of_the_other_commands_and_the_extras(tmp_path):
    code, loaded = answered(tmp_path, "run", "--rounds", "1", "--clients", "2", "--engine", "loop", "--quiet")
    assert code == 0
    assert "torch" in loaded
    assert not loaded & {
        "sklearn", "scipy", "matplotlib", "plotly", "ray", "mlflow", "wandb", "tensorboard", "torch._dynamo",
        "torch._inductor", "unskew.bench", "unskew.report.figures", "unskew.report.page",
        "unskew.report.table",
    }  # fmt: skip


def test_a_loss_loads_nothing_that_pytorch_does_not(tmp_path):
    program = (
        "import sys, torch, torch.utils.data; before = {*sys.modules}\n"
        "import unskew.losses; print(*({*sys.modules} - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split()) - sys.stdlib_module_names
    assert {name for name in loaded if not name.startswith("unskew.losses.")} == {
        "unskew",
        "unskew.errors",
        "unskew.losses",
    }


@pytest.mark.parametrize("module", ["typer", "torch"])
def test_ctrl_c_while_modules_are_imported_is_answered_with_one_word(tmp_path, module):
    program = f"""
import os, signal, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
sys.argv = ["unskew", "run"]
from unskew.cli import command
command()
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "unskew: stopped.\n")
    assert not list(tmp_path.iterdir())


def test_the_engines_need_no_signatures_that_the_oldest_pytorch_cannot_read(tmp_path):
    """PyTorch 2.6 reads no `list[int]` in the signature of an operator."""
    program = """
import torch
def refuse(function, **_):
    raise ValueError(f"infer_schema(func): {function.__name__} has an unsupported type")
torch.library.infer_schema = refuse
import unskew.engines
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
