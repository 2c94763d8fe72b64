"""Tables: what stands in a cell, what is marked, and what three formats make of any text."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from unskew import metrics
from unskew.errors import UserError
from unskew.labelled_runs import read_begun
from unskew.record import TrafficRecord
from unskew.report.answer import answer
from unskew.report.escape import escape_csv, escape_latex, escape_markdown
from unskew.report.grouping import by_method
from unskew.report.read import read_runs
from unskew.report.skew_words import skew_in_words
from unskew.report.table import MethodTable, tabulate
from unskew.report.table_cells import COLUMNS
from unskew.report.table_text import to_csv, to_latex, to_markdown

pytestmark = pytest.mark.usefixtures("no_workers")


@pytest.fixture
def make(write_run):
    """Runs whose accuracies are given: {(method, seed): accuracy of every round}."""

    def runs(accuracies: dict[tuple[str, int], list[float]], folder: str = "runs", **settings):
        paths = []
        for (method, seed), values in accuracies.items():
            name = f"{folder}/{seed}/{re.sub(r'[^a-z]', '-', method)}"
            path = write_run(name, method=method, seed=seed, rounds=len(values), **settings)
            rounds = path / "rounds.jsonl"
            lines = [json.loads(line) for line in rounds.read_text().splitlines()]
            for line, value in zip(lines, values, strict=True):
                line["accuracy"] = value
            rounds.write_text("".join(json.dumps(line) + "\n" for line in lines))
            paths.append(path)
        return read_runs(paths)

    return runs


def shown(table: MethodTable, column: str) -> dict[str, tuple[str, str]]:
    """Return the text and the mark of each row's cell in a column."""
    place = [head.name for head in table.columns].index(column)
    cells = {row.name: row.cells[place] for row in table.rows}
    return {name: (cell.text, cell.mark) for name, cell in cells.items()}


THREE = {
    ("fedavg", 1): [0.4, 0.60, 0.50],
    ("fedavg", 2): [0.4, 0.50, 0.54],
    ("fedavg", 3): [0.4, 0.50, 0.52],
    ("fedprox", 1): [0.1, 0.20, 0.30],
    ("fedprox", 2): [0.1, 0.20, 0.33],
    ("fedprox", 3): [0.1, 0.20, 0.30],
    ("fedvls", 1): [0.6, 0.65, 0.70],
    ("fedvls", 2): [0.5, 0.60, 0.71],
    ("fedvls", 3): [0.5, 0.60, 0.72],
}


def test_means_and_deviations_over_seeds_and_what_is_best(make):
    table = tabulate(make(THREE))
    assert shown(table, "last") == {
        "fedavg": ("52.0 ± 2.0", ""),
        "fedprox": ("31.0 ± 1.7", "below"),
        "fedvls": ("71.0 ± 1.0", "best"),
    }
    # Chosen on the test set: nothing is claimed of it.
    assert shown(table, "best_by_test")["fedavg"] == ("55.3 ± 4.2", "")
    assert shown(table, "mean_last_10")["fedvls"] == ("62.0 ± 2.6", "")
    # fedavg's best is 0.6 on seed 1, reached in round 2, and 0.54 and 0.52 on the others, in round 3; fedvls
    # reaches them in rounds 1, 2 and 2, fedprox never.
    assert shown(table, "rounds_to_target") == {
        "fedavg": ("2.7 ± 0.6", ""),
        "fedprox": ("—", ""),
        "fedvls": ("1.7 ± 0.6", ""),
    }
    assert shown(table, "speed_up") == {
        "fedavg": ("1.00", ""),
        "fedprox": ("—", ""),
        "fedvls": ("1.67 ± 0.29", ""),
    }
    assert shown(table, "traffic")["fedavg"] == ("0.0", "")  # 36,000 bytes for all: nobody is best
    assert shown(table, "cost")["fedavg"] == ("3.0", "")
    assert table.footnotes[0] == (
        "bold: better than every other method by paired t-tests at 5 %, fedavg included; *: differs from "
        "fedavg at 5 % after Holm's correction."
    )


