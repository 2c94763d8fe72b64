"""`unskew bench`: what it measures and writes. No test of speed."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from unskew.bench import Settings, measure, suited
from unskew.bench.bare import round_batches
from unskew.bench.cells import CELLS, BenchCell, cnn_28
from unskew.bench.data import dataset, made
from unskew.bench.profile import shortened
from unskew.bench.race import Entry, enter
from unskew.bench.report import Line, Target
from unskew.data import federate
from unskew.engines import choose
from unskew.engines.loop import Loop
from unskew.methods import METHODS
from unskew.models import MODELS, count_parameters
from unskew.train import train


@pytest.fixture(autouse=True)
def no_time_for_the_dense_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure only three steps, since no test uses the number."""
    monkeypatch.setattr("unskew.bench.bare.ENOUGH", 0.0)


@pytest.fixture
def whole_command() -> None:
    """Let a test measure the whole command with the loop engine, in a process of its own."""


@pytest.fixture(autouse=True)
def no_other_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    race = sys.modules["unskew.bench.race"]
    whole, wanted = race.command, "whole_command" in request.fixturenames

    def command(cell: BenchCell, entry: Entry, *more: object) -> object:
        return whole(cell, entry, *more) if wanted and choose(entry.trial) == "loop" else None

    monkeypatch.setattr(race, "command", command)


def with_budget(**changes: int) -> BenchCell:
    cell = CELLS["digits"]
    return replace(cell, budget=cell.budget.model_copy(update=changes))


def test_a_cell_gives_a_table_and_two_dated_files(unskew, whole_command, monkeypatch) -> None:
    monkeypatch.setitem(CELLS, "digits", with_budget(epochs=2, batch_size=50))
    answer = unskew("bench", "digits", "--rounds", "2", "--repeats", "1", "--workers", "2")
    assert answer.code == 0
    assert "digits: fedavg, loop, fp32, run 1 of 1" in answer.err
    for word in ("fedavg, loop, fp32", "bare steps, 1 thread", "dense limit"):
        assert word in answer.out
    written, page = sorted(Path("bench").iterdir())
    assert (written.suffix, page.suffix, written.stem) == (".json", ".md", page.stem)
    report = json.loads(written.read_text())
    assert {"date", "cpu", "cores", "versions", "unskew_commit", "threads"} <= report["conditions"].keys()
    (cell,) = report["cells"]
    assert cell["name"] == "digits"
    first, last = cell["lines"][0], cell["lines"][-1]
    assert (first["method"], first["engine"], first["precision"]) == ("fedavg", "loop", "fp32")
    assert (first["rounds"], first["repeats"], first["projected"]) == (2, 1, True)
    # 1,442 samples, twice each, in a round.
    assert first["samples_per_second"] == pytest.approx(2884 / first["round_seconds"])
    assert first["dense_share"] == pytest.approx(first["samples_per_second"] / last["samples_per_second"])
    assert first["seconds"] == pytest.approx(first["first_round_seconds"] + 11 * first["round_seconds"])
    alone = next(line for line in cell["lines"] if line["what"] == "bare steps, 1 thread")
    assert first["overhead"] == pytest.approx(first["round_seconds"] / alone["round_seconds"] - 1)
    assert first["memory_bytes"] > 0
    # The whole command as well, in a process of its own: two rounds of it, and ten more by the median.
    parts = first["command_parts"]
    assert list(parts) == ["imports", "data", "partition", "set-up", "first round", "rounds", "end"]
    assert first["command_seconds"] - 10 * first["round_seconds"] > sum(parts.values())
    assert "| fedavg, loop, fp32 | ~" in page.read_text()


def test_any_method_can_be_measured(unskew, monkeypatch) -> None:
    monkeypatch.setitem(CELLS, "digits", with_budget(epochs=1, batch_size=50))
    short = ("--rounds", "2", "--repeats", "1", "--engine", "loop", "--quiet")
    answer = unskew("bench", "digits", "--method", "scaffold, fedlc", *short)
    assert answer.code == 0
    assert "scaffold, loop, fp32" in answer.out
    assert "fedlc, loop, fp32" in answer.out
    assert "fedavg" not in answer.out
    answer = unskew("bench", "digits", "--method", "scafold", *short)
    assert answer.code == 2
    assert "did you mean 'scaffold'" in answer.err


def test_json_is_the_last_line_and_the_file(unskew) -> None:
    answer = unskew(
        "bench", "idle", "--rounds", "2", "--repeats", "1", "--engine", "loop", "--json", "--quiet"
    )
    assert (answer.code, answer.err) == (0, "")
    report = json.loads(answer.out)
    (written,) = Path("bench").glob("*.json")
    assert json.loads(written.read_text()) == report
    whats = [line["what"] for line in report["cells"][0]["lines"]]
    assert "100 clients, fedavg" in whats
    assert "10,000 clients, scaffold" in whats


