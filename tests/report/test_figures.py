"""Figures, by what they hold: lines, bars, images and the text that is drawn."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from colours import luminance
from invented import made
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.colors import to_hex
from matplotlib.text import Text

from unskew import metrics
from unskew.cli import main
from unskew.cli.figure import FIGURES
from unskew.errors import UserError
from unskew.report import figures
from unskew.report.answer import answer
from unskew.report.figures import layout
from unskew.report.grouping import by_method
from unskew.report.looks import looks
from unskew.report.measures import MEASURES, series
from unskew.report.page import page_data
from unskew.report.read import read_runs

pytestmark = pytest.mark.usefixtures("no_workers")

LONG = [f"class {index} with a rather long name" for index in range(100)]
PLAIN = ("partition", "curves", "extremes", "heatmap", "confusion", "predictions", "features", "updates")


@pytest.fixture
def make(write_run):
    """Several runs at once, each from its settings."""

    def runs(*settings: dict):
        return read_runs([write_run(f"run{number}", **each) for number, each in enumerate(settings)])

    return runs


@pytest.fixture(scope="module")
def scene(tmp_path_factory, write_at):
    """Return a function that gives the runs of a scene by its name, written once for all its figures."""
    written = {}

    def runs(name: str):
        if name not in written:
            root = tmp_path_factory.mktemp("scene")
            paths = [root / f"run{number}" for number in range(len(SCENES[name]))]
            for path, settings in zip(paths, SCENES[name], strict=True):
                write_at(path, **settings)
            written[name] = read_runs(paths)
        return written[name]

    return runs


def seeds_of(*methods: str, seeds=(1, 2, 3), **settings) -> list[dict]:
    return [{"method": method, "seed": seed, **settings} for method in methods for seed in seeds]


def drawn_texts(figure) -> list[Text]:
    """Return the texts that are drawn, without labels that shared axes or limits hide."""
    seen = []
    draw = Text.draw

    def note(text, renderer, *rest):
        if text.get_visible() and text.get_text().strip():
            seen.append(text)
        draw(text, renderer, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", note)
        figure.draw_without_rendering()
    return seen


def assert_legible(figure) -> set[str]:
    """Check that no text overlaps another, leaves the figure or is under 7 points, and return the texts."""
    texts = drawn_texts(figure)
    width, height = figure.canvas.get_width_height()
    boxes = [text.get_window_extent() for text in texts]
    for text, box in zip(texts, boxes, strict=True):
        assert text.get_fontsize() >= 7
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
        assert inside, f"'{text.get_text()}' leaves the figure"
    left, bottom, right, top = np.array([box.extents for box in boxes]).T
    across = np.minimum.outer(right, right) - np.maximum.outer(left, left)
    down = np.minimum.outer(top, top) - np.maximum.outer(bottom, bottom)
    for one, other in np.argwhere(np.triu((across > 0.5) & (down > 0.5), 1)):
        raise AssertionError(f"'{texts[one].get_text()}' overlaps '{texts[other].get_text()}'")
    assert round(figure.get_figwidth(), 2) in (3.4, 7.2)
    assert figure.get_figheight() <= 9
    return {text.get_text() for text in texts}


SCENES = {
    "two methods": seeds_of("fedavg", "fedvls", seeds=(1, 2), rounds=6, probe=6),
    "long names": [
        {"classes": [f"{name} 0123456789 " * 4 for name in "abcdefgh"], "probe": 6, "clients": 25}
    ],
    "100 classes": seeds_of("fedavg", "fedvls", seeds=[1], classes=LONG, clients=60, rounds=30, probe=15),
    "one round": [{"rounds": 1, "probe": 1}],
    "a thousand rounds": [{"rounds": 1000, "every": 10}],
    "twenty methods": [
        {"method": f"my-own-method-number-{n}", "options": {"alpha": n}, "rounds": 5} for n in range(20)
    ],
    "seven methods": seeds_of(*(f"m{n}" for n in range(7)), seeds=[1], rounds=5, probe=5),
    "five conditions": [
        {"method": method, "seed": seed, "rounds": 4, "skew__recipe": f"dirichlet:{beta}"}
        for method in ("fedavg", "fedvls", "fedprox")
        for seed in (1, 2, 3)
        for beta in (0.01, 0.05, 0.1, 0.5, 1)
    ],
}
ROUNDS = ("curves", "extremes", "predictions")
LEGIBLE = [
    *((scene, kind) for scene in ("two methods", "long names", "100 classes", "one round") for kind in PLAIN),
    *(("a thousand rounds", kind) for kind in ROUNDS),
    *(("twenty methods", kind) for kind in (*ROUNDS, "confusion", "heatmap", "forest")),
    *(("seven methods", kind) for kind in ("confusion", "heatmap", "updates", "predictions")),
    *(("five conditions", kind) for kind in ("partition", "curves", "heatmap", "forest")),
    ("two methods", "forest"),
]
NARROW = ("seven methods", "five conditions")
"""Drawn at the width of a column alone, where room is scarcest."""


@pytest.mark.parametrize(("name", "kind"), LEGIBLE)
def test_no_text_overlaps(scene, name, kind):
    runs = scene(name)
    if name not in NARROW:
        assert_legible(getattr(figures, kind)(runs))
    if name in ("two methods", *NARROW):
        narrow = getattr(figures, kind)(runs, width=figures.COLUMN)
        assert narrow.get_figwidth() == figures.COLUMN
        words = assert_legible(narrow)
        if name == "seven methods":  # and no class goes without its name
            assert set(runs[0].classes) <= words


def test_updates_of_too_many_methods_say_so(make):
    runs = make(*({"method": f"m{n}", "probe": 6} for n in range(20)))
    with pytest.raises(UserError, match="20 methods do not fit on a page: give fewer runs"):
        figures.updates(runs)


def test_curves_are_means_over_seeds_with_bands_of_a_standard_deviation(make):
    runs = make(*seeds_of("fedavg", "fedvls"))
    figure = figures.curves(runs)
    (axes,) = figure.axes
    lines = axes.get_lines()
    for line, members in zip(lines, (runs[:3], runs[3:]), strict=True):
        values = 100 * np.array([[each.accuracy for each in run.rounds] for run in members])
        np.testing.assert_allclose(line.get_xdata(), np.arange(1, 13))
        np.testing.assert_allclose(line.get_ydata(), values.mean(axis=0))
        band = axes.collections[list(lines).index(line)]
        assert isinstance(band, PolyCollection)
        low = values.mean(axis=0) - values.std(axis=0, ddof=1)
        assert band.get_paths()[0].vertices[:, 1].min() == pytest.approx(low.min())
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["fedavg", "fedvls"]
    assert axes.get_ylabel() == "accuracy (%)"
    assert figure.get_suptitle() == "fashion-mnist, dirichlet:0.05, 6 clients, mlp-small,\n3 seeds"


def test_one_seed_has_no_band_and_is_named(make):
    figure = figures.curves(make({"seed": 4}))
    assert not figure.axes[0].collections
    assert figure.get_suptitle().endswith(", seed 4")


def test_bands_stay_within_what_is_possible(make):
    runs = make(*seeds_of("fedavg", seeds=(1, 2)))
    for run, value in zip(runs, (0.05, 1.0), strict=True):
        run.rounds[:] = [replace(line, min_class=value) for line in run.rounds]
    (band,) = figures.curves(runs, metric="worst").axes[0].collections
    ends = band.get_paths()[0].vertices[:, 1]
    assert (ends.min(), ends.max()) == (0, 100)


def test_runs_under_several_conditions_have_a_panel_each_with_the_same_looks(scene):
    figure = figures.curves(scene("five conditions"))
    *every, spare = figure.axes
    assert [axes.get_title() for axes in every] == [f"dirichlet:{beta}" for beta in (0.01, 0.05, 0.1, 0.5, 1)]
    assert figure.get_suptitle() == "fashion-mnist, 6 clients, all in a round, mlp-small, 3 seeds"
    assert len({axes.get_ylim() for axes in every}) == len({axes.get_xlim() for axes in every}) == 1
    for axes in every:
        assert [line.get_color() for line in axes.get_lines()] == [
            looks(["fedavg", "fedvls", "fedprox"])[name].light for name in ("fedavg", "fedvls", "fedprox")
        ]
    # The legend fills the place that five panels leave empty.
    assert [text.get_text() for text in spare.get_legend().get_texts()] == ["fedavg", "fedvls", "fedprox"]
    assert not figure.legends
    assert_legible(figure)


@pytest.mark.parametrize(("rounds", "methods"), [(30, 2), (30, 10), (12, 7), (500, 15)])
def test_no_marker_lies_on_another(make, rounds, methods):
    """Give all methods the same values, so that a marker that can be hidden is hidden here."""
    (run,) = make({"rounds": rounds})
    figure = figures.curves([replace(run, label=f"m{n}") for n in range(methods)])
    lines = figure.axes[0].get_lines()
    marks = [
        (place, line.get_markersize())
        for line in lines
        for place in range(rounds)[slice(line.get_markevery()[0], None, line.get_markevery()[1])]
    ]
    assert len(marks) == len(set(marks)) >= 2 * methods
    assert all(line.get_markerfacecolor() == "none" for line in lines if line.get_markersize() > 4)
    # Lines with gaps lie above, so that the others are seen through them.
    whole = [line for line in lines if line.get_linestyle() == "-"]
    assert all(line.get_zorder() > one.get_zorder() for line in lines for one in whole if line not in whole)


def test_more_methods_than_rounds_have_markers_around_each_other(make):
    (run,) = make({"rounds": 3})
    lines = figures.curves([replace(run, label=f"m{n}") for n in range(9)]).axes[0].get_lines()
    assert len({(line.get_markevery(), line.get_markersize()) for line in lines}) == 9


def test_rows_of_panels_are_filled():
    assert [layout.columns_for(number, 4) for number in (1, 3, 4, 6, 8, 10)] == [1, 3, 4, 3, 4, 2]
    assert [layout.columns_for(number, 3) for number in (4, 5, 7)] == [2, 3, 2]
    assert layout.columns_for(5, 1) == 1


def test_curves_hold_only_the_rounds_that_all_seeds_have(make):
    runs = make({"seed": 1}, {"seed": 2, "done": 5})
    (line,) = figures.curves(runs).axes[0].get_lines()
    assert list(line.get_xdata()) == [1, 2, 3, 4, 5]


def test_every_metric_is_known_in_its_rounds(make):
    (run,) = make({"probe": 3, "sites": ("north", "south", "east"), "validation": 5})
    for name, measure in MEASURES.items():
        if name == "deviation":  # null in these folders
            with pytest.raises(UserError, match="choose another metric"):
                figures.curves([run], metric=name)
            continue
        assert list(series(run, measure)) == ([3, 6, 9, 12] if measure.probed else list(range(1, 13)))
    assert "training loss" in figures.curves([run], metric="train-loss").axes[0].get_ylabel()


def test_metrics_read_what_they_say(make):
    (run,) = make({"probe": 12})
    last = run.rounds[-1]
    expected = {
        "worst": 100 * min(last.class_accuracy),
        "vacant": 100 * last.groups.vacant,
        "class:coat": 100 * last.class_accuracy[4],
        "loss": last.loss,
        "vacant-drop": 100 * run.probes[-1].groups.vacant.drop,
        "out-local": 100 * np.mean([each.out_local for each in run.probes[-1].clients]),
    }
    for metric, value in expected.items():
        (line,) = figures.curves([run], metric=metric).axes[0].get_lines()
        assert line.get_ydata()[-1] == pytest.approx(value), metric


def test_a_methods_line_looks_the_same_in_any_figure_and_list(make):
    runs = make(*({"method": name} for name in ("fedavg", "fedvls", "mine", "fedlc")))
    look = looks(["fedvls"])["fedvls"]
    for shown in (runs, runs[::-1], runs[1:2]):
        lines = figures.curves(shown).axes[0].get_lines()
        (line,) = [each for run, each in zip(shown, lines, strict=True) if run.label == "fedvls"]
        assert to_hex(line.get_color()) == look.light
        assert line.get_marker() == look.marker
        assert line._unscaled_dash_pattern[1] == look.dash


def test_extremes_are_the_best_the_mean_and_the_worst_class(make):
    runs = make(*seeds_of("fedavg", "fedvls", seeds=(1, 2)))
    figure = figures.extremes(runs)
    assert [axes.get_title() for axes in figure.axes] == ["fedavg", "fedvls"]
    for axes, members in zip(figure.axes, (runs[:2], runs[2:]), strict=True):
        for line, key in zip(axes.get_lines(), ("max_class", "balanced_accuracy", "min_class"), strict=True):
            expected = np.mean([[100 * getattr(each, key) for each in run.rounds] for run in members], axis=0)
            np.testing.assert_allclose(line.get_ydata(), expected)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "best class",
        "mean",
        "worst class",
    ]


def test_confusion_is_the_share_of_each_class_over_all_seeds(make):
    runs = make(*seeds_of("fedavg", "fedvls", seeds=(1, 2)))
    figure = figures.confusion(runs)
    for axes, members in zip(figure.axes, (runs[:2], runs[2:]), strict=True):
        counts = np.sum([run.summary.confusion for run in members], axis=0)
        expected = 100 * counts / counts.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(axes.images[0].get_array(), expected)
        written = {tuple(map(int, text.get_position()))[::-1]: text.get_text() for text in axes.texts}
        assert written == {
            place: f"{value:.0f}" for place, value in np.ndenumerate(expected) if f"{value:.0f}" != "0"
        }
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(runs[0].classes)


def test_numbers_on_shades_have_a_contrast_of_four_and_a_half(make):
    runs = make(*seeds_of("fedavg", "fedvls", seeds=[1]))
    for figure in (figures.confusion(runs), figures.features(runs), figures.heatmap(runs)):
        axes = figure.axes[0]
        assert axes.texts
        for text in axes.texts:
            column, row = map(int, text.get_position())
            (shade,) = axes.images[0].to_rgba(axes.images[0].get_array()[row, column].reshape(1))
            low, high = sorted((luminance(to_hex(shade)), luminance(to_hex(text.get_color()))))
            assert (high + 0.05) / (low + 0.05) >= 4.5


def test_confusion_against_a_method_is_the_difference_on_the_same_seeds(make):
    runs = make(*seeds_of("fedavg", "fedvls", "fedlc", seeds=(1, 2)), {"method": "fedavg", "seed": 3})
    figure = figures.confusion(runs, against="fedavg")
    assert [axes.get_title() for axes in figure.axes] == ["fedvls − fedavg", "fedlc − fedavg"]
    assert figure.get_suptitle().endswith(", 2 seeds")
    share = {
        name: metrics.confusion_share(
            np.sum([run.summary.confusion for run in runs if run.label == name and run.seed < 3], axis=0)
        )
        for name in ("fedavg", "fedvls")
    }
    image = figure.axes[0].images[0]
    np.testing.assert_allclose(image.get_array(), 100 * (share["fedvls"] - share["fedavg"]), atol=1e-9)
    assert image.norm.vmin == -image.norm.vmax
    assert_legible(figure)
    with pytest.raises(UserError, match="fedprox is not among these runs: choose one of fedavg"):
        figures.confusion(runs, against="fedprox")
    with pytest.raises(UserError, match="fedavg is the only method of these runs"):
        figures.confusion(runs[:2], against="fedavg")
    with pytest.raises(UserError, match="fedvls and fedavg have no seed in common"):
        figures.confusion([runs[0], runs[3]], against="fedavg")


def test_the_heat_map_has_the_mean_of_each_class_and_frames_the_worst(make):
    runs = make(*seeds_of("fedavg", "fedvls", seeds=(1, 2), untested=[3]))
    (axes,) = figures.heatmap(runs).axes
    expected = np.stack(
        [
            np.mean([np.array(run.summary.class_accuracy, dtype=float) for run in members], axis=0)
            for members in (runs[:2], runs[2:])
        ],
        axis=1,
    )
    np.testing.assert_allclose(axes.images[0].get_array(), 100 * expected)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["fedavg", "fedvls"]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(runs[0].classes)
    frames = [patch for patch in axes.patches if patch.get_hatch() is None]
    assert [(patch.get_x() + 0.5, patch.get_y() + 0.5) for patch in frames] == [
        (column, np.nanargmin(expected[:, column])) for column in (0, 1)
    ]
    (axes,) = figures.heatmap(runs, sort=True).axes
    order = np.argsort(expected.mean(axis=1))
    np.testing.assert_allclose(axes.images[0].get_array(), 100 * expected[order])
    assert axes.get_yticklabels()[-1].get_text() == runs[0].classes[3]


def forest_rows(axes) -> list[tuple[float, bool, list[float]]]:
    """Return each method's place of the marker, whether it is filled, and its interval."""
    marks = [line for line in axes.get_lines() if line.get_marker() == "o"]
    ends = {
        line.get_ydata()[0]: list(line.get_xdata())
        for line in axes.get_lines()
        if len(set(line.get_ydata())) < len(line.get_ydata())
    }
    return [
        (
            float(mark.get_xdata()[0]),
            mark.get_markerfacecolor() == mark.get_color(),
            ends.get(mark.get_ydata()[0], []),
        )
        for mark in marks
    ]


