"""What the loggers leave in a run folder, read back from their own file formats."""

from __future__ import annotations

import csv
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from unskew import loggers
from unskew.cli import main
from unskew.loggers import LOGGERS, flatten, tags

pytestmark = pytest.mark.usefixtures("no_workers")

NAMES = ["tensorboard", "mlflow", "wandb"]
CLASSES = [".", "T-shirt/top", "[red] `x` | <b>", "naïve 类"]
TAGS = ["_", "T-shirt_top", "_red_ _x_ _ _b_", "naïve 类"]
BRIEF = ["--rounds", "2", "--epochs", "1", "--clients", "3", "--quiet"]


def call(*arguments: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["unskew", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
    assert not stop.value.code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run with every logger, on classes whose names are difficult in file names and in markup. It is
    tested in every second round and probed in every third."""
    root = tmp_path_factory.mktemp("a [b] #c")
    rng = np.random.default_rng(0)
    with (root / "odd.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["a", "b", "c", "kind"])
        for label in rng.integers(0, len(CLASSES), 200):
            rows.writerow([*(label + rng.normal(size=3)).round(3), CLASSES[label]])
    out = root / "run"
    call(
        *("run", "--dataset", f"csv:{root / 'odd.csv'},label=kind", "--skew", "dirichlet:0.3"),
        *("--clients", "4", "--rounds", "5", "--epochs", "1", "--method", "fedprox:mu=0.25"),
        *(
            "--set",
            "evaluation.every=2",
            "--probe",
            "every=3",
            "--validation",
            "0.2",
            "--quiet",
            "--out",
            str(out),
        ),
        *("--log", "tensorboard,mlflow,wandb"),
    )
    return out


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


@pytest.fixture(scope="module")
def logged(folder: Path) -> dict[str, dict[int, float]]:
    """Return the numbers that every logger should have, by tag and round, read from the run's own files."""
    values: dict[str, dict[int, float]] = {}

    def note(tag: str, step: int, value: float | None) -> None:
        if value is not None:
            values.setdefault(tag, {})[step] = value

    for line in lines(folder / "rounds.jsonl"):
        step = line["round"]
        for key in ("lr", "train_loss", "seconds", "samples"):
            note(key, step, line[key])
        for way in ("up", "down"):
            note(f"traffic/{way}", step, line["traffic"][way])
        if "accuracy" in line:
            for key in (
                "accuracy",
                "loss",
                "balanced_accuracy",
                "max_class",
                "min_class",
                "discrepancy",
                "macro_f1",
            ):
                note(key, step, line[key])
            for key, value in line["validation"].items():
                note(f"validation/{key}", step, value)
            note("distance_to_uniform", step, line["distance_to_uniform"])
            for group, value in line["groups"].items():
                note(f"groups/{group}", step, value)
            for name, value in zip(TAGS, line["class_accuracy"], strict=True):
                note(f"class/{name}", step, value)
    for line in lines(folder / "probes.jsonl"):
        step = line["round"]
        note("probe/seconds", step, line["seconds"])
        for reference, value in line["drift"].items():
            note(f"probe/drift/{reference}", step, value)
        for group, stages in line["groups"].items():
            for stage, value in (stages or {}).items():
                note(f"probe/groups/{group}/{stage}", step, value)
        for name, value in zip(TAGS, line["local_class_accuracy"], strict=True):
            note(f"probe/class/{name}", step, value)
    assert sorted(values["accuracy"]) == [2, 4, 5]
    assert sorted(values["probe/groups/vacant/drop"]) == [3, 5]
    assert sorted(values["lr"]) == [1, 2, 3, 4, 5]
    return values


def test_tensorboard_holds_every_number(folder, logged):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    (file,) = (folder / "tensorboard").iterdir()
    events = EventAccumulator(str(file)).Reload()
    assert set(events.Tags()["scalars"]) == set(logged)
    for tag, values in logged.items():
        kept = {event.step: event.value for event in events.Scalars(tag)}
        assert kept == pytest.approx(values, rel=1e-6, abs=1e-9)  # TensorBoard's scalars are float32

    (image,) = events.Images("confusion")
    assert image.encoded_image_string.startswith(b"\x89PNG")
    assert image.step == 5
    (text,) = events.Tensors("confusion/text_summary")
    table = text.tensor_proto.string_val[0].decode()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
    assert [row[1:] for row in cells[2:]] == [list(map(str, row)) for row in summary(folder)["confusion"]]
    assert cells[3][0] == "`T-shirt/top`"

    plugin = HParamsPluginData.FromString(
        events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    )
    settings = plugin.session_start_info.hparams
    assert settings["budget.rounds"].number_value == 5
    assert settings["method.mu"].number_value == 0.25
    assert settings["skew.recipe"].string_value.startswith("dirichlet:0.3")


def test_mlflow_holds_every_number(folder, logged):
    from mlflow import MlflowClient

    client = MlflowClient((folder / "mlruns").as_uri())
    run = only_run(client)
    assert set(run.data.metrics) == set(logged)
    for tag, values in logged.items():
        assert {each.step: each.value for each in client.get_metric_history(run.info.run_id, tag)} == values
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "fedprox:mu=0.25 seed 1"
    assert run.data.params["budget.rounds"] == "5"
    assert run.data.params["method.mu"] == "0.25"
    assert run.data.params["probe.every"] == "3"
    path = client.download_artifacts(run.info.run_id, "confusion.csv")
    rows = list(csv.reader(Path(path).read_text(encoding="utf-8").splitlines()))
    assert rows[0][1:] == [row[0] for row in rows[1:]] == CLASSES
    assert [[int(cell) for cell in row[1:]] for row in rows[1:]] == summary(folder)["confusion"]


def only_run(client):
    experiments = [each.experiment_id for each in client.search_experiments()]
    (run,) = client.search_runs(experiments)
    return run


def wandb_records(path: Path) -> Iterator:
    """Yield the records of a .wandb file: a header of 7 bytes, then protobuf messages in LevelDB's log
    format."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, message = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        left = 32768 - at % 32768  # of the block
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if at + 7 + length > len(data):
            return  # still being written
        message += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole message, or the last part of one
            yield Record.FromString(message)
            message = b""


def finished(path: Path) -> list:
    """Return all records, when the last one is there: W&B's own process writes it after the run has ended."""
    deadline = time.monotonic() + 60  # only so that a missing record does not hang the tests
    while time.monotonic() < deadline:
        records = list(wandb_records(path))
        if any(record.HasField("exit") for record in records):
            return records
        time.sleep(0.02)
    raise AssertionError(f"{path} has no end")


def test_wandb_holds_every_number(folder, logged):
    (run,) = (folder / "wandb").glob("offline-run-*")
    (file,) = run.glob("*.wandb")
    kept: dict[str, dict[int, float]] = {}
    settings = {}
    codes = []
    for record in finished(file):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            for item in record.history.item:
                key = "/".join(item.nested_key) or item.key
                if not key.startswith(("_", "confusion/")):
                    kept.setdefault(key, {})[record.history.step.num] = json.loads(item.value_json)
        elif kind == "run":
            assert record.run.display_name == "fedprox:mu=0.25 seed 1"
            settings |= {each.key: json.loads(each.value_json) for each in record.run.config.update}
        elif kind == "exit":
            codes.append(record.exit.exit_code)
    assert kept == logged
    assert codes == [0]
    assert settings["budget.rounds"] == 5
    assert settings["method.mu"] == 0.25
    (matrix,) = run.rglob("*.html")
    assert "<td>[red] `x` | &lt;b&gt;</td>" in matrix.read_text(encoding="utf-8")


def test_loggers_change_nothing_and_write_nowhere_else(unskew, tmp_path):
    plain = unskew("run", *BRIEF, "--out", "plain", "--json")
    logged = unskew("run", *BRIEF, "--out", "logged", "--json", "--log", ",".join(NAMES))
    assert (logged.code, logged.err) == (0, "")
    assert len(logged.out.splitlines()) == 1
    first, second = json.loads(plain.out), json.loads(logged.out)
    assert first["weights_sha256"] == second["weights_sha256"]
    for name in ("experiment.toml", "partition.json"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "logged" / name).read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"plain", "logged"}
    mine, theirs = ({path.name for path in (tmp_path / each).iterdir()} for each in ("logged", "plain"))
    assert mine - theirs == {"tensorboard", "mlruns", "wandb"}


def test_each_run_of_a_comparison_has_logs_of_its_own(unskew, tmp_path):
    answer = unskew(
        "compare", "fedavg", "fedprox", *BRIEF, "--seeds", "1,2", "--out", "all", "--log", "mlflow"
    )
    assert answer.code == 0
    from mlflow import MlflowClient

    together = tmp_path / "together"  # as docs/logging.md has it
    together.mkdir()
    for store in (tmp_path / "all").glob("*/mlruns/[1-9]*"):
        (together / store.name).symlink_to(store)
    client = MlflowClient(together.as_uri())
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
    names = {f"{method} seed {seed}" for method in ("fedavg", "fedprox") for seed in (1, 2)}
    assert {run.info.run_name for run in runs} == names
    for run in runs:
        method, _, seed = run.info.run_name.split()
        kept = lines(tmp_path / "all" / f"{method}-seed{seed}" / "rounds.jsonl")
        history = client.get_metric_history(run.info.run_id, "accuracy")
        assert [each.value for each in history] == [line["accuracy"] for line in kept]


@pytest.mark.parametrize("name", NAMES)
def test_a_package_that_is_not_installed_is_reported_before_anything_is_written(
    unskew, tmp_path, monkeypatch, name
):
    for module in [each for each in sys.modules if each.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, name, None)  # what Python itself does to say that there is none
    answer = unskew("run", *BRIEF, "--log", name)
    assert answer.code == 2
    assert answer.err == (
        f"unskew: logging to {name} needs a package: install it with pip install 'unskew[{name}]'.\n"
    )
    assert list(tmp_path.iterdir()) == []


class Vandal:
    """Removes what MLflow has written, in round 2."""

    def begin(self, settings, folder, name):
        self.folder = folder

    def round(self, number, values):
        if number == 2:
            (self.folder / "mlruns").rename(self.folder / "gone")

    def end(self, summary):
        pass


def test_a_logger_that_fails_loses_no_run_and_is_reported_once(unskew, tmp_path, monkeypatch):
    monkeypatch.setitem(LOGGERS, "vandal", Vandal)
    flags = [flag for flag in BRIEF if flag != "--quiet"]
    answer = unskew("run", *flags, "--rounds", "4", "--out", "run", "--log", "vandal,mlflow,tensorboard")
    assert answer.code == 0
    notes = [line for line in answer.err.splitlines() if line.startswith("note: ")]
    assert len(notes) == 1
    assert notes[0].startswith("note: mlflow has failed and gets no more of this run: ")
    assert notes[0] in " ".join(answer.out.split())
    whole = summary(tmp_path / "run")
    assert [note for note in whole["notes"] if "mlflow has failed" in note] == [
        notes[0].removeprefix("note: ")
    ]
    assert len(lines(tmp_path / "run" / "rounds.jsonl")) == 4

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("accuracy")] == [1, 2, 3, 4]


