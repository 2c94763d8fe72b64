"""Colours, dashes and markers: fixed for each method, and told apart with any kind of colour vision."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import unskew.report.page
from unskew.methods import METHODS
from unskew.report.looks import COLOURS, DASHES, FIXED, MARKERS, Look, looks

# How eyes that lack one kind of cone see a colour: linear RGB to linear RGB (Machado, Oliveira and Fernandes,
# A Physiologically-based Model for Simulation of Color Vision Deficiency, 2009, severity 1.0).
VISION = {
    "normal": np.eye(3),
    "protan": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deutan": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritan": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
PAPERS = {"light": ("#ffffff", "#f5f6f8"), "dark": ("#14171b", "#1d2127")}
MODES = dict(zip(PAPERS, zip(*COLOURS, strict=True), strict=True))


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB of linear RGB, D65."""
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / TO_XYZ.sum(axis=1)
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def ciede2000(one: np.ndarray, other: np.ndarray) -> float:
    """CIE 142-2001, as Sharma, Wu and Dalal write it out (2005)."""
    (L1, a1, b1), (L2, a2, b2) = one, other
    mean = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    G = 0.5 * (1 - np.sqrt(mean**7 / (mean**7 + 25**7)))
    a1, a2 = (1 + G) * a1, (1 + G) * a2
    C1, C2 = np.hypot(a1, b1), np.hypot(a2, b2)
    h1, h2 = np.degrees(np.arctan2(b1, a1)) % 360, np.degrees(np.arctan2(b2, a2)) % 360
    turn = (h2 - h1 + 180) % 360 - 180 if C1 * C2 else 0.0
    L, C = (L1 + L2) / 2, (C1 + C2) / 2
    h = h1 + turn / 2 if C1 * C2 else h1 + h2
    H = 2 * np.sqrt(C1 * C2) * np.sin(np.radians(turn / 2))
    T = 1 + sum(
        weight * np.cos(np.radians(times * h + shift))
        for weight, times, shift in ((-0.17, 1, -30), (0.24, 2, 0), (0.32, 3, 6), (-0.20, 4, -63))
    )
    away = (h % 360 - 275) / 25
    R = -np.sin(np.radians(60 * np.exp(-(away**2)))) * 2 * np.sqrt(C**7 / (C**7 + 25**7))
    lightness = (L2 - L1) / (1 + 0.015 * (L - 50) ** 2 / np.sqrt(20 + (L - 50) ** 2))
    chroma, hue = (C2 - C1) / (1 + 0.045 * C), H / (1 + 0.015 * C * T)
    return float(np.sqrt(lightness**2 + chroma**2 + hue**2 + R * chroma * hue))


def shared(one: Look, other: Look) -> int:
    """How many of colour, dash and marker two looks have in common."""
    return (one.light == other.light) + (one.dash == other.dash) + (one.marker == other.marker)


def luminance(colour: str) -> float:
    return float(TO_XYZ[1] @ linear(colour))


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


def test_every_registered_method_has_a_look_that_differs_from_all_others_in_two_of_three():
    assert set(FIXED) == set(METHODS)
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
        "feded",
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
        assert all(found[name] == alone[name] for name in names if name in METHODS)
    assert looks(OTHERS[::-1]) == looks(OTHERS)
    assert not set(looks(OTHERS).values()) & set(looks(METHODS).values())
    assert alone["fedvls"].told() == {
        "light": "#0b55ec", "dark": "#4968fc", "dash": [4, 1.3, 1, 1.3, 1, 1.3], "symbol": "cross",
    }  # fmt: skip


@pytest.mark.parametrize(("number", "most"), [(30, 1), (300, 2)])
def test_many_of_ones_own_are_told_apart_whatever_their_order(number, most):
    names = [f"fedprox:mu={n}" for n in range(number)]
    found = looks(["fedavg", *names])
    assert looks([*reversed(names), "fedavg"]) == found
    assert max(shared(one, other) for one, other in combinations(found.values(), 2)) <= most


def test_no_number_of_methods_is_too_large():
    assert len(looks(f"method {n}" for n in range(800))) == 800


def test_markers_have_a_name_in_both_libraries():
    from matplotlib.lines import Line2D
    from plotly.validator_cache import ValidatorCache

    known = ValidatorCache.get_validator("scatter.marker", "symbol").values
    for ours, theirs in MARKERS:
        assert ours in Line2D.filled_markers
        assert theirs in known
