"""Several runs on the cores of one machine: the same folders as one after another, whatever happens."""

import json
import os
import signal
import time
from itertools import count
from pathlib import Path

import pytest
from benchmarks import kills

from processes import alive, children, end, processes_of
from unskew.engines.cpu import pool
from unskew.record import FAULTS_SHOWN

pytestmark = pytest.mark.skipif(not pool.available(), reason="it is made of forked processes")

ASK = (
    "--dataset", "digits", "--skew", "dirichlet:0.3", "--clients", "4", "--model", "logistic", "--lr", "0.05",
)  # fmt: skip
ONE = [*ASK, "--epochs", "1"]
TWO = ["--engine", "pool", "--set", "workers=2"]
FAILING = """
from unskew import Method


def failing() -> Method:
    return Method(terms=(lambda view: view.nothing,))
"""


def until(true) -> None:
    deadline = time.monotonic() + 120  # only so that a broken command does not hang the tests
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def rounds_in(folder: Path) -> int:
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def fingerprints(folder: Path) -> dict[str, str]:
    return {path.parent.name: kills.fingerprint(path.parent) for path in folder.glob("*/summary.json")}


def test_the_same_folders_as_one_after_another(unskew, tmp_path):
    ask = ["compare", "fedavg", "scaffold", *ONE, "--rounds", "3", "--seeds", "1,2", "--table"]
    together, alone = (
        unskew(*ask, *how, "--out", name)
        for name, how in {"together": TWO, "alone": ["--engine", "loop"]}.items()
    )
    assert (together.code, alone.code) == (0, 0), together.err
    assert "4 runs side by side" in together.err
    found = fingerprints(tmp_path / "together")
    assert len(found) == 4
    assert found == fingerprints(tmp_path / "alone")
    rows = [line.split() for line in together.err.splitlines() if line.split()[0].isdigit()]
    runs = [f"{method} seed {seed}" for method in ("fedavg", "scaffold") for seed in (1, 2)]
    told = [(row[0], " ".join(row[-3:])) for row in rows if row[1] != "runs"]  # all but the title
    assert sorted(told) == sorted((str(number), run) for number in (1, 2, 3) for run in runs)
    texts = [(tmp_path / name / "compare.json").read_text() for name in ("together", "alone")]
    told = [kills._timeless(json.loads(text.replace("together", "alone"))) for text in texts]
    assert told[0] == told[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_ends_every_round_first(number, unskew, tmp_path):
    ask = ["compare", "fedavg", "scaffold", "fedprox", *ONE, "--rounds", "40", "--seeds", "1"]
    child = kills.fork([*ask, *TWO, "--out", "both"], tmp_path / "log")
    first = [tmp_path / "both" / name for name in ("fedavg-seed1", "scaffold-seed1")]
    until(lambda: any(map(rounds_in, first)))
    os.kill(child, number)
    assert end(child) == 130
    assert (tmp_path / "log").read_text().splitlines()[-1] == (
        "unskew: stopped; resume with: unskew resume both"
    )
    for folder in first:
        assert 0 < rounds_in(folder) < 40
        assert (folder / "checkpoints").is_dir()
    assert not (tmp_path / "both/fedprox-seed1").exists()
    assert unskew("resume", "both", "--quiet").code == 0
    assert unskew(*ask, "--engine", "loop", "--out", "whole").code == 0
    assert fingerprints(tmp_path / "both") == fingerprints(tmp_path / "whole")


def test_one_run_that_is_killed_costs_no_other(unskew, tmp_path):
    ask = ["compare", "fedavg", "scaffold", *ONE, "--rounds", "40", "--seeds", "1"]
    child = kills.fork([*ask, *TWO, "--out", "both"], tmp_path / "log")
    until(lambda: rounds_in(tmp_path / "both/fedavg-seed1"))
    [mine] = [pid for pid in children(child) if "fedavg" in str(_files_of(pid))]
    os.kill(mine, signal.SIGKILL)
    assert end(child) == 2
    said = (tmp_path / "log").read_text()
    assert "1 of 2 runs failed: fedavg seed 1 (the process of this run was ended by SIGKILL" in said
    assert "the other runs are whole" in said
    assert (tmp_path / "both/scaffold-seed1/summary.json").exists()
    assert unskew("resume", "both", "--quiet").code == 0
    assert unskew(*ask, "--engine", "loop", "--out", "whole").code == 0
    assert fingerprints(tmp_path / "both") == fingerprints(tmp_path / "whole")


def _files_of(pid: int) -> list[Path]:
    """What a process has open."""
    return [path.readlink() for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]


def test_no_process_is_left_where_the_command_is_killed(tmp_path):
    ask = ["compare", "fedavg", "scaffold", *ONE, "--rounds", "100000", "--seeds", "1", *TWO]
    child = kills.fork([*ask, "--out", str(tmp_path / "both")], tmp_path / "log")
    until(lambda: rounds_in(tmp_path / "both/fedavg-seed1") and rounds_in(tmp_path / "both/scaffold-seed1"))
    left = processes_of(child)
    assert len(left) >= 2
    os.kill(child, signal.SIGKILL)
    assert end(child) == -signal.SIGKILL
    until(lambda: not alive(left))


def test_a_mistake_in_a_method_is_told_as_in_one_process(unskew, tmp_path):
    (tmp_path / "failing.py").write_text(FAILING)
    ask = ["compare", "fedavg", "failing.py", *ONE, "--rounds", "1", "--seeds", "1", "--quiet"]
    answers = [unskew(*ask, *how, "--out", how[1]) for how in (TWO, ["--engine", "loop"])]
    assert [answer.code for answer in answers] == [2, 2]
    assert answers[0].err.replace("pool", "loop") == answers[1].err
    told = [
        json.loads((tmp_path / name / "failing.py-seed1/error.json").read_text()) for name in ("pool", "loop")
    ]
    assert told[0]["error"] == told[1]["error"]
    assert "view.nothing" in told[0]["traceback"]


def test_what_a_method_raises_to_end_the_program_ends_it(unskew, tmp_path):
    (tmp_path / "ending.py").write_text(FAILING.replace("failing", "ending").replace("view.nothing", "end()"))
    with (tmp_path / "ending.py").open("a") as file:
        file.write("\n\ndef end():\n    raise KeyboardInterrupt\n")
    ask = ["compare", "fedavg", "ending.py", *ONE, "--rounds", "1", "--seeds", "1", "--quiet"]
    answers = [unskew(*ask, *how, "--out", how[1]) for how in (TWO, ["--engine", "loop"])]
    assert [answer.code for answer in answers] == [130, 130]
    assert answers[0].err.replace("pool", "loop") == answers[1].err


def test_a_request_to_stop_that_comes_while_a_run_is_forked_reaches_it(tmp_path):
    def stop_at_second_fork() -> None:
        command, forks = os.getpid(), count(1)
        os.register_at_fork(
            after_in_parent=lambda: (
                os.kill(command, signal.SIGTERM) if os.getpid() == command and next(forks) == 2 else None
            )
        )

    ask = ["compare", "fedavg", "scaffold", *ONE, "--rounds", "100000", "--seeds", "1", *TWO]
    child = kills.fork([*ask, "--out", str(tmp_path / "both")], tmp_path / "log", stop_at_second_fork)
    assert end(child) == 130
    assert all(rounds_in(folder) < 1000 for folder in (tmp_path / "both").glob("*-seed1"))


def test_faults_of_runs_side_by_side_are_told_with_their_run(unskew, tmp_path):
    (tmp_path / "half.py").write_text(
        "from unskew import Method\nfrom unskew.types import Memory\n\n\n"
        "def half() -> Method:\n"
        "    def prepare(scope, look):\n"
        "        if scope.counts[0] < scope.counts[1]:\n            raise ValueError('odd')\n"
        "        return {}\n\n"
        "    return Method(memory=Memory(prepare=prepare))\n"
    )
    ask = ["compare", "half.py", *ONE, "--rounds", "6", "--seeds", "1,2", "--on-fault", "skip"]
    answer = unskew(*ask, *TWO)
    assert answer.code == 0, answer.err
    for seed in (1, 2):
        notes = [line for line in answer.err.splitlines() if line.startswith(f"note: half.py seed {seed}: ")]
        assert sum("continues without client" in note for note in notes) == FAULTS_SHOWN
        assert sum("there are more such faults" in note for note in notes) == 1


def test_two_requests_to_stop_stop_at_once(tmp_path):
    ask = ["compare", "fedavg", "scaffold", *ASK, "--epochs", "1000000", "--seeds", "1", *TWO]
    child = kills.fork([*ask, "--out", str(tmp_path / "both")], tmp_path / "log")
    until(lambda: len(list((tmp_path / "both").glob("*/rounds.jsonl"))) == 2 or len(processes_of(child)) >= 2)
    os.kill(child, signal.SIGINT)
    until(lambda: "stopping after this round" in (tmp_path / "log").read_text())
    os.kill(child, signal.SIGINT)
    assert end(child) == 130
    assert (tmp_path / "log").read_text().splitlines()[-1].startswith("unskew: stopped; resume with: ")
