"""What a run leaves behind."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from unskew import UserError, load, models
from unskew.record import to_json
from unskew.runs import claim, free_folder, slug, write_whole

pytestmark = pytest.mark.usefixtures("no_workers")
FILES = {
    "experiment.toml",
    "environment.json",
    "partition.json",
    "rounds.jsonl",
    "summary.json",
    "model.json",
    "model.safetensors",
}


def strict(text: str):
    """JSON as the standard has it: no NaN, no Infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def run(unskew):
    """Run in ./run; the answer is the folder, the summary and the rounds."""

    def start(*arguments: str) -> tuple[Path, dict, list[dict]]:
        answer = unskew("run", "--epochs", "1", "--quiet", "--out", "run", *arguments)
        assert answer.code == 0, answer.err
        folder = Path("run").absolute()
        rounds = [strict(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        return folder, strict((folder / "summary.json").read_text()), rounds

    return start


def test_a_run_leaves_its_seven_files_and_nothing_else(run):
    folder, summary, rounds = run("--rounds", "12", "--clients", "5", "--cohort", "3", "--seed", "2")
    assert {path.name for path in folder.iterdir()} == FILES

    resolved = tomllib.loads((folder / "experiment.toml").read_text())
    assert resolved["budget"]["cohort"] == 3
    assert resolved["skew"]["clients"] == 5
    assert resolved["skew"]["seed"] == resolved["seed"] == 2

    kept = strict((folder / "partition.json").read_text())
    assert kept["dataset"]["name"] == "digits"
    labels = load("digits").train.labels.numpy()
    counts = [np.bincount(labels[mine], minlength=10).tolist() for mine in kept["indices"]]
    assert kept["counts"] == counts
    digest = hashlib.sha256(np.array(5, "<i8").tobytes())
    for mine in kept["indices"]:
        digest.update(np.array([len(mine), *mine], "<i8").tobytes())
    assert kept["index_sha256"] == digest.hexdigest()

    assert [each["round"] for each in rounds] == list(range(1, 13))
    assert all(len(set(each["cohort"])) == 3 and each["trained"] == each["cohort"] for each in rounds)
    accuracy = [each["accuracy"] for each in rounds]
    assert summary["accuracy"]["last"] == accuracy[-1]
    assert summary["accuracy"]["best_by_test"] == max(accuracy)
    assert summary["accuracy"]["mean_last_10"] == pytest.approx(sum(accuracy[-10:]) / 10)
    assert summary["class_accuracy"] == rounds[-1]["class_accuracy"]
    confusion = np.array(summary["confusion"])
    assert summary["accuracy"]["last"] == pytest.approx(np.trace(confusion) / confusion.sum())
    assert summary["class_accuracy"] == pytest.approx(np.diag(confusion) / confusion.sum(axis=1))


def test_rounds_that_are_not_tested_say_nothing_of_accuracy(run):
    _, summary, rounds = run("--rounds", "5", "--clients", "3", "--set", "evaluation.every=2")
    assert ["accuracy" in each for each in rounds] == [False, True, False, True, True]
    assert all(each["train_loss"] > 0 for each in rounds)
    assert summary["rounds"] == 5


def test_the_saved_model_is_the_one_that_was_tested(run):
    folder, summary, _ = run("--rounds", "3", "--clients", "4")
    digits = load("digits")
    model = models.build("mlp-small", digits.inputs, 10)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (digits.mean, digits.std))
    with torch.no_grad():
        predicted = model((digits.test.inputs / 255 - mean) / std).logits.argmax(dim=1)
    right = (predicted == digits.test.labels).float().mean().item()
    assert right == pytest.approx(summary["accuracy"]["last"], abs=1e-6)


def test_the_hash_is_over_the_parameters_in_name_order_without_buffers(run, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "few.npz", x=rng.integers(0, 256, (30, 12, 12), np.uint8), y=np.arange(30) % 3)
    folder, summary, _ = run(
        *("--dataset", "npz:few.npz", "--skew", "iid", "--clients", "2"),
        *("--model", "resnet8", "--rounds", "1"),
    )
    tensors = load_file(folder / "model.safetensors")
    model = models.build("resnet8", load("npz:few.npz").inputs, 3)
    assert set(tensors) == set(model.state_dict())
    params = dict(model.named_parameters())
    assert set(params) < set(tensors)
    content = b"".join(tensors[name].numpy().astype("<f4").tobytes() for name in sorted(params))
    assert summary["weights_sha256"] == hashlib.sha256(content).hexdigest()


BROKEN = """
from unskew import Method
from unskew.types import Server


def broken() -> Method:
    def move(state, delta):
        return {name: value / 0 for name, value in delta.items()}, {}

    return Method(server=Server(move=move))
"""


def test_what_is_not_a_number_becomes_null(run, tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    _, summary, _ = run("--rounds", "1", "--method", "broken.py")
    assert summary["loss"] is None
    assert any("diverged" in note for note in summary["notes"])


def test_rounds_without_any_update_have_no_loss(run):
    least = ["--set", "faults.min_clients=0"]
    _, summary, rounds = run("--rounds", "2", "--clients", "3", "--lr", "1e30", *least)
    assert rounds[-1]["train_loss"] is None
    assert any("NaN or infinite values" in note for note in summary["notes"])


def test_a_run_that_diverges_stops_and_says_so(unskew, tmp_path):
    answer = unskew("run", "--lr", "1e30", "--quiet", "--out", "run")
    assert answer.code == 2
    assert answer.err == (
        "unskew: training diverged in round 1: loss or weights of all 10 clients became NaN or infinite; "
        "try a smaller lr.\n"
    )
    assert (tmp_path / "run/rounds.jsonl").read_text() == ""


def test_the_environment_is_written_down(run, monkeypatch):
    folder, _, _ = run("--rounds", "1", "--clients", "3", "--device", "cpu")
    environment = strict((folder / "environment.json").read_text())
    assert datetime.fromisoformat(environment["started"]).tzinfo is not None
    assert environment["command"][:2] == ["unskew", "run"]
    assert environment["device"] == "cpu"
    assert environment["cores"] == os.cpu_count()
    assert environment["versions"]["torch"] == version("torch")
    assert environment["versions"]["unskew"] == version("unskew")
    assert environment["working_directory_commit"] is None
    for key in ("device_name", "platform", "python"):
        assert isinstance(environment[key], str)


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
def test_the_commit_is_written_down_and_marked_when_files_differ_from_it(unskew, tmp_path):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", *identity, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit_of(out: str) -> str:
        assert unskew("run", "--rounds", "1", "--epochs", "1", "--quiet", "--out", out).code == 0
        return strict((tmp_path / out / "environment.json").read_text())["working_directory_commit"]

    git("init", "--quiet")
    (tmp_path / "paper.tex").write_text("draft")
    git("add", ".")
    git("commit", "--quiet", "--no-gpg-sign", "--message", "draft")
    assert commit_of("clean") == git("rev-parse", "HEAD")
    (tmp_path / "paper.tex").write_text("changed")
    assert commit_of("changed") == git("rev-parse", "HEAD") + "+"


def test_files_get_the_permissions_that_the_user_has_chosen(run):
    before = os.umask(0o027)
    try:
        folder, _, _ = run("--rounds", "1", "--clients", "3")
    finally:
        os.umask(before)
    modes = {path.name: stat.filemode(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == dict.fromkeys(FILES, "-rw-r-----")
    assert stat.filemode(folder.stat().st_mode) == "drwxr-x---"


def test_runs_that_begin_in_the_same_second_get_folders_of_their_own(tmp_path):
    folders = [free_folder("fedavg:digits", tmp_path) for _ in range(3)]
    assert len(set(folders)) == 3
    assert all(folder.is_dir() and folder.name.startswith("fedavg-digits-") for folder in folders)


def test_a_long_name_still_makes_a_folder(tmp_path):
    assert free_folder("file:" + "/deep" * 100 + "-seed7", tmp_path).is_dir()
    assert slug("x" * 500 + ":mu=0.1").endswith("mu=0.1")


def test_an_empty_folder_can_be_claimed_and_a_file_in_the_way_cannot(tmp_path):
    claim(tmp_path)
    claim(tmp_path / "new" / "one")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file"):
        claim(tmp_path / "file")
    with pytest.raises(UserError, match="cannot write to"):
        free_folder("name", tmp_path / "file")
    with pytest.raises(UserError, match="not empty"):
        claim(tmp_path)


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path):
    path = tmp_path / "summary.json"
    write_whole(path, "old")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        write_whole(path, "\ud800")
    assert path.read_text() == "old"
    with pytest.raises(UserError, match="cannot write to"):
        write_whole(tmp_path / "summary.json" / "inner", "new")
    assert [each.name for each in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.parametrize("command", [("run",), ("compare", "fedavg")])
@pytest.mark.parametrize("flag", ["--out", "--data"])
def test_a_path_that_no_record_can_name_is_said_in_one_sentence(unskew, command, flag):
    name = os.fsdecode(b"caf\xe9")
    answer = unskew(*command, "--rounds", "1", "--epochs", "1", "--quiet", flag, name)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert re.search(r"'[^']*caf\?[^']*' is not UTF-8 text\): rename that file or folder", answer.err)


def test_json_has_no_nan_and_its_lines_survive_any_terminal():
    value = {"a": [1.5, float("nan"), {"b": float("-inf")}], "name": "Ångström"}
    assert strict(to_json(value)) == {"a": [1.5, None, {"b": None}], "name": "Ångström"}
    assert to_json(value, indent=None).isascii()
    assert "\n" not in to_json(value, indent=None)


def test_a_comparison_pairs_the_seeds_with_the_reference(unskew, tmp_path):
    answer = unskew(
        "compare", "fedprox:mu=5", "fedavg", "fedavgm", "--seeds", "1-3", "--rounds", "6", "--epochs", "1",
        "--clients", "4", "--skew", "dirichlet:0.1", "--lr", "0.05", "--out", "all", "--quiet",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    whole = strict((tmp_path / "all" / "compare.json").read_text())
    assert whole["answer"]["reference"] == "fedavg"
    differences = whole["answer"]["differences"]
    assert list(differences) == ["fedprox:mu=5", "fedavgm"]
    runs = {method: whole["runs"][n::3] for n, method in enumerate(whole["methods"])}
    assert [run["seed"] for run in runs["fedavgm"]] == [1, 2, 3]
    assert {run["method"] for run in runs["fedavgm"]} == {"fedavgm"}

    def curve(run):
        lines = (tmp_path / run["run_dir"] / "rounds.jsonl").read_text().splitlines()
        return [strict(line)["accuracy"] for line in lines]

    for method, found in differences.items():
        for name, value in {
            "accuracy": lambda run: run["accuracy"]["last"],
            "worst": lambda run: run["worst_class_accuracy"],
            "vacant": lambda run: run["groups"]["vacant"],
        }.items():
            own, other = (np.array([value(run) for run in runs[each]]) for each in (method, "fedavg"))
            gap = own - other
            assert found[name]["seeds"] == [1, 2, 3]
            assert found[name]["difference"] == pytest.approx(gap.mean())
            margin = 4.302653 * gap.std(ddof=1) / 3**0.5  # Student's t for two degrees of freedom
            expected = [max(gap.mean() - margin, -1), min(gap.mean() + margin, 1)]
            assert found[name]["interval"] == pytest.approx(expected, abs=1e-6)
        sooner = whole["speed_up"][method]
        for own, base in zip(runs[method], runs["fedavg"], strict=True):
            seed, best = str(own["seed"]), max(curve(base))
            reached = [t for t, accuracy in enumerate(curve(own), 1) if accuracy >= best]
            assert sooner["target"][seed] == best
            assert sooner["rounds_to_target"][seed] == (reached[0] if reached else None)
            first = curve(base).index(best) + 1
            assert sooner["speed_up"][seed] == (pytest.approx(first / reached[0]) if reached else None)

    last = whole["methods"]["fedavg"]["accuracy"]["last"]
    values = [run["accuracy"]["last"] for run in runs["fedavg"]]
    assert last["n"] == 3
    assert last["mean"] == pytest.approx(np.mean(values))
    low, high = last["interval"]
    assert high - low == pytest.approx(2 * 4.302653 * np.std(values, ddof=1) / 3**0.5, rel=1e-5)


def test_one_seed_and_one_method_have_nothing_to_compare(unskew, tmp_path):
    run = ["compare", "fedavg", "--rounds", "1", "--epochs", "1", "--out", "one", "--quiet"]
    assert unskew(*run).code == 0
    whole = strict((tmp_path / "one" / "compare.json").read_text())
    assert whole["answer"]["reference"] is None
    assert whole["answer"]["differences"] == {}
    assert whole["methods"]["fedavg"]["accuracy"]["last"]["interval"] is None


def test_a_round_is_written_before_its_probe_and_both_as_it_ends(unskew, tmp_path):
    """Stopped in the fourth round: three are there, with the probe of the second."""
    (tmp_path / "stops.py").write_text(
        "from unskew import Method\n"
        "from unskew.types import Server\n\n\n"
        "def stops():\n"
        "    def note(state, after, updates):\n"
        "        if state.memory['stops/round'] == 3:\n"
        "            raise KeyboardInterrupt\n"
        "        return {'stops/round': state.memory['stops/round'] + 1}\n\n"
        "    import torch\n"
        "    return Method(server=Server(init=lambda _: {'stops/round': torch.tensor(0)}, note=note))\n"
    )
    answer = unskew(
        "run", "--method", "stops.py", "--rounds", "9", "--epochs", "1", "--quiet", "--out", "run",
        "--set", "probe.every=2",
    )  # fmt: skip
    assert answer.code == 130
    folder = tmp_path / "run"
    rounds, probes = (
        [strict(line)["round"] for line in (folder / name).read_text().splitlines()]
        for name in ("rounds.jsonl", "probes.jsonl")
    )
    assert (rounds, probes) == ([1, 2, 3], [2])
    assert not (folder / "summary.json").exists()


COUNTS = """
import torch
from torch.nn.functional import cross_entropy

from unskew import Method
from unskew.method import Tally


def counts() -> Method:
    def loss(view):
        view.tally("seconds", (view.labels == 3).sum())
        return cross_entropy(view.out.logits, view.labels)

    return Method(loss=loss, tallies=(Tally("seconds", "samples of a three"),))
"""


def test_a_tally_may_have_any_name_and_is_told_as_a_share(run, tmp_path):
    """Also that of a column of rounds.jsonl."""
    (tmp_path / "counts.py").write_text(COUNTS)
    _, summary, rounds = run(
        "--method", "counts.py", "--rounds", "2", "--clients", "4", "--cohort", "2", "--epochs", "3"
    )
    held = np.array(strict(Path("run/partition.json").read_text())["counts"])
    for each in rounds:
        assert each["samples"] == 3 * held[each["trained"]].sum()
        assert each["tallies"] == {"seconds": 3 * held[each["trained"], 3].sum()}
        assert isinstance(each["seconds"], float)
    told = summary["tallies"]["seconds"]
    assert told["of"] == "samples of a three"
    assert told["share"] == [each["tallies"]["seconds"] / each["samples"] for each in rounds]


def test_a_run_is_known_by_its_settings(unskew, tmp_path):
    def identity(out: str, *arguments: str) -> str:
        brief = ["--rounds", "1", "--epochs", "1", "--quiet", "--json", "--out", out]
        told = strict(unskew("run", *arguments, *brief).out)["identity"]
        assert strict((tmp_path / out / "environment.json").read_text())["identity"] == told
        assert len(told) == 64
        return told

    first = identity("a", "--method", "fedprox", "--clients", "3")
    (tmp_path / "mine.toml").write_text(
        "workers = 1\n[skew]\nclients = 3\nrecipe = 'dirichlet:0.10'\n"
        "[method]\nmu = 0.01\nname = 'fedprox'\n[budget]\nlr = 1e-2\n[data]\nfolder = 'elsewhere'\n"
    )
    assert identity("b", "mine.toml") == first
    assert identity("c", "a/experiment.toml") == first
    others = [identity("d", "--clients", "3"), identity("e", "a/experiment.toml", "--seed", "2")]
    assert len({first, *others}) == 3


BREAKS = """
import torch
from torch.nn.functional import cross_entropy

from unskew import Method
from unskew.types import Server


def breaks() -> Method:
    def loss(view):
        if view.scope.shared["breaks/round"] == 1:
            raise ZeroDivisionError("a slip")
        return cross_entropy(view.out.logits, view.labels)

    server = Server(
        init=lambda _: {"breaks/round": torch.tensor(0)},
        note=lambda state, after, updates: {"breaks/round": state.memory["breaks/round"] + 1},
        share=lambda state: {"breaks/round": state.memory["breaks/round"]},
    )
    return Method(loss=loss, server=server)
"""


def test_a_cell_that_fails_is_told_and_the_others_are_compared(unskew, tmp_path):
    (tmp_path / "breaks.py").write_text(BREAKS)
    brief = ["--rounds", "3", "--epochs", "1", "--clients", "3", "--seeds", "1,2", "--out", "all"]
    answer = unskew("compare", "fedavg", "breaks.py", "fedprox:mu=5", *brief, "--engine", "loop")
    assert answer.code == 2
    last = answer.err.splitlines()[-1]
    assert last.startswith(
        "unskew: 2 of 6 runs failed: breaks.py seed 1 and 1 more (ZeroDivisionError: a slip."
    )
    assert "failed in round 2, stage 'train'" in last
    whole = strict((tmp_path / "all" / "compare.json").read_text())
    assert [(each["method"], each["seed"]) for each in whole["failed"]] == [
        ("breaks.py", 1),
        ("breaks.py", 2),
    ]
    assert "ZeroDivisionError: a slip. Client 0 failed in round 2" in whole["failed"][0]["error"]
    assert [each["method"] for each in whole["runs"]] == ["fedavg", "fedprox"] * 2
    assert list(whole["answer"]["differences"]) == ["fedprox:mu=5"]
    assert whole["answer"]["differences"]["fedprox:mu=5"]["accuracy"]["seeds"] == [1, 2]
    assert "fedprox:mu=5" in answer.out

    failed = tmp_path / "all" / "breaks.py-seed1"
    told = strict((failed / "error.json").read_text())
    assert told["error"] == "ZeroDivisionError: a slip"
    assert told["notes"] == ["Client 0 failed in round 2, stage 'train'."]
    assert "breaks.py" in told["traceback"]
    assert len((failed / "rounds.jsonl").read_text().splitlines()) == 1
    assert not (failed / "summary.json").exists()
    planned = strict((tmp_path / "all" / "plan.json").read_text())["runs"]
    listed = {Path(each["run_dir"]).name: each["identity"] for each in whole["runs"] + whole["failed"]}
    assert listed == {each["folder"]: each["identity"] for each in planned}

    answer = unskew("table", "all")
    assert answer.code == 0
    assert f"note: {Path('all/breaks.py-seed1')} failed: ZeroDivisionError: a slip. Client 0" in answer.out


def test_when_every_cell_fails_that_is_all_there_is_to_say(unskew, tmp_path):
    (tmp_path / "breaks.py").write_text(BREAKS.replace("== 1", "== 0"))
    answer = unskew(
        "compare", "breaks.py", "--rounds", "2", "--epochs", "1", "--out", "all", "--engine", "loop"
    )
    assert answer.code == 2
    assert "1 of 1 runs failed" in answer.err
    assert "other runs" not in answer.err
    assert strict((tmp_path / "all" / "compare.json").read_text())["runs"] == []
    answer = unskew("table", "all")
    assert answer.code == 2
    assert "failed before its first test (ZeroDivisionError" in answer.err


def test_a_method_that_exits_does_not_end_a_compare(unskew, tmp_path):
    """At the server too."""
    (tmp_path / "leaves.py").write_text(
        "import sys\n\nfrom unskew.method import Method\nfrom unskew.types import Server\n\n\n"
        "def leaves():\n    return Method(server=Server(combine=lambda state, updates: sys.exit(0)))\n"
    )
    answer = unskew(
        "compare", "leaves.py", "fedavg", "--rounds", "1", "--epochs", "1", "--quiet", "--out", "c"
    )
    assert answer.code == 2
    assert "1 of 2 runs failed: leaves.py seed 1 (RuntimeError: the code ended by SystemExit(0)" in answer.err
    assert (tmp_path / "c" / "fedavg-seed1" / "summary.json").exists()


def test_a_run_that_fails_says_where_and_keeps_its_rounds(unskew, tmp_path):
    (tmp_path / "breaks.py").write_text(BREAKS)
    command = [sys.executable, "-m", "unskew", "run", "--method", "breaks.py", "--rounds", "3"]
    command += ["--epochs", "1", "--quiet", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.search(r"^ZeroDivisionError: a slip$", done.stderr, re.MULTILINE)
    assert re.search(r"^Client \d failed in round 2, stage 'train'\.$", done.stderr, re.MULTILINE)
    assert len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()) == 1
    assert strict((tmp_path / "run" / "error.json").read_text())["error"] == "ZeroDivisionError: a slip"


def test_a_run_folder_that_cannot_be_made_whole_leaves_nothing_behind(unskew, tmp_path):
    resource = pytest.importorskip("resource")  # Windows has no such limits
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    (tmp_path / "mine").mkdir()
    for folder in ("new", "mine"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))  # enough for the settings alone
        try:
            answer = unskew("run", "--rounds", "1", "--quiet", "--out", folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert answer.code == 2
        assert "partition.json (File too large)" in answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (
            ("figure", "curves", "r", "--out", "c.pdf"),
            "cannot write the figure c.pdf (File too large): choose",
        ),
        (
            ("export", "r", "--to", "torch-export", "--out", "m.pt2"),
            "cannot write to m.pt2 (File too large): make",
        ),
        (("predict", "r", "new.npz", "--out", "p.csv"), "cannot write to p.csv (File too large): make room "),
    ],
)
def test_a_file_for_which_there_is_no_room_is_said_in_a_sentence_that_helps(
    unskew, tmp_path, command, sentence
):
    resource = pytest.importorskip("resource")  # Windows has no such limits
    assert unskew("run", "--rounds", "2", "--epochs", "1", "--quiet", "--out", "r").code == 0
    np.savez("new.npz", x=np.zeros((500, 8, 8), np.uint8))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
    try:
        answer = unskew(*command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert answer.code == 2
    assert sentence in answer.err
    assert "unskew resume" not in answer.err
    assert not (tmp_path / command[-1]).exists()