def test_what_the_seeds_do_not_back_is_not_marked(make):
    close = {("fedavg", s): [0.6 + s / 50] for s in (1, 2, 3)}
    close |= {("fedprox", s): [value] for s, value in ((1, 0.70), (2, 0.60), (3, 0.67))}
    table = tabulate(make(close))
    assert {mark for _, mark in shown(table, "last").values()} == {""}
    assert table.footnotes[0].endswith("after Holm's correction; no difference here is significant.")


def test_two_seeds_tell_nothing_apart(make):
    table = tabulate(make({key: values for key, values in THREE.items() if key[1] < 3}))
    assert {mark for _, mark in shown(table, "last").values()} == {""}
    assert table.footnotes[0].startswith("the methods are not told apart: that takes three seeds")


def test_measures_that_are_asked_for_are_tested_as_one_family(make):
    table = tabulate(make(THREE), metric="class:coat", measures=["last", "discrepancy", "class:bag"])
    assert [head.title for head in table.columns] == ["last", "best minus worst class", "accuracy of bag"]
    runs = make({(name, seed + 10): values for (name, seed), values in THREE.items()})
    values = {
        name: {
            key: {run.seed: of(run.rounds[-1]) for run in runs if run.label == name}
            for key, of in (
                ("last", lambda line: line.class_accuracy[4]),
                ("discrepancy", lambda line: line.discrepancy),
                ("class:bag", lambda line: line.class_accuracy[8]),
            )
        }
        for name in ("fedavg", "fedprox", "fedvls")
    }
    told = metrics.against_reference(values, "fedavg", families=[list(values["fedavg"])])
    again = tabulate(runs, metric="class:coat", measures=["last", "discrepancy", "class:bag"])
    for name, each in told.items():
        for key, found in each.items():
            mark = shown(again, key)[name][1]
            assert (mark != "") == found.settled
            if mark in ("above", "below"):
                assert mark == ("above" if found.difference > 0 else "below")


def test_what_follows_from_the_settings_is_best_where_it_is_lowest(make):
    runs = make({("a", 1): [0.5], ("b", 1): [0.5], ("c", 1): [0.5]})
    dear = [
        replace(run, summary=replace(run.summary, cost=cost))
        for run, cost in zip(runs, (3.0, 2.0, 4.0), strict=True)
    ]
    assert [mark for _, mark in shown(tabulate(dear), "cost").values()] == ["", "best", ""]
    same = [
        replace(run, summary=replace(run.summary, cost=cost))
        for run, cost in zip(runs, (2.0, 2.0, 4.0), strict=True)
    ]
    assert [mark for _, mark in shown(tabulate(same), "cost").values()] == ["", "", ""]


def test_the_other_columns_are_of_the_last_round(make):
    (run,) = make({("fedavg", 1): [0.1, 0.2, 0.3]})
    table = tabulate([run])
    last = run.rounds[-1]
    assert shown(table, "worst_class")["fedavg"] == (f"{100 * min(last.class_accuracy):.1f}", "")
    for group in ("majority", "minority", "vacant"):
        assert shown(table, group)["fedavg"] == (f"{100 * getattr(last.groups, group):.1f}", "")


def test_a_target_that_only_some_seeds_reach_is_no_mean(make):
    table = tabulate(
        make({("a", 1): [0.5], ("a", 2): [0.6], ("b", 1): [0.55], ("b", 2): [0.55]}), target=0.58
    )
    assert shown(table, "rounds_to_target") == {"a": ("— (1 of 2)", ""), "b": ("—", "")}
    fields = next(csv.DictReader(io.StringIO(to_csv(table))))
    assert (fields["rounds_to_target_mean"], fields["rounds_to_target_n"]) == ("", "1")
    assert "accuracy of 58 %" in table.footnotes[-1]


def test_another_metric_and_a_class(make):
    runs = make({("a", 1): [0.5, 0.5], ("b", 1): [0.6, 0.6]})
    for metric, of in (("worst", min), ("class:coat", lambda values: values[4])):
        table = tabulate(runs, metric=metric)
        for run in runs:
            value = of(run.rounds[-1].class_accuracy)
            assert shown(table, "last")[run.label][0] == f"{100 * value:.1f}"
    with pytest.raises(UserError, match="of loss less is better"):
        tabulate(runs, metric="loss")