class Interrupter:
    """Ctrl-C in round 3."""

    def begin(self, settings, folder, name):
        pass

    def round(self, number, values):
        if number == 3:
            raise KeyboardInterrupt

    def end(self, summary):
        pass


def test_a_run_that_is_stopped_is_marked_so(unskew, tmp_path, monkeypatch):
    monkeypatch.setitem(LOGGERS, "interrupter", Interrupter)
    answer = unskew("run", *BRIEF, "--rounds", "9", "--out", "run", "--log", "mlflow,wandb,interrupter")
    assert answer.code == 130
    again = "unskew resume run --log mlflow,wandb,interrupter"
    assert answer.err == f"unskew: stopped; resume with: {again}\n"
    from mlflow import MlflowClient

    client = MlflowClient((tmp_path / "run" / "mlruns").as_uri())
    run = only_run(client)
    assert run.info.status == "KILLED"
    assert len(client.get_metric_history(run.info.run_id, "accuracy")) == 3
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    codes = [record.exit.exit_code for record in finished(file) if record.HasField("exit")]
    assert codes == [1]

    monkeypatch.delitem(LOGGERS, "interrupter")
    assert unskew("resume", "run", "--quiet", "--log", "mlflow,tensorboard,wandb").code == 0
    again = unskew("resume", "run", "--json", "--quiet")
    assert json.loads(again.out)["notes"] == []
    run = only_run(MlflowClient((tmp_path / "run" / "mlruns").as_uri()))
    assert run.info.status == "FINISHED"
    assert len(client.get_metric_history(run.info.run_id, "accuracy")) == 9
    assert len(list((tmp_path / "run" / "wandb").glob("offline-run-*"))) == 1


