"""Makes the pictures of this folder from real runs on Fashion-MNIST:

    python docs/gallery/build.py DATA [RUNS]

DATA is the folder with the datasets, as `unskew data` lays them out. RUNS, by default runs/gallery, keeps the
runs: what is there already is drawn again without training. The pictures of the page need playwright and
chromium.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TRIAL = shlex.split(
    "--dataset fashion-mnist --clients 10 --cohort 3 --model mlp --epochs 1 --batch-size 64 --lr 0.02 "
    "--device cpu --quiet"
)
RUNS = {
    "compare": "compare fedavg fedprox fedlc fedvls --skew dirichlet:0.05 --rounds 30 --seeds 1-3 "
    "--probe every=10",
    "milder": "compare fedavg fedprox fedlc fedvls --skew dirichlet:0.5 --rounds 30 --seeds 1-2",
    "mu": "compare fedprox:mu=0.001 fedprox:mu=0.01 fedprox:mu=0.1 fedprox:mu=1 --skew dirichlet:0.05 "
    "--rounds 15 --seeds 1-2",
    "tuned": "tune --over 'budget.lr=0.001|0.005|0.02|0.1' fedavg fedprox --over 'mu=0.01|1' fedvls "
    "--over 'lam=0.1|1' --sampler grid --skew dirichlet:0.05 --rounds 15 --seeds 1-2",
    "pkd": "run --method pkd --skew dirichlet:0.05 --rounds 30",
}
FIGURES = {
    "forest": "compare",
    "partition": "compare/fedavg-seed1",
    "curves": "compare",
    "curves-vacant": "compare --metric vacant",
    "curves-conditions": "compare milder",
    "extremes": "compare",
    "updates": "compare/fedavg-seed1 compare/fedvls-seed1 --round 10",
    "heatmap": "compare milder",
    "confusion": "compare/fedavg-* compare/fedvls-*",
    "confusion-against": "compare --against fedavg",
    "predictions": "compare/fedavg-seed1 compare/fedlc-seed1 compare/fedvls-seed1",
    "features": "compare/fedavg-* compare/fedvls-*",
    "tsne": "compare/fedavg-seed1 compare/fedlc-seed1 compare/fedvls-seed1",
    "sensitivity": "mu",
    "search": "tuned --over lr",
    "experts": "pkd",
}
PAGES = {
    "report-desktop": {"viewport": {"width": 1280, "height": 1600}},
    "report-dark": {"viewport": {"width": 1280, "height": 1600}, "color_scheme": "dark"},
    "report-phone": {"viewport": {"width": 390, "height": 1200}, "device_scale_factor": 2, "is_mobile": True},
}
"""The first screen of the page, high enough for what it says and its first charts."""


def main(data: Path, folder: Path) -> None:
    for name, command in RUNS.items():
        if not (folder / name).exists():
            unskew(*shlex.split(command), *TRIAL, "--data", str(data), "--out", str(folder / name))
    began = time.perf_counter()
    for name, command in FIGURES.items():
        kind = name.partition("-")[0]
        wishes = ["--data", str(data)] if kind == "tsne" else []
        unskew(
            "figure", kind, *arguments(command, folder), *wishes, "--out", str(HERE / f"{name}.png"),
            "--overwrite",
        )  # fmt: skip
    screens(folder)
    table = folder / "table.md"
    unskew("table", str(folder / "compare"), "--out", str(table), "--overwrite")
    (HERE / "README.md").write_text(page(folder, time.perf_counter() - began, table.read_text()))


def arguments(command: str, folder: Path) -> list[str]:
    """Return the words of a command, with the folders of its runs as they are called here."""
    words, flags = shlex.split(command), 0
    found = []
    for word in words:
        flags += word.startswith("--")
        found += [word] if flags else [str(path) for path in sorted(folder.glob(word))]
    return found


def screens(folder: Path) -> None:
    """Pictures of the page of the comparison."""
    from playwright.sync_api import sync_playwright

    page = folder / "report.html"
    unskew("report", str(folder / "compare"), "--out", str(page), "--overwrite")
    with sync_playwright() as tool:
        browser = tool.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for name, look in PAGES.items():
            view = browser.new_page(**look)
            view.goto(page.resolve().as_uri())
            view.wait_for_selector("#curve .main-svg", timeout=120_000)
            view.wait_for_load_state("networkidle")
            view.wait_for_timeout(1000)  # until charts have their final size
            view.screenshot(path=HERE / f"{name}.png")
            view.close()
        browser.close()


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
        "This is what the figures and the report page look like. The runs split Fashion-MNIST among 10",
        "clients by Dirichlet(0.05) or, milder, Dirichlet(0.5), with 3 clients per round and a small MLP.",
        "They have few rounds, only to show the figures: the numbers are not a benchmark.",
        "",
        f"Made by `python docs/gallery/build.py DATA` at commit {where['unskew_commit']}, on {device}:",
        f"{trained:.0f} s of training and probing, {drawn:.0f} s of drawing.",
        "[docs/figures.md](../figures.md) says what each figure shows.",
        "",
        "```",
        *(f"unskew {command} {shlex.join(TRIAL)} --out {name}" for name, command in RUNS.items()),
        "```",
    ]
    for name, command in FIGURES.items():
        kind = name.partition("-")[0]
        lines += ["", f"`unskew figure {kind} {command}`", "", f"![{name}]({name}.png)"]
    lines += ["", "`unskew report compare`: wide, in dark mode, and on a phone", ""]
    lines += [f"![{name}]({name}.png)" for name in PAGES]
    return "\n".join([*lines, "", "`unskew table compare`", "", table])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "runs/gallery"))
