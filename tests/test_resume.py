"""Runs that are stopped in every way, and resumed: nothing is lost, and no bit differs."""

import json
import os
import random
import re
import resource
import shutil
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import kills
from torch import nn

import unskew as package
from processes import alive, end, processes_of
from unskew import Budget, Checkpoints, Trial, UserError, methods
from unskew.checkpoints import Period
from unskew.lock import locked
from unskew.methods import METHODS
from unskew.report.conditions import by_condition
from unskew.report.read import read_runs
from unskew.runs import RunFolder
from unskew.testing import hard_trial, normed_model

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system that forks"),
    pytest.mark.usefixtures("no_workers"),
]

BRIEF = (
    "--dataset", "digits", "--skew", "dirichlet:0.3", "--clients", "4", "--rounds", "4", "--epochs", "1",
    "--model", "logistic", "--quiet",
)  # fmt: skip
POOL = ("--engine", "pool")
"""Of what is stopped or killed, with its workers; the rest runs without."""


class StoppedError(Exception):
    pass


def stop_after(checkpoints: Checkpoints, offers: int) -> Checkpoints:
    """Stop when so many rounds, of any stage, have ended."""
    whole, seen = checkpoints.after_round, 0

    def after_round(name, stage):
        nonlocal seen
        seen += 1
        whole(name, stage)
        if seen == offers:
            checkpoints.wait()
            raise StoppedError

    checkpoints.after_round = after_round
    return checkpoints


def same(first, second) -> bool:
    """Say whether two results are the same except for their times."""
    return (
        all(
            torch.equal(value, (second.weights.params | second.weights.buffers)[name])
            for name, value in (first.weights.params | first.weights.buffers).items()
        )
        and [round.train_loss for round in first.rounds] == [round.train_loss for round in second.rounds]
        and [round.traffic for round in first.rounds] == [round.traffic for round in second.rounds]
        and all(
            (one.test.confusion == other.test.confusion).all()
            and one.test.loss == other.test.loss
            and np.array_equal(one.test.answers, other.test.answers)
            for one, other in zip(first.rounds, second.rounds, strict=True)
        )
        and (first.notes, first.cost, first.traffic) == (second.notes, second.cost, second.traffic)
    )


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(lambda: methods.pkd(warmup=1, expert_rounds=2, groups="0/1,2/3"), id="pkd"),
        pytest.param(lambda: methods.fedconcat(clusters=2, encoder_rounds=1), id="fedconcat"),
        pytest.param(lambda: methods.local_only() + methods.moon(), id="local-only"),
        pytest.param(lambda: methods.ccvr(samples=20), id="ccvr"),
        pytest.param(methods.moon, id="moon"),
    ],
)
def test_a_run_goes_on_from_wherever_it_was_stopped(method, tmp_path):
    """After any round of any stage, by another engine than before, and with what clients keep on disk."""
    trial = hard_trial(normed_model)
    whole = package.train(trial, method())
    folder, stops = tmp_path / "run", []
    first = replace(trial, client_files=folder / "clients", client_memory=0.0)
    checkpoints = Checkpoints(folder, first, "it", every="every=1")
    after_round = checkpoints.after_round

    def copy_after_round(name, stage):
        """Copy what a run that is stopped here leaves behind."""
        after_round(name, stage)
        checkpoints.wait()
        stops.append(tmp_path / f"stop {len(stops)}")
        shutil.copytree(folder, stops[-1])

    checkpoints.after_round = copy_after_round
    assert same(whole, package.train(first, method(), keeper=checkpoints))
    assert len(stops) >= trial.budget.rounds
    for left in stops:
        other = replace(first, client_files=left / "clients", engine="pool", workers=2)
        assert same(whole, package.train(other, method(), keeper=Checkpoints(left, other, "it")))


def test_kept_optimisers_local_statistics_and_strides_come_back(tmp_path):
    rng = np.random.default_rng(0)
    images, labels = rng.random((60, 3, 8, 8), dtype=np.float32), np.arange(60) % 4
    dataset = package.data.from_arrays(images, labels)
    budget = Budget(rounds=3, epochs=1, batch_size=8, optimizer_state="kept")
    federation = package.federate(dataset, "iid", clients=3, seed=1)
    trial = Trial(federation, channels_last, budget=budget, statistics="local", engine="loop")
    whole = package.train(trial)
    checkpoints = stop_after(Checkpoints(tmp_path, trial, "it", every="every=1"), 2)
    with pytest.raises(StoppedError):
        package.train(trial, keeper=checkpoints)
    found = Checkpoints(tmp_path, trial, "it").find("training").stage.states[0]
    weight = found.server.weights.params["0.weight"]
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert len(found.optimizers) == len(found.buffers) == 3
    assert same(whole, package.train(trial, keeper=Checkpoints(tmp_path, trial, "it")))