def test_what_a_reader_should_know_is_noted(make, write_run):
    runs = make({("a", 1): [0.5], ("a", 2): [0.5], ("b", 1): [0.6]})
    table = tabulate(runs)
    assert "the methods have different seeds: a 1, 2; b 1." in table.footnotes
    skew = skew_in_words(runs[0])
    assert skew.startswith("a client lacks ")
    assert f"{skew} (seed 1)." in table.footnotes


def test_runs_are_compared_in_the_last_round_that_all_have(make, write_run):
    ahead = make({("a", 1): [0.2, 0.5, 0.4, 0.9]})
    begun = read_runs([write_run("begun", method="b", seed=1, rounds=4, done=2)])
    table = tabulate([*ahead, *begun])
    assert shown(table, "last")["a"] == ("50.0", "")
    assert shown(table, "best_by_test")["a"] == ("50.0", "")
    assert shown(table, "mean_last_10")["a"] == ("35.0", "")
    assert shown(table, "cost")["a"] == ("—", "")  # of the whole run
    assert table.columns[2].title == "mean last 2"
    assert shown(table, "worst_class")["a"][0] == f"{100 * ahead[0].rounds[1].min_class:.1f}"
    assert any("the numbers are of round 2, the last that all reached" in note for note in table.footnotes)
    assert table.notes == (f"not finished: {begun[0].path}.",)


def test_what_is_marked_is_what_is_shown(make, write_run):
    """Show the end of the compared runs, although a run of another method is under way."""
    runs = make(THREE)
    going = read_runs([write_run("going", method="pkd", seed=1, rounds=3, done=1)])
    begun = read_runs([write_run("begun", method="pkd", seed=2, rounds=3, done=0)])
    table = tabulate([*runs, *going, *begun])
    assert shown(table, "last") == shown(tabulate(runs), "last") | {"pkd": ("—", "")}
    assert shown(table, "last")["fedvls"] == ("71.0 ± 1.0", "best")
    assert table.columns[2].title == "mean last 3"
    assert not any("not all runs have ended" in note for note in table.footnotes)
    assert any(note.endswith("pkd none; marks are of seeds 1, 2, 3.") for note in table.footnotes)
    assert table.notes == (f"not finished: {going[0].path}, {begun[0].path}.",)


def test_a_run_that_failed_is_a_gap_and_a_note(make, write_run):
    broken = write_run("broken", method="pkd", rounds=3, done=0)
    (broken / "error.json").write_text('{"error": "the loss became NaN.", "notes": [], "traceback": ""}')
    table = tabulate([*make(THREE), *read_begun([broken.parent / "runs" / "1", broken])[3:]])
    assert shown(table, "last")["pkd"] == ("—", "")
    assert table.notes == (f"{broken} failed: the loss became NaN.",)
    with pytest.raises(UserError, match="failed before its first test"):
        read_begun([broken])


@pytest.mark.parametrize("measure", ["accuracy", "worst", "site-mean", "worst-site"])
def test_what_the_answer_compares_is_not_tested_once_more(make, measure):
    sites = ("a", "b", "c", "d") if "site" in measure else ()
    accuracies = {"fedavg": (0.5, 0.5, 0.5), "fedprox": (0.4, 0.39, 0.34), "fedvls": (0.6, 0.61, 0.66)}
    runs = make(
        {(name, seed): [each[seed]] for name, each in accuracies.items() for seed in (0, 1, 2)}, sites=sites
    )
    table = tabulate(runs, measures=[measure, "class:bag", "macro-f1"])
    told = answer(by_method(runs))
    if measure == "accuracy":  # of six differences neither would be settled
        assert [each.differences[measure].settled for each in told.others] == [True, True]
    for each in told.others:
        mark = shown(table, measure)[each.name][1]
        assert (mark != "") == (each.differences[measure].settled or told.best[measure] == each.name)


def test_probes_are_those_of_the_round_that_is_compared(write_run):
    runs = read_runs(
        [write_run(name, method=name, rounds=4, done=done, probe=1) for name, done in (("a", 4), ("b", 2))]
    )
    at, later = (
        100 * np.mean([client.in_local for client in probe.clients]) for probe in runs[0].probes[1::2]
    )
    assert f"{at:.1f}" != f"{later:.1f}"
    assert shown(tabulate(runs, measures=["in-local"]), "in-local")["a"] == (f"{at:.1f}", "")


