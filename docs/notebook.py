"""Execute the notebook anew, so that it shows what its code gives today: make notebook.

python docs/notebook.py [--check]

With --check nothing is written: it is an error where a cell fails, or shows something of another kind than
what is kept.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

NOTEBOOK = Path(__file__).parent / "first-steps.ipynb"
LARGEST = 300_000
"""Bytes, with its pictures."""


def execute(path: Path) -> nbformat.NotebookNode:
    """Run a notebook from top to bottom in an empty folder, and return it with the outputs of its code."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        # Through files of this user, not through ports of the machine.
        config = Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/kernel"}})
        resources = {"metadata": {"path": folder}}
        NotebookClient(
            notebook, kernel_name="python3", timeout=300, resources=resources, config=config
        ).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = str(number)
        cell.metadata = {}  # when it ran
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def kinds(notebook: nbformat.NotebookNode) -> list[list[list[str]]]:
    """Of every cell what its outputs are, such as text and pictures."""
    return [
        [sorted(output.get("data", {output.output_type: ""})) for output in cell.get("outputs", [])]
        for cell in notebook.cells
    ]


def main(check: bool) -> None:
    try:
        executed = execute(NOTEBOOK)
    except CellExecutionError as error:
        sys.exit(f"a cell of {NOTEBOOK.name} fails:\n{error}")
    if check:
        if kinds(executed) != kinds(nbformat.read(NOTEBOOK, as_version=4)):
            sys.exit(f"{NOTEBOOK.name} keeps other outputs than its code gives: run make notebook.")
        return
    text = nbformat.writes(executed) + "\n"
    if len(text) > LARGEST:
        sys.exit(f"{NOTEBOOK.name} would have {len(text):,} bytes: draw fewer or smaller pictures.")
    NOTEBOOK.write_text(text)
    print(f"written: {NOTEBOOK} ({len(text):,} bytes)")


if __name__ == "__main__":
    main("--check" in sys.argv[1:])
