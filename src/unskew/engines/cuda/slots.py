"""The slots of a GPU, in which clients train side by side, each slot on a stream of its own.

Clients are given to slots longest first. Steps on partial batches are captured apart, once for each size, in
a slot for partial batches: the client's state is copied there, takes one step, and is copied back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import groupby

import torch
from torch import Tensor

from unskew.engines.cuda.captured_step import CapturedStep
from unskew.engines.cuda.packed import PackedTensors
from unskew.engines.cuda.slot import ClientSlot, PartialSlot, Ready, Shared, Slot
from unskew.engines.cuda.streams import (
    Stream,
    current_event,
    current_waits,
    stream_on,
)
from unskew.engines.job import CLIENT_ERRORS, Outcome
from unskew.engines.plan import divide
from unskew.method import Method
from unskew.types import NO_MEMORY, Weights

URGENT_SLOTS = 3
STEPS_AT_ONCE = 4  # in one graph: between two graphs a GPU is idle for five microseconds
MOST_SLOTS = 25  # and as many for partial batches, as PyTorch has streams for; CUDA has 32 separate queues
MEMORY_SHARE = 0.6  # of the free memory that slots may take together; the rest is for data and evaluation


class Slots:
    """The slots for one method, and for tensors of certain shapes that it reads."""

    def __init__(self, shared: Shared, method: Method, first: Ready) -> None:
        self.shared, self.method = shared, method
        self.local, self.trial, self.device = shared.local, shared.local.trial, shared.local.device
        initial, scope = self.local.initial, first.start.scope
        self.broadcast = PackedTensors({"shared": scope.shared}, self.device)
        self.step = CapturedStep(shared, method, self.broadcast)
        self.keeps_buffers = self.trial.keeps_buffers
        self._changing = {
            "params": initial.params,
            "buffers": initial.buffers,
            "state": self.step.make_optimizer(shared.lr).init(initial.params),
            "loss": {"sum": torch.zeros((), device=self.device)},
            "tallies": method.start_tallies(self.device),
        }
        self._scope = {
            "counts": {"counts": scope.counts},
            "memory": scope.memory,
            "correction": first.start.correction or {},
            "buffers": initial.buffers if self.keeps_buffers else {},
            "lr": {"lr": torch.zeros_like(shared.lr)} if method.lr_factor else {},
        }
        self.steps_at_once = 1 if method.lr_factor else STEPS_AT_ONCE
        self.slots: list[ClientSlot] = []
        self.partial_slots: dict[int, PartialSlot] = {}
        self.most = 0  # how many slots fit into memory; 0: not known yet

    def run(self, clients: list[Ready], prefetching: Iterator[None]) -> dict[int, Outcome]:
        """Train clients, and return their outcomes by their places. Meanwhile `prefetching` makes the inputs
        of the next round."""
        self.broadcast.load("shared", clients[0].start.scope.shared)
        self.shared.lr.fill_(self.trial.budget.lr_at(clients[0].start.job.task.round))
        try:
            queues = self._queues(clients)
        except CLIENT_ERRORS as error:  # in the step, which is the same for all of them
            return {client.place: client.failed("train", error) for client in clients}
        outcomes: dict[int, Outcome] = {}
        running = [(self.shared.prefetcher.stream, prefetching)]
        for slot, queue in queues:
            running.append((slot.stream, self._through(slot, len(queues), queue, outcomes)))
        with queues[0][0].stream.activate():
            while running:  # a step of each stream in turn, so that none of them waits for the host
                running = [(stream, steps) for stream, steps in running if _advance(stream, steps)]
        for slot, _ in queues:
            current_waits(self.device, slot.stream.record_event())
        return outcomes

    def _queues(self, clients: list[Ready]) -> list[tuple[ClientSlot, list[Ready]]]:
        """Divide clients among slots, and capture there what they need. Return the slots, each with its
        clients."""
        slots = self._slots_for(len(clients))
        if self.step.compile_partial_batches(clients[0].start.job.task.round, slots):
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # what was captured before may still be running
            self.partial_slots.clear()  # with their memory pools, which are freed with the last graph in them
        places = divide([len(client.inputs.sizes) for client in clients], len(slots))
        queues = [[clients[place] for place in part] for part in places]
        start = current_event(self.device)
        for slot, queue in zip(slots, queues, strict=True):
            slot.stream.wait_event(start)
            slot.stream.wait_event(self.shared.prefetcher.current.ready)
            self._capture_for(slot, queue)
        return list(zip(slots, queues, strict=True))

    def _through(
        self, slot: ClientSlot, slots: int, queue: list[Ready], outcomes: dict[int, Outcome]
    ) -> Iterator[None]:
        for client in queue:
            try:
                yield from self._train(slot, slots, client)
            except (Exception, SystemExit) as error:  # GeneratorExit ends this generator itself
                outcomes[client.place] = client.failed("train", error)
            else:
                outcomes[client.place] = self._finish(slot, client)

    def _train(self, slot: ClientSlot, slots: int, client: Ready) -> Iterator[None]:
        full, prefetcher = self.trial.budget.batch_size, self.shared.prefetcher
        self._enter(slot, client)
        own_lr = slot.scope["lr"].get("lr")
        lrs = iter(client.lrs)
        for position, sizes in prefetcher.pieces(client.inputs, slot.number, slots):
            slot.position.fill_(position)
            for size, run in groupby(sizes):
                left = len(list(run))
                while left:
                    steps = 1
                    if own_lr is not None:
                        own_lr.fill_(next(lrs))
                    if size == full:
                        steps = self.steps_at_once if left >= self.steps_at_once else 1
                        slot.replays[steps]()
                    else:
                        batch = slice(position, position + size)
                        self._step_in_partial_slot(slot, prefetcher.x[batch], prefetcher.y[batch])
                        slot.position.add_(size)
                    position, left = position + steps * size, left - steps
                    yield

    def _enter(self, slot: Slot, client: Ready) -> None:
        """Copy a client into a slot."""
        model, job, scope = self.shared.sent.block, client.start.job, client.start.scope
        slot.changing.block[: len(model)].copy_(model)
        slot.changing.block[len(model) :].zero_()
        if job.optimizer:
            slot.changing.load("state", job.optimizer)
        slot.scope["counts"]["counts"].copy_(scope.counts)
        slot.scope.load("memory", scope.memory)
        slot.scope.load("correction", client.start.correction or {})
        if self.keeps_buffers:
            slot.changing.load("buffers", scope.anchor.buffers)
            slot.scope.load("buffers", scope.anchor.buffers)
        if isinstance(client.random, int):
            slot.stream.seed(client.random)
        else:
            slot.stream.set_random_state(client.random)

    def _step_in_partial_slot(self, slot: Slot, x: Tensor, y: Tensor) -> None:
        """Take a step on a partial batch for the client of a slot, in the slot where steps of this size are
        captured."""
        other, size = self._partial_slot(len(x)), len(x)
        if other.free is not None:
            slot.stream.wait_event(other.free)
        if size not in other.replays:
            other.stream.wait_event(slot.stream.record_event())
            self.step.capture_partial(other, x, y)
            slot.stream.wait_event(other.stream.record_event())
        other.changing.block.copy_(slot.changing.block)
        other.scope.block.copy_(slot.scope.block)
        other.stream.set_random_state(slot.stream.random_state())
        inputs, labels = other.batches[size]
        inputs.copy_(x)
        labels.copy_(y)
        other.replays[size]()
        slot.stream.set_random_state(other.stream.random_state())
        slot.changing.block.copy_(other.changing.block)
        other.free = slot.stream.record_event()

    def _finish(self, slot: Slot, client: Ready) -> Outcome:
        """Copy a client out of a slot, and return its result, with what the method keeps and reports of
        it."""
        steps, start, changing = len(client.inputs.sizes), client.start, slot.changing
        end = changing.ends["state" if self.trial.budget.optimizer_state == "kept" else "buffers"]
        after = changing.views(changing.block[:end].clone())
        weights = Weights(after["params"], after["buffers"])
        loss = changing["loss"]["sum"] / steps
        tallies = {name: value.clone() for name, value in changing["tallies"].items()}
        try:
            draws = self.method.memory.update is not NO_MEMORY.update
            with slot.stream.random_numbers() if draws else nullcontext():
                return self.local.clients.finish(
                    self.method, start, weights, steps, loss, after.get("state", {}), tallies
                )
        except CLIENT_ERRORS as error:
            return client.failed("update", error)

    def _slots_for(self, clients: int) -> list[ClientSlot]:
        """Return as many slots as the clients need, and as the device has memory for."""
        if not self.slots:
            self.most = self._measure()
        waves = math.ceil(clients / min(self.most, self.trial.workers or MOST_SLOTS))
        needed = math.ceil(clients / waves)
        while len(self.slots) < needed:
            self.slots.append(self._new_slot())
        return self.slots[:needed]

    def _measure(self) -> int:
        """Return how many slots fit into memory, measured by what one takes. As many may be needed for
        partial batches."""
        device = self.device
        if device.type != "cuda":
            return MOST_SLOTS
        self._add_captured_slot()  # what is compiled for the first slot serves all others
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(device)
        try:
            self._add_captured_slot()
        except torch.OutOfMemoryError:
            return 1
        cost = max(1, torch.cuda.memory_reserved(device) - before)
        return max(1, int(MEMORY_SHARE * torch.cuda.mem_get_info(device)[0] / (2 * cost)))

    def _add_captured_slot(self) -> None:
        slot = self._new_slot()
        slot.stream.wait_event(current_event(self.device))
        slot.replays[1] = self.step.capture(slot, 1)
        self.slots.append(slot)

    def _new_slot(self) -> ClientSlot:
        number = len(self.slots)  # the first slots get the longest clients, which nothing should delay
        position = torch.zeros((), dtype=torch.int64, device=self.device)
        stream = stream_on(self.device, number, priority=2 if number < URGENT_SLOTS else 1)
        return ClientSlot(stream, *self._tensors(), number, position)

    def _partial_slot(self, size: int) -> PartialSlot:
        """Return the slot for batches of a size. Several sizes share one, so that partial slots take no more
        memory than the slots of clients."""
        key = size % len(self.slots)
        if key not in self.partial_slots:
            stream = stream_on(self.device, key, priority=3)
            self.partial_slots[key] = PartialSlot(stream, *self._tensors())
        return self.partial_slots[key]

    def _tensors(self) -> tuple[PackedTensors, PackedTensors]:
        """Make the memory of a new slot: what a step changes, and what it only reads."""
        return PackedTensors(self._changing, self.device), PackedTensors(self._scope, self.device)

    def _capture_for(self, slot: ClientSlot, queue: Iterable[Ready]) -> None:
        """Capture the steps that these clients will take in a slot, if they were not captured before."""
        full = self.trial.budget.batch_size
        longest = max((client.inputs.sizes.count(full) for client in queue), default=0)
        for steps in sorted({1, self.steps_at_once}):
            if steps <= longest and steps not in slot.replays:
                slot.replays[steps] = self.step.capture(slot, steps)


def _advance(stream: Stream, steps: Iterator[None]) -> bool:
    """Take one step of a stream's work; return False at its end."""
    stream.make_current()
    return next(steps, True) is None
