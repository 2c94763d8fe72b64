"""The pool engine: what the loop computes, in several processes, none of which outlives its owner."""

from __future__ import annotations

import math
import multiprocessing
from dataclasses import replace

import numpy as np
import pytest
import torch

from federations import short_method, split
from pools import assert_same, eager_pool, pictures_trial, pooled
from unskew import Method, UserError, engines, train
from unskew.data.augment import Augment
from unskew.engines.cpu import pool
from unskew.engines.cpu.pool import Pool, available
from unskew.engines.cpu.traced_step import StepTracer
from unskew.engines.job import Job, Task, completed
from unskew.engines.loop import Loop
from unskew.method import plain_loss
from unskew.methods import METHODS
from unskew.result import Result
from unskew.rounds import initial_state, run_round
from unskew.trial import Budget, Trial
from unskew.types import Memory

pytestmark = pytest.mark.skipif(not available(), reason="the pool engine needs Linux")


@pytest.fixture(autouse=True)
def _eager(monkeypatch):
    """Trace steps as soon as possible, because the runs of these tests are short."""
    monkeypatch.setitem(engines.ENGINES, "pool", engines.EngineType(eager_pool, pool.check))


@pytest.fixture(scope="module")
def trial() -> Trial:
    return pictures_trial()


def assert_same_run(one: Result, other: Result) -> None:
    assert_same(one.weights.params, other.weights.params)
    assert_same(one.weights.buffers, other.weights.buffers)
    for name in ("memories", "buffers", "optimizers"):
        assert_same(getattr(one.state, name), getattr(other.state, name))
    assert_same(one.state.server.memory, other.state.server.memory)
    for a, b in zip(one.rounds, other.rounds, strict=True):
        assert (a.cohort, a.trained) == (b.cohort, b.trained)
        assert_same(a.train_loss, b.train_loss)
        assert a.test is not None
        assert b.test is not None
        assert_same(vars(a.test), vars(b.test))


@pytest.mark.parametrize("statistics", ["average", "local", "batch"])
@pytest.mark.parametrize(
    "name", ["fedavg", "scaffold", "fedvls", "moon", "fedsam", "fedcurv", "fedgf", "ccvr", "local-only"]
)
def test_a_run_is_that_of_loop_to_the_last_bit(trial, name, statistics):
    trial = replace(trial, statistics=statistics)
    assert_same_run(train(trial, short_method(name)), train(pooled(trial), short_method(name)))


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_the_number_of_workers_changes_nothing(trial, workers):
    method = METHODS["scaffold"]() + METHODS["fedntd"]()
    assert_same_run(train(trial, method), train(pooled(trial, workers), method))


def change_of_augmentation(trial: Trial) -> Trial:
    return replace(trial, augment=Augment.parse("crop:1,flip,cutout:2"))


def change_of_optimizer(trial: Trial) -> Trial:
    return replace(trial, budget=trial.budget.model_copy(update={"optimizer_state": "kept"}))


def change_of_rate(trial: Trial) -> Trial:
    return replace(trial, budget=trial.budget.model_copy(update={"schedule": "exponential:0.5", "rounds": 3}))


def change_of_steps(trial: Trial) -> Trial:
    return replace(trial, budget=Budget(rounds=2, steps=7, batch_size=8, lr=0.05, schedule="cosine"))


def change_to_part_of_an_epoch(trial: Trial) -> Trial:
    return replace(trial, budget=trial.budget.model_copy(update={"epochs": 1.5}))


def change_to_adam(trial: Trial) -> Trial:
    adam = {"optimizer": "adam:betas=0.8/0.99", "optimizer_state": "kept", "weight_decay": 0.01}
    return replace(trial, budget=trial.budget.model_copy(update=adam))


def change_of_momentum(trial: Trial) -> Trial:
    return replace(trial, budget=trial.budget.model_copy(update={"momentum": 0.0, "weight_decay": 0.0}))


def change_of_cohort(trial: Trial) -> Trial:
    return replace(trial, budget=trial.budget.model_copy(update={"cohort": 3, "rounds": 4}))


def change_of_threads(trial: Trial) -> Trial:
    return replace(trial, threads=2, budget=trial.budget.model_copy(update={"rounds": 1}))