@pytest.mark.parametrize("optimizer_state", ["fresh", "kept"])
def test_adam_schedules_and_steps_continue_where_they_were(tmp_path, optimizer_state):
    federation = package.federate(package.load("digits"), "dirichlet:0.3", clients=3, seed=1)
    settings = {"rounds": 5, "cohort": 2, "steps": 5, "lr": 0.003, "optimizer": "adamw"}
    budget = Budget(**settings, optimizer_state=optimizer_state, schedule="cosine:final=0.001,warmup=2")
    trial = Trial(federation, "logistic", budget=budget, engine="loop")
    whole = package.train(trial)
    checkpoints = stop_after(Checkpoints(tmp_path, trial, "it", every="every=1"), 3)
    with pytest.raises(StoppedError):
        package.train(trial, keeper=checkpoints)
    rest = package.train(trial, keeper=Checkpoints(tmp_path, trial, "it"))
    assert same(whole, rest)
    assert [round.lr for round in rest.rounds] == [budget.lr_at(t) for t in range(5)]
    assert len(rest.state.optimizers) == (3 if optimizer_state == "kept" else 0)


@pytest.mark.parametrize("method", [methods.fedavg, methods.local_only])
def test_what_sites_answer_comes_back(method, tmp_path):
    federation = package.federate(package.load("heart-disease"), "natural", clients=0, seed=1)
    trial = Trial(federation, "logistic", Budget(rounds=4, epochs=1), engine="loop")
    whole = package.train(trial, method())
    with pytest.raises(StoppedError):
        package.train(
            trial, method(), keeper=stop_after(Checkpoints(tmp_path, trial, "it", every="every=1"), 2)
        )
    again = package.train(trial, method(), keeper=Checkpoints(tmp_path, trial, "it"))
    assert whole.rounds[0].test.answers is not None
    assert same(whole, again)
    assert whole.site_spread == again.site_spread


def channels_last() -> nn.Module:
    layers = [nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 4)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


# By the command line


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> kills.Tally:
    """Runs that were killed at moments of all kinds, and resumed to their end."""
    kills.prepare()
    tally, rng = kills.Tally(), random.Random(0)
    for name in ("scaffold", kills.STAGES):
        kills.try_method(name, 4, rng, tmp_path_factory.mktemp("kills"), tally)
    return tally


def test_kill_9_at_any_moment_costs_no_bit(killed):
    assert sum(killed.kills.values()) >= 4
    assert killed.unequal == []


def wait_for(path: Path, lines: int) -> None:
    deadline = time.monotonic() + 120  # only so that a broken command does not hang the tests
    while not path.exists() or path.read_bytes().count(b"\n") < lines:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_the_round_and_says_how_to_resume(number, unskew, tmp_path):
    long = [*BRIEF, "--rounds", "40", "--method", "scaffold"]
    child = kills.fork(["run", *long, *POOL, "--out", "run"], tmp_path / "log")  # here: unskew went there
    wait_for(tmp_path / "run/rounds.jsonl", 2)
    os.kill(child, number)
    assert end(child) == 130
    done = (tmp_path / "run/rounds.jsonl").read_bytes().count(b"\n")
    said = (tmp_path / "log").read_text()
    assert said == f"unskew: stopped after round {done} of 40; resume with: unskew resume run\n"
    assert (tmp_path / "run/checkpoints").is_dir()
    assert unskew("resume", "run", "--quiet", "--engine", "loop").code == 0
    assert unskew("run", *long, "--out", "whole").code == 0
    assert kills.fingerprint(tmp_path / "run") == kills.fingerprint(tmp_path / "whole")
    assert not (tmp_path / "run/checkpoints").exists()


