"""Peak memory against the number of clients: `python -m benchmarks.memory`, 15 minutes on two cores.

Every row is a process of its own. Its peak is the sum of the largest resident memory of that process and of
each worker; shared memory counts for each of them. Clients hold 16 samples each: scikit-learn's digits,
repeated as often as needed. SCAFFOLD and MOON keep one model at every client that ever took part, FedCurv
two: the perceptron has 55,210 parameters, 0.22 MB, and the CNN 188,810, 0.76 MB. Clients of Synthetic(1, 1)
are drawn when they are needed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass

import torch

from unskew import Budget, Dataset, Evaluation, Trial, federate, load
from unskew.bench.memory import peak
from unskew.data.dataset import Split
from unskew.methods import METHODS
from unskew.result import Round
from unskew.train import train

SAMPLES = 16
"""Samples of each client."""
LITTLE = 0.1
"""GB that clients may keep in memory, where the peak shall show everything else that grows."""


@dataclass(frozen=True)
class Cell:
    """The settings of one run."""

    method: str
    clients: int
    cohort: int
    rounds: int
    model: str = "mlp"
    client_memory: float | None = None
    """GB that clients may keep in memory; None: the default."""
    drawn: bool = False


@dataclass(frozen=True)
class Measured:
    """The memory and time of a run."""

    peak: float
    """GB."""
    kept: float
    """GB that clients keep at the end, in memory or on disk."""
    keep: int
    """The number of clients that keep tensors."""
    seconds: float


def digits(clients: int) -> Dataset:
    """Return the digits, repeated so that every client has its samples."""
    once = load("digits")
    rows = torch.arange(SAMPLES * clients) % len(once.train)
    train = Split(*once.train.take(rows))
    return Dataset("digits, repeated", train, once.test, once.classes, once.mean, once.std)


def measure(cell: Cell) -> Measured:
    """Run a cell in this process."""
    if cell.drawn:
        data, skew = load(f"synthetic:1,1,clients={cell.clients},drawn=true"), "natural"
    else:
        data, skew = digits(cell.clients), "iid"
    trial = Trial(
        federate(data, skew, clients=cell.clients, seed=0),
        cell.model,
        Budget(rounds=cell.rounds, cohort=cell.cohort, epochs=1),
        Evaluation(every=cell.rounds),
        device="cpu",
        client_memory=cell.client_memory,
    )
    most = 0

    def look(round: Round) -> None:
        nonlocal most
        most = max(most, peak(torch.device("cpu")).used or 0)

    result = train(trial, METHODS[cell.method](), on_round=look)
    memories = result.state.memories
    each = next(iter(memories.values()), {})
    kept = len(memories) * sum(value.nbytes for value in each.values())
    return Measured(most / 1e9, kept / 1e9, len(memories), result.seconds)


def in_a_process(cell: Cell) -> Measured:
    """Run a cell in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.memory", "--cell", json.dumps(asdict(cell))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def cells(rounds: int, largest: int) -> list[Cell]:
    """Return the runs of the table, one for each row."""
    grow = [n for n in (100, 1_000, 10_000) if n <= largest]
    most, cohort, methods = grow[-1], min(100, grow[0]), ("fedavg", "scaffold", "moon", "fedcurv")
    by_clients = [Cell(name, n, cohort, rounds, client_memory=LITTLE) for name in methods for n in grow]
    by_cohort = [
        Cell("scaffold", most, n, max(rounds * cohort // n, 2), client_memory=LITTLE)
        for n in (cohort // 10, min(cohort * 10, most))
    ]
    default = [Cell(name, most, cohort, rounds, "cnn") for name in methods[1:]]
    drawn = [Cell(name, 100 * most, cohort, rounds, "logistic", drawn=True) for name in methods[:2]]
    return [*by_clients, *by_cohort, *default, *drawn]


HEAD = (
    "method", "model", "clients", "cohort", "rounds", "client_memory", "clients that keep", "they keep GB",
    "peak GB", "seconds",
)  # fmt: skip


def row(cell: Cell, found: Measured) -> list[str]:
    """Return a run's row of the table."""
    limit = "auto" if cell.client_memory is None else f"{cell.client_memory:g}"
    return [
        cell.method,
        cell.model,
        f"{cell.clients:,}" + " drawn" * cell.drawn,
        f"{cell.cohort:,}",
        f"{cell.rounds:,}",
        limit,
        f"{found.keep:,}",
        f"{found.kept:.2f}",
        f"{found.peak:.2f}",
        f"{found.seconds:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument(
        "--largest", type=int, default=10_000, help="number of clients; drawn: 100 times as many"
    )
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.cell:
        print(json.dumps(asdict(measure(Cell(**json.loads(asked.cell))))))
        return
    print("| " + " | ".join(HEAD) + " |")
    print("| --- " * len(HEAD) + "|")
    for cell in cells(asked.rounds, asked.largest):
        print("| " + " | ".join(row(cell, in_a_process(cell))) + " |", flush=True)


if __name__ == "__main__":
    main()
