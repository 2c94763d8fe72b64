"""Makes an environment for each other library, from PyPI at pinned versions.

`python -m benchmarks.environments` makes the environments that do not exist yet. Two libraries are not on
PyPI: PyPI has only their dependencies, and the folder that UNSKEW_PEERS names has a clone of each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(__file__).parent / ".venvs"

# All use the same release of PyTorch; torchvision's release must be the one for it.
TORCH = ("torch==2.13.0", "numpy==2.4.6")
VISION = "torchvision==0.28.0"

REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "pfl": (*TORCH, "pfl==0.6.0"),
    "flower": (*TORCH, "flwr[simulation]==1.41.0"),
    "fedlab": (*TORCH, VISION, "fedlab==1.3.0"),
    "fluke": (*TORCH, VISION, "fluke-fl==0.8.1"),
    # It asks for Python 3.12 or later, and its releases from 3.0 on for 3.14; this one runs on 3.11 as well.
    "blazefl": (*TORCH, "--ignore-requires-python", "blazefl[contrib,reproducibility]==2.0.3"),
    "pfllib": (*TORCH, "h5py==3.16.0", "scikit-learn==1.9.1", "matplotlib==3.11.2"),
    "flbench": (
        *TORCH,
        VISION,
        "hydra-core==1.3.8",
        "ray==2.60.0",
        "pandas==3.1.1",
        "pillow==13.0.0",
        "rich==15.0.0",
        "scikit-learn==1.9.1",
        "matplotlib==3.11.2",
        "nvidia-ml-py==13.615.71",
    ),
}

CHECKOUTS = {"pfllib": "PFLlib", "flbench": "FL-bench"}
"""The libraries that run from a clone, with the names of their folders in UNSKEW_PEERS."""

PREPARE = "prepare"
"""Passed to a competitor instead of a setting, to write the files that it reads in the race."""


def checkout(peer: str) -> Path:
    return Path(os.environ.get("UNSKEW_PEERS", FOLDER)) / CHECKOUTS[peer]


def missing(peer: str) -> str | None:
    """Return what to do before a library can race; None if nothing is missing."""
    if peer in CHECKOUTS and not checkout(peer).is_dir():
        return f"clone {CHECKOUTS[peer]} into a folder, and name that folder in UNSKEW_PEERS"
    return None if ready(peer) else "run `make bench-peers`"


def python(peer: str) -> Path:
    return FOLDER / peer / "bin" / "python"


def ready(peer: str) -> bool:
    """Say whether a library's environment exists, with the required packages."""
    mark = FOLDER / peer / "requirements.txt"
    return mark.is_file() and mark.read_text() == _listed(peer)


def make(peer: str) -> None:
    venv.create(FOLDER / peer, clear=True, with_pip=True)
    subprocess.run([python(peer), "-m", "pip", "install", "--quiet", *REQUIREMENTS[peer]], check=True)
    (FOLDER / peer / "requirements.txt").write_text(_listed(peer))


def _listed(peer: str) -> str:
    return "".join(f"{requirement}\n" for requirement in REQUIREMENTS[peer])


def main() -> None:
    for peer in REQUIREMENTS:
        if ready(peer):
            print(f"{peer}: ready")
            continue
        if peer in CHECKOUTS and not checkout(peer).is_dir():
            print(f"{peer}: left out: {missing(peer)}.")
            continue
        print(f"{peer}: installing {', '.join(REQUIREMENTS[peer])}", flush=True)
        try:
            make(peer)
        except subprocess.CalledProcessError:
            sys.exit(f"{peer} could not be installed: see pip's message above.")


if __name__ == "__main__":
    main()