def test_a_forest_has_the_differences_of_the_answer_and_fills_what_is_settled():
    gains = {
        "fedavg": (0, 0, 0, 0), "fedvls": (0.2, 0.21, 0.2, 0.19), "fedlc": (0.05, -0.04, 0.06, -0.05),
    }  # fmt: skip
    runs = [
        made(label, seed, 0.6 + 0.01 * seed + gain, vacant=0.4 + gain / 2)
        for label, each in gains.items()
        for seed, gain in enumerate(each, 1)
    ]
    figure = figures.forest(runs)
    assert [axes.get_title() for axes in figure.axes] == ["accuracy", "worst class", "vacant classes"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["fedvls", "fedlc"]
    told = answer(by_method(runs))
    for axes, measure in zip(figure.axes, told.main, strict=True):
        for row, each in zip(forest_rows(axes), told.others, strict=True):
            found = each.differences[measure]
            assert row[0] == pytest.approx(100 * found.difference)
            assert row[1] == found.settled
            assert row[2] == pytest.approx([100 * end for end in found.interval])
    accuracy = forest_rows(figure.axes[0])
    assert [filled for _, filled, _ in accuracy] == [True, False]
    other = figures.forest(runs, reference="fedlc")
    assert [label.get_text() for label in other.axes[0].get_yticklabels()] == ["fedavg", "fedvls"]
    assert other.axes[1].get_xlabel() == "points against fedlc"


def test_a_method_looks_the_same_in_a_forest_as_on_the_page():
    names = (
        "fedavg",
        "fedprox:mu=1",
        "fedlc",
        "fedntd",
        "fedlmd",
        "fedvls",
        "fedrs",
        "scaffold",
        "fedvls+fedexp",
    )
    runs = [made(name, seed) for name in names for seed in (1, 2, 3)]
    seen = {each["name"]: each["look"]["light"] for each in page_data(runs)["methods"]}
    [first, *_] = figures.forest(runs).axes
    drawn = [to_hex(line.get_markeredgecolor()) for line in first.lines if line.get_marker() == "o"]
    assert drawn == [seen[name] for name in names[1:]]


def test_a_forest_of_few_seeds_has_no_intervals_and_says_so(make):
    figure = figures.forest(make(*seeds_of("fedavg", "fedvls", seeds=(1, 2))))
    assert [row[1:] for row in forest_rows(figure.axes[0])] == [(False, [])]
    assert "no interval: it takes three seeds" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_forest_of_runs_under_way_is_of_the_round_that_all_have(make):
    runs = make(*seeds_of("fedavg", "fedvls"))
    assert "after round" not in figures.forest(runs).get_suptitle()
    behind = [replace(run, summary=None, rounds=run.rounds[:7]) for run in runs[3:]]
    assert figures.forest([*runs[:3], *behind]).get_suptitle().endswith(", 3 seeds, after round 7")


def test_one_method_makes_no_forest(make):
    with pytest.raises(UserError, match="no two methods have tested seeds in common"):
        figures.forest(make({}))


def test_a_class_without_test_samples_is_hatched_not_white(make):
    figure = figures.confusion(make({"untested": [3]}))
    hatched = {(int(patch.get_x() + 0.5), int(patch.get_y() + 0.5)) for patch in figure.axes[0].patches}
    assert hatched == {(column, 3) for column in range(10)}
    assert_legible(figure)


def test_features_are_distances_against_their_mean(make):
    (run,) = make({"untested": [0]})
    shown = figures.features([run]).axes[0].images[0].get_array()
    distances = np.array(run.summary.feature_distances, dtype=float)
    known = ~np.isnan(distances) & ~np.eye(10, dtype=bool)
    np.testing.assert_allclose(shown[known], distances[known] / distances[known].mean())
    assert np.ma.masked_invalid(shown).mask[0].all()


def test_predictions_are_shares_under_the_labels_of_the_cohort(make):
    (run,) = make({"every": 3})
    labels, answers = figures.predictions([run]).axes[:2]
    shares = np.array([line.prediction_share for line in run.tested]).T
    np.testing.assert_allclose(answers.images[0].get_array(), 100 * shares)
    held = run.counts.sum(axis=0) / run.counts.sum()
    np.testing.assert_allclose(labels.images[0].get_array()[:, 0], 100 * held)
    assert answers.get_title() == "answers of fedavg"
    assert [label.get_text() for label in answers.get_xticklabels()] == [
        str(line.round) for line in run.tested
    ]


def test_predictions_stand_under_the_labels_of_their_own_clients(unskew, tmp_path):
    brief = ("--clients", "5", "--cohort", "2", "--rounds", "2", "--epochs", "1", "--quiet", "--out", "c")
    assert unskew("compare", "fedavg", "--vary", "skew=iid", "--vary", "skew=shards:2", *brief).code == 0
    shown = figures.predictions(read_runs([tmp_path / "c"])).axes[:4]
    titled = [axes.get_title().startswith("labels of fedavg") for axes in shown]
    assert titled == [True, False, True, False]
    iid, shards = (shown[place].images[0].get_array() for place in (0, 2))
    assert (iid > 0).all()
    assert not (shards > 0).all()


def test_updates_show_a_client_class_by_class_and_all_clients_by_group(make):
    (run,) = make({"probe": 4})
    figure = figures.updates([run], client=2, round=8)
    left, right = figure.axes
    probe = run.probes[1]
    mine = probe.clients[2]
    order = np.argsort(-run.counts[2], kind="stable")
    for bars, stage in zip(left.containers, ("before", "after", "aggregated"), strict=True):
        heights = [bar.get_height() for bar in bars]
        np.testing.assert_allclose(heights, 100 * np.array(getattr(mine, stage))[order])
    assert [label.get_text() for label in left.get_xticklabels()] == [run.classes[c] for c in order]
    for bars, stage in zip(right.containers, ("before", "after", "aggregated"), strict=True):
        expected = [
            100 * getattr(getattr(probe.groups, group), stage) for group in ("majority", "minority", "vacant")
        ]
        np.testing.assert_allclose([bar.get_height() for bar in bars], expected)
    assert left.get_title() == "client 2, round 8, seed 1"
    assert len({bar.get_hatch() for bars in left.containers for bar in bars}) == 3  # told apart in grey
    assert {text.get_text() for text in left.texts} >= {"majority", "vacant"}


def test_updates_have_a_row_for_each_method_and_bars_with_the_spread_of_seeds(make):
    runs = make(*seeds_of("fedavg", "fedvls", seeds=(1, 2), probe=12))
    figure = figures.updates(runs)
    assert [axes.get_title() for axes in figure.axes[::2]] == [
        "fedavg: client 0, round 12, seed 1",
        "fedvls: client 0, round 12, seed 1",
    ]
    bars = [each for each in figure.axes[1].containers if hasattr(each, "patches")]
    vacant = [run.probes[-1].groups.vacant.after for run in runs[:2]]
    assert bars[1].patches[2].get_height() == pytest.approx(100 * np.mean(vacant))
    mean, std = 100 * np.mean(vacant), 100 * np.std(vacant, ddof=1)
    ends = bars[1].errorbar.lines[2][0].get_segments()[2][:, 1]
    np.testing.assert_allclose(ends, [max(mean - std, 0), min(mean + std, 100)])


def test_bars_of_errors_end_where_accuracies_do(make):
    runs = make(*seeds_of("fedavg", seeds=(1, 2), probe=12))
    for run, value in zip(runs, (0.8, 1.0), strict=True):
        stages = replace(run.probes[-1].groups.vacant, before=value)
        groups = replace(run.probes[-1].groups, vacant=stages)
        run.probes[-1] = replace(run.probes[-1], groups=groups)
    axes = figures.updates(runs).axes[1]
    bars = [each for each in axes.containers if hasattr(each, "patches")]
    ends = bars[0].errorbar.lines[2][0].get_segments()[2][:, 1]
    np.testing.assert_allclose(ends, [90 - 20 / np.sqrt(2), 100])
    assert axes.get_ylim()[1] > 100


def test_a_class_without_test_samples_is_named_in_updates(make):
    figure = figures.updates(make({"probe": 12, "untested": [4]}))
    assert "no test samples" in [text.get_text() for text in figure.axes[0].texts]
    assert_legible(figure)


def test_partition_areas_are_samples_and_each_partition_is_drawn_once(make):
    runs = make(*seeds_of("fedavg", "fedvls", seeds=(1, 2)))
    figure = figures.partition(runs)
    assert [axes.get_title() for axes in figure.axes] == ["seed 1", "seed 2"]
    assert figures.partition(runs[:1], title="Mine").axes[0].get_title() == "seed 1"
    (discs,) = [each for each in figure.axes[0].collections if isinstance(each, PathCollection)]
    held = runs[0].counts[np.nonzero(runs[0].counts)]
    large = held > runs[0].counts.max() / 20
    shown = discs.get_sizes()
    np.testing.assert_allclose(shown[large] / shown.max(), held[large] / held.max())
    assert len(shown) == len(held)


def test_clients_that_are_sites_are_named_in_the_partition(make):
    (run,) = make({"sites": ("Cleveland", "Hungary", "Long Beach")})
    (axes,) = figures.partition([run]).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == list(run.names)
    assert axes.get_xlabel() == "site"


def test_a_large_partition_is_a_heat_map(make):
    (run,) = make({"clients": 60})
    axes, bar = figures.partition([run]).axes
    np.testing.assert_array_equal(axes.images[0].get_array().filled(0), run.counts.T)
    assert bar.get_ylabel() == "samples"
    assert all("$" not in label.get_text() for label in bar.get_yticklabels())


def test_sensitivity_finds_what_varies_alone(make):
    mus = (0.001, 0.01, 0.1)
    runs = make(
        {"method": "fedavg"},
        *({"method": "fedprox", "options": {"mu": mu}, "seed": s} for mu in mus for s in (1, 2)),
        *({"method": "fedprox", "options": {"mu": 0.01}, "budget__epochs": epochs} for epochs in (5, 10)),
    )
    figure = figures.sensitivity(runs)
    mu, epochs = figure.axes
    assert [axes.get_xlabel() for axes in figure.axes] == ["mu", "epochs"]
    assert mu.get_xscale() == "log"
    line = mu.containers[0].lines[0]
    level = next(each for each in mu.get_lines() if list(each.get_xdata()) == [0, 1])
    assert level.get_ydata()[0] == pytest.approx(100 * runs[0].tested[-1].accuracy)
    assert tuple(line.get_xdata()) == mus
    for place, value in zip(range(3), line.get_ydata(), strict=True):
        ends = [run.tested[-1].accuracy for run in runs[1 + 2 * place : 3 + 2 * place]]
        assert value == pytest.approx(100 * np.mean(ends))
    assert [label.get_text() for label in mu.get_xticklabels()] == ["0.001", "0.01", "0.1"]
    assert list(epochs.containers[0].lines[0].get_xdata()) == [2, 5, 10]
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"fedprox", "fedavg"}
    assert_legible(figure)
    assert [axes.get_xlabel() for axes in figures.sensitivity(runs, over=["mu"]).axes] == ["mu"]


