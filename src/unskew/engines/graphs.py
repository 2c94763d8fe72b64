"""Clients side by side on one GPU: a client's step is recorded once and replayed.

A lane holds one client at a time: weights, optimiser state and all that the method looks at lie at fixed
addresses, and the recorded step works there. Lanes run side by side, each on a stream of its own; the clients
of a round are given out longest first. A trailing batch of another size is a step of its own, recorded once
for each size on a spare lane: the client's state moves there, steps, and moves back.

The host never waits for the device within a round. What runs before a client trains and after it
(`Memory.prepare`, corrections, `Memory.update`) is ordinary PyTorch, as in the loop.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from unskew.engines.arena import Arena, load_model, model_arena
from unskew.engines.cuda.compile import (
    WORTH_COMPILING,
    AnyBatchStep,
    compile_step,
    compile_step_for_any_batch,
    decompose_convolutions,
)
from unskew.engines.examiner import Examiner
from unskew.engines.feed import Feed, Portion
from unskew.engines.job import Fit, Job
from unskew.engines.lines import Line, Mark, Step, line_on, main_mark, main_wait, random_state
from unskew.engines.loop import Loop, Training
from unskew.engines.numerics import seed
from unskew.engines.plan import cohort
from unskew.errors import UserError
from unskew.method import Method
from unskew.metrics import Assessment
from unskew.parts.optimizers import fused_sgd, sgd
from unskew.randomness import Purpose, draw_seed
from unskew.trial import Trial
from unskew.types import FORGETFUL, End, Optimizer, Params, Scope, Tensors, View, Weights

URGENT_LANES = 3
LEAP = 4  # steps in one recording: between two recordings a GPU rests for five microseconds
MOST_LANES = 25  # with as many spare rooms, what PyTorch has streams for; CUDA keeps 32 queues apart
MEMORY_SHARE = 0.6  # of the free memory that lanes may take together; the rest is for data and evaluation
STAGES_KEPT = 4

Signature = tuple[object, ...]


def check(trial: Trial) -> None:
    if trial.pick_device().type != "cuda":
        raise UserError("engine 'graphs' needs a CUDA GPU: use --engine pool or --engine loop.")


@dataclass(frozen=True, eq=False)
class Work:
    """One client's round, with all that is known before it trains."""

    place: int
    """Among the jobs."""
    job: Job
    scope: Scope
    correction: Params | None
    random: Tensor | int
    """The state of its random numbers, or their seed."""
    portion: Portion


@dataclass(frozen=True, eq=False)
class Room:
    """Where a client's step works: tensors at fixed addresses, on a line of their own."""

    line: Line
    moving: Arena
    """Parameters, buffers, optimiser state, summed loss and tallies: what a step changes."""
    scope: Arena
    """Counts, memory, correction: what it only reads."""


class Held(NamedTuple):
    """All that a step works on, but for the batch."""

    moving: dict[str, Tensors]
    scope: dict[str, Tensors]
    anchor: dict[str, Tensors]
    shared: Tensors
    lr: Tensor


@dataclass(eq=False)
class Lane:
    """A room for full batches, which the step fetches by itself from the inputs that lie ready."""

    room: Room
    number: int
    at: Tensor
    """Where the next batch lies in the feed."""
    steps: dict[int, Step] = field(default_factory=dict)
    """So many at once."""


@dataclass(eq=False)
class Spare:
    """A room for other batches, where a client is for one step."""

    room: Room
    inputs: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    steps: dict[int, Step] = field(default_factory=dict)
    free: Mark | None = None
    """When the last client has left."""


@dataclass(frozen=True, eq=False)
class Floor:
    """What all lanes have in common."""

    loop: Loop
    anchor: Arena
    lr: Tensor
    feed: Feed


