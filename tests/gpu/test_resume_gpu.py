"""Runs on a GPU that are stopped and resumed: the same bits on the same machine."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks import kills

from federations import flat
from unskew import Checkpoints, methods, train
from unskew.trial import Budget, Trial

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


class StoppedError(Exception):
    pass


MADE = {
    "fedavg": methods.fedavg,
    "scaffold": methods.scaffold,
    "moon": methods.moon,
    "fedadam": methods.fedadam,
    "fedvls": methods.fedvls,
    "pkd": lambda: methods.pkd(warmup=1, expert_rounds=2, groups="0/1,2/3"),
    "local-only": methods.local_only,
    "fedconcat": lambda: methods.fedconcat(clusters=2, encoder_rounds=2),
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model", ["cnn", "mobilenetv2"])
@pytest.mark.parametrize("name", MADE)
def test_a_run_goes_on_with_the_same_bits(images, tmp_path, name, model, precision):
    budget = Budget(rounds=4, epochs=1, batch_size=16, lr=0.01, optimizer_state="fresh")
    trial = Trial(images, model, budget=budget, device="cuda", engine="graphs", precision=precision)
    assert_goes_on(trial, name, tmp_path)


@pytest.mark.parametrize("optimizer_state", ["fresh", "kept"])
def test_adam_goes_on_with_the_same_bits(images, tmp_path, optimizer_state):
    settings = {"rounds": 4, "steps": 7, "batch_size": 16, "lr": 0.001, "schedule": "cosine:warmup=1"}
    budget = Budget(**settings, optimizer="adamw", optimizer_state=optimizer_state)
    assert_goes_on(Trial(images, "cnn", budget=budget, device="cuda", engine="graphs"), "fedvls", tmp_path)


def assert_goes_on(trial, name, tmp_path) -> None:
    trial = replace(trial, client_files=tmp_path / "clients")
    whole = train(trial, MADE[name]())

    def stop(round):
        if round.number == 3:
            raise StoppedError

    first = Checkpoints(tmp_path / "kept", trial, "it", every="every=1")
    with pytest.raises(StoppedError):
        train(trial, MADE[name](), on_round=stop, keeper=first)
    first.wait()
    rest = train(trial, MADE[name](), keeper=Checkpoints(tmp_path / "kept", trial, "it"))
    assert torch.equal(flat(whole.weights), flat(rest.weights))
    assert [round.train_loss for round in whole.rounds] == [round.train_loss for round in rest.rounds]
    for one, other in zip(whole.rounds, rest.rounds, strict=True):
        assert (one.test.confusion == other.test.confusion).all()


def test_kill_9_on_a_gpu_costs_no_bit(tmp_path):
    ask = ["--method", "scaffold", "--device", "cuda", "--rounds", "200", "--clients", "5", "--quiet"]

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        code = "from unskew.cli import main; main()"
        return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.DEVNULL)

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert start("run", *ask, "--out", str(whole)).wait() == 0
    process = start("run", *ask, "--out", str(broken), "--checkpoint", "every=3")
    rounds = broken / "rounds.jsonl"
    while not rounds.exists() or rounds.read_bytes().count(b"\n") < 20:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert any(Path(broken, "checkpoints").iterdir())
    assert start("resume", str(broken), "--quiet").wait() == 0
    assert kills.fingerprint(whole) == kills.fingerprint(broken)