@pytest.mark.parametrize(
    "change",
    [
        change_of_augmentation,
        change_of_optimizer,
        change_of_rate,
        change_of_steps,
        change_to_part_of_an_epoch,
        change_to_adam,
        change_of_momentum,
        change_of_cohort,
        change_of_threads,
    ],
)
def test_the_conditions_of_a_trial_reach_the_workers(trial, change):
    trial = change(trial)
    assert_same_run(train(trial), train(pooled(trial)))


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_steps_of_adam_are_replayed_with_other_rates_and_counts(trial, optimizer):
    """Check that a trace holds neither bias corrections, which depend on the steps taken, nor learning
    rates."""
    settings = {"rounds": 4, "steps": 12, "batch_size": 8, "lr": 0.01, "weight_decay": 0.1}
    trial = replace(trial, budget=Budget(**settings, optimizer=optimizer, schedule="cosine"))
    method, pool = Method(), Pool(pooled(trial), StepTracer(after=2, comparisons=1))
    loop, ours, theirs = Loop(trial), initial_state(method, pool.initial), initial_state(method, pool.initial)
    for _ in range(4):
        ours, _ = run_round(trial, method, pool, ours)
        theirs, _ = run_round(trial, method, loop, theirs)
    pool.close()
    assert pool.replayed > 20
    assert_same(theirs.server.weights.params, ours.server.weights.params)


def test_cohorts_with_nothing_to_share_out(trial):
    """Train a cohort of one client, and one of clients without data."""
    dataset = trial.federation.dataset
    for rows in ([range(20)], [range(20), []], [[], []]):
        alone = replace(trial, federation=split(dataset, *rows))
        assert_same_run(train(alone), train(pooled(alone)))


def test_tensors_of_every_kind_come_back_as_they_were(trial):
    """Check their layout too, and that they may be larger from round to round."""

    def update(scope, end):
        weight = end.weights.params["0.weight"]
        before = scope.memory.get("odd/growing", torch.zeros(1))
        return {
            "odd/growing": torch.cat([before] * 40),
            "odd/turned": weight[:, 0].permute(2, 0, 1),
            "odd/part": weight[::2, 0, 1],
            "odd/same": weight,
            "odd/none": torch.zeros(0, 3),
            "odd/int": scope.counts,
            "odd/bool": scope.counts > 1,
            "odd/half": weight.bfloat16(),
        }, {"odd/number": weight.double().sum()}

    method = Method(memory=Memory(update=update))
    runs = []
    for kind in (Loop, eager_pool):
        engine = kind(replace(trial, workers=2))
        state = initial_state(method, engine.initial)
        for _ in range(3):
            state, _ = run_round(trial, method, engine, state)
        runs.append(state)
    loop, other = runs
    for client, kept in loop.memories.items():
        there = other.memories[client]
        gap = kept.pop("odd/part"), there.pop("odd/part")  # its gaps are not sent
        assert torch.equal(*gap)
        assert_same(kept, there)
    assert_same(loop.server.weights.params, other.server.weights.params)