def test_a_comparison_that_was_asked_to_stop_stops_even_where_the_run_fails(unskew, tmp_path, monkeypatch):
    """The failure is in the run's folder; the runs after it do not begin."""

    def append(folder, round):
        os.kill(os.getpid(), signal.SIGTERM)
        raise UserError("no more.")

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append", append)
        answer = unskew("compare", "fedavg", "fedprox", *BRIEF, "--seeds", "1", "--out", "both")
    assert answer.code == 130
    assert answer.err.endswith("unskew: stopped; resume with: unskew resume both\n")
    assert json.loads((tmp_path / "both/fedavg-seed1/error.json").read_text())["error"] == "no more."
    assert not (tmp_path / "both/fedprox-seed1").exists()
    assert unskew("resume", "both", "--quiet").code == 0
    assert (tmp_path / "both/fedprox-seed1/summary.json").exists()


def test_a_comparison_that_is_ended_between_two_runs_says_how_to_resume(unskew, tmp_path, monkeypatch):
    def read(path):
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal comes first")

    with monkeypatch.context() as patched:
        patched.setattr("unskew.sweep.one_run.read_run", read)  # the last thing that a run does
        answer = unskew("compare", "fedavg", "fedprox", *BRIEF, "--seeds", "1", "--out", "both")
    assert (answer.code, answer.err) == (130, "unskew: stopped; resume with: unskew resume both\n")
    assert not (tmp_path / "both/fedprox-seed1").exists()
    assert unskew("resume", "both", "--quiet").code == 0


def test_runs_on_data_that_changed_under_its_name_are_not_compared(unskew, tmp_path):
    """Neither with those of a comparison that had finished before, nor with each other."""

    def write(classes: str) -> None:
        rows = [f"{n % 2},{n % 3},{classes[n % 2]}" for n in range(30)]
        (tmp_path / "data.csv").write_text("\n".join(["x,y,kind", *rows]))

    write("ab")
    same = ["--dataset", "csv:data.csv,label=kind", "--skew", "iid", "--clients", "2", "--rounds", "1"]
    same += ["--engine", "loop", "--quiet"]
    assert unskew("compare", "fedavg", "fedprox", *same, "--seeds", "1", "--out", "both").code == 0
    shutil.rmtree("both/fedprox-seed1")
    Path("both/compare.json").unlink()
    write("ba")
    answer = unskew("resume", "both", "--quiet")
    assert answer.code == 2
    assert "the data or its partition is not what both/fedavg-seed1/partition.json says" in answer.err
    conditions = by_condition(read_runs([Path("both")]))
    assert sorted(len(each.runs) for each in conditions) == [1, 1]
    assert all(list(each.differs) == ["data.sha256"] for each in conditions)