class Graphs:
    ahead = 1

    def __init__(self, trial: Trial) -> None:
        """On a CPU it does the same, one step at a time, to no advantage: that is for tests."""
        # Read when CUDA starts: how many streams run side by side; 8 by default.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        self.trial = trial
        self.loop = Loop(trial)
        self.device = self.loop.device
        self.initial = self.loop.initial
        self._counts = trial.federation.counts.to(self.device)
        self._stages: dict[Signature, Stage] = {}
        if self.device.type == "cuda":  # memory must not go while something still runs in it
            weakref.finalize(self, torch.cuda.synchronize, self.device)

    @cached_property
    def _floor(self) -> Floor:
        model = model_arena(self.initial, self.device)
        lr = torch.zeros((), device=self.device)
        return Floor(self.loop, model, lr, Feed(self.loop, line_on(self.device, 0, 0), MOST_LANES))

    @cached_property
    def _examiner(self) -> Examiner:
        return Examiner(self.loop, line_on(self.device, 1, 0))

    def look(
        self, client: int, weights: Weights, /, *, grad: bool = False, batch_size: int | None = None
    ) -> Iterator[View]:
        return self.loop.look(client, weights, grad=grad, batch_size=batch_size)

    def assess(self, weights: Weights) -> Assessment:
        return self.assess_later(weights)()

    def assess_later(self, weights: Weights) -> Callable[[], Assessment]:
        with self.loop.steady():
            return self._examiner.ask(weights)

    def fit(self, method: Method, anchor: Weights, shared: Tensors, jobs: Iterable[Job]) -> list[Fit]:
        jobs = list(jobs)
        if not jobs:
            return []
        with self.loop.steady():
            load_model(self._floor.anchor, anchor)
            fits: dict[int, Fit] = {}
            stages: dict[Stage, list[Work]] = {}
            for work in self._prepare(method, anchor, shared, jobs, fits):
                stages.setdefault(self._stage(method, work), []).append(work)
            coming = self._coming(jobs)
            for stage, works in stages.items():
                fits |= stage.run(works, coming)
            self._floor.feed.left()
            return [fits[place] for place in range(len(jobs))]

    def _prepare(
        self, method: Method, anchor: Weights, shared: Tensors, jobs: list[Job], fits: dict[int, Fit]
    ) -> Iterator[Work]:
        """What there is to do; clients without data are done with at once."""
        for place, (job, portion) in enumerate(zip(jobs, self._floor.feed.load(jobs), strict=True)):
            received = anchor if job.buffers is None else Weights(anchor.params, job.buffers)
            if not portion.sizes:
                nothing = torch.zeros((), device=self.device)
                fits[place] = Fit(received, 0, 0, nothing, job.memory, {})
                continue
            scope = Scope(received, self._counts[job.client], job.memory, shared)
            drawn = draw_seed(self.trial.seed, Purpose.CLIENT, job.round, job.client)
            random: Tensor | int = drawn
            if method.memory.prepare is not FORGETFUL.prepare:
                seed(drawn, self.device)
                prepared = method.memory.prepare(scope, partial(self.look, job.client))
                scope = replace(scope, memory={**scope.memory, **prepared})
                random = random_state(self.device)
            yield Work(place, job, scope, method.correction(scope), random, portion)

    def _coming(self, jobs: list[Job]) -> Iterator[None]:
        """The inputs of the next round, where it can be foreseen: not on one machine of several."""

        def chosen(round: int) -> list[int]:
            return cohort(trial.seed, round, trial.federation.clients, trial.cohort)

        trial, round = self.trial, jobs[0].round
        if round + 1 >= trial.budget.rounds or [job.client for job in jobs] != chosen(round):
            return iter(())
        return self._floor.feed.bring([Job(client, round + 1, {}) for client in chosen(round + 1)])

    def _stage(self, method: Method, work: Work) -> Stage:
        signature = (
            id(method),
            _shapes(work.scope.memory),
            _shapes(work.scope.shared),
            _shapes(work.correction or {}),
        )
        stage = self._stages.pop(signature, None) or Stage(self._floor, method, work)
        self._stages[signature] = stage  # the last one used is the last to go
        while len(self._stages) > STAGES_KEPT:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # its recordings may still be running
            del self._stages[next(iter(self._stages))]
        return stage


