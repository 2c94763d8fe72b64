"""What a person sees and does in a notebook."""

import html
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import unskew
from unskew import Budget, Trial, UserError
from unskew.data import from_arrays

ROOT = Path(__file__).parents[1]


def train(skewed, method, seed=1, **options):
    return unskew.train(
        Trial(skewed, "mlp-small", budget=Budget(rounds=2), seed=seed, engine="loop", **options), method
    )


@pytest.fixture(scope="module")
def results(skewed):
    methods = {"fedavg": unskew.methods.fedavg(), "fedvls": unskew.methods.fedvls()}
    return {name: [train(skewed, method, seed) for seed in (1, 2, 3)] for name, method in methods.items()}


def text_of(shown: str) -> str:
    """Return the text that a reader of HTML sees, without its tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", shown)).split())


def test_a_federation_says_who_shares_what_and_how_skewed_that_is(digits):
    federation = unskew.federate(digits, "labels:4", clients=3, seed=7)
    shown = repr(federation)
    assert shown.count("\n") == 1
    for part in (
        "digits",
        "1,442 images of 10 classes",
        "labels:4",
        "clients=3",
        "seed=7",
        "4 of 10 classes",
    ):
        assert part in shown
    table = text_of(federation._repr_html_())
    for row in federation.counts.tolist():
        assert " ".join(f"{n:,}" for n in [*(n for n in row if n), sum(row)]) in table


def test_a_large_federation_is_shown_without_its_clients(digits):
    federation = unskew.federate(digits, "iid", clients=100, seed=1)
    assert len(repr(federation)) < 400
    assert len(federation._repr_html_()) < 3000


def test_a_result_says_what_was_trained_and_how_good_it_is(results):
    result = results["fedvls"][0]
    head, numbers = repr(result).split("\n")
    assert "fedvls" in head
    assert "2 rounds" in head
    assert f"accuracy {100 * result.accuracy['last']:.1f} %" in numbers
    assert f"worst class {100 * result.worst_accuracy:.1f} %" in numbers
    assert f"vacant classes {100 * result.groups['vacant']:.1f} %" in numbers
    table = text_of(result._repr_html_())
    assert " ".join(f"{100 * each:.1f}" for each in result.class_accuracy.values()) in table


def test_names_of_data_are_text_and_never_markup():
    rng = np.random.default_rng(0)
    labels = np.array(["<script>alert(1)</script>", "a & b"] * 20)
    data = from_arrays(rng.normal(size=(40, 3)), labels, name="<b>mine</b>")
    federation = unskew.federate(data, "iid", clients=2, seed=1)
    result = train(federation, unskew.methods.fedavg())
    for value in (data, federation, result, unskew.compare(result)):
        shown = value._repr_html_()
        assert "<script>" not in shown
        assert "<b>mine" not in shown
        assert "<b>mine</b>" in text_of(shown) or "<b>mine</b>" in html.unescape(shown)


def test_a_comparison_of_results_is_that_of_their_folders(results, tmp_path):
    found = unskew.compare(results)
    for name, members in results.items():
        for seed, result in enumerate(members, 1):
            result.save(tmp_path / f"{name}-{seed}")
    again = unskew.compare(tmp_path)
    assert again.sentence == found.sentence
    assert again.rows == found.rows
    assert repr(again) == repr(found)


def test_a_comparison_shows_table_differences_and_sentence(results):
    found = unskew.compare(results, reference="fedvls")
    (row,) = (row for row in found.rows if row["method"] == "fedavg" and row["measure"] == "accuracy")
    accuracies = {name: [each.accuracy["last"] for each in members] for name, members in results.items()}
    assert row["mean"] == pytest.approx(np.mean(accuracies["fedavg"]))
    assert row["difference"] == pytest.approx(
        np.mean(np.subtract(accuracies["fedavg"], accuracies["fedvls"]))
    )
    assert row["low"] < row["difference"] < row["high"]
    for shown in (repr(found), text_of(found._repr_html_())):
        assert " ".join(found.sentence.split()) in " ".join(shown.split())
        assert f"{100 * row['mean']:.1f} ± {100 * row['std']:.1f}" in shown
        assert "against fedvls" in shown


def test_what_cannot_be_compared_is_said(results, tmp_path):
    with pytest.raises(UserError, match="'mine' stands for fedavg and fedvls"):
        unskew.compare({"mine": [results["fedavg"][0], results["fedvls"][0]]})
    with pytest.raises(UserError, match="fedprox"):
        unskew.compare(results, reference="fedprox")
    for wrong in ([3], 3):
        with pytest.raises(UserError, match="int is no run"):
            unskew.compare(wrong)
    with pytest.raises(
        UserError, match=r"fedavg has two runs of seed 1 .* give each method a name of its own"
    ):
        unskew.compare([*results["fedavg"], *results["fedvls"], *results["fedavg"]])
    with pytest.raises(UserError, match="no run is given for fedavg"):
        unskew.compare({"fedavg": []})
    with pytest.raises(UserError, match="no run folder"):
        unskew.compare(tmp_path / "nowhere")


def test_figures_of_results_and_of_folders_are_matplotlib_figures(results, skewed, tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    from matplotlib.figure import Figure

    folder = results["fedavg"][0].save(tmp_path / "one")
    named = {"averaging": folder, "mine": results["fedvls"][:2]}
    drawn = [
        unskew.plot.partition(skewed),
        unskew.plot.partition(folder),
        unskew.plot.curves(named, metric="worst", width="column"),
        unskew.plot.confusion(results["fedvls"][0]),
    ]
    assert all(isinstance(figure, Figure) for figure in drawn)
    assert drawn[2].get_figwidth() == pytest.approx(3.4)
    texts = [text.get_text() for legend in drawn[2].legends for text in legend.get_texts()]
    texts += [text.get_text() for axes in drawn[2].axes for text in axes.texts]
    assert {"averaging", "mine"} <= set(texts)
    assert not pyplot.get_fignums()  # nothing is left to be closed, or shown a second time
    with pytest.raises(UserError, match="unknown width"):
        unskew.plot.curves(results, width="poster")


def test_every_figure_of_the_command_is_a_function():
    from unskew.cli.figure import FIGURES

    assert set(unskew.plot.__all__) == set(FIGURES)


def test_the_notebook_runs_and_shows_what_it_keeps():
    done = subprocess.run(
        [sys.executable, ROOT / "docs/notebook.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
