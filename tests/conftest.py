from __future__ import annotations

import atexit
import ctypes
import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import hypothesis
import pytest

# PyTorch is imported further down: the process that only gives out tests to others does without.
if TYPE_CHECKING:
    from unskew.data import Dataset, Federation

# What the tests start hears Ctrl-C, even where they run in the background of a shell, which ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def in_memory(folder: Path, room: int) -> bool:
    """Whether the tests' folders can be there, where nobody waits for a disk: a run does at each of its
    files, and so does who removes them. Not where no program could be started: some tests assert that none
    is."""
    if not hasattr(os, "ST_NOEXEC") or not os.access(folder, os.W_OK):
        return False
    return shutil.disk_usage(folder).free > room and not os.statvfs(folder).f_flag & os.ST_NOEXEC


if in_memory(Path("/dev/shm"), room=4 * 2**30):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

# What tests start finds tests/startup/sitecustomize.py.
startup = str(Path(__file__).parent / "startup")
if startup not in (places := os.environ.get("PYTHONPATH", "").split(os.pathsep)):
    os.environ["PYTHONPATH"] = os.pathsep.join([startup, *filter(None, places)])
atexit.register(gc.freeze)

# Of the GNU C library.
trim_memory = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None

# No test fails for being slow, and the same examples are tried on every machine.
hypothesis.settings.register_profile("unskew", deadline=None, derandomize=True)
hypothesis.settings.load_profile("unskew")


def pytest_collectstart() -> None:
    """Several test processes share the machine."""
    import torch

    torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """What is imported by now stays: the garbage collector need not look at it in every test. Nor as often as
    after every 700 new objects: a step of a training makes more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Nor at what a file of tests has imported, when it ends. The memory that its tests have freed goes back
    to the system: the larger a process is, the longer it takes to fork one."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
        if trim_memory is not None:
            trim_memory(0)


@pytest.fixture(scope="session")
def digits() -> Dataset:
    from unskew.data import load

    return load("digits")


@pytest.fixture(scope="session")
def skewed(digits: Dataset) -> Federation:
    """A third of the digits under Dirichlet 0.05: most clients lack most classes."""
    from federations import split
    from unskew.data import federate

    whole = federate(digits, "dirichlet:0.05", clients=5, seed=1)
    return split(digits, *(rows[::3] for rows in whole.partition.indices))


@pytest.fixture
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials run on the loop where they do not name an engine: every engine gives its bits, which
    tests/laws/test_engines.py asserts, and starting workers takes longer than short trainings."""
    monkeypatch.setattr("unskew.engines.pool", SimpleNamespace(available=lambda: False))


@dataclass
class Answer:
    code: int
    out: str
    err: str


@pytest.fixture
def unskew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path
) -> Callable[..., Answer]:
    """The command line, in this process and in an empty folder."""
    from unskew.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["unskew", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return Answer(int(stop.value.code or 0), captured.out, captured.err)

    return run