def test_sensitivity_to_the_skew_is_by_its_number_and_to_words_side_by_side(make):
    runs = make(*({"skew__recipe": f"dirichlet:{beta}"} for beta in (0.05, 0.1, 1.0)))
    (axes,) = figures.sensitivity(runs).axes
    assert axes.get_xlabel() == "dirichlet"
    assert list(axes.containers[0].lines[0].get_xdata()) == [0.05, 0.1, 1]


def test_sensitivity_of_words(make):
    runs = make(*({"method": "fedvls", "options": {"form": form}} for form in ("official", "paper")))
    figure = figures.sensitivity(runs)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["official", "paper"]
    assert_legible(figure)


def test_sensitivity_says_what_it_cannot_find(make):
    runs = make({"method": "fedavg"}, {"method": "fedprox", "options": {"mu": 0.1}})
    with pytest.raises(UserError, match="no setting varies among these runs"):
        figures.sensitivity(runs)
    with pytest.raises(UserError, match=r"method\.mu does not vary"):
        figures.sensitivity(runs, over=["mu"])
    with pytest.raises(UserError, match="unknown setting 'nu'"):
        figures.sensitivity(runs, over=["nu"])
    with pytest.raises(UserError, match=r"--over name may be .*method\.name.*write it out"):
        figures.sensitivity(runs, over=["name"])


