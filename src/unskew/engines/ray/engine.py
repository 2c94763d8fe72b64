"""Clients on the machines of a Ray cluster, for federations that outgrow one of them.

Workers, one for each CPU or GPU of the cluster, train one client after another. A dataset, a trial and a
method go to a machine once, a model once a round; a client's memory travels with its job. Jobs are pure
functions of what is sent: one whose worker died is given to another.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from unskew.engines.cuda.graphs import Graphs
from unskew.engines.job import Job, Outcome, Pending, Task
from unskew.engines.loop import Loop
from unskew.engines.ray.payload import Parcel, pack, pack_code, unpack
from unskew.errors import UserError
from unskew.method import Method
from unskew.metrics import Assessment
from unskew.trial import Trial
from unskew.types import Tensors, Weights
from unskew.version import VERSION

PATIENCE = 120.0  # seconds that a worker may take to start; importing PyTorch takes some
TRIES = 3  # workers that may die under a job, or at their start

START = "start one with `ray start --head` here and `ray start --address=HOST:6379` on the other machines"


class RayEngine(Loop):
    """Clients on the workers of a Ray cluster; what has no work for them is done here."""

    def __init__(self, trial: Trial) -> None:
        self._ray = connect()
        super().__init__(trial)
        self._cuda = self.device.type == "cuda"
        self._fleet = fleet(cuda=self._cuda, threads=trial.threads, most=trial.workers)
        self._trial = self._ray.put(pack_code(for_worker(trial), "trial"))
        self._sent: tuple[Method, Any] | None = None

    def fit(
        self,
        method: Method,
        anchor: Weights,
        shared: Tensors,
        jobs: Iterable[Job],
        upcoming: Sequence[Task] = (),
    ) -> list[Outcome]:
        jobs = list(jobs)
        sizes = [len(job.task.holding) for job in jobs]
        outcomes: dict[int, Outcome] = {}
        ordered = sorted(range(len(jobs)), key=lambda place: -sizes[place])
        while ordered and not sizes[ordered[-1]]:  # there is nothing to send a client for
            place = ordered.pop()
            [outcomes[place]] = super().fit(method, anchor, shared, [jobs[place]])
        if ordered:
            # A GPU runs its clients side by side: it gets its share at once.
            parts = _deal(ordered, self._fleet.grow(len(ordered)), lambda place: sizes[place])
            groups = parts if self._cuda else [[place] for place in ordered]
            sent = [self._trial, self._method(method), self._ray.put(pack((anchor, shared)))]
            calls = [Call(_fit, sent, [jobs[place] for place in group]) for group in groups]
            for number, answer in self._fleet.run(calls):
                outcomes.update(zip(groups[number], unpack(answer), strict=True))
        return [outcomes[place] for place in range(len(jobs))]

    def evaluate(self, weights: Weights) -> Pending[Assessment]:
        evaluator = self.local.evaluator
        size = self._fleet.grow(len(evaluator))
        if self._cuda or min(size, len(evaluator)) == 1:
            return super().evaluate(weights)
        sent = [self._trial, self._ray.put(pack(weights))]
        parts = [range(len(evaluator) * n // size, len(evaluator) * (n + 1) // size) for n in range(size)]
        answers = dict(self._fleet.run([Call(_batch_totals, sent, part) for part in parts]))
        return Pending.done(evaluator.assessment(total for n in range(size) for total in unpack(answers[n])))

    def _method(self, method: Method) -> Any:
        if self._sent is None or self._sent[0] is not method:
            self._sent = method, self._ray.put(pack_code(method, "method"))
        return self._sent[1]


def for_worker(trial: Trial) -> Trial:
    """The trial as one worker of a cluster runs it: on its one CPU, or its one GPU."""
    device = trial.pick_device().type
    return replace(trial, engine="graphs" if device == "cuda" else "loop", device=device, workers=0)


def _deal(places: Iterable[int], parts: int, size: Callable[[int], int]) -> list[list[int]]:
    """Each in turn to the part that has least."""
    dealt: list[list[int]] = [[] for _ in range(parts)]
    load = [0] * parts
    for place in places:
        least = load.index(min(load))
        dealt[least].append(place)
        load[least] += size(place)
    return dealt


def check(trial: Trial) -> None:
    connect()


def connect() -> Any:
    """Ray, connected to the cluster that RAY_ADDRESS names, or else to the one that this machine is part of.
    What the program around us connected to is used as it is."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        from ray._private.services import canonicalize_bootstrap_address
    except ImportError:
        raise UserError("engine 'ray' needs Ray: install it with pip install 'unskew[ray]'.") from None
    if ray.is_initialized():
        return ray
    wanted = os.environ.get("RAY_ADDRESS", "")
    if "://" in wanted:
        raise UserError(f"RAY_ADDRESS is '{wanted}' but should be HOST:PORT of a cluster's first machine.")
    try:
        address = canonicalize_bootstrap_address("auto")
    except (ConnectionError, ValueError):
        address = None
    # Asked first, because Ray tries for many minutes before it says that nobody answers.
    if address is None or not _answers(address):
        where = f"at RAY_ADDRESS {wanted}" if wanted else "on this machine"
        raise UserError(f"engine 'ray' finds no Ray cluster {where}: {START}.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # tips on coming releases of Ray
        try:
            # Ray finds this machine's cluster by itself, and its token then too.
            ray.init(address=wanted or "auto", log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError as error:
            if "AuthToken" not in f"{error}{error.__cause__}":
                raise
            raise UserError(
                f"the Ray cluster at {address} asks for a token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN "
                "to what `ray get-auth-token` prints there."
            ) from error
    return ray


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError:
        return False
    return True


# What runs in a worker

Work = Callable[[list[Any], Parcel], Parcel]
"""A function of a module, from references to what was sent before and from what is sent with the call."""


class Worker:
    """One process of the cluster."""

    def about(self) -> tuple[str, str, str]:
        return socket.gethostname(), VERSION, _torch_version()

    def do(self, work: Work, sent: list[Any], rest: Parcel) -> Parcel:
        return work(sent, rest)


def _fit(sent: list[Any], rest: Parcel) -> Parcel:
    trial, method, round = sent
    anchor, shared = _open_round(round)
    return pack(_open_engine(trial).fit(_open_method(method), anchor, shared, unpack(rest)))


def _batch_totals(sent: list[Any], rest: Parcel) -> Parcel:
    trial, weights = sent
    engine, model = _open_engine(trial), _open_round(weights)
    with engine.deterministic():
        return pack([engine.local.evaluator.batch_totals(model, batch) for batch in unpack(rest)])


@lru_cache(maxsize=4)  # programs train several models in turn
def _open_engine(reference: Any) -> Loop | Graphs:
    trial: Trial = _open(reference)
    return Graphs(trial) if trial.engine == "graphs" else Loop(trial)


@lru_cache(maxsize=4)
def _open_method(reference: Any) -> Any:
    return _open(reference)


@lru_cache(maxsize=1)
def _open_round(reference: Any) -> Any:
    return _open(reference)


def _open(reference: Any) -> Any:
    import ray

    return unpack(ray.get(reference))


# Who gives the work out


class Call(NamedTuple):
    work: Work
    sent: list[Any]
    """References inside a list arrive as references: a worker opens those that are new to it."""
    rest: object


class Fleet:
    """Workers that all engines of this process share, so that none waits for a CPU that another holds. They
    go when the last engine goes."""

    def __init__(self, *, cuda: bool, threads: int, most: int) -> None:
        self._ray = connect()
        self._needs = {"num_cpus": 0, "num_gpus": 1} if cuda else {"num_cpus": threads}
        self._most = most
        self._idle: list[Any] = []
        self._starting: dict[Any, Any] = {}
        self._lost = 0
        self._lock = threading.Lock()

    def grow(self, wanted: int) -> int:
        """Have as many workers as that, or as there is room for."""
        size = min(wanted, self._room())
        while len(self._idle) + len(self._starting) < size:
            self._hire()
        return size

    def run(self, calls: Sequence[Call]) -> Generator[tuple[int, Parcel], None, None]:
        """The numbers of the calls and the answers, as they come. A call goes to the first worker that is
        free, in their order."""
        ray = self._ray
        waiting, busy = deque(range(len(calls))), dict[Any, tuple[int, Any]]()
        deaths = Counter[int]()
        with self._lock:
            try:
                while waiting or busy:
                    while waiting and self._idle:
                        number, worker = waiting.popleft(), self._idle.pop()
                        work, sent, rest = calls[number]
                        busy[worker.do.remote(work, sent, pack(rest))] = number, worker
                    done, _ = ray.wait([*busy, *self._starting], timeout=None if busy else PATIENCE)
                    if not done:
                        raise UserError(
                            f"no worker of the Ray cluster started within {PATIENCE:.0f} s: see with `ray "
                            "status` whether its CPUs or GPUs are taken, and try again."
                        )
                    if done[0] in self._starting:
                        self._welcome(done[0])
                        continue
                    number, worker = busy.pop(done[0])
                    try:
                        answer = ray.get(done[0])
                    except ray.exceptions.RayTaskError as error:
                        self._idle.append(worker)
                        if isinstance(error.cause, UserError):
                            raise error.cause from None
                        raise
                    except ray.exceptions.RayError as error:
                        deaths[number] += 1
                        if deaths[number] == TRIES:
                            raise _died(error) from None
                        waiting.appendleft(number)
                        self._hire()
                    else:
                        self._idle.append(worker)
                        yield number, answer
            finally:
                for _, worker in busy.values():  # nobody waits for their answers any more
                    ray.kill(worker)

    def _room(self) -> int:
        kind, each = ("GPU", 1) if "num_gpus" in self._needs else ("CPU", self._needs["num_cpus"])
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        room = sum(int(node.get(kind, 0)) // each for node in nodes)
        if not room:
            way = "lower the trial's threads" if kind == "CPU" else "use --device cpu"
            raise UserError(
                f"no machine of the Ray cluster offers {each} {kind}: add one that does, or {way}."
            )
        return min(room, self._most) if self._most else room

    def _hire(self) -> None:
        options = {**self._needs, "scheduling_strategy": "SPREAD"}
        worker = self._ray.remote(Worker).options(**options).remote()
        self._starting[worker.about.remote()] = worker

    def _welcome(self, reference: Any) -> None:
        worker = self._starting.pop(reference)
        try:
            there = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            if missing := re.search(r"No module named '(\w+)", str(error)):
                raise UserError(
                    f"a machine of the Ray cluster has no {missing[1]}: install unskew there as here, with "
                    "pip install 'unskew[ray]', and start its node from that environment."
                ) from None
            self._lost += 1
            if self._lost == TRIES:
                raise _died(error) from None
            self._hire()
            return
        host, *versions = there
        here = [VERSION, _torch_version()]
        if versions != here:
            raise UserError(
                f"machine '{host}' of the Ray cluster has unskew {versions[0]} with torch {versions[1]}, and "
                f"this one {here[0]} with {here[1]}: install the same."
            )
        self._lost = 0
        self._idle.append(worker)


_fleets: weakref.WeakValueDictionary[tuple[object, ...], Fleet] = weakref.WeakValueDictionary()


def fleet(*, cuda: bool, threads: int, most: int) -> Fleet:
    """The workers of this kind, if an engine has them already; new ones otherwise."""
    connection = connect().get_runtime_context().get_worker_id()
    key = (connection, cuda, threads, most)
    found = _fleets.get(key)
    if found is None:
        found = _fleets[key] = Fleet(cuda=cuda, threads=threads, most=most)
    return found


def _torch_version() -> str:
    """Without the mark of its build: those for a CPU and for a GPU may meet."""
    return torch.__version__.partition("+")[0]


def _died(error: BaseException) -> UserError:
    reason = " ".join(str(error).split())[:300]
    return UserError(
        f"a worker of the Ray cluster died {TRIES} times at the same work: if memory ran out, use fewer "
        f"workers; Ray says: {reason}."
    )
