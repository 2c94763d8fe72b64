"""Methods under several settings, in one folder."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest

import unskew as package
from unskew.report.conditions import by_condition
from unskew.report.read import read_runs

pytestmark = pytest.mark.usefixtures("no_workers")

BRIEF = ("--rounds", "2", "--epochs", "1", "--clients", "4", "--quiet")
TWO = ("--vary", "skew=dirichlet:0.05", "--vary", "skew=iid")


def test_methods_are_compared_under_every_combination_of_settings(unskew, tmp_path):
    many = ("--vary", "budget.lr=0.1", "--vary", "budget.lr=0.01", "--seeds", "1,2", "--out", "all")
    made = unskew("compare", "fedavg", "fedprox", *BRIEF, *TWO, *many)
    assert made.code == 0, made.err
    whole = json.loads((tmp_path / "all" / "compare.json").read_text())
    names = [
        "skew=dirichlet:0.05, lr=0.1",
        "skew=dirichlet:0.05, lr=0.01",
        "skew=iid, lr=0.1",
        "skew=iid, lr=0.01",
    ]
    assert list(whole["conditions"]) == names
    assert len(whole["runs"]) == 16
    for name in names:
        result = whole["conditions"][name]
        assert list(result["methods"]) == ["fedavg", "fedprox"]
        assert result["answer"]["reference"] == "fedavg"
        assert f"\n{name}: digits, " in made.out
        assert result["answer"]["sentence"].split("\N{NO-BREAK SPACE}")[0] in " ".join(made.out.split())
    runs = read_runs([tmp_path / "all"])
    assert len(by_condition(runs)) == 4
    lrs = {run.experiment["budget"]["lr"] for run in runs if run.skew.startswith("iid")}
    assert lrs == {0.1, 0.01}
    closing = made.out[made.out.index("accuracy %, last") :]
    assert "dirichlet:0.05" in closing
    assert unskew("table", "all", "--columns", "skew").code == 0


def test_a_study_goes_on_where_it_was_stopped(unskew, tmp_path):
    study = ("compare", "fedavg", *BRIEF, *TWO, "--reference", "fedavg", "--out", "all")
    assert unskew(*study).code == 0
    first = (tmp_path / "all" / "compare.json").read_text()
    missing = next(path for path in (tmp_path / "all").iterdir() if path.name.startswith("skew=iid"))
    weights = json.loads((missing / "summary.json").read_text())["weights_sha256"]
    shutil.rmtree(missing)
    (tmp_path / "all" / "compare.json").unlink()
    again = unskew("resume", "all", "--quiet")
    assert again.code == 0, again.err
    assert json.loads((missing / "summary.json").read_text())["weights_sha256"] == weights
    then, now = json.loads(first), json.loads((tmp_path / "all" / "compare.json").read_text())
    assert list(then["conditions"]) == list(now["conditions"])
    other = unskew("compare", "fedavg", *BRIEF, "--vary", "skew=iid", "--out", "all")
    assert other.code == 2
    assert "holds" in other.err


def test_another_reference_that_is_asked_for_later_is_kept(unskew, tmp_path):
    three = ("--seeds", "1-3", "--skew", "dirichlet:0.05", "--out", "all")
    for reference in ("fedprox:mu=1", "fedavg"):
        assert unskew("compare", "fedavg", "fedprox:mu=1", *BRIEF, *three, "--reference", reference).code == 0
        result = json.loads((tmp_path / "all" / "compare.json").read_text())
        [found] = package.compare(tmp_path / "all").answers
        assert (result["answer"]["reference"], found.reference) == (reference, reference)
        assert result["answer"]["sentence"] == found.sentence
        (tmp_path / "all" / "compare.json").unlink()  # as if it had been stopped before its end
    assert unskew("resume", "all", "--quiet").code == 0
    result = json.loads((tmp_path / "all" / "compare.json").read_text())
    assert result["answer"]["reference"] == "fedavg"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("skew", "write name=value"),
        ("method=fedavg", "name several methods"),
        ("method.mu=1", "name several methods"),
        ("seed=2", "give --seeds"),
        ("skew.seed=2", "give --seeds"),
        ("evaluation.every=2", "runs that differ in it count as one condition"),
        ("engine=loop", "results do not depend on it"),
        ("budget.sped=2", "sped"),
    ],
)
def test_what_cannot_vary_is_said_in_one_sentence(unskew, given, words):
    answer = unskew("compare", "fedavg", *BRIEF, "--vary", given)
    assert answer.code == 2
    assert words in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_a_value_is_given_once(unskew):
    answer = unskew("compare", "fedavg", *BRIEF, "--vary", "skew=iid", "--vary", "skew.recipe=iid")
    assert answer.code == 2
    assert "given twice" in answer.err


def test_two_spellings_of_a_condition_are_one(unskew, tmp_path):
    answer = unskew(
        "compare", "fedavg", *BRIEF, "--vary", "skew=dirichlet:0.5", "--vary", "skew=dirichlet:0.50"
    )
    assert (answer.code, answer.err) == (
        2,
        "unskew: --vary skew=dirichlet:0.50 is the same condition as skew=dirichlet:0.5: give each condition "
        "once.\n",
    )
    assert not list(tmp_path.iterdir())


def test_experiments_with_seeds_of_their_own_are_asked_for_common_ones(unskew, tmp_path):
    for name, seed in (("a", 1), ("b", 5)):
        (tmp_path / f"{name}.toml").write_text(f"seed = {seed}\n[budget]\nrounds = 1\nepochs = 1\n")
    answer = unskew("compare", "a.toml", "b.toml", "--quiet")
    assert (answer.code, answer.err) == (
        2,
        "unskew: the experiments have seeds 1 and 5: give --seeds for all.\n",
    )


def test_an_optimiser_that_is_named_again_keeps_the_files_momentum(unskew, tmp_path):
    (tmp_path / "a.toml").write_text("[budget]\nrounds = 1\nepochs = 1\nmomentum = 0.0\n")
    varied = ("--vary", "optimizer=sgd", "--vary", "optimizer=adam")
    done = unskew("compare", "fedavg", "--experiment", "a.toml", *varied, "--quiet", "--out", "all")
    assert done.code == 0, done.err
    by_sgd, by_adam = (
        tomllib.loads((tmp_path / "all" / f"optimizer={name}-fedavg-seed1/experiment.toml").read_text())
        for name in ("sgd", "adam")
    )
    assert by_sgd["budget"]["momentum"] == 0.0
    assert "momentum" not in by_adam["budget"]


def test_folders_keep_the_sign_of_an_exponent(unskew, tmp_path):
    varied = ("--vary", "lr=1e+0", "--vary", "lr=1e-1")
    done = unskew("compare", "fedavg", *BRIEF, *varied, "--out", "all")
    assert done.code == 0, done.err
    names = {path.name for path in (tmp_path / "all").iterdir() if path.is_dir()}
    assert names == {"lr=1e0-fedavg-seed1", "lr=1e-1-fedavg-seed1"}


def test_folders_that_were_moved_are_found_where_they_are(unskew, tmp_path):
    assert unskew("compare", "fedavg", "fedprox", *BRIEF, "--out", "before").code == 0
    (tmp_path / "before").rename(tmp_path / "after")
    (tmp_path / "after" / "compare.json").unlink()
    assert unskew("resume", "after", "--quiet").code == 0
    result = json.loads((tmp_path / "after" / "compare.json").read_text())
    assert {Path(each["run_dir"]).parent.name for each in result["runs"]} == {"after"}
    assert "run folder: after/fedavg-seed1" in unskew("resume", "after/fedavg-seed1").out