def searched(
    rates=(0.001, 0.01, 0.1), mus=(0.1, 1.0), sampler="grid", metric="accuracy", methods=("fedprox",)
):
    """Return what tune.json says of a grid of FedAvg's rates, and of other methods' rates and mu."""
    trials = [
        {"method": "fedavg", "values": {"budget.lr": rate}, "by_seed": [rate, 3 * rate]} for rate in rates
    ]
    trials += [
        {"method": name, "values": {"budget.lr": rate, "method.mu": mu}, "by_seed": [rate, rate + 0.2 * mu]}
        for name in methods
        for rate in rates
        for mu in mus
    ]
    counts = dict.fromkeys(("fedavg", *methods), 0)
    for trial in trials:
        counts[trial["method"]] += 1
        trial |= {"trial": counts[trial["method"]], "score": np.mean(trial["by_seed"]), "folders": []}
    winners = [{"method": name, "trial": number} for name, number in counts.items()]
    return {"metric": metric, "sampler": sampler, "winners": winners, "all": trials}


def filled(axes):
    """Return the places of the filled marks."""
    marks = [line for line in axes.get_lines() if line.get_marker() and line.get_markerfacecolor() != "none"]
    return [(*line.get_xdata(), *line.get_ydata()) for line in marks if len(line.get_xdata()) == 1]