# Several conditions


@pytest.fixture
def two_skews(make):
    """Methods that rank otherwise under another skew."""
    runs = []
    for skew, gain in (("dirichlet:0.05", 0.2), ("dirichlet:0.5", -0.2)):
        for shift, method in ((0.0, "fedavg"), (gain, "fedvls")):
            accuracies = {
                (method, seed): [0.4 + shift, 0.5 + shift + seed / 100 + (method == "fedvls") * seed / 500]
                for seed in (1, 2, 3)
            }
            runs += make(accuracies, folder=f"{skew}-{method}", skew__recipe=skew)
    return runs


def test_methods_are_compared_within_their_condition(two_skews):
    table = tabulate(two_skews)
    assert table.heads == ("condition", "method")
    assert [row.keys for row in table.rows] == [
        (skew, method) for skew in ("dirichlet:0.05", "dirichlet:0.5") for method in ("fedavg", "fedvls")
    ]
    assert [row.cells[0].mark for row in table.rows] == ["", "best", "best", "below"]
    # Speed-up is against the fedavg of the same condition.
    assert [row.cells[8].text for row in table.rows] == ["1.00", "2.00", "1.00", "—"]
    assert table.title == "fashion-mnist, 6 clients, all in a round, mlp-small"
    assert sum(note.startswith("under dirichlet:0.") for note in table.footnotes) == 2
    markdown = to_markdown(table)
    assert "| condition | method | last |" in markdown
    assert "| dirichlet:0.05 | fedvls | **" in markdown
    latex = to_latex(table).splitlines()
    assert latex.count(r"\midrule") == 2
    assert any(line.startswith(r"\multicolumn{12}{l}{\emph{dirichlet:0.05}}") for line in latex)


@pytest.mark.parametrize("axis", ["condition", "skew", "skew.recipe", "recipe"])
def test_methods_below_and_conditions_beside_each_other(two_skews, axis):
    table = tabulate(two_skews, columns=axis)
    assert table.title == "accuracy %, last: fashion-mnist, 6 clients, all in a round, mlp-small"
    assert table.heads == ("method",)
    assert [head.line for head in table.columns] == ["dirichlet:0.05", "dirichlet:0.5"]
    assert [[cell.text for cell in row.cells] for row in table.rows] == [
        ["52.0 ± 1.0", "52.0 ± 1.0"],
        ["72.4 ± 1.2", "32.4 ± 1.2"],
    ]
    assert [[cell.mark for cell in row.cells] for row in table.rows] == [["", "best"], ["best", "below"]]
    turned = tabulate(two_skews, rows=axis, columns="method")
    assert [row.keys for row in turned.rows] == [("dirichlet:0.05",), ("dirichlet:0.5",)]
    assert [head.line for head in turned.columns] == ["fedavg", "fedvls"]
    assert [row.cells for row in turned.rows] == list(zip(*(row.cells for row in table.rows), strict=True))


def test_several_measures_stand_side_by_side_in_each_condition(two_skews):
    table = tabulate(two_skews, columns="skew", measures=["last", "vacant"])
    assert [(head.group, head.title) for head in table.columns] == [
        (skew, measure) for skew in ("dirichlet:0.05", "dirichlet:0.5") for measure in ("last", "vacant")
    ]
    latex = to_latex(table)
    assert r" & \multicolumn{2}{c}{dirichlet:0.05} & \multicolumn{2}{c}{dirichlet:0.5} \\" in latex
    assert "\\cmidrule(lr){2-3}\n\\cmidrule(lr){4-5}\n" in latex
    assert r"method & last & vacant & last & vacant \\" in latex
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert float(rows[1]["dirichlet:0.5 last_mean"]) == pytest.approx(0.324)
    assert [row["dirichlet:0.5 last_mark"] for row in rows] == ["best", "below"]
    assert "best: better than every other method of its condition" in rows[0]["note"]
    below = tabulate(two_skews, rows="measure", columns="method", measures=["last", "vacant"])
    assert [row.keys for row in below.rows] == [
        (skew, measure) for skew in ("dirichlet:0.05", "dirichlet:0.5") for measure in ("last", "vacant")
    ]