def test_a_run_that_another_process_has_finished_meanwhile_is_taken(unskew, tmp_path, monkeypatch):
    whole = RunFolder.append

    def append(folder, round):
        if folder.path.name == "fedavg-seed1":
            shutil.copytree(tmp_path / "other/fedprox-seed1", folder.path.parent / "fedprox-seed1")
        return whole(folder, round)

    same = ["compare", "fedavg", "fedprox", *BRIEF, "--rounds", "1", "--seeds", "1", "--engine", "loop"]
    assert unskew(*same, "--out", "other").code == 0
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append", append)
        answer = unskew(*same, "--out", "mine", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["failed"] == []


def test_an_unfinished_folder_is_gone_on_with_only_by_the_same_experiment(unskew, tmp_path, monkeypatch):
    answer = run_until(3, unskew, monkeypatch, "every=1")
    assert answer.code == 2
    assert "RuntimeError" not in answer.err
    assert json.loads((tmp_path / "run/error.json").read_text())["error"] == "no more."
    answer = unskew("run", *BRIEF, "--out", "run", "--lr", "0.5", "--set", "model.norm=none")
    assert (answer.code, answer.err) == (
        2,
        "unskew: the unfinished run in run is another experiment (budget.lr is 0.01 there and 0.5 here): "
        "choose another folder with --out, or ask for the same.\n",
    )
    answer = unskew("run", *BRIEF, "--out", "run", "--engine", "loop", "--json")
    assert answer.code == 0
    assert json.loads(answer.out)["rounds"] == 4
    assert not (tmp_path / "run/error.json").exists()
    assert len((tmp_path / "run/resumed.jsonl").read_text().splitlines()) == 1
    assert unskew("run", *BRIEF, "--out", "whole").code == 0
    assert kills.fingerprint(tmp_path / "run") == kills.fingerprint(tmp_path / "whole")
    again = unskew("run", *BRIEF, "--out", "run")
    assert (again.code, again.err) == (
        2,
        "unskew: the output folder run holds a finished run: choose another with --out, or remove it.\n",
    )
    shown = unskew("resume", "run", "--json")
    assert shown.code == 0
    assert json.loads(shown.out)["identity"] == json.loads(answer.out)["identity"]


def run_until(number: int, unskew, monkeypatch: pytest.MonkeyPatch, checkpoint: str):
    """Run until an error when the round of this number is written."""
    whole = RunFolder.append

    def append(folder, round):
        if round.number == number:
            raise UserError("no more.")
        return whole(folder, round)

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append", append)
        return unskew("run", *BRIEF, "--out", "run", "--checkpoint", checkpoint)


# Damage


def damage_truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage_header(path: Path) -> None:
    path.write_bytes(re.sub(rb'"rounds": \d', b'"rounds": 9', path.read_bytes(), count=1))


def damage_version(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"version": 3', b'"version": 9', 1))


def damage_text(path: Path) -> None:
    path.write_bytes(b'{"format": "unskew checkpoint", ' + b"[" * 10_000 + b"\n")


def damage_clients(path: Path) -> None:
    (segment,) = (path.parent.parent / "clients").iterdir()
    content = bytearray(segment.read_bytes())
    content[-9] ^= 1
    segment.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_truncate, "bytes instead of"),
        (damage_empty, "it is empty"),
        (damage_flip, "its checksum is wrong"),
        (damage_header, "its checksum is wrong"),
        (damage_version, "its version is 9, and this unskew reads version 3"),
        (damage_text, "its header is damaged"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_older_one_used(damage, reason, tmp_path):
    trial = hard_trial(normed_model)
    whole = package.train(trial, methods.scaffold())
    files = replace(trial, client_files=tmp_path / "clients")
    stopped = stop_after(Checkpoints(tmp_path / "checkpoints", files, "it", every="every=1"), 3)
    with pytest.raises(StoppedError):
        package.train(files, methods.scaffold(), keeper=stopped)
    older, newer = sorted((tmp_path / "checkpoints").iterdir())
    damage(newer)
    said: list[str] = []
    kept = Checkpoints(tmp_path / "checkpoints", files, "it", say=said.append)
    assert kept.find("training").stage.states[0].round == 2
    (sentence,) = said
    assert str(newer) in sentence
    assert reason in sentence
    again = Checkpoints(tmp_path / "checkpoints", files, "it")
    assert same(whole, package.train(files, methods.scaffold(), keeper=again))
    damage(older)
    sentences: list[str] = []
    assert Checkpoints(tmp_path / "checkpoints", files, "it", say=sentences.append).find("training") is None
    assert len(sentences) == 2


def test_damage_to_what_clients_keep_is_found_before_it_is_used(tmp_path):
    trial = replace(hard_trial(), client_files=tmp_path / "clients")
    stopped = stop_after(Checkpoints(tmp_path / "checkpoints", trial, "it", every="every=1"), 3)
    with pytest.raises(StoppedError):
        package.train(trial, methods.scaffold(), keeper=stopped)
    damage_clients(max((tmp_path / "checkpoints").iterdir()))
    said: list[str] = []
    del stopped
    kept = Checkpoints(tmp_path / "checkpoints", replace(trial, client_memory=1.0), "it", say=said.append)
    whole = package.train(hard_trial(), methods.scaffold())
    assert any("checksum" in sentence for sentence in said)
    assert same(whole, package.train(trial, methods.scaffold(), keeper=kept))


def test_a_checkpoint_of_another_experiment_is_not_used(tmp_path):
    trial = hard_trial()
    first = stop_after(Checkpoints(tmp_path, trial, "one", every="every=1"), 2)
    with pytest.raises(StoppedError):
        package.train(trial, keeper=first)
    said: list[str] = []
    assert Checkpoints(tmp_path, trial, "two", say=said.append).find("training") is None
    assert all("it is of another experiment" in sentence for sentence in said)


# A full disk, two at once


def test_a_full_disk_is_reported_and_the_run_goes_on_when_there_is_room(unskew, tmp_path):
    ask = " ".join([*BRIEF, "--method", "scaffold", "--model", "mlp-small", "--checkpoint", "every=1"])
    room = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (100_000, 100_000))
    child = kills.fork(["run", *ask.split(), *POOL, "--out", "run"], tmp_path / "log", room)
    assert end(child) == 2
    said = (tmp_path / "log").read_text()
    assert said.count("\n") == 1
    assert "File too large" in said
    assert unskew("resume", "run", "--quiet").code == 0
    assert unskew("run", *ask.split(), "--out", "whole").code == 0
    assert kills.fingerprint(tmp_path / "run") == kills.fingerprint(tmp_path / "whole")


def test_a_second_run_in_the_folder_is_refused_and_a_lock_left_behind_is_not(unskew, tmp_path):
    child = kills.fork(["run", *BRIEF, *POOL, "--rounds", "100000", "--out", "run"], tmp_path / "log")
    wait_for(tmp_path / "run/rounds.jsonl", 1)
    for command in (["run", *BRIEF, "--rounds", "100000", "--out", "run"], ["resume", "run"]):
        answer = unskew(*command)
        assert answer.code == 2
        assert f"run is being written by process {child} on " in answer.err
        assert answer.err.endswith(" ago): wait for it, stop it, or choose another folder with --out.\n")
    os.kill(child, signal.SIGKILL)
    end(child)
    assert (tmp_path / "run/.lock").exists()
    with locked(tmp_path / "run"):
        pass


def test_one_process_does_not_write_to_a_folder_twice(tmp_path):
    with locked(tmp_path), pytest.raises(UserError, match="this process is writing to"), locked(tmp_path):
        pass
    held = threading.Event()

    def hold():
        with locked(tmp_path):
            held.set()

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert held.is_set()


# compare


def test_a_compare_goes_on_cell_by_cell(unskew, tmp_path):
    ask = ["compare", "fedavg", "fedprox:mu=0.1", *BRIEF, "--rounds", "12", "--seeds", "1,2"]
    child = kills.fork(
        [*ask, *POOL, "--workers", "2", "--out", "broken", "--checkpoint", "every=1"], tmp_path / "log"
    )
    wait_for(tmp_path / "broken/fedprox-mu=0.1-seed2/rounds.jsonl", 2)  # two at once: two are finished
    runs = processes_of(child)
    os.kill(child, signal.SIGKILL)
    end(child)
    while alive(runs):  # they end with it, and let go of their folders
        time.sleep(0.01)
    finished = {path: path.read_bytes() for path in (tmp_path / "broken").glob("*/summary.json")}
    assert len(finished) >= 2
    answer = unskew("resume", "broken", "--json")
    assert answer.code == 0, answer.err
    assert finished == {path: path.read_bytes() for path in finished}
    assert unskew(*ask, "--out", "whole").code == 0
    results = [json.loads((tmp_path / each / "compare.json").read_text()) for each in ("broken", "whole")]
    assert kills._timeless(results[0]) == kills._timeless(results[1])
    for cell in ("fedavg-seed1", "fedavg-seed2", "fedprox-mu=0.1-seed1", "fedprox-mu=0.1-seed2"):
        assert kills.fingerprint(tmp_path / "broken" / cell) == kills.fingerprint(tmp_path / "whole" / cell)
    again = unskew(*ask, "--out", "whole")
    assert again.code == 2
    assert "holds a finished run or compare" in again.err
    shown = unskew("resume", "whole", "--json")
    assert shown.code == 0
    assert kills._timeless(json.loads(shown.out)) == kills._timeless(results[1])
    (tmp_path / "broken/compare.json").unlink()
    other = unskew(*ask[:2], *BRIEF, "--rounds", "12", "--seeds", "1,2", "--out", "broken")
    assert "holds another compare (with fedprox-mu=0.1-seed1)" in other.err
    (tmp_path / "broken/fedavg-seed1/summary.json").write_text("{")
    damaged = unskew("resume", "broken")
    assert damaged.code == 2
    assert "1 of 4 runs failed: fedavg seed 1" in damaged.err
    assert (tmp_path / "broken/compare.json").exists()


def test_records_are_those_of_the_model_also_where_a_round_comes_out_otherwise(unskew, tmp_path, monkeypatch):
    """This happens when a worker died in the round before the run was stopped, and not when it was
    repeated."""
    run_until(4, unskew, monkeypatch, "never")
    path = tmp_path / "run/rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["accuracy"] = 0.0
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"torn')
    answer = unskew("resume", "run", "--json")
    assert answer.code == 0
    assert any("round 2 differs from what it was" in note for note in json.loads(answer.out)["notes"])
    unskew("run", *BRIEF, "--out", "whole")
    texts = [(tmp_path / each / "rounds.jsonl").read_text() for each in ("run", "whole")]
    lines = [[kills._timeless(json.loads(line)) for line in text.splitlines()] for text in texts]
    assert lines[0] == lines[1]


def test_a_damaged_line_is_cut_off_and_made_again(unskew, tmp_path, monkeypatch):
    run_until(4, unskew, monkeypatch, "every=1")
    path = tmp_path / "run/rounds.jsonl"
    first, _, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + b"\0" * 40 + b"\n" + third)
    assert unskew("resume", "run", "--quiet").code == 0
    assert path.read_bytes().splitlines(keepends=True)[0] == first
    assert [json.loads(line)["round"] for line in path.read_text().splitlines()] == [1, 2, 3, 4]