def test_steps_are_traced_and_replayed(trial):
    calls = multiprocessing.Value("i", 0)

    def loss(view):
        with calls.get_lock():
            calls.value += 1
        return plain_loss(view)

    trial = replace(trial, budget=trial.budget.model_copy(update={"rounds": 10}))
    train(pooled(trial), Method(loss=loss))
    steps = 10 * 2 * sum(-(-size // 8) for size in trial.federation.sizes.tolist())
    assert calls.value < steps / 2
    before, calls.value = calls.value, 0
    train(replace(pooled(trial), trace=False), Method(loss=loss))
    assert before < calls.value == steps


@pytest.mark.parametrize(
    "read",
    [
        float,
        lambda loss: loss.tolist(),
        lambda loss: float(loss.numpy()),
        lambda loss: float(np.asarray(loss)),
    ],
    ids=["float", "tolist", "numpy", "asarray"],
)
def test_a_loss_that_looks_at_its_values_is_not_replayed(trial, read):
    """Let the branches differ late in the run, after a trace has agreed in all comparisons."""
    trial = replace(trial, budget=trial.budget.model_copy(update={"rounds": 6}))

    def moody(view):
        loss = plain_loss(view)
        return loss if read(loss.detach()) > 0.3 else -loss

    assert_same_run(train(trial, Method(loss=moody)), train(pooled(trial), Method(loss=moody)))


METHOD = Method()


def everyone(trial: Trial) -> list[Job]:
    federation = trial.federation
    return [Job(Task(client, 0, federation.holding(client))) for client in range(federation.clients)]


def switched(switch):
    """Return a method that depends on something that no tracer can see: memory shared between processes."""
    return Method(loss=lambda view: plain_loss(view) * (2 if switch.value else 1))


def test_a_trace_that_becomes_wrong_ends_the_run_and_says_so(trial):
    switch = multiprocessing.Value("i", 0)
    method = switched(switch)
    tracer = StepTracer(after=1, comparisons=1, check_every=3, quick=math.inf)
    engine = Pool(replace(trial, workers=2), tracer)
    state = initial_state(method, engine.initial)
    for _ in range(4):
        state, _ = run_round(trial, method, engine, state)
    assert engine.replayed
    switch.value = 1
    with pytest.raises(UserError, match=r"rounds before this one may be wrong too: .* --set trace=false\.$"):
        _ = [run_round(trial, method, engine, state) for _ in range(4)]


def test_without_traces_hidden_state_is_seen(trial):
    runs = []
    for kind in (Loop, eager_pool):
        switch = multiprocessing.Value("i", 0)
        method = switched(switch)
        engine = kind(replace(trial, workers=2, trace=False))
        state = initial_state(method, engine.initial)
        for value in (0, 0, 0, 1, 1):
            switch.value = value
            state, _ = run_round(trial, method, engine, state)
        runs.append(state.server.weights.params)
    assert_same(*runs)


def test_weights_that_are_not_numbers_are_no_difference(trial):
    trial = replace(trial, budget=trial.budget.model_copy(update={"lr": 1e30}))
    engine, jobs = eager_pool(replace(trial, workers=2)), everyone(trial)
    for _ in range(4):
        fits = completed(engine.fit(METHOD, engine.initial, {}, jobs))
    assert not fits[0].weights.params["0.weight"].isfinite().all()
    assert engine.replayed


@pytest.mark.parametrize("name", ["Graph", "_create_function_from_graph"])
def test_another_pytorch_means_slower_steps_and_one_warning(trial, name, monkeypatch):
    expected = train(trial)
    monkeypatch.delattr(torch._C, name)
    with pytest.warns(RuntimeWarning, match=f"steps are not traced.*{name}") as warned:
        assert_same_run(expected, train(pooled(trial)))
    assert len(warned) == 1


def test_a_loss_that_remembers_is_not_replayed(trial):
    """Break the rules for losses, which must not lead to wrong results."""

    def forgetful():
        first = {}

        def loss(view):
            share = view.scope.counts / view.scope.counts.sum()
            _, share = first.setdefault(id(view.scope), (view.scope, share))
            return plain_loss(view) + (view.out.logits.mean(dim=0) * share).sum()

        return Method(loss=loss)

    assert_same_run(train(trial, forgetful()), train(pooled(trial), forgetful()))


def test_an_engine_takes_methods_in_turn(trial):
    first, second = METHODS["fedprox"](), METHODS["fedsam"]()
    loop, other = Loop(trial), eager_pool(replace(trial, workers=2))
    for method in (first, second, first):
        states = [
            run_round(trial, method, engine, initial_state(method, engine.initial))[0]
            for engine in (loop, other)
        ]
        assert_same(*(state.server.weights.params for state in states))


def test_several_engines_side_by_side(trial):
    method = Method()
    engines = [eager_pool(replace(trial, workers=2)) for _ in range(4)]
    states = [initial_state(method, engine.initial) for engine in engines]
    for _ in range(2):
        states = [run_round(trial, method, *each)[0] for each in zip(engines, states, strict=True)]
        del engines[0], states[0]  # while workers of the others, forked later, have a copy of all it had
    assert_same(*(state.server.weights.params for state in states))
