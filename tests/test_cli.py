"""The command line as a person uses it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from benchmarks import kills

from unskew.cli.usage import COMMANDS
from unskew.data.sources import SOURCES
from unskew.methods import METHODS

pytestmark = pytest.mark.usefixtures("no_workers")

BRIEF = ["--rounds", "2", "--epochs", "1", "--clients", "4"]
HASH = re.compile(r"[0-9a-f]{64}")


def ask(unskew, *arguments: str):
    """Run a command with --json, and return what it prints."""
    answer = unskew(*arguments, "--json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out.splitlines()[-1])


def run(unskew, *arguments: str):
    return ask(unskew, "run", *BRIEF, "--quiet", *arguments)


def test_run_shows_every_class_and_the_clients_groups(unskew):
    answer = unskew("run", *BRIEF, "--seed", "1", "--skew", "dirichlet:0.05")
    assert answer.code == 0
    lines = answer.out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("class "))
    assert [line.split()[0] for line in lines[start + 1 : start + 11]] == list("0123456789")
    for title in ("worst class", "majority", "minority", "vacant", "best by test", "mean last 2"):
        assert title in answer.out
    folder = next(line for line in lines if line.startswith("run folder: ")).removeprefix("run folder: ")
    assert lines[-1] == f"next: unskew report {folder} --out {folder}/report.html"
    shown = next(line for line in lines if line.startswith("fedavg ")).split()
    summary = json.loads((Path(folder) / "summary.json").read_text())
    assert shown[1] == f"{100 * summary['accuracy']['last']:.1f}"
    assert shown[4] == f"{100 * min(summary['class_accuracy']):.1f}"
    groups = [f"{100 * summary['groups'][group]:.1f}" for group in ("majority", "minority", "vacant")]
    assert shown[5:8] == groups


def test_json_is_one_object_on_the_last_line_with_all_keys(unskew):
    answer = unskew("run", *BRIEF, "--method", "fedprox:mu=0.1", "--seed", "3", "--json")
    assert answer.code == 0
    summary = json.loads(answer.out.splitlines()[-1])
    assert (summary["method"], summary["dataset"], summary["seed"], summary["rounds"]) == (
        "fedprox",
        "digits",
        3,
        2,
    )
    assert summary["skew"].startswith("dirichlet:0.1")
    assert set(summary["accuracy"]) == {"best_by_test", "last", "mean_last_10"}
    assert all(isinstance(value, float) for value in summary["accuracy"].values())
    assert len(summary["class_accuracy"]) == 10
    assert all(isinstance(value, float) for value in summary["class_accuracy"])
    assert set(summary["groups"]) == {"majority", "minority", "vacant"}
    assert summary["worst_class"] == int(np.argmin(summary["class_accuracy"]))
    assert isinstance(summary["seconds"], float)
    assert HASH.fullmatch(summary["weights_sha256"])
    assert json.loads((Path(summary["run_dir"]) / "summary.json").read_text()) == summary


def test_the_same_command_gives_the_same_bits_and_another_seed_others(unskew):
    first, again, other = (run(unskew, "--seed", seed) for seed in ("1", "1", "2"))
    assert first["weights_sha256"] == again["weights_sha256"]
    assert first["weights_sha256"] != other["weights_sha256"]
    assert first["run_dir"] != again["run_dir"]
    for name in ("partition.json", "experiment.toml", "model.safetensors"):
        mine, theirs = (Path(each["run_dir"]) / name for each in (first, again))
        assert mine.read_bytes() == theirs.read_bytes()


def test_a_run_folders_experiment_file_repeats_the_run(unskew):
    first = run(unskew, "--seed", "5", "--skew", "labels:3", "--method", "fedprox:mu=0.5", "--cohort", "2")
    again = ask(unskew, "run", f"{first['run_dir']}/experiment.toml", "--quiet")
    assert again["weights_sha256"] == first["weights_sha256"]
    texts = [(Path(each["run_dir"]) / "experiment.toml").read_text() for each in (first, again)]
    assert texts[0] == texts[1]


def test_flags_come_after_the_file_and_set_after_the_flags(unskew, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("seed = 7\n[budget]\nrounds = 1\nepochs = 1\nlr = 0.5\n[skew]\nclients = 3\n")
    flags = ["--rounds", "2", "--lr", "0.2", "--clients", "5", "--cohort", "all"]
    summary = ask(unskew, "run", str(file), *flags, "--set", "budget.lr=0.125", "--quiet")
    resolved = tomllib.loads((Path(summary["run_dir"]) / "experiment.toml").read_text())
    assert resolved["seed"] == 7
    assert resolved["budget"]["rounds"] == summary["rounds"] == 2
    assert resolved["budget"]["epochs"] == 1
    assert resolved["budget"]["lr"] == 0.125
    assert resolved["skew"]["clients"] == 5


def test_a_flag_does_what_its_setting_does(unskew):
    by_flag = run(unskew, "--lr", "0.05", "--batch-size", "16", "--cohort", "3", "--method", "fedprox:mu=0.2")
    settings = ["budget.lr=0.05", "budget.batch_size=16", "budget.cohort=3", "method.mu=0.2"]
    by_set = run(unskew, "--method", "fedprox", *(part for each in settings for part in ("--set", each)))
    assert by_flag["weights_sha256"] == by_set["weights_sha256"]


def test_progress_is_on_standard_error_and_quiet_silences_it(unskew):
    answer = unskew("run", *BRIEF)
    assert re.fullmatch(r"fedavg seed 1  2/2 rounds  accuracy \d+\.\d %  .+\ntime: .+\n", answer.err)
    assert "2/2" not in answer.out
    assert unskew("run", *BRIEF, "--quiet").err == ""
    answer = unskew("compare", "fedavg", "fedprox", *BRIEF, "--json")
    assert answer.err.endswith("\n")
    assert len(answer.out.splitlines()) == 1


def test_compare_gives_every_method_the_same_conditions(unskew):
    whole = ask(unskew, "compare", "fedavg", "fedprox:mu=0", "fedprox:mu=1", *BRIEF, "--seeds", "1,2")
    assert whole["seeds"] == [1, 2]
    assert list(whole["methods"]) == ["fedavg", "fedprox:mu=0", "fedprox:mu=1"]
    assert [run["seed"] for run in whole["runs"]] == [1, 1, 1, 2, 2, 2]
    partitions = [
        json.loads((Path(run["run_dir"]) / "partition.json").read_text())["index_sha256"]
        for run in whole["runs"]
    ]
    assert len(set(partitions[:3])) == len(set(partitions[3:])) == 1
    assert partitions[0] != partitions[3]
    for plain, neutral, proximal in (whole["runs"][:3], whole["runs"][3:]):
        assert plain["weights_sha256"] == neutral["weights_sha256"]
        assert plain["weights_sha256"] != proximal["weights_sha256"]
    assert json.loads((Path(whole["run_dir"]) / "compare.json").read_text()) == whole


def test_compare_prints_mean_and_standard_deviation_over_the_seeds(unskew, tmp_path):
    answer = unskew("compare", "fedavg", "fedprox:mu=1", *BRIEF, "--seeds", "1-3", "--out", "out", "--quiet")
    assert answer.code == 0
    whole = json.loads((tmp_path / "out" / "compare.json").read_text())
    for method in ("fedavg", "fedprox:mu=1"):
        runs = [run for run in whole["runs"] if run["method"] == method.partition(":")[0]]
        assert len(runs) == 3
        shown = next(line for line in answer.out.splitlines() if line.startswith(method))
        cells = re.findall(r"\d+\.\d ± \d+\.\d", shown)
        kept = whole["methods"][method]
        columns = [
            *(
                (kept["accuracy"][key], [r["accuracy"][key] for r in runs])
                for key in ("last", "best_by_test")
            ),
            (kept["accuracy"]["mean_last_10"], [r["accuracy"]["mean_last_10"] for r in runs]),
            (kept["worst_class_accuracy"], [min(r["class_accuracy"]) for r in runs]),
            *(
                (kept["groups"][key], [r["groups"][key] for r in runs])
                for key in ("majority", "minority", "vacant")
            ),
        ]
        for cell, (computed, values) in zip(cells, columns, strict=True):
            mean, spread = statistics.mean(values), statistics.stdev(values)
            assert computed["n"] == 3
            assert computed["mean"] == pytest.approx(mean)
            assert computed["std"] == pytest.approx(spread)
            assert cell == f"{100 * mean:.1f} ± {100 * spread:.1f}"


def test_compare_takes_an_experiment_file(unskew, tmp_path):
    (tmp_path / "mine.toml").write_text("[budget]\nrounds = 1\nepochs = 1\n[method]\nname = 'fedprox'\n")
    whole = ask(unskew, "compare", "fedavg", "--experiment", "mine.toml", "--quiet")
    assert [(run["method"], run["rounds"]) for run in whole["runs"]] == [("fedavg", 1)]


def test_skew_says_who_holds_what(unskew):
    who = ask(unskew, "skew", "--skew", "dirichlet:0.05", "--clients", "6", "--seed", "4")
    counts = np.array(who["counts"])
    assert counts.shape == (6, 10)
    assert who["sizes"] == counts.sum(axis=1).tolist()
    assert who["vacant"] == (counts == 0).sum(axis=1).tolist()
    assert counts.sum() + who["dropped"] == 1442
    shares = counts / counts.sum(axis=1, keepdims=True)
    entropy = [-sum(p * np.log(p) for p in row if p) for row in shares]
    assert who["entropy"] == pytest.approx(entropy)

    answer = unskew("skew", "--skew", "dirichlet:0.05", "--clients", "6", "--seed", "4")
    rows = [line.split() for line in answer.out.splitlines() if re.match(r" +\d+ ", line)]
    shown = [[0 if cell == "·" else int(cell) for cell in row[1:11]] for row in rows]
    assert shown == who["counts"]
    assert [[int(row[11]), int(row[12])] for row in rows] == [
        list(p) for p in zip(who["sizes"], who["vacant"], strict=True)
    ]


def test_skew_shows_what_run_divides(unskew, tmp_path):
    skew = ["--skew", "dirichlet:0.3", "--seed", "9"]
    who = ask(unskew, "skew", *skew, "--clients", "4", "--out", "who.json")
    ran = run(unskew, *skew)
    kept = json.loads((Path(ran["run_dir"]) / "partition.json").read_text())
    assert kept["index_sha256"] == who["index_sha256"]
    assert kept["counts"] == who["counts"]
    assert (Path(ran["run_dir"]) / "partition.json").read_bytes() == (tmp_path / "who.json").read_bytes()

    again = ask(unskew, "skew", "--skew", "file:who.json")
    assert (again["index_sha256"], again["counts"]) == (who["index_sha256"], who["counts"])
    repeated = run(unskew, "--skew", "file:who.json", "--seed", "9")
    assert repeated["weights_sha256"] == ran["weights_sha256"]


@pytest.mark.parametrize(
    ("name", "magic"), [("a.png", b"\x89PNG\r\n"), ("a.SVG", b"<?xml"), ("a.pdf", b"%PDF-")]
)
def test_a_figure_is_written_in_its_format(unskew, tmp_path, name, magic):
    answer = unskew("skew", "--clients", "3", "--figure", f"figures/{name}")
    assert answer.code == 0
    assert f"written: figures/{name}" in answer.out
    assert (tmp_path / "figures" / name).read_bytes().startswith(magic)
    assert [path.name for path in (tmp_path / "figures").iterdir()] == [name]


def test_the_area_of_a_disc_in_the_figure_is_the_number_of_samples(unskew, tmp_path):
    who = ask(unskew, "skew", "--clients", "5", "--figure", "who.svg")
    picture = (tmp_path / "who.svg").read_text()
    discs = re.findall(r'<path d="([^"]+)"[^>]*fill: #2b7bba', picture)
    counts = np.array(who["counts"])
    held = counts[np.nonzero(counts)]
    assert len(discs) == len(held)
    points = [np.array(re.findall(r"-?[\d.]+", disc), float).reshape(-1, 2) for disc in discs]
    areas = np.array([np.ptp(disc[:, 0]) ** 2 for disc in points])
    large = held > counts.max() / 50  # smaller ones are drawn large enough to be seen
    assert areas[large] / areas.max() == pytest.approx(held[large] / counts.max(), rel=1e-3)


def test_methods_and_data_are_listed(unskew):
    answer = unskew("methods")
    assert answer.code == 0
    assert {name for name in METHODS if f"\n{name} " in answer.out} == set(METHODS)
    answer = unskew("data")
    assert answer.code == 0
    assert {name for name in SOURCES if f"\n{name} " in answer.out} == set(SOURCES)
    assert "csv:PATH" in answer.out
    listed = ask(unskew, "data", "--data", "nowhere")
    assert listed["data_folder"] == "nowhere"
    assert set(listed["datasets"]) == set(SOURCES)
    ready = {name for name, each in listed["datasets"].items() if each["ready"]}
    assert ready == {name for name, source in SOURCES.items() if source.bundled}


def test_help_is_shown_to_who_asks_and_to_who_says_nothing(unskew):
    assert unskew().out == unskew("--help").out
    for command, line in COMMANDS.items():
        assert f"{command.ljust(11)}{line}\n" in unskew("--help").out
        told = unskew(command, "--help").out
        assert told.startswith(f"Usage: unskew {command} ")
        assert not re.search(r"\[default: [^]]*\]\s*\[default: ", told), f"{command} tells a default twice"


def test_names_with_brackets_are_shown_as_they_are(unskew):
    answer = unskew("run", *BRIEF, "--quiet", "--out", "[bold]/[x]")
    assert answer.out.endswith("run folder: [bold]/[x]\n")


def start_endless(log: Path) -> int:
    """Start a run that does not end by itself in a process of its own, in this folder.

    Wait until it has finished three rounds, and return its process id.
    """
    child = kills.fork(ENDLESS, log)
    rounds = Path("stopped/rounds.jsonl")
    deadline = time.monotonic() + 120  # only so that a broken command does not hang the tests
    while not rounds.exists() or rounds.read_text().count("\n") < 3:
        assert not os.waitpid(child, os.WNOHANG)[0], log.read_text()
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            raise AssertionError(log.read_text())
        time.sleep(0.02)
    return child


def check_stopped_run(folder: Path) -> None:
    """Check that each file of a stopped run is whole."""
    kept = {"checkpoints", "clients", ".lock"}
    assert {path.name for path in folder.iterdir()} - kept == {
        "experiment.toml",
        "environment.json",
        "partition.json",
        "rounds.jsonl",
    }
    tomllib.loads((folder / "experiment.toml").read_text())
    json.loads((folder / "environment.json").read_text())
    json.loads((folder / "partition.json").read_text())
    text = (folder / "rounds.jsonl").read_text()
    assert text.endswith("\n")
    numbers = [json.loads(line)["round"] for line in text.splitlines()]
    assert numbers == list(range(1, len(numbers) + 1))


ENDLESS = ["run", "--rounds", "1000000", "--epochs", "1", "--clients", "3", "--quiet", "--out", "stopped"]
ENDLESS += ["--engine", "pool"]


def test_ctrl_c_keeps_the_rounds_that_were_finished(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    child = start_endless(tmp_path / "said")
    os.kill(child, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    assert re.fullmatch(
        r"unskew: stopped after round \d+ of 1000000; resume with: unskew resume stopped\n",
        (tmp_path / "said").read_text(),
    )
    check_stopped_run(tmp_path / "stopped")


def test_a_killed_run_leaves_whole_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    child = start_endless(tmp_path / "said")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    check_stopped_run(tmp_path / "stopped")


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "unskew", "--help"],
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
def test_output_that_goes_nowhere_is_no_crash():
    """Close standard output as a shell does with `>&-`, and write to a full disk."""
    ask = f"{shlex.quote(sys.executable)} -m unskew methods"
    closed = subprocess.run(f"{ask} >&-", shell=True, stderr=subprocess.PIPE, text=True)
    assert (closed.returncode, closed.stderr) == (0, "")
    full = subprocess.run(f"{ask} > /dev/full", shell=True, stderr=subprocess.PIPE, text=True)
    assert full.returncode == 2
    assert re.fullmatch(r"unskew: the output cannot be written \(.*\): .*\.\n", full.stderr)


def test_python_m_unskew_is_the_same_command(unskew, tmp_path):
    assert re.fullmatch(r"unskew \d+\.\d+\.\d+\S*\n", unskew("--version").out)
    command = ["run", *BRIEF, "--quiet", "--seed", "2", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "unskew", *command], cwd=tmp_path, text=True, capture_output=True, check=True
    )
    assert done.stderr == ""
    assert json.loads(done.stdout)["weights_sha256"] == json.loads(unskew(*command).out)["weights_sha256"]