def test_what_has_no_axis_stands_before_the_rows(make):
    runs = []
    for skew in ("dirichlet:0.05", "iid"):
        for lr in (0.1, 0.2):
            settings = {"skew__recipe": skew, "budget__lr": lr}
            runs += make({("fedavg", 1): [0.5], ("fedprox", 1): [0.6]}, folder=f"{skew}{lr}", **settings)
    table = tabulate(runs, columns="skew")
    assert table.heads == ("condition", "method")
    assert [row.keys for row in table.rows] == [
        (lr, method) for lr in ("lr 0.1", "lr 0.2") for method in ("fedavg", "fedprox")
    ]
    assert [head.line for head in table.columns] == ["dirichlet:0.05", "iid"]
    assert [row.keys for row in tabulate(runs, rows="lr", columns="skew").rows] == [
        (lr, method) for lr in ("0.1", "0.2") for method in ("fedavg", "fedprox")
    ]


def test_a_hyperparameter_has_an_axis_of_its_own(write_run):
    runs = []
    for skew in ("dirichlet:0.05", "iid"):
        for mu in (0.1, 1.0):
            path = write_run(f"{skew}{mu}", method="fedprox", options={"mu": mu, "nu": 3}, skew__recipe=skew)
            runs += read_runs([path])
    table = tabulate(runs, rows="mu", columns="skew")
    assert (table.heads, [row.keys for row in table.rows]) == (
        ("mu", "method"),
        [("0.1", "fedprox:nu=3"), ("1", "fedprox:nu=3")],
    )
    last = {(run.skew, run.experiment["method"]["mu"]): run.summary.accuracy.last for run in runs}
    assert [[cell.text for cell in row.cells] for row in table.rows] == [
        [f"{100 * last[skew, mu]:.1f}" for skew in ("dirichlet:0.05", "iid")] for mu in (0.1, 1.0)
    ]


def test_a_method_that_a_condition_lacks_has_no_number_there(two_skews):
    some = [run for run in two_skews if run.skew == "dirichlet:0.05" or run.label == "fedavg"]
    table = tabulate(some, columns="skew")
    assert [cell.text for cell in table.rows[1].cells] == ["72.4 ± 1.2", "—"]


def test_traffic_is_that_of_the_whole_run(make):
    run = make({("pkd", 1): [0.5, 0.6]})[0]
    lent = TrafficRecord(up=3_000_000, down=4_500_000)  # with experts, which no round of the main model sends
    taught = replace(run, summary=replace(run.summary, traffic=lent))
    assert shown(tabulate([taught]), "traffic") == {"pkd": ("7.5", "")}


def test_a_run_under_way_has_sent_what_its_rounds_have(make, write_run):
    going = make({("a", 1): [0.5]})[0]
    (going.path / "summary.json").unlink()
    (going.path / "rounds.jsonl").write_text(
        (going.path / "rounds.jsonl").read_text().replace('"up": 6000', '"up": 3400000')
    )
    table = tabulate(read_runs([going.path]))
    assert shown(table, "traffic") == {"a": ("3.4", "")}
    assert shown(table, "cost") == {"a": ("—", "")}
    with pytest.raises(UserError, match="no tested round yet"):
        tabulate(read_runs([write_run("begun", done=0)]))


def test_runs_that_chose_a_round_tell_that_one(make):
    runs = make({("a", 1): [0.5, 0.8, 0.6], ("b", 1): [0.4, 0.7, 0.9]}, validation=2)
    table = tabulate(runs)
    assert [column.name for column in table.columns[:2]] == ["best_by_validation", "last"]
    assert [row.cells[0].text for row in table.rows] == ["80.0", "70.0"]
    assert [row.cells[1].text for row in table.rows] == ["60.0", "90.0"]
    for row, run in zip(table.rows, runs, strict=True):
        assert row.cells[4].text == f"{100 * run.rounds[1].min_class:.1f}"  # of the chosen round
    assert "\n| method | best by validation | last | best by test |" in to_markdown(table)
    assert to_csv(table).startswith("method,best_by_validation_mean,")


