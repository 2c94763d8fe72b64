"""The gain of each part of `fast=true`: times of rounds of a cell with all parts, and with some left out.

`python -m benchmarks.ablation fedlmd --rounds 12 --without stem small_matmul` needs a CUDA GPU. Everything
runs in one process, in turn and then in reverse order, so that a GPU that slows down affects all alike. Each
run is printed as a line of JSON when it ends, and the table at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median, quantiles

import torch

from unskew.bench.cells import CELLS
from unskew.bench.data import dataset
from unskew.bench.race import Entry, Settings, enter, run
from unskew.data import federate
from unskew.engines.cuda.compile.decompositions import PARTS, VARIABLE, left_out
from unskew.errors import UserError, require

ALL = "-"
"""Stands for the variant with nothing left out."""


@dataclass(frozen=True)
class Timed:
    """The times of one training with some parts left out."""

    entry: str
    """Method, engine and precision."""
    without: str
    first: float
    """Seconds of the first round, in which steps are compiled or loaded from PyTorch's cache."""
    rounds: list[float]
    """Seconds of each round after the first."""


@dataclass(frozen=True)
class Row:
    """The cost of leaving some parts out."""

    entry: str
    without: str
    runs: int
    first: float
    seconds: float
    """The mean over the rounds of the median over the runs."""
    ratio: float
    """These seconds relative to those with nothing left out."""
    quartiles: tuple[float, float]
    """The quartiles of the ratios of single rounds, which train the same clients on the same samples."""


def order(variants: Sequence[str], repeats: int) -> list[str]:
    """Return the runs in order: all, then all in reverse, and so on."""
    return [variant for turn in range(repeats) for variant in (variants if turn % 2 == 0 else variants[::-1])]


def rows(runs: Sequence[Timed]) -> list[Row]:
    """Return a row for each method and variant, in the order in which they first ran."""
    grouped: dict[tuple[str, str], list[Timed]] = {}
    for each in runs:
        grouped.setdefault((each.entry, each.without), []).append(each)
    rounds = {
        key: [median(same) for same in zip(*(each.rounds for each in group), strict=True)]
        for key, group in grouped.items()
    }
    table = []
    for (entry, without), group in grouped.items():
        mine, whole = rounds[entry, without], rounds.get((entry, ALL))
        if whole is None:
            continue
        ratios = [one / other for one, other in zip(mine, whole, strict=True)]
        low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        first = median(each.first for each in group)
        table.append(Row(entry, without, len(group), first, mean(mine), sum(mine) / sum(whole), (low, high)))
    return table


def markdown(table: Sequence[Row]) -> str:
    """Return the Markdown table, as in docs/decisions/0005-captured-steps.md."""
    lines = [
        "| cell, engine, precision | without | runs | first round, s | round, ms | ratio | its quartiles |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in table:
        low, high = row.quartiles
        lines.append(
            f"| {row.entry} | {row.without} | {row.runs} | {row.first:.1f} | {1000 * row.seconds:.2f} | "
            f"{row.ratio:.3f} | {low:.3f} to {high:.3f} |"
        )
    return "\n".join(lines)


@contextmanager
def leaving_out(names: str) -> Iterator[None]:
    """Leave parts out, in addition to those that the environment variable names already."""
    before = os.environ.get(VARIABLE, "")
    os.environ[VARIABLE] = ",".join(filter(None, [before, "" if names == ALL else names]))
    try:
        left_out()  # refuse an unknown name now, not after minutes
        yield
    finally:
        os.environ[VARIABLE] = before


def measure(
    name: str, entries: Sequence[Entry], variants: Sequence[str], options: argparse.Namespace
) -> None:
    """Train every entry with every variant until the time is over, and print the times."""
    runs: list[Timed] = []
    failed: set[tuple[str, str]] = set()
    started = time.monotonic()
    for entry in entries:
        what = f"{name}: {entry.what}"
        for variant in order(variants, options.repeats):
            if (what, variant) in failed:
                continue
            if options.seconds and time.monotonic() - started > options.seconds:
                print(f"stopped after {options.seconds} s: --seconds", file=sys.stderr)
                break
            try:
                with leaving_out(variant):
                    times = run(entry, options.rounds, None).rounds
            except Exception as error:  # such as a compiler's, or memory: the other variants still run
                failed.add((what, variant))
                print(json.dumps({"entry": what, "without": variant, "error": str(error)}), flush=True)
                continue
            runs.append(Timed(what, variant, times[0], times[1:]))
            print(json.dumps(asdict(runs[-1])), flush=True)
    print(f"\n{markdown(rows(runs))}")


def main() -> None:
    gpu_cells = [name for name, cell in CELLS.items() if cell.device == "cuda"]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablation", description=__doc__)
    parser.add_argument("cell", choices=gpu_cells)
    parser.add_argument("--rounds", type=int, default=12, help="of each run; the first is not counted")
    parser.add_argument("--epochs", type=int, help="of a client in a round, in the place of the cell's")
    parser.add_argument("--repeats", type=int, default=2, help="how often each variant runs")
    parser.add_argument("--method", nargs="+", default=["fedvls"])
    parser.add_argument("--precision", nargs="+", default=["bf16"], choices=["fp32", "tf32", "bf16"])
    parser.add_argument(
        "--without",
        nargs="+",
        default=list(PARTS),
        metavar="NAME",
        help=f"what to leave out, one variant each; several at once with commas; of {', '.join(PARTS)}",
    )
    parser.add_argument("--seconds", type=float, help="begin no run after so many seconds")
    parser.add_argument("--data", type=Path, help="folder with the datasets")
    options = parser.parse_args()
    try:
        require(options.rounds >= 2, "one round has nothing after the first: give --rounds at least 2.")
        for names in options.without:
            with leaving_out(names):
                pass
        require(torch.cuda.is_available(), "fast=true is for a CUDA GPU, and there is none: run this on one.")
        cell = CELLS[options.cell]
        if options.epochs is not None:
            require(options.epochs >= 1, f"--epochs is {options.epochs} but should be at least 1.")
            cell = replace(cell, budget=cell.budget.model_copy(update={"epochs": options.epochs}))
        data, notes = dataset(cell.data, options.data)
        print(*notes, sep="\n", file=sys.stderr)
        federation = federate(data, cell.skew, clients=cell.clients, seed=cell.skew_seed)
        settings = Settings(
            rounds=options.rounds,
            methods=tuple(options.method),
            precisions=tuple(options.precision),
            fast=True,
        )
        measure(options.cell, enter(cell, federation, settings), [ALL, *options.without], options)
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
