"""Data of several sites, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from unskew.data.sources import absolute

RUN = ["--rounds", "1", "--epochs", "1", "--model", "mlp-small", "--skew", "natural", "--quiet", "--json"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own to work in."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def write_site(name: str, labels: list[int]) -> None:
    rng = np.random.default_rng(len(name))
    np.savez(name, x=rng.normal(size=(len(labels), 4)), y=labels)


def test_an_experiment_on_several_sites_can_be_repeated_from_any_folder(
    unskew, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_site("north.npz", [0, 1] * 10)
    write_site("south.npz", [0, 1, 2] * 10)
    answer = unskew("run", "--dataset", "npz:north.npz+npz:south.npz", *RUN, "--out", "first")
    assert answer.code == 0, answer.err
    first = json.loads(answer.out)
    monkeypatch.chdir(here.parent)
    answer = unskew("run", "work/first/experiment.toml", "--quiet", "--json", "--out", "second")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["weights_sha256"] == first["weights_sha256"]


def test_every_path_of_own_data_becomes_absolute(here: Path) -> None:
    assert absolute("folder:a,size=8+folder:b") == f"folder:{here}/a,size=8+folder:{here}/b"
    assert absolute("csv:u.csv,kind,test=t.csv") == f"csv:{here}/u.csv,kind,test={here}/t.csv"
    assert absolute("csv:u.csv,kind,t.csv") == f"csv:{here}/u.csv,kind,{here}/t.csv"
    assert absolute("mnist+emnist:letters") == "mnist+emnist:letters"


def test_skew_shows_sites_by_name_and_which_classes_they_lack(unskew, here: Path) -> None:
    write_site("north.npz", [0, 1] * 10)
    write_site("south.npz", [0, 1, 2] * 10)
    ask = ["skew", "--dataset", "npz:north.npz+npz:south.npz", "--skew", "natural"]
    answer = unskew(*ask)
    assert answer.code == 0, answer.err
    lines = {line.split()[0]: line.split() for line in answer.out.splitlines() if line.strip()}
    assert lines["client"][-1] == "lacks"
    assert lines["north"][1:6] == ["8", "8", "·", "16", "1"]
    assert lines["north"][-1] == "2"
    assert lines["south"][1:6] == ["8", "8", "8", "24", "0"]
    told = json.loads(unskew(*ask, "--json").out)
    assert told["names"] == ["north", "south"]
    assert told["vacant"] == [1, 0]
