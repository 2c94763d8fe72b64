"""Class-wise results of a federation that runs on Flower."""

import json
import logging
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from unskew import flower
from unskew.errors import UserError

pytest.importorskip("flwr", reason="Flower has an environment of its own: make test-flower")

from flwr.app import MetricRecord, RecordDict

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
QUIET["RAY_worker_niceness"] = "0"  # not 15: other processes of this machine would keep its workers waiting


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run the app of the documentation in Flower's simulation, and return the folder with its output."""
    folder = tmp_path_factory.mktemp("app")
    page = (ROOT / "docs/deploy.md").read_text()
    (folder / "app.py").write_text(re.search(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1])
    paths = os.pathsep.join(map(str, (folder, HERE, HERE.parent / "startup", ROOT / "src")))
    done = subprocess.run(
        [sys.executable, HERE / "federation.py"],
        cwd=folder,
        env={**os.environ, **QUIET, "FLWR_HOME": str(folder / "flwr"), "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "log.txt").write_text(done.stdout + done.stderr)
    return folder


@pytest.fixture(scope="module")
def app(ran):
    sys.path.insert(0, str(ran))
    import app

    yield app
    sys.path.remove(str(ran))


def pooled(ran, app, sites=range(3)):
    """[i, j]: all test samples of class i answered j by the last model, counted one by one."""
    net, matrix = app.model(), np.zeros((app.CLASSES, app.CLASSES), dtype=np.int64)
    net.load_state_dict(torch.load(ran / "model.pt"))
    for site in sites:
        for x, y in app.load(site, "test"):
            for label, answer in zip(y.tolist(), net(x).argmax(1).tolist(), strict=True):
                matrix[label, answer] += 1
    return matrix


def test_the_app_of_the_documentation_tells_what_a_central_test_would(ran, app):
    told = json.loads((ran / "results.json").read_text())
    matrix = pooled(ran, app)
    by_class = np.diag(matrix) / matrix.sum(1)
    assert told == {
        "accuracy": np.trace(matrix) / matrix.sum(),
        "balanced-accuracy": by_class.mean(),
        "macro-f1": (2 * np.diag(matrix) / (matrix.sum(0) + matrix.sum(1))).mean(),
        "worst-class": by_class.argmin(),
        "worst-class-accuracy": by_class.min(),
        "class-accuracy": by_class.tolist(),
        "class-examples": np.sum(app.HELD, axis=0).tolist(),
        "replies-left-out": 0,
    }
    assert told["accuracy"] > 0.6  # it learnt


def test_every_stock_strategy_takes_it(ran, app):
    told = json.loads((ran / "strategies.json").read_text())
    del told["broken"]
    assert len(told) == 12
    matrix, sizes = pooled(ran, app), np.sum(app.HELD, axis=1)
    for name, found in told.items():
        assert found["confusion"] == matrix.flatten().tolist(), name
        assert found["class-accuracy"] == (np.diag(matrix) / matrix.sum(1)).tolist(), name
        # A metric of the app's own is averaged by examples, as Flower does.
        assert found["site"] == pytest.approx(np.average([0, 1, 2], weights=sizes)), name


def test_a_client_that_sends_nonsense_is_left_out_and_told_of(ran, app):
    told = json.loads((ran / "strategies.json").read_text())["broken"]
    matrix = pooled(ran, app, sites=(0, 2))
    assert told["replies-left-out"] == 1
    assert told["class-accuracy"] == (np.diag(matrix) / matrix.sum(1)).tolist()
    said = (ran / "log.txt").read_text()
    assert re.search(r"reply \d of 3 is left out: confusion has numbers that are no counts", said)


def replies(*counts):
    return [RecordDict({"metrics": MetricRecord({"num-examples": 9, "confusion": each})}) for each in counts]


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        ([1, 2, 3], "confusion has 3 numbers, no square"),
        ([], "confusion has 0 numbers, no square"),
        ([0.5] * 9, "confusion has numbers that are no counts"),
        ([math.nan] * 9, "confusion has numbers that are no counts"),
        ([1] * 16, "confusion is of 4 classes, not 3"),
        (1.0, "it has no list 'confusion'"),
    ],
)
def test_counts_that_cannot_be_used_are_left_out(bad, fault, monkeypatch):
    said = []
    monkeypatch.setattr(logging.getLogger("flwr"), "warning", lambda text, *parts: said.append(text % parts))
    told = flower.classwise(replies([1] * 9, bad, [1] * 9), "num-examples")
    assert told["class-examples"] == [6, 6, 6]
    assert told["replies-left-out"] == 1
    assert said == [f"reply 2 of 3 is left out: {fault}"]


def test_without_any_counts_the_error_says_what_to_send():
    with pytest.raises(
        UserError, match=r"^no client sent .* \(it has no list 'confusion'\): put class_counts"
    ):
        flower.classwise(replies(1.0), "num-examples")


def test_classes_and_clients_without_test_samples_are_no_numbers():
    some = flower.class_counts(torch.nn.Identity(), [(torch.eye(3)[:2], torch.tensor([0, 1]))])
    none = flower.class_counts(torch.nn.Identity(), [], classes=3)
    told = flower.classwise(
        [RecordDict({"metrics": MetricRecord(each)}) for each in (some, none)], "num-examples"
    )
    assert told["class-accuracy"][:2] == [1.0, 1.0]
    assert math.isnan(told["class-accuracy"][2])
    assert (told["balanced-accuracy"], told["macro-f1"]) == (1.0, 1.0)
    told = flower.classwise([RecordDict({"metrics": MetricRecord(none)})], "num-examples")
    assert math.isnan(told["accuracy"])
    assert "worst-class" not in told
