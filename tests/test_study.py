"""Methods under several settings, in one folder."""

from __future__ import annotations

import json
import shutil

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
        told = whole["conditions"][name]
        assert list(told["methods"]) == ["fedavg", "fedprox"]
        assert told["answer"]["reference"] == "fedavg"
        assert told["answer"]["sentence"].split("\N{NO-BREAK SPACE}")[0] in " ".join(made.out.split())
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
        told = json.loads((tmp_path / "all" / "compare.json").read_text())
        [found] = package.compare(tmp_path / "all").answers
        assert (told["answer"]["reference"], found.reference) == (reference, reference)
        assert told["answer"]["sentence"] == found.sentence
        (tmp_path / "all" / "compare.json").unlink()  # as if it had been stopped before its end
    assert unskew("resume", "all", "--quiet").code == 0
    told = json.loads((tmp_path / "all" / "compare.json").read_text())
    assert told["answer"]["reference"] == "fedavg"


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
