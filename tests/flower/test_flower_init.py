"""Apps that `unskew flower init` writes, and the app of the documentation."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="Flower has an environment of its own: make test-flower")

from flwr.app import Context, RecordDict
from grids import InProcessGrid
from test_flower_methods import assert_same, simulated
from typer.testing import CliRunner

import unskew
from unskew.cli import app as cli
from unskew.flower.app import client_app
from unskew.flower.run_config import read_config, settings_in, with_code
from unskew.flower.server import serve
from unskew.notation import flatten

PAGE = (Path(__file__).parents[2] / "docs/deploy.md").read_text()
NET = """
from torch import nn


def net(inputs, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, classes))
"""
METHOD = """
from unskew import Method


def mine(*, weight: float = 0.1):
    return Method(terms=(lambda view: weight * view.out.logits.square().mean(),))
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    return tmp_path


def init(*words):
    return CliRunner().invoke(cli, ["flower", "init", *words])


def config_in(folder):
    told = tomllib.loads((folder / "pyproject.toml").read_text())
    return dict(flatten(told["tool"]["flwr"]["app"]["config"]))


def run_app(folder, nodes, **changes):
    """Run an app by its own files across nodes, with some settings changed, and return the run."""
    config = config_in(folder) | {key.replace("__", "."): value for key, value in changes.items()}
    package = folder / folder.name.replace("-", "_")
    experiment, spec = read_config(config)
    experiment = with_code(experiment, package)
    grid = InProcessGrid(client_app(package), nodes, config)
    return serve(grid, experiment, spec, settings_in(experiment))


def test_an_app_trains_what_was_asked_for(here):
    made = init(
        "my-app",
        "--method",
        "fedlmd",
        "--nodes",
        "3",
        "--rounds",
        "2",
        "--epochs",
        "1",
        "--model",
        "mlp-small",
    )
    assert made.exit_code == 0, made.output
    config = config_in(here / "my-app")
    assert config["method"] == "fedlmd"
    run = run_app(here / "my-app", [{"partition-id": n, "num-partitions": 3} for n in range(3)])
    assert_same(run, simulated(config))


def test_flower_takes_the_app(here):
    assert init("my-app").exit_code == 0
    flwr = Path(sys.executable).with_name("flwr")
    built = subprocess.run([flwr, "build", "--app", "my-app"], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    assert list(here.glob("*.fab"))


def test_own_models_and_methods_go_into_the_app(here):
    (here / "net.py").write_text(NET)
    (here / "mine.py").write_text(METHOD)
    made = init(
        "own", "--method", "mine.py:weight=0.2", "--model", "net.py:net", "--rounds", "1", "--nodes", "2"
    )
    assert made.exit_code == 0, made.output
    (here / "net.py").unlink()
    (here / "mine.py").unlink()
    run = run_app(here / "own", [{"partition-id": n, "num-partitions": 2} for n in range(2)])
    assert run.summary.rounds == 1
    assert run.summary.hyperparameters == {"weight": 0.2}


def test_sites_bring_tables_of_the_form_of_a_sample(here):
    script = re.search(
        r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs/four-sites.md").read_text(), re.DOTALL
    )[1]
    exec(script, {})
    (command,) = re.findall(r"^unskew flower init hospitals(?:.*\\\n)*.*", PAGE, re.MULTILINE)
    words = shlex.split(command.replace("\\\n", " "))
    made = CliRunner().invoke(cli, words[1:])
    assert made.exit_code == 0, made.output
    sites = ("cleveland", "hungary", "switzerland", "long-beach")
    nodes = [{"data": f"csv:{here / site}.csv,label=disease"} for site in sites]
    run = run_app(here / "hospitals", nodes, budget__rounds=2)
    assert run.names == ("cleveland", "hungary", "long-beach", "switzerland")
    assert [site.samples for site in run.summary.sites.each] == [242, 235, 160, 98]
    assert "csv" not in (here / "hospitals/hospitals/form.json").read_text()
    model = unskew.load_model(run.path)
    rows = [line.split(",") for line in (here / "hungary.csv").read_text().split()]
    table = [dict(zip(rows[0], row, strict=True)) for row in rows[1:6]]
    assert set(model.predict(table)) <= {"no", "yes"}


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["taken"], "taken is there already: choose a new folder."),
        (["9lives"], "'9lives' is no name for an app: begin with a letter."),
        (["new", "--method", "fedvsl"], "unknown method 'fedvsl': did you mean 'fedvls'?"),
        (
            ["new", "--method", "centralised"],
            "centralised cannot train across machines, because it trains on all data",
        ),
        (["new", "--like", "csv:x.csv,label=y", "--dataset", "digits"], "leave --dataset and --skew out."),
        (["new", "--nodes", "0"], "--nodes is '0' but should be a whole number from 1 to 1000."),
        (["new", "--model", "nowhere.py:Net"], "there is no file nowhere.py"),
    ],
)
def test_mistakes_are_told_in_a_sentence_and_write_nothing(words, answer, here):
    (here / "taken").mkdir()
    (here / "taken/file").touch()
    made = init(*words)
    assert made.exit_code != 0
    assert answer in " ".join((made.output + str(made.exception)).split())
    assert not (here / "new").exists()


def test_the_app_of_the_documentation_trains_by_any_method(here, capsys):
    _, block = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    app = {"__name__": "app"}
    exec(block, app)
    grid = InProcessGrid(app["client"], [{"partition-id": n, "num-partitions": 3} for n in range(3)])
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={}, series_id=1)
    app["server"](grid, context)
    assert "worst class" in capsys.readouterr().out
    assert set(torch.load("model.pt")) == set(app["model"]().state_dict())
