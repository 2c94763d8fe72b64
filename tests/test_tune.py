"""Hyperparameters are searched on validation data, and a search that was stopped ends as if it was not."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib

import pytest

from unskew import Trial, UserError, compare
from unskew.runs import RunFolder
from unskew.tune.search import Search, Searched, TrialLine, best, choose
from unskew.tune.space import parse_over

pytest.importorskip("optuna")

BRIEF = (
    "--clients", "3", "--rounds", "2", "--epochs", "1", "--model", "logistic", "--engine", "loop", "--quiet",
)  # fmt: skip
FEDPROX = {"name": "fedprox"}


def search_of(*over: str, sampler: str = "tpe", at_once: int = 1, stop: str = "none") -> Search:
    return Search([Searched("fedprox", list(over), FEDPROX)], 20, [1], sampler, at_once, {"stop": stop})


def done(scores: list[float | None], values: list[dict]) -> list[TrialLine]:
    return [
        TrialLine("fedprox", number, each, score, [score], [""])
        for number, (score, each) in enumerate(zip(scores, values, strict=True))
    ]


def test_winners_are_chosen_on_validation_and_can_be_run(unskew, tmp_path):
    answer = unskew(
        "tune", "--over", "budget.lr=0.001..0.5:log", "fedprox", "--over", "mu=0.01|1", "fedavg",
        "--trials", "3", *BRIEF, "--seeds", "1,2", "--out", "out", "--json",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    result = json.loads(answer.out)
    assert result == json.loads((tmp_path / "out/tune.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "out/trials.jsonl").read_text().splitlines()]
    assert [(line["method"], line["number"]) for line in lines] == [
        (method, number) for number in range(3) for method in ("fedprox", "fedavg")
    ]
    assert lines[0]["values"] == {"budget.lr": 0.01, "method.mu": 0.01}  # as without a search
    for line in lines:
        summaries = [
            json.loads((tmp_path / "out" / each / "summary.json").read_text()) for each in line["folders"]
        ]
        assert line["by_seed"] == [summary["validation"]["value"] for summary in summaries]
        assert line["score"] == pytest.approx(sum(line["by_seed"]) / 2)
    assert [(each["method"], each["trial"]) for each in result["all"]] == [
        (method, trial) for method in ("fedprox", "fedavg") for trial in (1, 2, 3)
    ]
    for winner in result["winners"]:
        (there,) = (
            each
            for each in result["all"]
            if (each["method"], each["trial"]) == (winner["method"], winner["trial"])
        )
        assert there["score"] == winner["score"]
        own = [line for line in lines if line["method"] == winner["method"]]
        assert winner["score"] == max(line["score"] for line in own)
        settings = tomllib.loads((tmp_path / winner["experiment"]).read_text())
        assert settings["budget"]["lr"] == winner["values"]["budget.lr"]
    assert unskew("figure", "search", "out", "--over", "lr", "--out", "search.svg").code == 0
    drawn = (tmp_path / "search.svg").read_text()
    assert all(f">{text}<" in drawn for text in ("lr", "fedavg", "fedprox", "accuracy on validation (%)"))
    files = [winner["experiment"] for winner in result["winners"]]
    again = unskew("compare", *files, "--seeds", "3,4", "--quiet", "--json")
    assert again.code == 0, again.err
    found = json.loads(again.out)
    assert list(found["methods"]) == ["fedprox", "fedavg"]
    assert {(run["method"], run["seed"]) for run in found["runs"]} == {
        (method, seed) for method in ("fedprox", "fedavg") for seed in (3, 4)
    }


def test_a_killed_search_goes_on_as_if_it_had_not_been(unskew, tmp_path):
    command = ["tune", "fedprox", "--over", "mu=0.001..1:log", "--trials", "4", "--at-once", "2", *BRIEF]
    assert unskew(*command, "--out", "whole").code == 0
    started = subprocess.Popen(
        [sys.executable, "-m", "unskew", *command, "--out", "killed"], cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    while started.poll() is None and not (tmp_path / "killed/fedprox/trial-002-seed1/rounds.jsonl").exists():
        time.sleep(0.005)
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    assert not (tmp_path / "killed/tune.json").exists()
    answer = unskew("resume", "killed", "--quiet")
    assert answer.code == 0, answer.err
    trials = [(tmp_path / each / "trials.jsonl").read_bytes() for each in ("whole", "killed")]
    assert trials[0] == trials[1]
    # and with more trials
    more = unskew(*command[:4], "--trials", "5", "--at-once", "2", *BRIEF, "--out", "whole")
    assert more.code == 0, more.err
    assert (tmp_path / "whole/trials.jsonl").read_bytes().startswith(trials[0])
    assert len((tmp_path / "whole/trials.jsonl").read_bytes().splitlines()) == 5
    other = unskew("tune", "fedprox", "--over", "mu=0.1..1", "--trials", "5", *BRIEF, "--out", "whole")
    assert other.code == 2
    assert "holds another search (methods, at_once differ)" in other.err
    refused = unskew(*command[:4], "--trials", "9", "--at-once", "2", *BRIEF, "--lr", "1", "--out", "whole")
    assert refused.code == 2
    assert json.loads((tmp_path / "whole/search.json").read_text())["trials"] == 5  # as it was


@pytest.mark.parametrize("older", [False, True])
def test_a_search_that_goes_on_where_another_precision_is_the_default_keeps_its_own(
    older, unskew, tmp_path, monkeypatch
):
    """Resume a search, also an older one whose file has no precision."""
    command = ["tune", "fedprox", "--over", "mu=0.001..1:log", "--trials", "2", "--at-once", "1", *BRIEF]
    assert unskew(*command, "--out", "here").code == 0
    search = json.loads((tmp_path / "here/search.json").read_text())
    assert search["experiment"]["precision"] == "fp32"
    if older:
        del search["experiment"]["precision"]
    (tmp_path / "here/search.json").write_text(json.dumps(search | {"trials": 3}))
    (tmp_path / "here/tune.json").unlink()
    there = lambda trial: "bf16" if trial.precision == "auto" else trial.precision  # noqa: E731
    monkeypatch.setattr(Trial, "pick_precision", there)
    assert unskew("resume", "here", "--quiet").code == 0
    files = sorted((tmp_path / "here/fedprox").glob("*/experiment.toml"))
    assert [tomllib.loads(file.read_text())["precision"] for file in files] == ["fp32"] * 3


def test_a_trial_that_fails_does_not_stop_the_search(unskew, tmp_path):
    (tmp_path / "fragile.py").write_text(
        "from unskew import Method\n\n\n"
        "def fragile(width: int = 1) -> Method:\n"
        "    def term(view):\n"
        "        if width == 2:\n"
        "            raise ValueError('two is too wide')\n"
        "        return 0 * view.out.logits.sum()\n\n"
        "    return Method(terms=(term,))\n"
    )
    flags = ["--sampler", "grid", *BRIEF]
    answer = unskew("tune", "fragile.py", "--over", "width=1|2|3", *flags, "--out", "out")
    assert answer.code == 0, answer.err
    assert "3 of 3" not in answer.out
    lines = [json.loads(line) for line in (tmp_path / "out/trials.jsonl").read_text().splitlines()]
    assert [line["values"]["method.width"] for line in lines] == [1, 2, 3]
    assert [line["score"] is None for line in lines] == [False, True, False]
    assert "two is too wide" in lines[1]["errors"][0]
    all_failed = unskew("tune", "fragile.py", "--over", "width=2", *flags, "--out", "none")
    assert all_failed.code == 2
    assert "no trial of fragile.py has a score" in all_failed.err
    code = (tmp_path / "fragile.py").read_text()
    (tmp_path / "fragile.py").write_text(code.replace("width == 2", "width == 99"))  # fixed
    again = unskew("resume", "out", "--method", "fragile.py", "--quiet")
    assert again.code == 0, again.err
    lines = [json.loads(line) for line in (tmp_path / "out/trials.jsonl").read_text().splitlines()]
    assert all(line["score"] is not None and not line["errors"] for line in lines)
    assert "note: fragile.py was edited during the search: its trials are of several versions" in again.err
    file = "out/best/fragile.py.toml"
    assert "whose code would run" in unskew("compare", file, "--quiet").err
    (tmp_path / "fragile.py").write_text(code)  # as the best trial was run
    assert unskew("compare", file, "--method", "fragile.py", "--quiet").code == 0


def test_a_search_that_was_asked_to_stop_stops_even_where_the_trial_fails(unskew, tmp_path, monkeypatch):
    def append(folder, round):
        os.kill(os.getpid(), signal.SIGTERM)
        raise UserError("no more.")

    command = ["tune", "fedprox", "--over", "mu=0.1|1", "--sampler", "grid", *BRIEF, "--out", "out"]
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append", append)
        answer = unskew(*command)
    assert (answer.code, answer.err) == (130, "unskew: stopped; resume with: unskew resume out\n")
    assert [path.name for path in (tmp_path / "out/fedprox").iterdir()] == ["trial-000-seed1"]
    assert unskew("resume", "out", "--quiet").code == 0
    assert len((tmp_path / "out/trials.jsonl").read_text().splitlines()) == 2


def test_a_search_goes_on_only_with_the_data_that_validated_before(unskew, tmp_path):
    def write(name: str, numbers: range) -> None:
        rows = [f"{n},{n % 3},{'ab'[n % 2]}" for n in numbers]
        (tmp_path / name).write_text("\n".join(["x,y,kind", *rows]))

    write("train.csv", range(40))
    write("validation.csv", range(40, 60))
    command = ["tune", "fedprox", "--over", "mu=0.1..1", "--dataset", "csv:train.csv,label=kind", *BRIEF]
    command += ["--skew", "iid", "--validation", "csv:validation.csv,label=kind", "--out", "out"]
    assert unskew(*command, "--trials", "1").code == 0
    write("validation.csv", range(40, 50))
    answer = unskew(*command, "--trials", "2")
    assert answer.code == 2
    assert "holds another search (data_sha256 differ" in answer.err


def test_a_search_without_a_finite_score_says_so(unskew, tmp_path):
    command = ["tune", "fedavg", "--over", "budget.lr=1e20..1e20", "--stop", "metric=loss", "--trials", "1"]
    brief = [*BRIEF, "--model", "mlp-small", "--batch-size", "5000"]
    answer = unskew(*command, *brief, "--out", "out")
    assert answer.code == 2
    assert "no trial of fedavg has a score" in answer.err
    assert "unskew compare" not in answer.out


def test_experiment_files_are_compared_under_the_same_conditions_alone(unskew, tmp_path):
    flags = [*BRIEF, "--json"]
    assert unskew("run", *flags, "--out", "one").code == 0
    assert unskew("run", *flags, "--clients", "4", "--lr", "0.5", "--out", "other").code == 0
    (tmp_path / "one.toml").write_text((tmp_path / "one/experiment.toml").read_text())
    (tmp_path / "other.toml").write_text((tmp_path / "other/experiment.toml").read_text())
    answer = unskew("compare", "one.toml", "other.toml", "--out", "out")
    assert answer.code == 2
    assert (
        "would be compared under other conditions (skew.clients is 4 for other.toml and 3 for one.toml)"
        in answer.err
    )
    assert unskew("compare", "one.toml", "other.toml", "--clients", "3", "--quiet", "--out", "out").code == 0
    assert "keep one" in unskew("compare", "one.toml", "--experiment", "other.toml").err


def test_what_was_chosen_for_each_method_is_said_with_the_comparison(unskew, tmp_path):
    for name, rate in (("fedavg", "0.5"), ("fedprox", "0.1")):
        flags = [*BRIEF, "--lr", rate, "--model", "mlp-small", "--set", "model.norm=group", "--json"]
        assert unskew("run", "--method", name, *flags, "--out", name).code == 0
        (tmp_path / f"{name}.toml").write_text((tmp_path / name / "experiment.toml").read_text())
    answer = unskew("compare", "fedavg.toml", "fedprox.toml", "--out", "out")
    note = "budget.lr was chosen for each method: 0.5 for fedavg, 0.1 for fedprox."
    for text in (answer.out, unskew("table", "out").out):
        assert note in " ".join(text.split())
    assert note in compare(tmp_path / "out").answers[0].notes
    assert note in json.loads((tmp_path / "out/compare.json").read_text())["answer"]["notes"]
    assert "mlp-small, norm group, " in answer.out


def test_the_first_trial_is_what_runs_without_a_search(unskew, tmp_path):
    command = ["tune", "fedavg", "--over", "budget.lr=0.01..1:log", "--lr", "0.2", "--trials", "1", *BRIEF]
    assert unskew(*command, "--out", "out").code == 0
    line = json.loads((tmp_path / "out/trials.jsonl").read_text())
    assert line["values"] == {"budget.lr": 0.2}
    assert "seed" not in tomllib.loads((tmp_path / "out/best/fedavg.toml").read_text())["skew"]


@pytest.mark.parametrize(
    ("rates", "edge"),
    [("1e-6|1e-5|0.05", True), ("1e-6|0.05|1e-5", True), ("1e-6|0.05|1000", False), ("1e-6|0.05", True)],
)
def test_a_best_value_at_the_edge_of_what_was_tried_is_named(unskew, tmp_path, rates, edge):
    answer = unskew("tune", "fedavg", "--over", f"budget.lr={rates}", "--sampler", "grid", *BRIEF, "--json")
    assert answer.code == 0, answer.err
    result = json.loads(answer.out)
    (winner,) = result["winners"]
    assert winner["values"] == {"budget.lr": 0.05}
    assert winner["at_edge"] == ["budget.lr"] * edge
    note = "best at the edge of what was tried, so try values beyond it: budget.lr of fedavg."
    assert result["notes"] == [note] * edge


@pytest.mark.parametrize("metric", ["macro-f1", "loss"])
def test_scores_are_shown_as_everywhere_else(unskew, tmp_path, metric):
    over = ["--over", "budget.lr=0.01|0.1", "--sampler", "grid", "--stop", f"metric={metric}"]
    shown = unskew("tune", "fedavg", *over, *BRIEF, "--out", "out").out
    (winner,) = json.loads((tmp_path / "out/tune.json").read_text())["winners"]
    scores = [winner["score"], winner["default_score"]]
    head, row = (line.split() for line in shown.splitlines()[2:4])
    if metric == "loss":
        assert head[:3] == ["method", "loss", "untuned"]
        assert row[1:3] == [f"{score:.4f}" for score in scores]
    else:
        assert head[:4] == ["method", "macro-f1", "%", "untuned"]
        assert row[1:3] == [f"{100 * score:.1f}" for score in scores]


def test_methods_at_the_edge_of_the_same_setting_are_named_together(unskew):
    rates = ["--over", "budget.lr=1e-6|1e-5|0.05"]
    answer = unskew("tune", *rates, "fedavg", "uniform", "--sampler", "grid", *BRIEF, "--json")
    (note,) = json.loads(answer.out)["notes"]
    assert note.endswith("beyond it: budget.lr of fedavg and uniform.")


def test_values_follow_from_the_trials_before_alone():
    over = [parse_over("mu=0.001..1:log", FEDPROX)]
    search = search_of("mu=0.001..1:log")
    values: list[dict] = []
    for _ in range(15):
        lines = done([-abs(each["method.mu"] - 0.3) for each in values], values)
        first, again = (list(choose(search, over, lines, 1)) for _ in range(2))
        assert first == again
        values += first
    assert values[0] == {"method.mu": 0.01}
    assert all(0.001 <= each["method.mu"] <= 1 for each in values)
    assert len({each["method.mu"] for each in values}) == 15
    # it has learnt where to look
    assert sum(0.1 < each["method.mu"] < 0.9 for each in values[10:]) >= 4


def test_of_loss_the_least_wins_and_failed_trials_never_do():
    values = [{"method.mu": each} for each in (0.1, 0.2, 0.3)]
    lines = done([2.0, 1.0, None], values)
    assert best(search_of(stop="metric=loss"), lines) is lines[1]
    assert best(search_of(), lines) is lines[0]
    assert best(search_of(), lines[2:]) is None
    over = [parse_over("mu=0.001..1:log", FEDPROX)]
    assert len(list(choose(search_of(), over, lines, 3))) == 3


@pytest.mark.parametrize(
    ("text", "setting", "ends"),
    [
        ("mu=0..1", "method.mu", (0.0, 1.0)),
        ("mu=0.1|1", "method.mu", (0.1, 1)),
        ("budget.batch_size=16..64:log", "budget.batch_size", (16, 64)),
        ("budget.lr=1e-3..1e-1:log", "budget.lr", (0.001, 0.1)),
    ],
)
def test_ranges(text, setting, ends):
    over = parse_over(text, FEDPROX)
    assert (over.setting, over.ends()) == (setting, ends)
    assert all(type(one) is type(other) for one, other in zip(over.ends(), ends, strict=True))


def test_a_part_of_a_method_is_searched():
    method = {"name": "fedlmd+ema", "ema": {"decay": 0.9}}
    assert parse_over("ema.decay=0.5..0.99", method).setting == "method.ema.decay"
    found = parse_over("decay=0.5..0.99", method)
    assert (found.setting, found.default) == ("method.ema.decay", 0.9)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mu", "should be such as mu=0.001..1:log"),
        ("mu=1..0", "goes downwards: write mu=0..1"),
        ("mu=0..1:log", "begins at 0, which has no logarithm"),
        ("mu=0.1..1:exp", "write :log, or nothing"),
        ("mu=a..b", "'a' is not a number"),
        ("mu=0.1..inf", "'inf' is not a number"),
        ("mu=1|1", "names a value twice"),
        ("mu=1||2", "cannot be tried"),
        ("nu=0.1..1", "unknown hyperparameter of fedprox 'nu'"),
        ("lr=0.1..1", "lr is no hyperparameter of the method but a setting: write budget.lr"),
        ("budget.batch_size=1.5..3", "write whole numbers"),
        ("budget.rounds=1..3", "budget.rounds cannot be searched: every method gets the same rounds"),
        ("budget.lrr=1..3", "unknown setting of budget 'lrr'"),
        ("skew.seed=1..3", "skew.seed cannot be searched: it changes what is compared"),
        ("budget.lr=1..x", "'x' is not a number"),
    ],
)
def test_ranges_that_make_no_sense(text, said):
    with pytest.raises(UserError) as raised:
        parse_over(text, FEDPROX)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fedprx", "--over", "mu=0.1..1"], "unknown method 'fedprx': did you mean 'fedprox'?"),
        (["fedprox", "fedprx", "--over", "mu=0.1..1"], "fedprox has nothing to search"),
        (
            ["fedavg", "--over", "budget.lr=0.1..1", "fedprx"],
            "unknown method 'fedprx': did you mean 'fedprox'?",
        ),
        (
            ["fedavg", "--over", "budget.lr=0.1", "0.2", "1e-3", "fedprox", "--over", "mu=1|2"],
            "unknown method '0.2': several values of one --over are separated by bars, as in --over "
            "'budget.lr=0.1|0.2|1e-3'.",
        ),
        (["0.2", "--over", "budget.lr=0.1|0.2"], "unknown method '0.2': choose one of"),
        (["fedprox"], "fedprox has nothing to search: write --over behind it"),
        (["fedprox", "--over", "mu=0.1..1", "--over", "mu=1|2"], "mu is searched twice"),
        (["fedprox", "--over", "mu=-1..1"], "mu"),
        (["fedprox", "--over", "mu=0.1..1", "--sampler", "best"], "unknown sampler 'best'"),
        (["fedprox", "--over", "mu=0.1..1", "--sampler", "grid"], "needs values for mu"),
        (["fedprox", "--over", "mu=1|2", "--sampler", "grid", "--trials", "3"], "leave out --trials"),
        (["fedprox", "--over", "mu=0.1..1", "--validation", "none"], "a search needs validation data"),
        (["fedprox", "fedprox", "--over", "mu=0.1..1"], "a method is named twice"),
        (["fedprox", "--over", "mu=0.1..1", "--set", "method.mu=7"], "does not say for which method"),
        (
            ["fedprox", "--over", "mu=0.1..1", "--trials", "0"],
            "--trials is '0' but should be a whole number, at least 1",
        ),
        (["fedprox", "--over", "mu=0.1..1", "--trials", "ten"], "--trials is 'ten' but should be a whole"),
        (["fedprox", "--over", "mu=0.1..1", "--at-once", "1.5"], "--at-once is '1.5' but should be a whole"),
    ],
)
def test_mistakes_are_known_before_anything_is_written(unskew, tmp_path, words, said):
    answer = unskew("tune", *words, *BRIEF, "--out", "out")
    assert answer.code == 2
    assert said in answer.err
    assert answer.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_what_stands_behind_two_dashes_is_a_method(unskew):
    answer = unskew("tune", "fedprox", "--over", "mu=1|2", "--", "--over")
    assert answer.code == 2
    assert "unknown method '--over'" in answer.err


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ("mu=0.1..1", "fedavg has no hyperparameters: search settings such as budget.lr for it."),
        ("budget.lr", "--over is 'budget.lr' but should be such as mu=0.001..1:log or beta=1|2|3."),
        (
            "budget.lr=0.1..1",
            "--sampler tpe needs Optuna: pip install 'unskew[tune]', or use --sampler grid.",
        ),
    ],
)
def test_optuna_is_asked_for_when_all_else_is_right(unskew, monkeypatch, over, said):
    monkeypatch.setattr("unskew.tune.folder.importlib.util.find_spec", lambda name: None)
    assert unskew("tune", "fedavg", "--over", over, *BRIEF).err == f"unskew: {said}\n"