def test_of_a_search_the_best_trial_at_each_value_is_drawn(make):
    runs = make({"seed": 1}, {"seed": 2})
    figure = figures.search(searched(), runs)
    rate, mu = figure.axes
    assert [axes.get_xlabel() for axes in figure.axes] == ["lr", "mu"]
    assert rate.get_ylabel() == "accuracy on validation (%)"
    plain, proximal = (each.lines[0] for each in rate.containers)
    assert list(plain.get_xdata()) == [0.001, 0.01, 0.1]
    np.testing.assert_allclose(plain.get_ydata(), [0.2, 2, 20])
    np.testing.assert_allclose(proximal.get_ydata(), [10.1, 11, 20])  # with the better mu, which is 1
    (alone,) = (each.lines[0] for each in mu.containers)
    np.testing.assert_allclose(alone.get_ydata(), [11, 20])  # with the best rate
    assert filled(rate) == [(0.1, pytest.approx(20)), (0.1, pytest.approx(20))]
    assert filled(mu) == [(1.0, pytest.approx(20))]
    assert {"fedavg", "fedprox"} <= assert_legible(figure)
    (only,) = figures.search(searched(), runs, over=["lr"], methods=["fedavg"]).axes
    assert len(only.containers) == 1


@pytest.mark.parametrize(
    ("rates", "scale"),
    [
        ((0.005, 0.02, 0.08), "log"),
        ((0.001, 0.01, 0.1), "log"),
        ((0.01, 0.02, 0.05), "log"),
        ((0.1, 0.3, 0.5), "linear"),  # a factor of 5, in equal steps
        ((0.01, 0.02, 0.04), "linear"),
        ((0.0, 0.02, 0.08), "linear"),
    ],
)
def test_values_that_differ_by_factors_are_on_a_logarithmic_axis(make, rates, scale):
    (axes,) = figures.search(searched(rates=rates), make({"seed": 1}), over=["lr"]).axes
    assert axes.get_xscale() == scale
    assert [text.get_text() for text in axes.get_xticklabels()] == [f"{rate:g}" for rate in rates]


