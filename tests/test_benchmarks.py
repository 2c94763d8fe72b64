"""The race against other libraries: its arithmetic, and that unskew can take part. No test of speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from benchmarks import ablation
from benchmarks.ablation import ALL, Timed
from benchmarks.memory import Cell, cells, in_a_process, row
from benchmarks.table import Bar, Competitor, Run, judge, markdown, rows, timed

from unskew.bench.race import Entry
from unskew.methods import METHODS
from unskew.testing import hard_trial, normed_model

OURS = Competitor("unskew", "pool", "pool")
FLOWER = Competitor("flower", "2 actors", "actors")
ONE, TWO = Competitor("pfl", "1 thread", "1"), Competitor("pfl", "2 threads", "2")


def run(competitor: Competitor, repetition: int, seconds: float) -> Run:
    """Make a run whose start and end take a second together."""
    rounds = [seconds] * 3
    return Run(competitor, repetition, 1.0 + sum(rounds), rounds, accuracy=0.9, versions={})


def test_neither_the_first_nor_the_last_round_counts():
    assert timed([10.0, 11.0, 13.0, 20.0]) == [1.0, 2.0]


def test_a_race_of_two_rounds_times_nothing():
    with pytest.raises(ValueError, match="at least 3 rounds"):
        timed([1.0, 2.0])


def test_ratios_are_taken_within_a_repetition():
    """Halve the machine's speed in the second repetition: the ratio stays the same."""
    table = rows([run(OURS, 0, 1.0), run(FLOWER, 0, 3.0), run(FLOWER, 1, 6.0), run(OURS, 1, 2.0)])
    assert [row.competitor for row in table] == [OURS, FLOWER]
    ratio = table[1].ratio
    assert ratio is not None
    assert (ratio.middle, ratio.least, ratio.most) == (3.0, 3.0, 3.0)
    assert table[1].seconds.middle == 4.5


@pytest.mark.parametrize(("factor", "holds"), [(1.9, True), (2.0, True), (2.1, False)])
def test_a_bar_is_measured_against_a_rival_in_its_best_setting(factor, holds):
    table = rows([run(OURS, 0, 1.0), run(ONE, 0, 4.0), run(TWO, 0, 2.0), run(FLOWER, 0, 1.5)])
    verdict = judge(Bar("faster than pfl", factor, ("pfl",)), table)
    assert verdict.closest is not None
    assert verdict.closest.competitor == TWO
    assert verdict.holds is holds


def test_a_bar_about_the_whole_command_counts_start_and_end():
    table = rows([run(OURS, 0, 1.0), run(TWO, 0, 2.0)])
    whole = judge(Bar("the whole command: faster than pfl", 1.8, ("pfl",), whole=True), table)
    assert not whole.holds
    assert "- missed: the whole command: faster than pfl. 1.75 times" in markdown(table, [whole])
    assert judge(Bar("a round: faster than pfl", 1.8, ("pfl",)), table).holds


def test_a_bar_may_name_the_setting():
    table = rows([run(OURS, 0, 1.0), run(ONE, 0, 4.0), run(TWO, 0, 2.0)])
    verdict = judge(Bar("faster than pfl with 1 thread", 3.0, ("pfl",), "1 thread"), table)
    assert verdict.holds


def test_without_us_or_the_rival_nothing_is_judged():
    bar = Bar("faster than pfl", 3.0, ("pfl",))
    assert judge(bar, rows([run(OURS, 0, 1.0)])).holds is None
    table = rows([run(TWO, 0, 2.0), run(OURS, 1, 1.0)])
    verdict = judge(bar, table)
    assert verdict.holds is None
    assert "- not raced: faster than pfl." in markdown(table, [verdict])


def test_the_table_says_which_bars_hold():
    table = rows([run(OURS, 0, 0.1), run(TWO, 0, 0.25)])
    page = markdown(table, [judge(Bar("faster than pfl", 3.0, ("pfl",)), table)])
    assert "| pfl, 2 threads | 1.8 | 1.8 to 1.8 | 1.35 | 250.0 | 250.0 to 250.0 | 2.50 | 0.900 |" in page
    assert "- missed: faster than pfl. 2.50 times (2.50 to 2.50) as fast as pfl, 2 threads." in page


