"""Every number is the same in compare.json, in the terminal, in tables and on the page."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from scipy import stats

from unskew.comparison.statistics import answer_json
from unskew.labelled_runs import read
from unskew.report.answer import answer
from unskew.report.conditions import by_condition
from unskew.report.grouping import by_method
from unskew.report.page import page_data
from unskew.report.table import tabulate
from unskew.report.table_text import to_csv, to_latex, to_markdown

pytestmark = pytest.mark.usefixtures("no_workers")

TEN = ["fedavg", "fedprox", "fedlc", "fedntd", "fedlmd", "fedvls", "feddyn", "scaffold", "moon", "fedrs"]
MEASURES = {"last": "accuracy", "worst_class": "worst", "majority": "majority", "vacant": "vacant"}


def by_hand(paths, at: int | None):
    """Accuracies of a method's seeds, read from the files: of one round, or of the last."""
    values: dict[str, list[float]] = {name: [] for name in MEASURES}
    for path in paths:
        lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
        line = next((line for line in lines if line["round"] == at), lines[-1])
        groups = line["groups"]
        for name, value in zip(
            MEASURES, (line["accuracy"], line["min_class"], groups["majority"], groups["vacant"]), strict=True
        ):
            values[name].append(value)
    return values


def shown(values: list[float]) -> str:
    mean = f"{100 * np.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {100 * np.std(values, ddof=1):.1f}"


CASES = {
    "one seed": {"methods": TEN[:3], "seeds": (1,)},
    "two seeds": {"methods": TEN[:2], "seeds": (1, 2)},
    "ten methods": {"methods": TEN, "seeds": (1, 2, 3)},
    "unfinished": {"methods": TEN[:3], "seeds": (1, 2, 3), "done": {"fedprox": 5, "fedlc": 8}, "at": 5},
    "several conditions": {
        "methods": TEN[:3], "seeds": (1, 2, 3), "skews": ("dirichlet:0.05", "dirichlet:0.5", "shards:2"),
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_tables_the_page_and_the_answer_show_what_is_in_the_files(write_run, case):
    skews = case.get("skews", ("dirichlet:0.05",))
    paths = {}
    for skew in skews:
        for method in case["methods"]:
            done = case.get("done", {}).get(method)
            paths[skew, method] = [
                write_run(f"{skew}-{method}-{seed}", method=method, seed=seed, done=done, skew__recipe=skew)
                for seed in case["seeds"]
            ]
    runs = read([path for each in paths.values() for path in each])
    table, page = tabulate(runs), page_data(runs)
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    markdown, latex = to_markdown(table), to_latex(table)
    assert len(rows) == len(paths)
    assert len(page["blocks"]) == len(skews)
    for block, condition in zip(page["blocks"], by_condition(runs), strict=True):
        told = answer_json(answer(by_method(condition.runs)))
        skew = condition.runs[0].skew
        assert block["sentence"] == told["sentence"]
        for line in block["rows"]:
            method = line["name"]
            values = by_hand(paths[skew, method], case.get("at"))
            [row] = [row for row in rows if (row["method"], row.get("condition", skew)) == (method, skew)]
            cells = {head["key"]: cell for head, cell in zip(block["heads"], line["cells"], strict=False)}
            for name, measure in MEASURES.items():
                text = shown(values[name])
                assert float(row[f"{name}_mean"]) == pytest.approx(np.mean(values[name]))
                assert cells[name][0] in (text, f"{text}*")
                assert text in markdown
                marked = row[f"{name}_mark"] in ("above", "below")
                assert cells[name][0].endswith("*") == marked
                assert text.replace("±", r"$\pm$") in latex
                if method == "fedavg" or measure not in told["differences"][method]:
                    continue
                gap = np.subtract(values[name], by_hand(paths[skew, "fedavg"], case.get("at"))[name])
                found = told["differences"][method][measure]
                assert found["difference"] == pytest.approx(gap.mean())
                if len(gap) < 3:
                    assert (found["interval"], found["settled"]) == (None, False)
                    continue
                low, high = stats.t.interval(0.95, len(gap) - 1, gap.mean(), stats.sem(gap))
                assert found["interval"] == pytest.approx((max(low, -1), min(high, 1)))
                assert found["p"] == pytest.approx(stats.ttest_1samp(gap, 0).pvalue)
                if name == "last":
                    ends = f"{100 * found['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
                    assert line["against"][0].removesuffix("*") == ends.replace("-", "−")
            marked = {name for name, cell in cells.items() if name in MEASURES and cell[1]}
            assert marked == {name for name, measure in MEASURES.items() if told["best"][measure] == method}


def test_a_compare_with_a_tie_says_the_same_in_all_places(unskew, tmp_path):
    made = unskew(
        "compare", "fedavg", "fedprox:mu=0.0", "fedprox:mu=5", "--clients", "4", "--rounds", "3", "--epochs",
        "1", "--seeds", "1-3", "--out", "all", "--quiet",
    )  # fmt: skip
    assert made.code == 0, made.err
    whole = json.loads((tmp_path / "all" / "compare.json").read_text())
    runs = read([tmp_path / "all"])
    block = page_data(runs)["blocks"][0]
    assert list(whole["methods"]) == ["fedavg", "fedprox:mu=0", "fedprox:mu=5"]
    assert [row["name"] for row in block["rows"]] == list(whole["methods"])
    assert block["sentence"] == whole["answer"]["sentence"]
    terminal = {line.split("  ")[0]: line for line in made.out.splitlines()[::-1]}  # the first table wins
    table = unskew("table", "all").out.splitlines()
    for row in block["rows"]:
        last = whole["methods"][row["name"]]["accuracy"]["last"]
        text = f"{100 * last['mean']:.1f} ± {100 * last['std']:.1f}"
        assert row["cells"][0][0] == text
        assert text in terminal[row["name"]]
        assert any(line.startswith(row["name"]) and text in line for line in table)
    scores = whole["methods"]["fedavg"]["probabilities"]
    assert scores["auc"]["interval"][1] <= 1
    tie = whole["answer"]["differences"]["fedprox:mu=0"]["accuracy"]
    assert (tie["difference"], tie["settled"]) == (0, False)
    assert whole["answer"]["best"]["accuracy"] is None
    assert not any(best for row in block["rows"] for _, best, _ in row["cells"][:2])