def test_data_that_is_not_here_is_made_and_said(tmp_path: Path) -> None:
    images, notes = dataset("cifar10", tmp_path)
    assert images.inputs.shape == (3, 32, 32)
    assert len(images.train) == 50_000
    assert torch.bincount(images.train.labels).tolist() == [5_000] * 10
    assert notes == (f"CIFAR-10 is not in {tmp_path}: random pixels of its shape took its place.",)


def test_startup_and_loading_are_measured_in_processes_of_their_own(tmp_path: Path) -> None:
    report = measure(["startup", "load"], Settings(repeats=1, data=tmp_path))
    startup, load = report.sections
    first, whole, torch_alone = startup.lines
    assert 0 < first.seconds < whole.seconds
    assert torch_alone.seconds > 0
    assert load.lines[0].seconds > 0
    assert "took its place" in load.notes[0]


def profiled(epochs: int, batch_size: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(CELLS, "digits", with_budget(epochs=epochs, batch_size=batch_size))
    measure(["digits"], Settings(rounds=2, repeats=1, workers=1, engines=("loop",), profile=path))
    return path.read_text()


def test_a_profile_names_what_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = profiled(1, 50, tmp_path / "rounds.md", monkeypatch)
    assert text.startswith("## digits: fedavg, loop, fp32, 3 rounds of 1 epoch\n")
    (row,) = (line for line in text.splitlines() if line.startswith("| `aten::addmm` | "))
    # Forward passes of two layers: 10 clients, 3 batches each, 3 rounds; the test after the last, and again
    # for the final model's probabilities.
    assert int(row.split(" | ")[1].replace(",", "")) == 10 * 3 * 3 * 2 + 2 * 2


def test_a_long_round_is_profiled_by_a_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = federate(dataset("digits", None)[0], CELLS["digits"].skew, clients=10, seed=1)
    (entry,) = enter(with_budget(epochs=60, batch_size=100), federation, Settings(engines=("loop",)))
    # 10 clients of two batches: 20 steps in an epoch, about 1,000 to be looked at.
    assert shortened(entry.trial) == (50, 2 * entry.trial.evaluation.every)
    monkeypatch.setattr(sys.modules["unskew.bench.profile"], "STEPS", 40)
    text = profiled(3, 100, tmp_path / "rounds.md", monkeypatch)
    assert text.startswith("## digits: fedavg, loop, fp32, 3 rounds of 2 epochs\n")


def test_the_bare_steps_are_those_of_the_engine() -> None:
    """Train one client by plain SGD by hand, and get the weights of a round of FedAvg."""
    federation = federate(made("images", (1, 8, 8), 35, 10), "iid", clients=1, seed=1)
    (entry,) = enter(CELLS["digits"], federation, Settings(rounds=2, engines=("loop",)))
    trial = replace(entry.trial, budget=entry.trial.budget.model_copy(update={"rounds": 1}))
    model = trial.build().train()
    optimizer = torch.optim.SGD(model.parameters(), trial.budget.lr)
    (batches,) = round_batches(Loop(trial), 0)
    assert [len(y) for _, y in batches] == 5 * [10, 10, 10, 5]
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x).logits, y).backward()
        optimizer.step()
    trained = train(trial).weights.params
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.detach(), trained[name])


def test_cells_name_models_methods_and_skews_that_there_are() -> None:
    assert sum(p.numel() for p in cnn_28().parameters()) == 582_026
    for cell in CELLS.values():
        assert cell.methods.keys() <= METHODS.keys()
        assert not isinstance(cell.model, str) or cell.model in MODELS
    pfl = CELLS["pfl"]
    images = made("images", (3, 32, 32), 1_000, 10)
    (entry,) = enter(
        pfl, federate(images, pfl.skew, clients=pfl.clients, seed=1), Settings(engines=("loop",))
    )
    # Conv3x3-32, Conv3x3-64, FC 12544-128-10.
    assert count_parameters(entry.trial.build()) == 896 + 18_496 + 12_544 * 128 + 128 + 1_290
    assert {"startup", "load", "idle"} < set(suited())


def test_a_target_is_met_or_missed() -> None:
    assert Line("a", seconds=11.9, target=Target(12)).met is True
    assert Line("a", seconds=12.1, target=Target(12)).met is False
    assert Line("a", samples_per_second=35_001, target=Target(35_000, "samples/s")).met is True
    assert Line("a", samples_per_second=34_999, target=Target(35_000, "samples/s")).met is False
    assert Line("a", samples_per_second=34_999, target=Target(12)).met is None
    compiled = Line("a", seconds=40.0, once_seconds=28.5, target=Target(12))
    assert compiled.met is True
    assert compiled.cells()[-1] == "11.50 s once compiled, ≤ 12 s: met"
    assert Line("a", seconds=1).met is None
