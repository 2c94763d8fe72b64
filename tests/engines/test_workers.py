"""Worker processes: their answers, their errors, and what happens when one of them dies."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from unskew.engines.cpu.pool import available
from unskew.engines.cpu.shared_tensors import TensorGroups
from unskew.engines.cpu.workers import Workers
from unskew.engines.job import LostError

pytestmark = pytest.mark.skipif(not available(), reason="the pool engine needs Linux")


def work(common: TensorGroups, task: str, own: TensorGroups) -> tuple[int, TensorGroups]:
    if task == "stumble":
        raise IndexError("of this task alone")
    if task == "leave":
        raise SystemExit(3)
    if task == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid(), {"sum": {"sum": common["all"]["one"] + own["mine"]["two"]}}


def tasks(*names: str) -> list[tuple[str, TensorGroups]]:
    return [(name, {"mine": {"two": torch.full((3,), float(n))}}) for n, name in enumerate(names)]


COMMON = {"all": {"one": torch.ones(3)}}


def test_an_error_of_one_task_leaves_the_others_and_the_workers_as_they_are():
    workers = Workers(work, 2)
    names = ["fine", "stumble", "fine", "leave", "fine", "stumble", "fine"]
    pids = set()
    for _ in range(3):
        replies = workers.run(COMMON, tasks(*names))
        for n, (name, reply) in enumerate(zip(names, replies, strict=True)):
            if name == "fine":
                pid, tensors = reply
                pids.add(pid)
                assert torch.equal(tensors["sum"]["sum"], torch.full((3,), 1.0 + n))
            else:
                assert isinstance(reply, IndexError if name == "stumble" else SystemExit)
                assert "in work" in reply.__notes__[-1]
    assert len(pids) <= 2
    assert os.getpid() not in pids
    assert not workers.ended


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_worker_that_dies_is_replaced_and_its_task_tried_once_more(size):
    workers, names = Workers(work, size), ["die", "fine", "stumble", "die", "fine", "die"]
    for _ in range(2):
        replies = workers.run(COMMON, tasks(*names))
        for n, (name, reply) in enumerate(zip(names, replies, strict=True)):
            if name == "fine":
                assert torch.equal(reply[1]["sum"]["sum"], torch.full((3,), 1.0 + n))
            else:
                assert isinstance(reply, IndexError if name == "stumble" else LostError)
        assert str(replies[0]).startswith("a worker process was ended by SIGKILL twice")
    assert not workers.ended
    pids = {reply[0] for reply in workers.run(COMMON, tasks(*["fine"] * size))}
    workers.end()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_worker_that_dies_while_it_rests_costs_nothing():
    workers = Workers(work, 2)
    first = {pid for pid, _ in workers.run(COMMON, tasks("fine", "fine"))}
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    again = workers.run(COMMON, tasks("fine", "fine", "fine"))
    assert not first & {pid for pid, _ in again}
    assert torch.equal(again[2][1]["sum"]["sum"], torch.full((3,), 3.0))