def test_a_damaged_note_of_where_a_run_began_does_not_cost_the_run(unskew, tmp_path, monkeypatch):
    run_until(3, unskew, monkeypatch, "every=1")
    (tmp_path / "run/environment.json").write_text("{")
    answer = unskew("resume", "run", "--json")
    assert answer.code == 0, answer.err
    assert "environment.json was damaged: it says where the run was resumed" in answer.err
    assert json.loads((tmp_path / "run/environment.json").read_text())["command"][1:] == [
        "resume",
        "run",
        "--json",
    ]


def test_a_damaged_run_of_a_comparison_is_reported_with_what_helps(unskew, tmp_path):
    command = ["compare", "fedavg", "fedprox", *BRIEF, "--seeds", "1", "--out", "both"]
    assert unskew(*command).code == 0
    whole = (tmp_path / "both/fedavg-seed1/summary.json").read_bytes()
    (tmp_path / "both/fedavg-seed1/summary.json").write_text("{")
    answer = unskew("resume", "both", "--quiet")
    assert answer.code == 2
    assert (
        "): remove both/fedavg-seed1, and it is run again): run what failed again with: unskew resume both;"
        in answer.err
    )
    shutil.rmtree(tmp_path / "both/fedavg-seed1")
    assert unskew("resume", "both", "--quiet").code == 0
    again = (tmp_path / "both/fedavg-seed1/summary.json").read_bytes()
    assert json.loads(again)["accuracy"] == json.loads(whole)["accuracy"]