def test_every_value_that_was_tried_has_its_name_if_two_lines_have_room(make):
    rates = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
    runs = make({"seed": 1})
    figure = figures.search(searched(rates=rates), runs, over=["lr"])
    (axes,) = figure.axes
    assert list(axes.get_xticks()) == list(rates)
    assert [text.get_text().strip() for text in axes.get_xticklabels()] == [f"{rate:g}" for rate in rates]
    assert_legible(figure)
    crowded = [0.01 * 1.05**step for step in range(40)]
    figure = figures.search(searched(rates=crowded), runs, over=["lr"])
    assert 2 < len(figure.axes[0].get_xticks()) < 20
    assert_legible(figure)


def test_a_search_says_what_its_marks_mean(make):
    runs = make({"seed": 1})
    names = [text.get_text() for text in figures.search(searched(), runs).legends[0].get_texts()]
    assert names == ["fedavg", "fedprox", "winner", "± std over seeds"]
    told = searched()
    told["all"] = [trial | {"by_seed": trial["by_seed"][:1]} for trial in told["all"]]
    alone = figures.search(told, runs, methods=["fedavg"])
    assert [text.get_text() for text in alone.legends[0].get_texts()] == ["winner"]
    assert all(not bars.has_yerr for bars in alone.axes[0].containers)


def test_of_loss_the_least_is_best_and_trials_without_a_score_are_left_out(make):
    runs = make({"seed": 1})
    told = searched(metric="loss", sampler="tpe")
    told["all"][0]["score"] = None
    (rate, _) = figures.search(told, runs).axes
    assert rate.get_ylabel() == "loss on validation"
    plain, proximal = (each.lines[0] for each in rate.containers)
    assert list(plain.get_xdata()) == [0.01, 0.1]
    np.testing.assert_allclose(proximal.get_ydata(), [0.011, 0.02, 0.11])  # with the smaller mu
    assert plain.get_linestyle() == "None"  # drawn values are not joined


def test_a_search_of_many_methods_is_legible(make):
    told = searched(methods=[f"my-own-method-number-{n}" for n in range(12)])
    assert_legible(figures.search(told, make({"seed": 1})))


def test_a_search_says_what_it_cannot_draw(make):
    runs = make({"seed": 1})
    with pytest.raises(UserError, match=r"no method has scores for two values of budget\.lr: search more"):
        figures.search(searched(rates=[0.1], mus=[1.0]), runs, over=["lr"])
    with pytest.raises(UserError, match="unknown setting 'nu'"):
        figures.search(searched(), runs, over=["nu"])
    with pytest.raises(UserError, match="unknown method of the search 'fedpro': did you mean 'fedprox'"):
        figures.search(searched(), runs, methods=["fedpro"])
    with pytest.raises(UserError, match=r"of the search 'fedvls': choose one of fedavg, fedprox\."):
        figures.search(searched(), runs, methods=["fedvls"])