def outside(script: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process that does not look like a test, since packages that send reports do not do so
    in tests."""
    hints = ("PYTEST", "CI", "GITHUB", "WANDB", "MLFLOW", "DO_NOT_TRACK")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(hints)}
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**kept, "OMP_NUM_THREADS": "1", **environment},
        text=True,
        capture_output=True,
        check=True,
    )


def test_nothing_is_sent_to_anyone(tmp_path):
    """All connections would go through a proxy, and it gets none."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        ways = {key: address for name in ("http_proxy", "https_proxy") for key in (name, name.upper())}
        run = "import sys, unskew.cli; sys.argv = ['unskew', *{!r}]; unskew.cli.main()"
        done = outside(run.format(["run", *BRIEF, "--log", ",".join(NAMES)]), tmp_path, **ways)
        assert done.stderr == ""
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()


def test_no_package_is_loaded_that_was_not_asked_for(tmp_path):
    script = (
        "import sys, unskew.cli\n"
        "sys.argv = ['unskew', *{!r}]\n"
        "try: unskew.cli.main()\n"
        "except SystemExit: pass\n"
        "print(sorted({{'tensorboard', 'mlflow', 'wandb'}} & set(sys.modules)))\n"
    )
    done = outside(script.format(["run", *BRIEF, "--log", "tensorboard"]), tmp_path)
    assert done.stdout.splitlines()[-1] == "['tensorboard']"  # without --log, test_start.py has none


def test_names_stay_different_and_no_number_is_made_up():
    assert tags(["a/b", "a:b", "a_b", "", " . "]) == ["a_b", "a_b_1", "a_b_2", "_", "__4"]
    assert len(set(tags(["x" * 300 + str(i) for i in range(5)]))) == 5
    record = {"round": 3, "loss": None, "seconds": float("nan"), "worst_class": 1, "cohort": [0, 1]}
    assert flatten(record | {"class_accuracy": [0.5, None]}, None, ["a", "b"]) == {"class/a": 0.5}


def test_settings_are_flat():
    given = {"seed": 1, "method": {"name": "a+b", "a": {"mu": 0.5}}, "fast": False, "odd": [1, 2]}
    flat = {"seed": 1, "method.name": "a+b", "method.a.mu": 0.5, "fast": False, "odd": "[1, 2]"}
    assert loggers.flatten_settings(given) == flat
