"""Measures how fast this machine trains, on named workloads."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from unskew.bench.cells import CELLS
from unskew.bench.idle import idle
from unskew.bench.profile import profile
from unskew.bench.race import Entry, Settings, find, race
from unskew.bench.report import COLUMNS, LEGEND, Report, Section
from unskew.bench.start import loading, startup
from unskew.engines import ENGINES
from unskew.errors import UserError, unknown
from unskew.machine import machine
from unskew.record import Json
from unskew.trial import find_device

__all__ = ["COLUMNS", "LEGEND", "NAMES", "Report", "Section", "Settings", "measure", "suited"]

Tell = Callable[[str], None]

OTHERS: dict[str, Callable[[str, Settings, Tell], Section]] = {
    "startup": startup,
    "load": loading,
    "idle": idle,
}
NAMES = (*OTHERS, *CELLS)


def suited() -> list[str]:
    """Return the cells whose times are meaningful on this machine."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return [*OTHERS, *(name for name, cell in CELLS.items() if cell.device == device)]


def measure(names: Sequence[str], settings: Settings, tell: Tell = lambda _: None) -> Report:
    """Measure cells, one after the other; `tell` receives a line for each step."""
    for name in names:
        if name not in NAMES:
            raise unknown("cell", name, NAMES)
    if len(set(names)) < len(names):
        raise UserError("a cell is named twice: name each once.")
    for engine in settings.engines:
        if engine not in ("auto", *ENGINES):
            raise unknown("engine", engine, ["auto", *ENGINES])
    # Methods and the device are refused now, not after minutes of other cells.
    for method in settings.methods:
        find(method)
    if settings.device is not None:
        find_device(settings.device)
    sections, raced = list[Section](), dict[str, list[Entry]]()
    for name in names:
        if name in CELLS:
            section, raced[name] = race(name, CELLS[name], settings, tell)
        else:
            section = OTHERS[name](name, settings, tell)
        sections.append(section)
        if not settings.profile:
            raced.clear()  # or a cell's data would count in the memory of the next
    if settings.profile:  # at the end, since a profiler leaves its hooks in the process
        for name, entries in raced.items():
            for entry in entries:
                title = f"{name}: {entry.what}"
                tell(f"{title}, profile")
                profile(entry.trial, entry.method, title, settings.profile)
    return Report(conditions(), sections)


def conditions() -> dict[str, Json]:
    """Return the machine, the versions and the command of a measurement."""
    cpu = machine(torch.device("cpu"))
    found: dict[str, Json] = {"date": cpu.started, "cpu": cpu.device_name, "cores": cpu.cores}
    if torch.cuda.is_available():
        found |= {
            "gpu": torch.cuda.get_device_name(),
            "driver": _driver(),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        }
    versions: dict[str, Json] = {**cpu.versions}
    found |= {"platform": cpu.platform, "python": cpu.python, "versions": versions}
    found |= {"unskew_commit": cpu.unskew_commit}
    program = Path(sys.argv[0]).stem.replace("__main__", "unskew")  # python -m unskew
    command = shlex.join([program, *sys.argv[1:]])
    return found | {"command": command, "threads": "1 per process, unless a line says else"}


def _driver() -> str | None:
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.splitlines()[0].strip() if answer.returncode == 0 and answer.stdout else None