def test_a_tally_is_drawn_against_the_samples_and_named_by_its_words(make):
    (run,) = make({"method": "pkd", "tally": "taught"})
    (axes,) = figures.experts([run]).axes
    (line,) = axes.get_lines()
    expected = metrics.activation_frequency([100 * t for t in range(1, 13)], int(run.counts.sum()), 2)
    np.testing.assert_allclose(line.get_ydata(), 100 * expected)
    assert axes.get_ylabel() == "samples that are taught (%)"
    going = replace(run, summary=None)
    assert figures.experts([going]).axes[0].get_ylabel() == "taught (%)"
    some = replace(run, rounds=[replace(line, samples=line.samples // 2) for line in run.rounds])
    (line,) = figures.experts([some]).axes[0].get_lines()
    np.testing.assert_allclose(line.get_ydata(), 200 * expected)


def test_methods_that_count_other_things_get_a_line_each(make):
    runs = make({"method": "pkd", "tally": "taught"}, {"method": "mine", "tally": "skipped"})
    figure = figures.experts(runs)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["pkd: samples that are taught", "mine: samples that are skipped"]
    assert figure.axes[0].get_ylabel() == "share of the samples (%)"


def clusters(classes: int, seed: int = 0) -> figures.Features:
    draw = np.random.default_rng(seed)
    labels = np.arange(20 * classes) % classes
    values = draw.normal(size=(len(labels), 8)) + 8 * draw.normal(size=(classes, 8))[labels]
    return figures.Features(f"model {seed}", values.astype(np.float32), labels)


def test_tsne_keeps_neighbours_together_and_names_classes():
    model = clusters(5)
    figure = figures.tsne([model, clusters(5, 1)], ["ant", "bee", "cat", "dog", "emu"])
    assert [axes.get_title() for axes in figure.axes] == ["model 0", "model 1"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ant", "bee", "cat", "dog", "emu"]
    points = [np.stack(line.get_data()) for line in figure.axes[0].get_lines()]
    assert [each.shape for each in points] == [(2, 20)] * 5
    spread = max(np.linalg.norm(each - each.mean(axis=1, keepdims=True), axis=0).max() for each in points)
    centres = [each.mean(axis=1) for each in points]
    assert min(np.linalg.norm(a - b) for a, b in combinations(centres, 2)) > spread
    assert len({line.get_marker() for line in figure.axes[0].get_lines()}) == 5
    assert_legible(figure)


def test_tsne_refuses_what_nobody_could_read():
    with pytest.raises(UserError, match="choose at most 21 with --classes"):
        figures.tsne([clusters(30)], [str(n) for n in range(30)])
    broken = figures.Features("x", np.full((50, 4), np.nan, np.float32), np.arange(50) % 3)
    with pytest.raises(UserError, match="finite features"):
        figures.tsne([broken], list("abc"))


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_same_run_gives_the_same_bytes(make, tmp_path, ending):
    (run,) = make({"probe": 6, "classes": ["a", "b", "c"]})
    digests, kinds = set(), ("partition", "curves", "updates")
    for number in range(2):
        for kind in kinds:
            path = tmp_path / f"{kind}{number}.{ending}"
            figures.save(getattr(figures, kind)([run]), path)
            digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(digests) == len(kinds)


def test_vector_text_stays_text_and_is_escaped(make, tmp_path):
    (run,) = make({"classes": ["<b>&amp;</b>", "$x^2$", "a\x00b\nc", "日本", r"\frac", "50 % & _"]})
    figures.save(figures.confusion([run]), tmp_path / "a.svg")
    picture = (tmp_path / "a.svg").read_text(encoding="utf-8")
    root = ET.fromstring(picture)
    words = {"".join(each.itertext()).strip() for each in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"<b>&amp;</b>", "$x^2$", "a b c", "日本", r"\frac", "50 % & _"} <= words
    assert "<dc:date>" not in picture
    figures.save(figures.confusion([run]), tmp_path / "a.pdf")
    content = (tmp_path / "a.pdf").read_bytes()
    assert b"CreationDate" not in content
    assert b"/Type3" not in content  # fonts of type 3 are refused by journals


def test_a_persons_own_settings_neither_matter_nor_change(make, tmp_path):
    (run,) = make({})
    figures.save(figures.curves([run]), tmp_path / "a.svg")
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red", "svg.fonttype": "path"}):
        figures.save(figures.curves([run]), tmp_path / "b.svg")
        assert matplotlib.rcParams["font.size"] == 20
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_figure_that_cannot_be_written_says_why(make, tmp_path):
    (run,) = make({})
    figure = figures.curves([run])
    with pytest.raises(UserError, match=r"end its name in \.png, \.svg or \.pdf"):
        figures.save(figure, tmp_path / "a.bmp")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the figure"):
        figures.save(figure, tmp_path / "file" / "a.png")
    assert not list(tmp_path.glob("*.part"))


def test_what_is_missing_is_said_with_what_to_do(make):
    whole, counts = make({}, {"method": "pkd", "tally": "taught"})
    with pytest.raises(UserError, match=r"has no probes, .*run it again with --probe every=10"):
        figures.updates([whole])
    with pytest.raises(UserError, match="give runs of a method that does, such as pkd"):
        figures.experts([whole])
    (line,) = figures.experts([whole, counts]).axes[0].get_lines()
    assert to_hex(line.get_color()) == looks(["pkd"])["pkd"].light


def test_a_run_under_way_says_what_it_lacks(make):
    (begun,) = make({"done": 0, "probe": 4})
    for kind in ("curves", "extremes", "predictions"):
        with pytest.raises(UserError, match="has no tested round yet: wait for the first"):
            getattr(figures, kind)([begun])
    with pytest.raises(UserError, match="has not come to a probed round yet: wait for round 4"):
        figures.updates([begun])
    for kind in ("confusion", "features"):
        with pytest.raises(UserError, match=r"has no summary\.json, .*wait for it"):
            getattr(figures, kind)([begun])


def test_clients_and_rounds_that_were_not_probed_are_named(make):
    (run,) = make({"probe": 4})
    with pytest.raises(UserError, match="not probed in round 5: choose --round from 4, 8, 12"):
        figures.updates([run], round=5)
    with pytest.raises(UserError, match=r"client 9 .* choose --client from 0, 1, 2, 3, 4, 5"):
        figures.updates([run], client=9)


def test_runs_on_other_classes_are_not_put_together(make):
    runs = make({}, {"method": "fedvls", "classes": ["a", "b", "c"]})
    for kind in ("confusion", "features", "predictions"):
        with pytest.raises(UserError, match="have other classes"):
            getattr(figures, kind)(runs)
    with pytest.raises(UserError, match="unknown class"):
        figures.curves(runs, metric="class:coat")


# The command line.

BRIEF = ["--rounds", "2", "--epochs", "1", "--clients", "3", "--quiet"]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison") / "cmp"
    command = ["compare", "fedavg", "fedvls", *BRIEF, "--seeds", "1,2", "--probe", "every=2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["unskew", *command, "--out", str(folder)])
        with pytest.raises(SystemExit) as stop:
            main()
    assert stop.value.code == 0
    return folder


@pytest.fixture
def compared(comparison, unskew, tmp_path):
    """Write one comparison for all tests, in a folder of its own."""
    return shutil.copytree(comparison, tmp_path / "cmp")


def test_every_figure_of_a_real_comparison(unskew, compared, tmp_path):
    few = ["--classes", "0,1,2"]
    for kind in (*PLAIN, "tsne"):
        wishes = few if kind == "tsne" else []
        answer = unskew("figure", kind, "cmp", *wishes, "--out", f"out/{kind}.svg")
        assert answer.code == 0, answer.err
        assert answer.out == f"written: out/{kind}.svg\n"
        picture = (tmp_path / "out" / f"{kind}.svg").read_text()
        if kind not in ("partition", "updates"):
            assert ">fedvls<" in picture or "answers of fedvls" in picture
    # The same picture again, from the model's file on.
    before = (tmp_path / "out" / "tsne.svg").read_bytes()
    assert unskew("figure", "tsne", "cmp", *few, "--out", "out/tsne.svg", "--overwrite").code == 0
    assert (tmp_path / "out" / "tsne.svg").read_bytes() == before


def test_options_reach_the_figure(unskew, compared, tmp_path):
    assert unskew("figure", "curves", "cmp", "--metric", "vacant", "--title", "", "--width", "page").code == 0
    assert (
        unskew("figure", "curves", "cmp", "--metric", "vacant", "--title", "Mine", "--out", "a.svg").code == 0
    )
    picture = (tmp_path / "a.svg").read_text()
    assert "Mine" in picture
    assert "accuracy of vacant classes (%)" in picture
    assert unskew("figure", "updates", "cmp", "--client", "1", "--round", "2", "--out", "b.svg").code == 0
    assert "fedavg: client 1, round 2, seed 1" in (tmp_path / "b.svg").read_text()
    assert unskew("figure", "confusion", "cmp", "--against", "fedvls", "--out", "d.svg").code == 0
    assert "fedavg − fedvls" in (tmp_path / "d.svg").read_text()
    assert unskew("figure", "forest", "cmp", "--reference", "fedvls", "--out", "e.svg").code == 0
    assert "points against fedvls" in (tmp_path / "e.svg").read_text()
    assert unskew("figure", "heatmap", "cmp", "--sort", "--title", "Mine", "--out", "f.svg").code == 0
    assert unskew("figure", "tsne", "cmp", "--classes", "3,8", "--title", "Mine", "--out", "c.svg").code == 0
    assert "Mine (seed 1)" in (tmp_path / "c.svg").read_text()
    words = re.findall(r"<text[^>]*>([^<]+)</text>", (tmp_path / "c.svg").read_text())
    assert {"3", "8"} <= set(words)
    assert "1" not in words


def test_sensitivity_and_experts_of_real_runs(unskew, tmp_path):
    methods = ["fedprox:mu=0.1", "fedprox:mu=1"]
    assert unskew("compare", *methods, *BRIEF, "--out", "mu").code == 0
    assert unskew("figure", "sensitivity", "mu", "--metric", "worst", "--out", "mu.svg").code == 0
    assert ">mu<" in (tmp_path / "mu.svg").read_text()
    pkd = "pkd:warmup=1,expert_rounds=1"
    assert unskew("run", "--method", pkd, *BRIEF, "--rounds", "4", "--out", "pkd").code == 0
    lines = [json.loads(line) for line in (tmp_path / "pkd" / "rounds.jsonl").read_text().splitlines()]
    assert any("activated" in line["tallies"] for line in lines)
    answer = unskew("figure", "experts", "pkd", "mu", "--out", "pkd.svg")
    assert answer.out == (
        "left out, since they count nothing: fedprox:mu=0.1, fedprox:mu=1\nwritten: pkd.svg\n"
    )
    assert "samples that ask an expert" in (tmp_path / "pkd.svg").read_text()


def test_without_a_name_all_figures_are_listed(unskew):
    answer = unskew("figure")
    assert answer.code == 0
    names = [line.split()[0] for line in answer.out.splitlines()]
    assert set(names) == {*PLAIN, "forest", "tsne", "sensitivity", "search", "experts"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["curves"], "no run is given: write unskew figure curves RUN"),
        (["serach", "run"], "unskew: unknown figure 'serach': did you mean 'search'?"),
        (
            ["run", "updates"],
            "run is no figure, and the name of one comes first: write unskew figure updates",
        ),
        (["run"], "run is no figure: name one first, such as unskew figure curves run."),
        (["search", "gone"], "there is no folder gone: check the path."),
        (["curves", "gone", "--out", "there.png"], "there is no run folder gone: check the path."),
        (["curves", "gone"], "there is no run folder gone: check the path."),
        (["curves", "run", "--metric", "acuracy"], "unknown metric 'acuracy': did you mean 'accuracy'?"),
        (["curves", "run", "--client", "1"], "--client is for updates: leave it out for curves."),
        (["curves", "run", "--sort"], "--sort is for heatmap: leave it out for curves."),
        (["forest", "run"], "no two methods have tested seeds in common: give runs of at least two methods"),
        (["confusion", "run", "--metric", "loss"], "--metric is for curves and sensitivity: leave it out"),
        (["search", "run"], "run holds no search: give a folder that unskew tune has written."),
        (["search", "tuned/fedavg"], "tuned/fedavg is only a part of the search in tuned: give that folder."),
        (["search", "tuned/fedavg/one"], "tuned/fedavg/one is only a part of the search in tuned: give that"),
        (["search", "run", "run"], "2 folders are given: give that of one search."),
        (["curves", "run", "--width", "wide"], "unknown width 'wide': choose one of column, page."),
        (["curves", "run", "--out", "a.bmp"], "cannot draw to 'a.bmp': end its name in .png, .svg or .pdf."),
        (["curves", "run", "--out", "there.png"], "there.png is there already: choose another file"),
        (["tsne", "run", "--classes", "boots"], "unknown class 'boots': did you mean 'boot'?"),
        (["updates", "run"], "run has no probes"),
        (["updates", "run", "--client", "x"], "--client is 'x' but should be a whole number."),
    ],
)
def test_bad_input_is_answered_in_one_sentence(unskew, write_run, tmp_path, arguments, says):
    write_run("run")
    write_run("tuned/fedavg/one")
    (tmp_path / "tuned" / "search.json").write_text("{}")
    (tmp_path / "there.png").write_text("")
    answer = unskew("figure", *arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert says in answer.err
    assert answer.err.count("\n") == 1
    assert (tmp_path / "there.png").read_text() == ""


def test_a_model_that_is_not_there_or_does_not_fit(unskew, compared):
    model = compared / "fedavg-seed1" / "model.safetensors"
    whole = model.read_bytes()
    model.write_bytes(whole[:100])
    assert "model.safetensors is damaged" in unskew("figure", "tsne", "cmp").err
    model.unlink()
    assert "lacks model.safetensors" in unskew("figure", "tsne", "cmp").err
    other = compared.parent / "other"
    assert unskew("run", *BRIEF, "--model", "mlp", "--out", "other").code == 0
    model.write_bytes((other / "model.safetensors").read_bytes())
    assert "are of two models" in unskew("figure", "tsne", "cmp").err


DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_on_figures_names_all_and_its_example_runs(write_run, tmp_path, monkeypatch):
    page = (DOCS / "figures.md").read_text()
    for name in (*FIGURES, *MEASURES):
        assert f"`{name}`" in page
    write_run("runs/mine")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(code, "docs/figures.md", "exec"), {})
    assert (tmp_path / "vacant.pdf").read_bytes().startswith(b"%PDF")


def test_the_gallery_has_every_figure_and_the_page():
    page = (DOCS / "gallery" / "README.md").read_text()
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page)
    assert {name.partition("-")[0].removesuffix(".png") for name in pictures} == {*FIGURES, "report"}
    assert sum((DOCS / "gallery" / name).stat().st_size for name in pictures) < 4e6