def test_markdown_marks_what_is_best_and_what_differs(make):
    named = {("b|c" if name == "fedvls" else name, seed): each for (name, seed), each in THREE.items()}
    lines = to_markdown(tabulate(make(named))).splitlines()
    assert lines[0] == "fashion-mnist, dirichlet:0.05, 6 clients, mlp-small"
    assert lines[2].startswith("| method | last | best by test | mean last 3 | worst class |")
    assert lines[4].startswith("| fedavg | 52.0 ± 2.0 |")
    assert lines[5].startswith(r"| fedprox | 31.0 ± 1.7\* |")
    assert lines[6].startswith(r"| b\|c | **71.0 ± 1.0** |")
    assert len({line.replace(r"\|", "").count("|") for line in lines[2:7]}) == 1
    assert (
        r"- bold: better than every other method by paired t-tests at 5 %, fedavg included; \*: differs"
        in lines[8]
    )


def test_csv_is_for_programs(make):
    runs = make({("a", 1): [0.5, 0.4], ("a", 2): [0.5, 0.5], ('b,"c"', 1): [0.6, 0.6]})
    rows = list(csv.DictReader(io.StringIO(to_csv(tabulate(runs)))))
    assert [row["method"] for row in rows] == ["a", 'b,"c"']
    assert float(rows[0]["last_mean"]) == pytest.approx(0.45)
    assert float(rows[0]["last_std"]) == pytest.approx(np.std([0.4, 0.5], ddof=1))
    assert rows[0]["last_n"] == "2"
    assert float(rows[0]["traffic_mean"]) == 2 * 2 * 6000
    assert rows[1]["last_std"] == ""
    marked = next(csv.DictReader(io.StringIO(to_csv(tabulate(make(THREE, folder="three"))))))
    assert marked["note"].startswith("best: better than every other method")
    assert "; above, below: differs from fedavg" in marked["note"]
    assert "bold" not in marked["note"]
    assert "*" not in marked["note"]


def test_latex_marks_what_is_best_and_what_differs(make):
    named = {("a_b" if name == "fedvls" else name, seed): each for (name, seed), each in THREE.items()}
    lines = to_latex(tabulate(make(named))).splitlines()
    body = lines[lines.index(r"\midrule") + 1 :]
    assert body[0].startswith(r"fedavg & 52.0 $\pm$ 2.0 & ")
    assert body[1].startswith(r"fedprox & 31.0 $\pm$ 1.7* & ")
    assert body[2].startswith(r"a\_b & \textbf{71.0 $\pm$ 1.0} & ")
    assert body[3:5] == [r"\bottomrule", r"\end{tabular}"]
    assert body[5].startswith(
        r"\par\smallskip{\footnotesize fashion-mnist, dirichlet:0.05, 6 clients, mlp-small. Bold: better than"
    )
    assert lines[0:2] == [r"\begin{tabular}{l" + "r" * len(COLUMNS) + "}", r"\toprule"]
    assert all(line.count(" & ") == len(COLUMNS) for line in body[:3])


NASTY = r"""\input{x} $x$ & # % _ { } ~ ^ < > | " ' ` -- --- é ß € 日本 """ + "a\nb\x00\x1b \\\\"


@given(st.text(max_size=40))
def test_escaped_text_breaks_no_cell(text):
    markdown, latex = escape_markdown(text), escape_latex(text)
    for escaped in (markdown, latex):
        assert "\n" not in escaped
        assert "\r" not in escaped
    unescaped = markdown.replace("\\\\", "").replace(r"\|", "")
    assert "|" not in unescaped
    assert "<" not in unescaped.replace(r"\<", "")
    assert all(31 < ord(each) < 256 for each in latex)
    with contextlib.suppress(ValueError):
        assume(not math.isfinite(float(text)))
    assert not escape_csv(text).startswith(("=", "+", "-", "@"))


