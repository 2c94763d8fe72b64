"""Tables: what stands in a cell, what is marked, and what three formats make of any text."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unskew.errors import UserError
from unskew.record import Traffic
from unskew.report.read import read_runs
from unskew.report.table import (
    COLUMNS,
    Comparison,
    escape_csv,
    escape_latex,
    escape_markdown,
    tabulate,
    to_csv,
    to_latex,
    to_markdown,
)

PLACE = {column.name: index for index, column in enumerate(COLUMNS)}


@pytest.fixture
def make(write_run):
    """Runs whose accuracies are given: {(method, seed): accuracy of every round}."""

    def runs(accuracies: dict[tuple[str, int], list[float]], **settings):
        paths = []
        for (method, seed), values in accuracies.items():
            path = write_run(f"{len(paths)}", method=method, seed=seed, rounds=len(values), **settings)
            rounds = path / "rounds.jsonl"
            lines = [json.loads(line) for line in rounds.read_text().splitlines()]
            for line, value in zip(lines, values, strict=True):
                line["accuracy"] = value
            rounds.write_text("".join(json.dumps(line) + "\n" for line in lines))
            paths.append(path)
        return read_runs(paths)

    return runs


def shown(table: Comparison, column: str) -> dict[str, tuple[str, str]]:
    """Of every method, the text and the rank."""
    cells = {row.method: row.cells[PLACE[column]] for row in table.rows}
    return {method: (cell.text, cell.rank) for method, cell in cells.items()}


def test_means_and_deviations_over_seeds_best_and_second(make):
    table = tabulate(
        make(
            {
                ("fedavg", 1): [0.4, 0.6, 0.5],
                ("fedavg", 2): [0.4, 0.5, 0.54],
                ("fedprox", 1): [0.1, 0.2, 0.3],
                ("fedprox", 2): [0.1, 0.2, 0.3],
                ("fedvls", 1): [0.6, 0.65, 0.7],
                ("fedvls", 2): [0.5, 0.6, 0.7],
            }
        )
    )
    assert shown(table, "last") == {
        "fedavg": ("52.0 ± 2.8", "second"),
        "fedprox": ("30.0 ± 0.0", ""),
        "fedvls": ("70.0 ± 0.0", "first"),
    }
    assert shown(table, "best_by_test")["fedavg"] == ("57.0 ± 4.2", "second")
    assert shown(table, "mean_last_10")["fedvls"] == ("62.5 ± 3.5", "first")
    # fedavg's best is 0.6 on seed 1, reached in round 2, and 0.54 on seed 2, in round 3; fedvls reaches them
    # in rounds 1 and 2, fedprox never.
    assert shown(table, "rounds_to_target") == {
        "fedavg": ("2.5 ± 0.7", "second"),
        "fedprox": ("—", ""),
        "fedvls": ("1.5 ± 0.7", "first"),
    }
    assert shown(table, "speed_up") == {
        "fedavg": ("1.00", "second"),
        "fedprox": ("—", ""),
        "fedvls": ("1.75 ± 0.35", "first"),
    }
    assert shown(table, "traffic")["fedavg"] == ("0.0", "")  # 36,000 bytes for all: nobody is best
    assert shown(table, "cost")["fedavg"] == ("3.0", "")


def test_the_other_columns_are_of_the_last_round(make):
    (run,) = make({("fedavg", 1): [0.1, 0.2, 0.3]})
    table = tabulate([run])
    last = run.rounds[-1]
    assert shown(table, "worst_class")["fedavg"] == (f"{100 * min(last.class_accuracy):.1f}", "")
    for group in ("majority", "minority", "vacant"):
        assert shown(table, group)["fedavg"] == (f"{100 * getattr(last.groups, group):.1f}", "")


def test_ties_as_they_are_printed_share_a_rank(make):
    last = {"a": 0.5, "b": 0.70004, "c": 0.69996, "d": 0.6, "e": 0.60001, "f": 0.1}
    table = tabulate(make({(method, 1): [value] for method, value in last.items()}))
    ranks = {method: rank for method, (_, rank) in shown(table, "last").items()}
    assert ranks == {"a": "", "b": "first", "c": "first", "d": "second", "e": "second", "f": ""}


def test_a_target_that_only_some_seeds_reach_is_no_mean(make):
    table = tabulate(
        make({("a", 1): [0.5], ("a", 2): [0.6], ("b", 1): [0.55], ("b", 2): [0.55]}), target=0.58
    )
    assert shown(table, "rounds_to_target") == {"a": ("— (1 of 2)", ""), "b": ("—", "")}
    fields = next(csv.DictReader(io.StringIO(to_csv(table))))
    assert (fields["rounds_to_target_mean"], fields["rounds_to_target_n"]) == ("", "1")
    assert "accuracy of 58 %" in table.notes[-1]


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
    (note, _) = tabulate(runs).notes
    assert note == "the methods have different seeds: a 1, 2; b 1."
    begun = write_run("begun", method="c", seed=1, rounds=4, done=2, model__name="cnn")
    notes = tabulate([*runs[:1], *read_runs([begun])]).notes
    assert any(f"not finished: {begun}" in note for note in notes)
    assert any("different conditions" in note for note in notes)


def test_traffic_is_that_of_the_whole_run(make):
    run = make({("pkd", 1): [0.5, 0.6]})[0]
    lent = Traffic(up=3_000_000, down=4_500_000)  # with experts, which no round of the main model sends
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
    assert to_markdown(table).startswith("| method | best by validation | last | best by test |")
    assert to_csv(table).startswith("method,best_by_validation_mean,")


def test_markdown_marks_first_and_second(make):
    text = to_markdown(tabulate(make({("a", 1): [0.5], ("b|c", 1): [0.6], ("d", 1): [0.1]})))
    lines = text.splitlines()
    assert lines[0].startswith("| method | last | best by test | mean last 10 | worst class |")
    assert lines[2].startswith("| a | <u>50.0</u> |")
    assert lines[3].startswith(r"| b\|c | **60.0** |")
    assert lines[4].startswith("| d | 10.0 |")
    assert len({line.replace(r"\|", "").count("|") for line in lines[:5]}) == 1


def test_csv_is_for_programs(make):
    runs = make({("a", 1): [0.5, 0.4], ("a", 2): [0.5, 0.5], ('b,"c"', 1): [0.6, 0.6]})
    rows = list(csv.DictReader(io.StringIO(to_csv(tabulate(runs)))))
    assert [row["method"] for row in rows] == ["a", 'b,"c"']
    assert float(rows[0]["last_mean"]) == pytest.approx(0.45)
    assert float(rows[0]["last_std"]) == pytest.approx(np.std([0.4, 0.5], ddof=1))
    assert rows[0]["last_n"] == "2"
    assert float(rows[0]["traffic_mean"]) == 2 * 2 * 6000
    assert rows[1]["last_std"] == ""


def test_latex_marks_first_and_second(make):
    text = to_latex(tabulate(make({("a_b", 1): [0.5], ("c", 1): [0.6], ("a_b", 2): [0.5]})))
    lines = text.splitlines()
    body = lines[lines.index(r"\midrule") + 1 :]
    assert body[0].startswith(r"a\_b & \underline{50.0 $\pm$ 0.0} & ")
    assert body[1].startswith(r"c & \textbf{60.0} & ")
    assert body[2:] == [r"\bottomrule", r"\end{tabular}"]
    assert lines[-1 - len(body) - 2] == r"\toprule"
    assert all(line.count(" & ") == len(COLUMNS) for line in body[:2])


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
        ([], "RUNS is missing"),
        (["gone"], "there is no run folder gone"),
        (["run", "--out", "a.xls"], "cannot write a table to 'a.xls': end its name in .md, .csv or .tex."),
        (["run", "--target", "0"], "--target is 0 but should be a percentage above 0 and up to 100."),
        (["run", "--target", "x"], "--target is x but should be a percentage"),
        (["run", "--metric", "loss"], "of loss less is better"),
        (["run", "--metric", "worse"], "unknown metric 'worse': did you mean 'worst'?"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(unskew, write_run, arguments, says):
    write_run("run")
    answer = unskew("table", *arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert says in answer.err
    assert answer.err.count("\n") == 1