def test_what_is_left_of_a_run_that_was_killed_at_its_very_end_goes(unskew, tmp_path):
    assert unskew("run", *BRIEF, "--out", "run").code == 0
    (tmp_path / "run/checkpoints").mkdir()
    (tmp_path / "run/clients").mkdir()
    assert unskew("resume", "run").code == 0
    assert not (tmp_path / "run/checkpoints").exists()
    assert not (tmp_path / "run/clients").exists()


def test_a_checkpoint_of_another_trial_is_not_used(tmp_path):
    trial = hard_trial()
    with pytest.raises(StoppedError):
        package.train(trial, keeper=stop_after(Checkpoints(tmp_path, trial, "it", every="every=1"), 2))
    changes = [
        {"seed": 2},
        {"budget": Budget(rounds=3, lr=0.5)},
        {"statistics": "batch"},
        {"model": "mlp-small"},
    ]
    for change in changes:
        assert Checkpoints(tmp_path, replace(trial, **change), "it").find("training") is None
    assert Checkpoints(tmp_path, trial, "it").find("training") is not None


def test_what_resume_cannot_continue_is_said(unskew, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "nowhere is not there" in unskew("resume", "nowhere").err
    assert "empty is no folder of a run" in unskew("resume", "empty").err
    assert "but should be every=ROUNDS" in unskew("run", *BRIEF, "--checkpoint", "often").err


@pytest.mark.parametrize(
    ("text", "period"),
    [
        ("every=5", Period(rounds=5, seconds=None, adapts=False)),
        ("30s", Period(seconds=30, adapts=False)),
        ("1.5h", Period(seconds=5400, adapts=False)),
        ("never", Period(seconds=None)),
        ("auto", Period()),
    ],
)
def test_when_a_checkpoint_is_due(text, period):
    assert Period.parse(text) == period


@pytest.mark.parametrize("text", ["0", "every=0", "-1s", "5d", "", "every=x", "1e3s"])
def test_other_words_for_a_checkpoint_are_refused(text):
    with pytest.raises(UserError, match="but should be every=ROUNDS"):
        Period.parse(text)


def test_every_method_can_be_asked_for_in_the_benchmark_of_kills():
    assert len(kills.names()) == len(METHODS)
