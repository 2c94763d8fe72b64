"""Colours, dashes and markers: fixed for each method, and told apart with any kind of colour vision."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from colours import VISION, ciede2000, lab, linear, luminance

import unskew.report.page
from unskew.methods import METHODS
from unskew.report.looks import COLOURS, DASHES, FIXED, MARKERS, PlotStyle, looks

PAPERS = {"light": ("#ffffff", "#f5f6f8"), "dark": ("#14171b", "#1d2127")}
MODES = dict(zip(PAPERS, zip(*COLOURS, strict=True), strict=True))


def shared(one: PlotStyle, other: PlotStyle) -> int:
    """Count how many of colour, dash and marker two looks have in common."""
    return (one.light == other.light) + (one.dash == other.dash) + (one.marker == other.marker)


def test_the_distance_is_that_of_published_pairs():
    # Sharma, Wu and Dalal (2005), Table 1: pairs 1, 7, 13, 17 and 25.
    published = [
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 0, 0), (50, -1, 2), 2.3669),
        ((50, -0.0010, 2.4900), (50, 0.0009, -2.4900), 4.8045),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
    ]
    for one, other, distance in published:
        assert ciede2000(np.array(one), np.array(other)) == pytest.approx(distance, abs=1e-4)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("mode", MODES)
def test_every_two_colours_are_told_apart_with_any_colour_vision(mode, vision):
    seen = {colour: lab(VISION[vision] @ linear(colour)) for colour in MODES[mode]}
    near = {pair: ciede2000(seen[pair[0]], seen[pair[1]]) for pair in combinations(seen, 2)}
    assert min(near.values()) >= 11, min(near, key=lambda pair: near[pair])


@pytest.mark.parametrize("mode", MODES)
def test_every_colour_stands_out_from_the_paper(mode):
    for colour in MODES[mode]:
        for paper in PAPERS[mode]:
            low, high = sorted((luminance(colour), luminance(paper)))
            assert (high + 0.05) / (low + 0.05) >= 3, colour


def test_the_page_has_these_papers():
    sheet = (Path(unskew.report.page.__file__).parent / "page.css").read_text()
    for papers in PAPERS.values():
        assert [f"--paper: {papers[0]};" in sheet, f"--panel: {papers[1]};" in sheet] == [True, True]


def test_every_method_has_a_look_that_differs_from_all_others_in_two_of_three():
    assert set(FIXED) <= set(METHODS)
    assert len(FIXED) == len(set(FIXED)) <= len(COLOURS) * len(DASHES)
    found = looks(METHODS)
    assert max(shared(one, other) for one, other in combinations(found.values(), 2)) == 1
    common = [
        "fedavg",
        "fedprox",
        "fedlc",
        "fedntd",
        "fedlmd",
        "fedvls",
        "steady",
        "pkd",
        "scaffold",
        "feddyn",
    ]
    assert len({found[name].light for name in common}) == len(common)


OTHERS = ["fedprox:mu=0.1", "fedprox:mu=1", "fedlc+fedvls", "mine.py:Mine", "名前", "half \ud800"]


def test_a_method_looks_the_same_in_any_list():
    alone = {name: looks([name])[name] for name in (*METHODS, *OTHERS)}
    for names in (METHODS, ["fedvls", "fedavg"], ["fedvls", *OTHERS]):
        found = looks(names)
        assert list(found) == list(names)
        assert all(found[name] == alone[name] for name in names if name in FIXED)
    assert looks(OTHERS[::-1]) == looks(OTHERS)
    assert not set(looks(OTHERS).values()) & set(looks(METHODS).values())
    assert alone["fedvls"].page_json() == {
        "light": "#0b55ec", "dark": "#4968fc", "dash": [4, 1.3, 1, 1.3, 1, 1.3], "symbol": "cross",
    }  # fmt: skip


@pytest.mark.parametrize(("number", "most"), [(30, 1), (300, 2)])
def test_many_of_ones_own_are_told_apart_whatever_their_order(number, most):
    names = [f"fedprox:mu={n}" for n in range(number)]
    found = looks(["fedavg", *names])
    assert looks([*reversed(names), "fedavg"]) == found
    assert max(shared(one, other) for one, other in combinations(found.values(), 2)) <= most


def test_up_to_ten_methods_have_a_colour_each_whoever_they_are():
    for start in range(20):
        names = ["fedavg", "fedvls", "fedlc", *(f"mine.py:alpha={start + n}" for n in range(7))]
        assert len({look.light for look in looks(names).values()}) == 10


def test_no_number_of_methods_is_too_large():
    assert len(looks(f"method {n}" for n in range(800))) == 800


def test_markers_have_a_name_in_both_libraries():
    from matplotlib.lines import Line2D
    from plotly.validator_cache import ValidatorCache

    known = ValidatorCache.get_validator("scatter.marker", "symbol").values
    for ours, theirs in MARKERS:
        assert ours in Line2D.filled_markers
        assert theirs in known