class Stage:
    """Lanes for one method and one set of shapes of what it looks at."""

    def __init__(self, floor: Floor, method: Method, first: Work) -> None:
        self.floor, self.method = floor, method
        self.loop, self.trial, self.device = floor.loop, floor.loop.trial, floor.loop.device
        initial, budget = self.loop.initial, self.trial.budget
        self.shared = Arena({"shared": first.scope.shared}, self.device)
        self.local = self.trial.statistics == "local"
        self._moving = {
            "params": initial.params,
            "buffers": initial.buffers,
            "state": self._optimizer(floor.lr).init(initial.params),
            "loss": {"sum": torch.zeros((), device=self.device)},
            "tallies": method.start_tallies(self.device),
        }
        self._scope = {
            "counts": {"counts": first.scope.counts},
            "memory": first.scope.memory,
            "correction": first.correction or {},
            "buffers": initial.buffers if self.local else {},
        }
        self._places = torch.arange(budget.batch_size, device=self.device)
        self._fused: Callable[[Held, Tensors], None] | None = None
        self.lanes: list[Lane] = []
        self.spares: dict[int, Spare] = {}
        self.most = 0  # lanes that fit; 0: not known yet

    def run(self, works: list[Work], coming: Iterator[None]) -> dict[int, Fit]:
        """What came of them; meanwhile the next round's inputs come."""
        self.shared.load("shared", works[0].scope.shared)
        self.floor.lr.fill_(self.trial.budget.lr_at(works[0].job.round))
        works = sorted(works, key=lambda work: -len(work.portion.sizes))
        lanes = self._lanes(len(works))
        queues: list[list[Work]] = [[] for _ in lanes]
        load = [0] * len(lanes)
        for work in works:  # longest first, each to the lane that is free first
            free = load.index(min(load))
            queues[free].append(work)
            load[free] += len(work.portion.sizes)

        start = main_mark(self.device)
        fits: dict[int, Fit] = {}
        running = [(self.floor.feed.line, coming)]
        for lane, queue in zip(lanes, queues, strict=True):
            lane.room.line.wait(start)
            lane.room.line.wait(self.floor.feed.now.ready)
            self._record(lane, queue)
            running.append((lane.room.line, self._through(lane, len(lanes), queue, fits)))
        with lanes[0].room.line.work():
            while running:  # a step of each in turn, so that none of them waits for the host
                running = [(line, steps) for line, steps in running if _advance(line, steps)]
        for lane in lanes:
            main_wait(self.device, lane.room.line.mark())
        return fits

    def _through(self, lane: Lane, lanes: int, queue: list[Work], fits: dict[int, Fit]) -> Iterator[None]:
        for work in queue:
            yield from self._train(lane, lanes, work)
            fits[work.place] = self._finish(lane.room, work)

    def _train(self, lane: Lane, lanes: int, work: Work) -> Iterator[None]:
        full, feed = self.trial.budget.batch_size, self.floor.feed
        self._enter(lane.room, work)
        for at, sizes in feed.pieces(work.portion, lane.number, lanes):
            lane.at.fill_(at)
            for size, run in groupby(sizes):
                left = len(list(run))
                while left:
                    steps = 1
                    if size == full:
                        steps = LEAP if left >= LEAP else 1
                        lane.steps[steps]()
                    else:
                        self._aside(lane.room, feed.x[at : at + size], feed.y[at : at + size])
                        lane.at.add_(size)
                    at, left = at + steps * size, left - steps
                    yield

    def _enter(self, room: Room, work: Work) -> None:
        """Put the client into the room."""
        model = self.floor.anchor.block
        room.moving.block[: len(model)].copy_(model)
        room.moving.block[len(model) :].zero_()
        if work.job.optimizer:
            room.moving.load("state", work.job.optimizer)
        room.scope["counts"]["counts"].copy_(work.scope.counts)
        room.scope.load("memory", work.scope.memory)
        room.scope.load("correction", work.correction or {})
        if self.local:
            room.moving.load("buffers", work.scope.anchor.buffers)
            room.scope.load("buffers", work.scope.anchor.buffers)
        if isinstance(work.random, int):
            room.line.seed(work.random)
        else:
            room.line.set_random_state(work.random)

    def _aside(self, room: Room, x: Tensor, y: Tensor) -> None:
        """One step of another size, in the spare room where it is recorded."""
        spare, size = self._spare(len(x)), len(x)
        other = spare.room
        if spare.free is not None:
            room.line.wait(spare.free)
        if size not in spare.steps:
            other.line.wait(room.line.mark())
            self._record_spare(spare, x, y)
            room.line.wait(other.line.mark())
        other.moving.block.copy_(room.moving.block)
        other.scope.block.copy_(room.scope.block)
        other.line.set_random_state(room.line.random_state())
        inputs, labels = spare.inputs[size]
        inputs.copy_(x)
        labels.copy_(y)
        spare.steps[size]()
        room.line.set_random_state(other.line.random_state())
        room.moving.block.copy_(other.moving.block)
        spare.free = room.line.mark()

    def _finish(self, room: Room, work: Work) -> Fit:
        """Take the client out of the room."""
        budget, steps = self.trial.budget, len(work.portion.sizes)
        kept = budget.optimizer == "kept"
        end = room.moving.ends["state" if kept else "buffers"]
        after = room.moving.views(room.moving.block[:end].clone())
        weights = Weights(after["params"], after["buffers"])
        loss = room.moving["loss"]["sum"] / steps
        memory, reported = Tensors(), Tensors()
        if self.method.memory.update is not FORGETFUL.update:
            look = partial(self.loop.look, work.job.client)
            ended = End(weights, steps, budget.lr_at(work.job.round), budget.momentum, look)
            with room.line.chance():
                memory, reported = self.method.memory.update(work.scope, ended)
        samples = len(self.trial.federation.partition.indices[work.job.client])
        state = after["state"] if kept else {}
        tallies = {name: value.clone() for name, value in room.moving["tallies"].items()}
        return Fit(weights, samples, steps, loss, memory, reported, state, tallies)

    def _lanes(self, clients: int) -> list[Lane]:
        """As many as the clients need, and as the device has room for."""
        if not self.lanes:
            self.most = self._measure()
        waves = math.ceil(clients / min(self.most, self.trial.workers or MOST_LANES))
        needed = math.ceil(clients / waves)
        while len(self.lanes) < needed:
            self.lanes.append(self._lane())
        return self.lanes[:needed]

    def _measure(self) -> int:
        """How many lanes fit, from what one takes; as many spare rooms may be needed."""
        device = self.device
        if device.type != "cuda":
            return MOST_LANES
        self._add_recorded_lane()  # what is compiled for it is there for all others
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(device)
        try:
            self._add_recorded_lane()
        except (UserError, torch.OutOfMemoryError):  # the first one could be recorded, so memory is short
            return 1
        cost = max(1, torch.cuda.memory_reserved(device) - before)
        return max(1, int(MEMORY_SHARE * torch.cuda.mem_get_info(device)[0] / (2 * cost)))

    def _add_recorded_lane(self) -> None:
        lane = self._lane()
        lane.room.line.wait(main_mark(self.device))
        lane.steps[1] = self._record_steps(lane, 1)
        self.lanes.append(lane)

    def _lane(self) -> Lane:
        number = len(self.lanes)  # the first get the clients that take longest: let nothing hold those up
        at = torch.zeros((), dtype=torch.int64, device=self.device)
        return Lane(self._room(number, urgency=2 if number < URGENT_LANES else 1), number, at)

    def _spare(self, size: int) -> Spare:
        """Sizes share rooms, so that these take no more memory than the lanes."""
        key = size % len(self.lanes)
        if key not in self.spares:
            self.spares[key] = Spare(self._room(key, urgency=3))
        return self.spares[key]

    def _room(self, number: int, urgency: int) -> Room:
        return Room(
            line_on(self.device, number, urgency),
            Arena(self._moving, self.device),
            Arena(self._scope, self.device),
        )

    def _record(self, lane: Lane, queue: Iterable[Work]) -> None:
        """The steps that these clients will take here, where they were not taken before."""
        full = self.trial.budget.batch_size
        longest = max((work.portion.sizes.count(full) for work in queue), default=0)
        for steps in (1, LEAP):
            if steps <= longest and steps not in lane.steps:
                lane.steps[steps] = self._record_steps(lane, steps)

    def _record_steps(self, lane: Lane, steps: int) -> Step:
        held = self._held(lane.room), {"at": lane.at, "x": self.floor.feed.x, "y": self.floor.feed.y}
        # Other batches than these are too rare for the time that a race takes.
        with lane.room.line.work(), self.loop.raced() if self.trial.fast else nullcontext():
            if self.trial.fast and self._fused is None:
                self._fused = compile_step(self._fetch_and_step, *held)
            step = self._fused or self._fetch_and_step

            def walk() -> None:
                for _ in range(steps):
                    step(*held)

            lane.at.zero_()  # a recording leaves it further on
            return lane.room.line.record(walk)

    def _fetch_and_step(self, held: Held, feed: Tensors) -> None:
        """On the batch that lies ready, after which the next is ready."""
        rows = self._places + feed["at"]
        x, y = feed["x"].index_select(0, rows), feed["y"].index_select(0, rows)
        self._step(held, x, y, fused=self.trial.fast)
        feed["at"].add_(len(rows))

    def _record_spare(self, spare: Spare, x: Tensor, y: Tensor) -> None:
        with spare.room.line.work():
            inputs, labels = torch.zeros_like(x), torch.zeros_like(y)
            spare.inputs[len(x)] = inputs, labels
            step = partial(self._partial_step(len(x)), self._held(spare.room), inputs, labels)
        spare.steps[len(x)] = spare.room.line.record(step)

    def _partial_step(self, size: int) -> Callable[[Held, Tensor, Tensor], None]:
        if self._sized and self._sized.fits(size):
            return self._sized.run
        step = partial(self._step, fused=False)
        return decompose_convolutions(step) if self.trial.fast else step

    @cached_property
    def _sized(self) -> AnyBatchStep | None:
        """For partial batches, where these are worth it."""
        if not self.trial.fast or _partial_share(self.trial) < WORTH_COMPILING:
            return None
        feed, usual = self.floor.feed, max(2, self.trial.budget.batch_size // 2)
        x, y = feed.x[:usual], feed.y[:usual]
        step = partial(self._step, fused=True)
        return compile_step_for_any_batch(step, self._held(self.lanes[0].room), x, y, batch=(x, y))

    def _held(self, room: Room) -> Held:
        anchor, scope = dict(self.floor.anchor.groups), dict(room.scope.groups)
        own = scope.pop("buffers")
        if self.local:
            anchor["buffers"] = own
        return Held(room.moving.groups, scope, anchor, self.shared["shared"], self.floor.lr)

    def _step(self, held: Held, x: Tensor, y: Tensor, *, fused: bool) -> None:
        """What is recorded: one step of the client in a room, as the loop would take it; `fused` where a
        compiler will make it over."""
        moving, scope = held.moving, held.scope
        anchor = Weights(held.anchor["params"], held.anchor["buffers"])
        training = Training(
            self.loop.network,
            self.method,
            Scope(anchor, scope["counts"]["counts"], scope["memory"], held.shared),
            scope["correction"] or None,
            Weights(moving["params"], moving["buffers"]),
            self._optimizer(held.lr, fused=fused),
            moving["state"],
            self.trial.budget.lr,
            moving["tallies"],
        )
        moving["loss"]["sum"].add_(training.step(x, y))

    def _optimizer(self, lr: Tensor, *, fused: bool = False) -> Optimizer:
        budget = self.trial.budget
        decay = {"momentum": budget.momentum, "weight_decay": budget.weight_decay}
        if fused:
            return sgd(lr, **decay)
        return fused_sgd(lr, **decay) if lr.is_cuda else sgd(float(lr), **decay)


def _advance(line: Line, steps: Iterator[None]) -> bool:
    line.take()
    return next(steps, True) is None


def _partial_share(trial: Trial) -> float:
    """Of batches that are not full among all of them."""
    sizes, full = trial.federation.sizes, trial.budget.batch_size
    left_over = sizes % full > 0
    return float(left_over.sum() / (sizes // full + left_over).sum())


def _shapes(tensors: Tensors) -> tuple[object, ...]:
    return tuple((name, value.shape, value.dtype, value.stride()) for name, value in tensors.items())
