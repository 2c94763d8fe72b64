"""The machine that this process runs on: its memory, and what a run records of it, of versions and of
commits."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

from unskew import record
from unskew.version import VERSION

GIB = 1 << 30


def machine_memory() -> int:
    """Return how many bytes this process may use: the machine's memory, or less if a container has a
    limit."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        found = 8 * GIB
    with suppress(OSError, ValueError):  # the file holds "max" if there is no limit
        found = min(found, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8")))
    return found


def machine(device: torch.device) -> record.Machine:
    """Return the record of the machine, the command, the versions and the commits of this process."""
    return record.Machine(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        command=list(sys.argv),
        device=str(device),
        device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name(),
        cores=os.cpu_count(),
        platform=platform.platform(),
        python=platform.python_version(),
        versions=dict(_versions()),
        unskew_commit=_unskew_commit(),
        working_directory_commit=_git_commit(Path.cwd()),
    )


# Cached, since they do not change during a process, which may have many runs.


@cache
def _versions() -> dict[str, str]:
    packages = ("torch", "numpy", "scipy", "scikit-learn", "safetensors", "pydantic")
    return {"unskew": VERSION, **{package: version(package) for package in packages}}


@cache
def _unskew_commit() -> str | None:
    return _git_commit(Path(__file__).parent)


@cache
def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _git_commit(folder: Path) -> str | None:
    """Return the commit checked out in `folder`, with '+' if tracked files differ from it; None outside git.
    Programs that a repository names in its settings do not run, since it may be a stranger's."""
    quiet = {"GIT_OPTIONAL_LOCKS": "0", "GIT_ALLOW_PROTOCOL": "none", "GIT_TERMINAL_PROMPT": "0"}
    ask = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}"]

    def answer(*words: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | quiet
        return subprocess.run([*ask, *words], capture_output=True, text=True, timeout=10, env=environment)

    try:
        commit = answer("rev-parse", "HEAD")
        if commit.returncode != 0:
            return None
        filters = answer("config", "--name-only", "--get-regexp", r"^filter\..*\.(clean|process|required)$")
        for name in filters.stdout.splitlines():
            if "=" in name:  # such a setting cannot be overridden
                return None
            ask += ["-c", f"{name}="]
        changed = answer("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return commit.stdout.strip() + ("+" if changed.stdout.strip() else "")
