"""The workers that this process has on a Ray cluster. If a worker dies, its call is given to another."""

from __future__ import annotations

import re
import socket
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import torch

from unskew.engines.job import LostError
from unskew.engines.ray.connect import connect
from unskew.engines.ray.payload import Payload, pack
from unskew.errors import UserError
from unskew.version import VERSION

START_SECONDS = 120.0
"""How long a worker may take to start, which includes importing PyTorch."""

ATTEMPTS = 3
"""How many workers may die at the same call, or in a row at their start."""

RemoteFunction = Callable[[list[Any], Payload], Payload]
"""A function of a module that workers can import: from Ray's references to what was sent before, and from
what is sent with the call, to the answer."""


class RemoteCall(NamedTuple):
    """A function for a worker to call, and its arguments."""

    function: RemoteFunction
    references: list[Any]
    """Ray's references to what was sent before. Inside of a list they arrive as references, so that a worker
    fetches only what is new to it."""
    value: object
    """What is sent with the call."""


class RayWorker:
    """One process of the cluster."""

    def about(self) -> tuple[str, str, str]:
        """Return the name of the worker's machine, and the versions of unskew and PyTorch there."""
        return socket.gethostname(), VERSION, _torch_version()

    def call(self, function: RemoteFunction, references: list[Any], value: Payload) -> Payload:
        """Call a function, and return its answer."""
        return function(references, value)


class Fleet:
    """Workers of one kind that all engines of this process share, so that no engine waits for a CPU that
    another one holds. They end when the last engine is gone, or when workers of another kind need their CPUs
    or GPUs."""

    def __init__(self, connection: str, *, cuda: bool, threads: int) -> None:
        self._ray = connect()
        self._connection = connection
        self._resource, self._amount = ("GPU", 1) if cuda else ("CPU", threads)
        self._idle: list[Any] = []
        self._starting: dict[Any, Any] = {}
        """Workers that are starting, by Ray's reference to the answer of their `about`."""
        self._lock = threading.Lock()

    def grow(self, wanted: int) -> int:
        """Start workers until there are as many as wanted, or as the cluster can have. Return how many of the
        wanted ones there are."""
        size = min(wanted, self._capacity())
        if len(self._idle) + len(self._starting) < size:
            for fleet in list(_fleets.values()):
                same = (fleet._connection, fleet._resource) == (self._connection, self._resource)
                if fleet is not self and same:
                    fleet._dismiss()
        while len(self._idle) + len(self._starting) < size:
            self._start_worker()
        return size

    def _dismiss(self) -> None:
        """End the workers, unless they are working."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            for worker in (*self._idle, *self._starting.values()):
                self._ray.kill(worker)
            self._idle.clear()
            self._starting.clear()
        finally:
            self._lock.release()

    def run(
        self, calls: Sequence[RemoteCall], at_once: int
    ) -> Generator[tuple[int, Payload | LostError], None, None]:
        """Yield the number of each call with its answer as the answers arrive, or with an error if too many
        workers have died at it. Calls are given out in their order, each to the first worker that is free; at
        most `at_once` of them run at the same time."""
        ray = self._ray
        waiting, busy = deque(range(len(calls))), dict[Any, tuple[int, Any]]()
        deaths, failed_starts = Counter[int](), 0
        with self._lock:
            try:
                while waiting or busy:
                    while waiting and self._idle and len(busy) < at_once:
                        number, worker = waiting.popleft(), self._idle.pop()
                        function, references, value = calls[number]
                        busy[worker.call.remote(function, references, pack(value))] = number, worker
                    done, _ = ray.wait([*busy, *self._starting], timeout=None if busy else START_SECONDS)
                    if not done:
                        raise UserError(
                            f"no worker of the Ray cluster started within {START_SECONDS:.0f} s: see with "
                            "`ray status` whether its CPUs or GPUs are taken, and try again."
                        )
                    if done[0] in self._starting:
                        try:
                            self._admit(done[0])
                            failed_starts = 0
                        except ray.exceptions.RayError as error:
                            failed_starts += 1
                            if failed_starts == ATTEMPTS:
                                raise _died("at its start", error) from None
                            self._start_worker()
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
                        self._start_worker()
                        if deaths[number] == ATTEMPTS:
                            yield number, _died("at the same work", error)
                        else:
                            waiting.appendleft(number)
                    else:
                        self._idle.append(worker)
                        yield number, answer
            finally:
                for _, worker in busy.values():  # their answers are no longer needed
                    ray.kill(worker)

    def _capacity(self) -> int:
        """Return how many workers the cluster can have if nothing else uses it."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        capacity = sum(int(node.get(self._resource, 0)) // self._amount for node in nodes)
        if not capacity:
            way = "lower the trial's threads" if self._resource == "CPU" else "use --device cpu"
            raise UserError(
                f"no machine of the Ray cluster offers {self._amount} {self._resource}: add one that does, "
                f"or {way}."
            )
        return capacity

    def _start_worker(self) -> None:
        """Ask the cluster for one more worker."""
        gpus, cpus = (self._amount, 0) if self._resource == "GPU" else (0, self._amount)
        worker = (
            self._ray.remote(RayWorker)
            .options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy="SPREAD")
            .remote()
        )
        self._starting[worker.about.remote()] = worker

    def _admit(self, reference: Any) -> None:
        """Let a worker that has started take calls. If it has died instead, this raises an error of Ray's."""
        worker = self._starting.pop(reference)
        try:
            host, *versions = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            if missing := re.search(r"No module named '(\w+)", str(error)):
                raise UserError(
                    f"a machine of the Ray cluster has no {missing[1]}: install unskew there as here, with "
                    "pip install 'unskew[ray]', and start its node from that environment."
                ) from None
            raise
        here = [VERSION, _torch_version()]
        if versions != here:
            raise UserError(
                f"machine '{host}' of the Ray cluster has unskew {versions[0]} with torch {versions[1]}, and "
                f"this one {here[0]} with {here[1]}: install the same."
            )
        self._idle.append(worker)


_fleets: weakref.WeakValueDictionary[tuple[object, ...], Fleet] = weakref.WeakValueDictionary()


def fleet_for(*, cuda: bool, threads: int) -> Fleet:
    """Return the fleet of this kind: the one that other engines use already, or a new one."""
    connection = connect().get_runtime_context().get_worker_id()
    key = (connection, cuda, threads)
    found = _fleets.get(key)
    if found is None:
        found = _fleets[key] = Fleet(connection, cuda=cuda, threads=threads)
    return found


def _torch_version() -> str:
    """Return PyTorch's version without the name of its build, which may differ between CPU and GPU
    machines."""
    return torch.__version__.partition("+")[0]


def _died(when: str, error: BaseException) -> LostError:
    reason = " ".join(str(error).split())[:300]
    return LostError(
        f"a worker of the Ray cluster died {ATTEMPTS} times {when}: if memory ran out, use fewer workers; "
        f"Ray says: {reason}."
    )
