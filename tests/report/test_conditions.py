"""Runs by what they ran under, and what sets one condition apart from another."""

from __future__ import annotations

from dataclasses import replace

from invented import made

from unskew.report.conditions import by_condition, in_common
from unskew.report.read import SavedRun


def under(run: SavedRun, **changes: object) -> SavedRun:
    """Return the run with other settings, such as budget__lr=0.1."""
    experiment = {
        key: dict(value) if isinstance(value, dict) else value for key, value in run.experiment.items()
    }
    for place, value in changes.items():
        table, _, key = place.partition("__")
        experiment[table][key] = value
    return replace(run, experiment=experiment, model=experiment["model"]["name"])


def test_one_condition_has_no_letter_and_nothing_that_sets_it_apart():
    (only,) = by_condition([made("fedavg"), made("fedvls"), made("fedvls", 2)])
    assert (only.letter, only.short, only.title) == ("", "", "digits, dirichlet:0.05, 3 clients, mlp")
    assert {name: len(seeds) for name, seeds in only.methods.items()} == {"fedavg": 1, "fedvls": 2}
    assert len(only.runs) == 3


def test_conditions_are_told_apart_by_what_differs_and_share_the_rest():
    runs = [made("fedavg", skew=skew) for skew in ("dirichlet:0.05", "dirichlet:0.5")]
    runs.append(under(runs[0], budget__epochs=5))
    found = by_condition(runs)
    assert [part.short for part in found] == [
        "dirichlet:0.05, epochs 1",
        "dirichlet:0.5, epochs 1",
        "dirichlet:0.05, epochs 5",
    ]
    assert [part.letter for part in found] == ["A", "B", "C"]
    assert found[2].title == "C: digits, dirichlet:0.05, 3 clients, mlp, epochs 5"
    assert in_common(runs) == "digits, 3 clients, all in a round, mlp"


def test_what_comes_with_another_model_is_told_once_and_what_does_not_is_told():
    plain = made("fedavg")
    models = [
        under(plain, model__name=name, model__norm=norm) for name, norm in (("mlp", "none"), ("cnn", "group"))
    ]
    assert [part.short for part in by_condition(models)] == ["mlp", "cnn"]
    models.append(under(plain, model__name="cnn", model__norm="batch"))
    assert [part.short for part in by_condition(models)] == [
        "mlp, norm none",
        "cnn, norm group",
        "cnn, norm batch",
    ]


def test_what_was_tuned_for_each_method_is_no_condition():
    runs = [under(made("fedavg"), budget__lr=0.1), under(made("fedvls"), budget__lr=0.01)]
    assert len(by_condition(runs)) == 1
    runs.append(under(made("fedvls"), budget__lr=0.1))
    assert [list(part.methods) for part in by_condition(runs)] == [["fedavg", "fedvls"], ["fedvls"]]


def test_other_data_are_told_by_their_name_and_under_one_name_by_their_hash():
    first, second = (replace(made("fedavg"), data_sha256=16 * each) for each in ("a1b2", "c3d4"))
    assert [part.short for part in by_condition([first, second])] == [
        "sha256 a1b2a1b2a1b2",
        "sha256 c3d4c3d4c3d4",
    ]
    assert [part.short for part in by_condition([first, replace(second, data="usps")])] == ["digits", "usps"]
