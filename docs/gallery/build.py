"""Makes the pictures of this folder from real runs on Fashion-MNIST:

    python docs/gallery/build.py DATA [RUNS]

DATA is the folder with the datasets, as `unskew data` lays them out. RUNS, by default runs/gallery, keeps the
runs: what is there already is drawn again without training.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TRIAL = shlex.split(
    "--dataset fashion-mnist --skew dirichlet:0.05 --clients 10 --cohort 3 --model mlp --epochs 1 "
    "--batch-size 64 --lr 0.02 --device cpu --quiet"
)
RUNS = {
    "compare": "compare fedavg fedlc fedvls --rounds 30 --seeds 1-3 --probe every=10",
    "mu": "compare fedprox:mu=0.001 fedprox:mu=0.01 fedprox:mu=0.1 fedprox:mu=1 --rounds 15 --seeds 1-2",
    "pkd": "run --method pkd --rounds 30",
}
FIGURES = {
    "partition": "compare/fedavg-seed1",
    "curves": "compare",
    "curves-vacant": "compare --metric vacant",
    "extremes": "compare",
    "updates": "compare --round 10",
    "confusion": "compare",
    "predictions": "compare",
    "features": "compare",
    "tsne": "compare",
    "sensitivity": "mu",
    "experts": "pkd",
}


def main(data: Path, folder: Path) -> None:
    for name, command in RUNS.items():
        if not (folder / name).exists():
            unskew(*shlex.split(command), *TRIAL, "--data", str(data), "--out", str(folder / name))
    began = time.perf_counter()
    for name, command in FIGURES.items():
        (runs, *wishes), kind = shlex.split(command), name.partition("-")[0]
        wishes += ["--data", str(data)] if kind == "tsne" else []
        unskew("figure", kind, str(folder / runs), *wishes, "--out", str(HERE / f"{name}.png"), "--overwrite")
    table = folder / "table.md"
    unskew("table", str(folder / "compare"), "--out", str(table), "--overwrite")
    (HERE / "README.md").write_text(page(folder, time.perf_counter() - began, table.read_text()))


def unskew(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "unskew", *arguments], check=True)


def page(folder: Path, drawn: float, table: str) -> str:
    where = json.loads((folder / "compare" / "fedavg-seed1" / "environment.json").read_text())
    ends = [json.loads(path.read_text()) for path in folder.rglob("summary.json")]
    trained = sum(end["seconds"] for end in ends)
    device = f"{where['device_name']} ({where['device']}, {where['cores']} cores)"
    lines = [
        "# Gallery",
        "",
        "What the figures look like: Fashion-MNIST among 10 clients by Dirichlet(0.05), 3 of them in a",
        "round, a small MLP, seeds 1 to 3. Few rounds, to show the figures: the numbers are no benchmark.",
        "",
        f"Made by `python docs/gallery/build.py DATA` at commit {where['unskew_commit']}, on {device}:",
        f"{trained:.0f} s of training and probing, {drawn:.0f} s of drawing.",
        "[docs/figures.md](../figures.md) says what each shows.",
        "",
        "```",
        *(f"unskew {command} {shlex.join(TRIAL)} --out {name}" for name, command in RUNS.items()),
        "```",
    ]
    for name, command in FIGURES.items():
        kind = name.partition("-")[0]
        lines += ["", f"`unskew figure {kind} {command}`", "", f"![{name}]({name}.png)"]
    return "\n".join([*lines, "", "`unskew table compare`", "", table])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "runs/gallery"))