def test_unskew_takes_part(tmp_path):
    short = ("--rounds", "3", "--repetitions", "1", "--cores", "1", "--only", "unskew")
    subprocess.run(
        [sys.executable, "-m", "benchmarks.race", "digits", *short, "--out", str(tmp_path)],
        cwd=Path(__file__).parent.parent,
        check=True,
        capture_output=True,
    )
    (path,) = tmp_path.glob("*-peers-digits.json")
    result = json.loads(path.read_text())
    assert result["failures"] == {}
    assert {row["competitor"]["setting"] for row in result["rows"]} == {"pool", "loop"}
    assert all(row["accuracy"] > 0.5 for row in result["rows"])


def test_an_ablation_compares_the_same_rounds():
    """Halve the machine's speed in the second run of each variant."""
    runs = [
        Timed("cell", ALL, 30.0, [1.0, 2.0, 4.0]),
        Timed("cell", "stem", 40.0, [1.1, 2.2, 4.4]),
        Timed("cell", "stem", 2.0, [2.2, 4.4, 8.8]),
        Timed("cell", ALL, 3.0, [2.0, 4.0, 8.0]),
    ]
    whole, row = ablation.rows(runs)
    assert (whole.without, whole.ratio) == (ALL, 1.0)
    assert (row.without, row.runs, row.first) == ("stem", 2, 21.0)
    assert row.seconds == pytest.approx(3.85)
    assert (row.ratio, *row.quartiles) == pytest.approx((1.1, 1.1, 1.1))
    assert "| cell | stem | 2 | 21.0 | 3850.00 | 1.100 | 1.100 to 1.100 |" in ablation.markdown([whole, row])


def test_an_ablation_runs_there_and_back():
    runs = ablation.order([ALL, "triton", "stem"], 3)
    assert runs == [ALL, "triton", "stem", "stem", "triton", ALL, ALL, "triton", "stem"]


def test_an_ablation_goes_on_after_a_variant_that_fails(monkeypatch, capsys):
    monkeypatch.setenv("UNSKEW_FAST_WITHOUT", "stem")
    entry = Entry("fedavg", METHODS["fedavg"](), hard_trial(normed_model, device="cpu", engine="loop"))
    rounds = entry.trial.budget.rounds
    options = Namespace(rounds=rounds, repeats=2, seconds=None)
    ablation.measure("cell", [entry], [ALL, "convolutions", "triton,small_matmul"], options)
    *lines, _, head, _, whole, part = capsys.readouterr().out.splitlines()
    told = [json.loads(line) for line in lines]
    assert [line["without"] for line in told] == [
        ALL, "convolutions", "triton,small_matmul", "triton,small_matmul", ALL,
    ]  # fmt: skip
    assert "unknown part" in told[1]["error"]
    assert all(len(line["rounds"]) == rounds - 1 for line in told if "error" not in line)
    assert "| ratio |" in head
    assert whole.startswith("| cell: fedavg, loop, fp32 | - | 2 |")
    assert part.startswith("| cell: fedavg, loop, fp32 | triton,small_matmul | 2 |")
    assert os.environ["UNSKEW_FAST_WITHOUT"] == "stem"


def test_an_ablation_knows_what_can_be_left_out(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["ablation", "fedlmd", "--without", "triton,batchnorm"])
    with pytest.raises(SystemExit, match=r"'batchnorm': did you mean 'batch_norm'\?$"):
        ablation.main()


def test_peak_memory_is_that_of_a_process_of_its_own():
    cell = Cell("scaffold", clients=40, cohort=4, rounds=2, client_memory=0)
    found = in_a_process(cell)
    assert 4 <= found.keep <= 8
    assert found.kept == pytest.approx(found.keep * 4 * 55_210 / 1e9)
    assert 0.05 < found.peak < 4
    assert row(cell, found)[:6] == ["scaffold", "mlp", "40", "4", "2", "0"]
    assert {each.clients for each in cells(100, 10_000)} == {100, 1_000, 10_000, 1_000_000}
