"""Failures of the pool engine: errors in workers, workers that are killed, and systems that cannot fork."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import pytest
import torch

from pools import assert_same, eager_pool, pictures_trial, pooled
from processes import alive, children
from unskew import Method, UserError, engines, train
from unskew.engines.cpu import pool
from unskew.engines.cpu.pool import available
from unskew.engines.loop import Loop
from unskew.method import plain_loss
from unskew.rounds import initial_state, run_round
from unskew.trial import Trial

pytestmark = pytest.mark.skipif(not available(), reason="the pool engine needs Linux")


@pytest.fixture(autouse=True)
def _eager(monkeypatch):
    """Trace steps as soon as possible, because the runs of these tests are short."""
    monkeypatch.setitem(engines.ENGINES, "pool", engines.EngineType(eager_pool, pool.check))


@pytest.fixture(scope="module")
def trial() -> Trial:
    return pictures_trial()


@pytest.fixture
def alone() -> None:
    """Collect garbage first, so that no worker is left of an engine in an earlier test."""
    gc.collect()


def until(condition) -> bool:
    """Wait until a condition holds; say whether it did within a time that only a broken program takes."""
    for _ in range(1000):
        if condition():
            return True
        time.sleep(0.02)
    return False


def in_workers(what):
    """Return a loss that calls a function in every process but this one."""
    here = os.getpid()

    def loss(view):
        if os.getpid() != here:
            what()
        return plain_loss(view)

    return Method(loss=loss)


def test_a_wrong_input_is_told_as_it_is(trial, alone):
    def refuse():
        raise UserError("no such thing: take another.")

    with pytest.raises(UserError, match=r"^no such thing: take another\.$"):
        train(pooled(trial), in_workers(refuse))
    assert not children(os.getpid())


def test_another_error_tells_where_it_was_raised(trial):
    def stumble():
        return [][1]

    with pytest.raises(IndexError, match="list index out of range") as caught:
        train(pooled(trial), in_workers(stumble))
    assert "in stumble" in caught.value.__notes__[0]
    assert "Client 0 failed in round 1, stage 'train'." in caught.value.__notes__


def test_an_engine_goes_on_after_an_error_in_a_step(trial, alone):
    here, broken = os.getpid(), multiprocessing.Value("i", 1)

    def loss(view):
        if os.getpid() != here and broken.value:
            raise IndexError
        return plain_loss(view)

    engine, method = eager_pool(replace(trial, workers=2)), Method(loss=loss)
    state = initial_state(method, engine.initial)
    with pytest.raises(IndexError):
        run_round(trial, method, engine, state)
    workers = children(here)
    broken.value = 0
    after, _ = run_round(trial, method, engine, state)
    expected, _ = run_round(trial, Method(), Loop(trial), state)
    assert_same(after.server.weights.params, expected.server.weights.params)
    assert children(here) == workers
    engine.close()
    assert not children(here)


def test_workers_finish_their_round_where_all_processes_are_terminated(trial, alone):
    """So do `timeout`, systemd and Slurm; the first process decides when the others end."""
    engine, here = eager_pool(replace(trial, workers=2)), os.getpid()
    method = in_workers(lambda: os.kill(os.getpid(), signal.SIGTERM))
    state = initial_state(method, engine.initial)
    run_round(trial, method, engine, state)
    workers = children(here)
    after, _ = run_round(trial, method, engine, state)
    assert children(here) == workers
    expected, _ = run_round(trial, Method(), Loop(trial), state)
    assert_same(after.server.weights.params, expected.server.weights.params)
    engine.close()
    assert not children(here)


def test_an_error_that_no_message_can_carry(trial):
    class StrangeError(Exception):
        pass

    def stumble():
        raise StrangeError("of this function alone")

    with pytest.raises(RuntimeError, match="StrangeError: of this function alone") as caught:
        train(pooled(trial), in_workers(stumble))
    assert "in stumble" in caught.value.__notes__[0]
    assert "Client 0 failed in round 1, stage 'train'." in caught.value.__notes__


def test_killed_workers_are_told_in_a_sentence_and_the_engine_goes_on(trial, alone):
    engine = eager_pool(replace(trial, workers=2))
    method = in_workers(lambda: os.kill(os.getpid(), signal.SIGKILL))
    state = initial_state(method, engine.initial)
    sentence = (
        r"^round 1 stopped with 0 usable updates, .*client 0, stage 'train' \(a worker process was ended"
    )
    with pytest.raises(
        UserError, match=sentence + " by SIGKILL twice, .*use fewer --workers, or --engine loop"
    ):
        run_round(trial, method, engine, state)
    after, _ = run_round(trial, Method(), engine, state)
    expected, _ = run_round(trial, Method(), Loop(trial), state)
    assert_same(after.server.weights.params, expected.server.weights.params)
    engine.close()
    assert not children(os.getpid())


def test_workers_killed_between_rounds_cost_nothing(trial, alone):
    engine, method = eager_pool(replace(trial, workers=2)), Method()
    states = []
    for each in (engine, Loop(trial)):
        state, _ = run_round(trial, method, each, initial_state(method, each.initial))
        for pid in children(os.getpid()):
            os.kill(pid, signal.SIGKILL)
        state, round = run_round(trial, method, each, state)
        assert round.test is not None
        assert not round.faults
        states.append(state)
    assert_same(*(state.server.weights.params for state in states))


def test_a_test_that_kills_its_workers_is_told_in_a_sentence(trial, monkeypatch):
    engine, here = eager_pool(replace(trial, workers=2)), os.getpid()
    totals = engine.local.evaluators["test"].batch_totals

    def deadly(weights, batch):
        if batch == 1 and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return totals(weights, batch)

    monkeypatch.setattr(engine.local.evaluators["test"], "batch_totals", deadly)
    with pytest.raises(UserError, match=r"^a worker process was ended by SIGKILL twice"):
        run_round(trial, Method(), engine, initial_state(Method(), engine.initial))


def test_workers_end_with_their_engine(trial, alone):
    engine = eager_pool(replace(trial, workers=2))
    run_round(trial, Method(), engine, initial_state(Method(), engine.initial))
    mine = children(os.getpid())
    assert len(mine) == 2
    del engine
    assert not alive(mine)


def test_a_gpu_is_left_to_other_engines(trial, monkeypatch):
    monkeypatch.setattr(Trial, "pick_device", lambda self: torch.device("meta"))
    with pytest.raises(UserError, match="--device cpu"):
        engines.choose(replace(trial, engine="pool"))


def test_a_daemon_of_multiprocessing_runs_the_loop(trial):
    """Use the loop there, because Python forbids daemons to start processes."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    process = fork.Process(
        target=lambda: theirs.send(engines.choose(replace(trial, engine="auto"))), daemon=True
    )
    process.start()
    assert ours.poll(60)
    assert ours.recv() == "loop"
    process.join()


def test_a_system_without_fork_is_told_of_loop(trial, monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(UserError, match="--engine loop"):
        engines.choose(replace(trial, engine="pool"))


SLOW = """
    import time
    import unskew
    from unskew.method import plain_loss

    def slow(view):
        time.sleep(60)
        return plain_loss(view)

    federation = unskew.federate(unskew.load("digits"), "iid", clients=4, seed=1)
    trial = unskew.Trial(federation, "logistic", engine="pool", workers=2, device="cpu")
    unskew.train(trial, unskew.Method(loss=slow))
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_behind(end):
    """End the owner while workers are in the middle of a long step. Ctrl-C goes to all processes of a
    terminal."""
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SLOW)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert until(lambda: len(children(program.pid)) == 2)
    workers = children(program.pid)
    if end == signal.SIGINT:
        os.killpg(program.pid, end)
    else:
        os.kill(program.pid, end)
    _, errors = program.communicate(timeout=60)
    assert program.returncode == -end
    assert ("KeyboardInterrupt" in errors) == (end == signal.SIGINT)
    assert until(lambda: not alive(workers))