def test_latex_of_every_special_character():
    assert escape_latex(r"a\b{c}$d&e#f%g_h~i^j") == (
        r"a\textbackslash{}b\{c\}\$d\&e\#f\%g\_h\textasciitilde{}i\textasciicircum{}j"
    )
    assert escape_latex("a--b---c") == "a-{}-b-{}-{}-c"
    assert escape_latex("café 日") == "café ?"


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="pdflatex is not installed")
def test_latex_compiles(make, tmp_path):
    accuracies = {("fedavg", 1): [0.5, 0.6], (NASTY.replace("\x00", ""), 1): [0.6, 0.7]}
    letters = "".join(map(chr, range(32, 256)))
    table = to_latex(tabulate(make(accuracies)))
    document = "\n".join(
        [
            r"\documentclass{article}\usepackage[landscape]{geometry}\usepackage{booktabs}\begin{document}\tiny",
            table,
            escape_latex(letters),
            r"\end{document}",
        ]
    )
    (tmp_path / "t.tex").write_text(document, encoding="utf-8")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-1500:]
    assert (tmp_path / "t.pdf").exists()


def test_the_command_prints_and_writes_all_formats(unskew, write_run, tmp_path):
    for seed in (1, 2):
        write_run(f"runs/a{seed}", method="fedavg", seed=seed)
        write_run(f"runs/b{seed}", method="fedprox", options={"mu": 0.5}, seed=seed)
    outs = [part for ending in ("md", "csv", "tex") for part in ("--out", f"out/table.{ending}")]
    answer = unskew("table", "runs", *outs, "--target", "60")
    assert answer.code == 0, answer.err
    assert "fashion-mnist, dirichlet:0.05, 6 clients, mlp-small" in answer.out
    assert "fedprox:mu=0.5" in answer.out
    assert "accuracy of 60 %" in answer.out
    runs = read_runs([tmp_path / "runs"])
    last = np.mean([run.summary.accuracy.last for run in runs if run.label == "fedavg"])
    line = next(line for line in answer.out.splitlines() if line.startswith("fedavg "))
    assert line.split()[1] == f"{100 * last:.1f}"
    for ending in ("md", "csv", "tex"):
        assert f"written: out/table.{ending}" in answer.out
        assert "fedprox:mu=0.5" in (tmp_path / "out" / f"table.{ending}").read_text()
    assert "is there already" in unskew("table", "runs", *outs).err
    assert "there is no run folder gone" in unskew("table", "gone", *outs).err
    assert unskew("table", "runs", *outs, "--overwrite").code == 0


def test_the_table_of_a_real_comparison_agrees_with_it(unskew, tmp_path):
    brief = ["--rounds", "2", "--epochs", "1", "--clients", "3", "--quiet", "--out", "cmp"]
    compared = unskew("compare", "fedavg", "fedprox:mu=0.1", "--seeds", "1,2", *brief)
    assert compared.code == 0
    answer = unskew("table", "cmp")
    assert answer.code == 0, answer.err
    whole = json.loads((tmp_path / "cmp" / "compare.json").read_text())
    for method in ("fedavg", "fedprox:mu=0.1"):
        told = whole["methods"][method]["accuracy"]["last"]
        line = next(line for line in answer.out.splitlines() if line.startswith(f"{method} "))
        assert line.split()[1:4] == [f"{100 * told['mean']:.1f}", "±", f"{100 * told['std']:.1f}"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "RUN is missing"),
        (["gone"], "there is no run folder gone"),
        (["run", "--out", "a.xls"], "cannot write a table to 'a.xls': end its name in .md, .csv or .tex."),
        (["run", "--target", "0"], "--target is 0 but should be a percentage above 0 and up to 100."),
        (["run", "--target", "x"], "--target is x but should be a percentage"),
        (["run", "--metric", "loss"], "of loss less is better"),
        (["run", "--metric", "worse"], "unknown metric 'worse': did you mean 'worst'?"),
        (["run", "--measures", "zzz"], "loss, macro-f1, majority, mean_last_10, minority, out-local, "),
        (["run", "--measures", "lats"], "unknown measure of a table 'lats': did you mean 'last'?"),
        (
            ["run", "--rows", "methods"],
            "unknown rows or columns of a table 'methods': did you mean 'method'?",
        ),
        (["run", "--columns", "method"], "--rows and --columns are both method: choose two different ones."),
        (["run", "--reference", "fedvag"], "unknown method among the runs 'fedvag': did you mean 'fedavg'?"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(unskew, write_run, arguments, says):
    write_run("run")
    answer = unskew("table", *arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert says in answer.err
    assert answer.err.count("\n") == 1
