"""The race against other libraries: its arithmetic, and that unskew can take part. No test of speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.table import Bar, Competitor, Run, judge, markdown, rows, timed

OURS = Competitor("unskew", "pool", "pool")
FLOWER = Competitor("flower", "2 actors", "actors")
ONE, TWO = Competitor("pfl", "1 thread", "1"), Competitor("pfl", "2 threads", "2")


def run(competitor: Competitor, repetition: int, seconds: float) -> Run:
    return Run(competitor, repetition, [seconds] * 3, startup=1.0, accuracy=0.9, versions={})


def test_neither_the_first_nor_the_last_round_counts():
    rounds, startup = timed([10.0, 11.0, 13.0, 20.0], started=4.0)
    assert rounds == [1.0, 2.0]
    assert startup == 5.0  # the first round ended 6 s after the start, and the fastest round takes 1 s


def test_a_race_of_two_rounds_times_nothing():
    with pytest.raises(ValueError, match="at least 3 rounds"):
        timed([1.0, 2.0], started=0.0)


def test_ratios_are_taken_within_a_repetition():
    """The machine was half as fast in the second repetition, for everyone: the ratio does not see it."""
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
    assert "| pfl, 2 threads | 250.0 | 250.0 to 250.0 | 2.50 | 2.50 to 2.50 | 1.0 | 0.900 |" in page
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
