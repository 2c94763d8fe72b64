"""Injects faults into clients on every engine of this machine, and compares the bits with runs without them.

    python -m benchmarks.faults [NUMBER]
    python -m benchmarks.faults cost

For every run the kind of fault, the client, the rounds, the method and the engine are drawn. The run is right
if the model, the server's memory and the clients' memories equal to the last bit those of a run in which that
client takes no part in these rounds, and if its records name the client. `cost` times the checks.
"""

from __future__ import annotations

import math
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch

from unskew import Budget, Faults, Method, Trial, engines, federate, load, train
from unskew.engines.check import ValueCheck
from unskew.engines.cuda.graphs import Graphs
from unskew.engines.job import Task
from unskew.faults import sort_out
from unskew.methods import METHODS
from unskew.result import State
from unskew.rounds import initial_state, recall, run_round, sample_cohort
from unskew.types import End, Memory, Params, Scope, Tensors

Harm = Callable[[Params, Tensors, Tensors], None]
"""Changes a client's weights, what it keeps and what it reports."""

SERVERS = (
    "fedavg",
    "scaffold",
    "fednova",
    "fedadam",
    "fedyogi",
    "fedexp",
    "feddyn",
    "fedavgm",
    "moon",
    "ema",
)
BUDGET = Budget(rounds=3, epochs=1, batch_size=64, lr=0.05, lr_decay=0.5)


def first(params: Params) -> str:
    return next(iter(params))


def nan_weights(params: Params, kept: Tensors, reported: Tensors) -> None:
    params[first(params)].view(-1)[-1] = math.nan


def infinite_weights(params: Params, kept: Tensors, reported: Tensors) -> None:
    params[first(params)].view(-1)[0] = -math.inf


def nan_kept(params: Params, kept: Tensors, reported: Tensors) -> None:
    kept["odd/kept"][0] = math.nan


def infinite_report(params: Params, kept: Tensors, reported: Tensors) -> None:
    reported["odd/sent"][0] = math.inf


def other_shape(params: Params, kept: Tensors, reported: Tensors) -> None:
    params[first(params)] = params[first(params)][:1].clone()


def other_name(params: Params, kept: Tensors, reported: Tensors) -> None:
    params["another"] = params.pop(first(params))


def absurd_norm(params: Params, kept: Tensors, reported: Tensors) -> None:
    params[first(params)].mul_(1e6)


def raises(params: Params, kept: Tensors, reported: Tensors) -> None:
    raise ZeroDivisionError("a mistake in the method")


def no_memory(params: Params, kept: Tensors, reported: Tensors) -> None:
    raise MemoryError


def process_dies(params: Params, kept: Tensors, reported: Tensors) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


HARMS = (
    nan_weights, infinite_weights, nan_kept, infinite_report, other_shape, other_name, absurd_norm, raises,
    no_memory, process_dies,
)  # fmt: skip


def harmed(trial: Trial, server: str, client: int, rounds: list[int], harm: Harm) -> Method:
    """Return a method in which one client does harm in some rounds."""
    counts, rates = trial.federation.counts[client], [trial.budget.lr_at(round) for round in rounds]

    def update(scope: Scope, end: End) -> tuple[Tensors, Tensors]:
        kept, reported = {"odd/kept": torch.ones(2)}, {"odd/sent": torch.ones(2)}
        if end.lr in rates and torch.equal(scope.counts, counts):
            harm(end.weights.params, kept, reported)
        return kept, reported

    return METHODS[server]() + Method(memory=Memory(update=update))


def without(trial: Trial, method: Method, client: int, rounds: list[int]) -> State:
    """Run the loop engine without a client in some rounds, and return the last state."""
    trial = replace(trial, engine="loop")
    engine = engines.start(trial)

    def sampler(trial: Trial, round: int) -> list[Task]:
        return [task for task in sample_cohort(trial, round) if round not in rounds or task.client != client]

    state = initial_state(method, engine.initial)
    while state.round < trial.budget.rounds:
        state, _ = run_round(trial, method, engine, state, sampler=sampler)
    return state


def same(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def holds(trial: Trial, server: str, client: int, rounds: list[int], harm: Harm) -> bool:
    """Say whether a run with harm equals the run without the client, and records its faults."""
    method = harmed(trial, server, client, rounds, harm)
    result, state = train(trial, method), without(trial, method, client, rounds)
    recorded = [[fault.client for fault in round.faults] for round in result.rounds]
    mine = result.state
    return (
        recorded == [[client] if round in rounds else [] for round in range(trial.budget.rounds)]
        and same(mine.server.weights.params, state.server.weights.params)
        and same(mine.server.memory, state.server.memory)
        and mine.memories.keys() == state.memories.keys()
        and all(same(kept, state.memories[who]) for who, kept in mine.memories.items())
    )


def main(number: int) -> int:
    engines.ENGINES["graphs"] = engines.EngineType(Graphs)  # its bookkeeping runs without a GPU too
    draw = random.Random(1)
    federation = federate(load("digits"), "dirichlet:0.3", clients=6, seed=1)
    base = Trial(federation, "logistic", budget=BUDGET, device="cpu", workers=2)
    base = replace(base, faults=Faults(on_fault="skip", max_norm=50))
    injected: Counter[str] = Counter()
    for n in range(number):
        harm = HARMS[n % len(HARMS)]
        engine = "pool" if harm is process_dies else draw.choice(["loop", "pool", "graphs"])
        rounds = sorted(draw.sample(range(BUDGET.rounds), draw.randint(1, BUDGET.rounds)))
        server, client = draw.choice(SERVERS), draw.randrange(federation.clients)
        if not holds(replace(base, engine=engine), server, client, rounds, harm):
            print(f"differs: {harm.__name__}, {server}, {engine}, client {client}, rounds {rounds}")
            return 1
        injected[harm.__name__] += len(rounds)
        injected[engine] += len(rounds)
    total = sum(injected[harm.__name__] for harm in HARMS)
    print(f"{total} faults in {number} runs, all of them as if the client had not been there")
    for name, times in sorted(injected.items()):
        print(f"  {name:18} {times}")
    return 0


def cost() -> None:
    """Print the time that a round of clients takes, and the time of checking its results."""
    torch.set_num_threads(1)
    federation = federate(load("digits"), "dirichlet:0.1", clients=10, seed=1)
    for model in ("mlp-small", "mlp", "resnet8"):
        for name in ("fedavg", "scaffold"):
            trial = Trial(federation, model, budget=Budget(epochs=1), engine="loop", device="cpu")
            method, engine = METHODS[name](), engines.start(trial)
            state = initial_state(method, engine.initial)
            sent, shared = state.server.weights, method.server.share(state.server)
            jobs = [recall(method, engine, state, task) for task in sample_cohort(trial, 0)]
            fits, looks = list[float](), list[float]()
            for _ in range(20):
                began = time.perf_counter()
                outcomes = engine.fit(method, sent, shared, jobs)
                fitted = time.perf_counter()
                answers, _ = sort_out(trial.faults, 0, jobs, outcomes, sent)
                check = ValueCheck(answers, sent, trial.faults.max_norm)
                check.faults(engine.fetch(check.values).result())
                fits.append(fitted - began)
                looks.append(time.perf_counter() - fitted)
            times = f"clients {1e3 * min(fits):7.1f} ms   looking {1e3 * min(looks):5.2f} ms"
            print(f"{model:10} {name:9} {times}")


if __name__ == "__main__":
    if sys.argv[1:] == ["cost"]:
        cost()
    else:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 300))
