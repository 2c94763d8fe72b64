"""Every peer in an environment of its own, from PyPI at pinned versions.

`python -m benchmarks.environments` makes those that are not there yet.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(__file__).parent / ".venvs"

# The release of PyTorch that all are raced with; torchvision's must be the one made for it.
TORCH = ("torch==2.13.0", "numpy==2.4.6")
VISION = "torchvision==0.28.0"

REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "pfl": (*TORCH, "pfl==0.6.0"),
    "flower": (*TORCH, "flwr[simulation]==1.41.0"),
    "fedlab": (*TORCH, VISION, "fedlab==1.3.0"),
    "fluke": (*TORCH, VISION, "fluke-fl==0.8.1"),
}


def python(peer: str) -> Path:
    return FOLDER / peer / "bin" / "python"


def ready(peer: str) -> bool:
    """Whether the peer's environment is there, with what it should hold."""
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
        print(f"{peer}: installing {', '.join(REQUIREMENTS[peer])}", flush=True)
        try:
            make(peer)
        except subprocess.CalledProcessError:
            sys.exit(f"{peer} could not be installed: see pip's message above.")


if __name__ == "__main__":
    main()
