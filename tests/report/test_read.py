"""Run folders, read back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from unskew import record
from unskew.errors import UserError
from unskew.labelled_runs import read
from unskew.record import plain
from unskew.report.grouping import by_method
from unskew.report.read import read_run, read_runs

pytestmark = pytest.mark.usefixtures("no_workers")


def test_a_run_is_what_its_folder_holds(write_run):
    path = write_run(method="fedprox", options={"mu": 0.1}, seed=3, rounds=7, every=2, probe=3)
    run = read_run(path)
    assert (run.path, run.label, run.seed) == (path, "fedprox:mu=0.1", 3)
    assert run.classes[0] == "T-shirt"
    assert run.counts.shape == (6, 10)
    assert run.counts.dtype == np.int64
    assert (run.total_rounds, run.done, run.finished) == (7, 7, True)
    assert [line.round for line in run.tested] == [2, 4, 6, 7]
    assert [probe.round for probe in run.probes] == [3, 6, 7]
    assert plain(run.summary) == json.loads((path / "summary.json").read_text())
    assert run.conditions == "fashion-mnist, dirichlet:0.05, 6 clients, mlp-small"


def test_a_cohort_is_part_of_the_conditions(write_run):
    run = read_run(write_run(budget__cohort=2))
    assert run.conditions == "fashion-mnist, dirichlet:0.05, 6 clients, 2 per round, mlp-small"


def test_a_run_under_way_has_its_whole_lines_and_no_summary(write_run):
    path = write_run(rounds=9, done=4, probe=2)
    for name in ("rounds.jsonl", "probes.jsonl"):
        with (path / name).open("a") as file:
            file.write('{"round": 5, "seco')
    run = read_run(path)
    assert (run.done, run.total_rounds, run.finished, run.summary) == (4, 9, False, None)
    assert [line.round for line in run.rounds] == [1, 2, 3, 4]
    assert [probe.round for probe in run.probes] == [2, 4]


def test_a_run_just_begun_has_no_rounds(write_run):
    run = read_run(write_run(done=0))
    assert (run.rounds, run.tested, run.done) == ([], [], 0)


def test_what_was_nan_is_none(write_run):
    run = read_run(write_run(untested=[2]))
    assert run.tested[0].class_accuracy[2] is None
    assert run.summary.feature_distances[2][0] is None


def test_a_run_that_failed_is_over(write_run):
    path = write_run(rounds=9, done=4)
    failure = {
        "error": "ValueError: no",
        "notes": ["Client 3 failed in round 5, stage 'train'."],
        "traceback": "",
    }
    (path / "error.json").write_text(json.dumps(failure))
    run = read_run(path)
    assert (run.done, run.finished, run.over) == (4, False, True)
    assert run.failure.sentence == "ValueError: no. Client 3 failed in round 5, stage 'train'."


def test_parts_put_together_keep_their_own_hyperparameters(write_run):
    path = write_run(method="fedvls+fedexp", options={"fedvls": {"lam": 0.1}, "fedexp": {}})
    assert read_run(path).label == "fedvls:lam=0.1+fedexp"


def test_a_folder_of_runs_stands_for_them_in_the_order_of_the_comparison(write_run, tmp_path):
    for name, method, seed in (("b-seed1", "fedvls", 1), ("a-seed1", "fedavg", 1), ("a-seed2", "fedavg", 2)):
        write_run(f"cmp/{name}", method=method, seed=seed, rounds=2)
    order = ["b-seed1", "a-seed1", "a-seed2"]
    compare = {"methods": {}, "runs": [{"run_dir": f"elsewhere/{name}"} for name in order]}
    (tmp_path / "cmp" / "compare.json").write_text(json.dumps(compare))
    assert [run.path.name for run in read_runs([tmp_path / "cmp"])] == order
    (tmp_path / "cmp" / "compare.json").unlink()  # under way: by start, then by name
    assert [run.path.name for run in read_runs([tmp_path / "cmp"])] == ["a-seed1", "b-seed1", "a-seed2"]


def test_a_run_named_twice_counts_once(write_run, tmp_path):
    path = write_run("cmp/a", rounds=2)
    assert len(read_runs([path, tmp_path / "cmp", path])) == 1


def test_a_run_that_is_being_set_up_is_left_out_of_its_comparison(write_run, tmp_path):
    write_run("cmp/a", rounds=2)
    half = write_run("cmp/b", rounds=2)
    (half / "rounds.jsonl").unlink()
    assert [run.path.name for run in read_runs([tmp_path / "cmp"])] == ["a"]


def test_seeds_of_a_method_are_one_group_and_other_conditions_another(write_run):
    runs = [
        read_run(write_run("a", seed=1)),
        read_run(write_run("b", seed=2)),
        read_run(write_run("c", method="fedvls")),
        read_run(write_run("d", method="fedvls", skew__recipe="dirichlet:0.5", budget__lr=0.1)),
    ]
    groups = by_method(runs)
    assert {name: [run.path.name for run in members] for name, members in groups.items()} == {
        "fedavg": ["a", "b"],
        "fedvls (recipe=dirichlet:0.05, lr=0.01)": ["c"],
        "fedvls (recipe=dirichlet:0.5, lr=0.1)": ["d"],
    }


def test_hyperparameters_make_another_method(write_run):
    paths = [write_run(f"mu{mu}", method="fedprox", options={"mu": mu}) for mu in (0.1, 1.0)]
    assert list(by_method(read_runs(paths))) == ["fedprox:mu=0.1", "fedprox:mu=1"]


def test_the_same_seed_twice_is_told_apart_by_its_folder(write_run):
    runs = read_runs([write_run("one"), write_run("two")])
    assert list(by_method(runs)) == ["fedavg", "fedavg [two]"]


def test_where_a_run_ran_and_how_often_it_was_tested_make_no_difference(write_run):
    runs = read_runs([write_run("a", seed=1), write_run("b", seed=2, every=2, probe=4, data__folder="/x")])
    assert list(by_method(runs)) == ["fedavg"]


def test_the_commands_leave_out_defaults(unskew, tmp_path):
    brief = ["--rounds", "1", "--epochs", "1", "--clients", "3", "--quiet"]
    unskew("compare", "fedvls", "fedprox:mu=0.1", "fedvls+fedexp", *brief, "--out", "cmp")
    runs = read([tmp_path / "cmp"])
    assert [run.label for run in runs] == ["fedvls", "fedprox:mu=0.1", "fedvls+fedexp"]
    assert runs[0].conditions == "digits, dirichlet:0.1, 3 clients, mlp-small"
    assert read_runs([tmp_path / "cmp"])[0].label.startswith("fedvls:lam=0.1,")


def test_a_method_whose_file_is_gone_keeps_its_name(write_run):
    runs = read([write_run(method="/gone/mine.py", options={"alpha": 2}, skew__recipe="later:3")])
    assert runs[0].label == "mine.py:alpha=2"
    assert runs[0].skew == "later:3"


def test_what_is_ones_own_has_a_short_name_that_no_other_has(write_run):
    def of(name, method, data, skew, model):
        changes = {"data__name": data, "skew__recipe": skew, "model__name": model}
        return write_run(name, method=method, **changes)

    one = of("one", "/a/x/mine.py", "csv:/long/p.csv,label=y", "/s/cut.py:f,k=2", "/m/net.py:Net")
    two = of("two", "/b/x/mine.py", "csv:/other/p.csv,label=y", "/t/cut.py:f,k=2", "/n/net.py:Net")
    three = of("three", "fedavg", "csv:/long/p.csv,label=z+digits", "file:/s/part.json", "mlp-small")
    (alone,) = read([one])
    assert (alone.label, alone.conditions) == ("mine.py", "p.csv, cut.py:f,k=2, 6 clients, net.py:Net")
    names = [(run.label, run.data, run.skew, run.model) for run in read([one, two, three])]
    assert names == [
        ("a/x/mine.py", "long/p.csv", "s/cut.py:f,k=2", "m/net.py:Net"),
        ("b/x/mine.py", "other/p.csv", "t/cut.py:f,k=2", "n/net.py:Net"),
        ("fedavg", "long/p.csv+digits", "file:part.json", "mlp-small"),
    ]
    assert read([one])[0].experiment["data"]["name"] == "csv:/long/p.csv,label=y"


def test_one_file_read_in_two_ways_keeps_what_tells_them_apart(write_run):
    paths = [write_run(y, data__name=f"csv:/long/p.csv,label={y}") for y in ("sex", "age")]
    assert [run.data for run in read(paths)] == ["csv:p.csv,label=sex", "csv:p.csv,label=age"]


def test_a_method_of_ones_own_is_called_the_same_in_compare_and_table(unskew, tmp_path):
    (tmp_path / "deep").mkdir()
    mine = tmp_path / "deep" / "mine.py"
    mine.write_text(
        "from unskew import Method\n\n\ndef mine(*, alpha: float = 1.0, beta: int = 2) -> Method:\n"
        "    return Method()\n"
    )
    brief = ["--rounds", "1", "--epochs", "1", "--clients", "3", "--quiet"]
    answer = unskew("compare", "deep/mine.py:alpha=3.0", "fedprox:mu=1.0,", *brief, "--out", "bad")
    assert answer.code == 2
    methods = ["deep/mine.py:alpha=3.0", "deep/mine.py", "fedprox:mu=1.0"]
    answer = unskew("compare", *methods, *brief, "--out", "cmp")
    assert answer.code == 0, answer.err
    names = ["mine.py:alpha=3", "mine.py", "fedprox:mu=1"]
    assert [line.split()[0] for line in answer.out.splitlines() if "mine.py" in line][:2] == names[:2]
    assert list(json.loads((tmp_path / "cmp" / "compare.json").read_text())["methods"]) == names
    mine.unlink()  # a name does not need the code
    assert [run.label for run in read([tmp_path / "cmp"])] == names
    answer = unskew("compare", "fedprox:mu=1", "fedavg", "fedprox:mu=1.0", *brief)
    assert answer.err == (
        "unskew: fedprox:mu=1 is named twice: name each method once, or give it other hyperparameters.\n"
    )


def test_a_default_that_was_changed_since_does_not_make_two_methods_one(write_run):
    paths = [write_run(f"{a}", method="/x/mine.py", options={"alpha": a}, seed=a) for a in (1, 2)]
    for path in paths:
        told = json.loads((path / "environment.json").read_text())
        (path / "environment.json").write_text(json.dumps(told | {"changed": {"/x/mine.py": {}}}))
    assert [read([path])[0].label for path in paths] == ["mine.py", "mine.py"]
    assert [run.label for run in read(paths)] == ["mine.py:alpha=1", "mine.py:alpha=2"]


def test_experiment_files_are_called_by_their_methods(unskew, tmp_path):
    brief = ["--rounds", "1", "--epochs", "1", "--clients", "3", "--quiet"]
    for name, lr in (("a", "0.1"), ("b", "0.2")):
        assert unskew("run", "--method", "fedprox:mu=0.5", "--lr", lr, *brief, "--out", name).code == 0
        (tmp_path / f"{name}.toml").write_text((tmp_path / name / "experiment.toml").read_text())
    answer = unskew("compare", "a.toml", "b.toml", *brief[-1:], "--out", "cmp")
    assert answer.code == 0, answer.err
    names = ["fedprox:mu=0.5 (lr=0.1)", "fedprox:mu=0.5 (lr=0.2)"]
    assert list(json.loads((tmp_path / "cmp" / "compare.json").read_text())["methods"]) == names
    assert list(by_method(read([tmp_path / "cmp"]))) == names


def test_a_search_stands_for_its_winners(write_run, tmp_path):
    for trial in range(2):
        write_run(f"search/fedprox/trial-00{trial}-seed1", method="fedprox", options={"mu": trial / 2})
    folder = tmp_path / "search"
    (folder / "search.json").write_text("{}")
    with pytest.raises(UserError, match=f"has not ended: resume it with unskew resume {folder}, or give"):
        read([folder])
    for key, first in (("trial", 1), ("number", 0)):  # "number" is from older versions
        trials = [
            {
                "method": "fedprox",
                key: first + n,
                "folders": [f"fedprox/trial-00{n}-seed1"],
                "values": {"method.mu": n / 2},
                "score": n,
                "by_seed": [n],
            }
            for n in range(2)
        ]
        told = {
            "metric": "accuracy",
            "sampler": "grid",
            "winners": [{"method": "fedprox", "trial": 2}],
            "all": trials,
        }
        (folder / "tune.json").write_text(json.dumps(told))
        assert [run.label for run in read([folder])] == ["fedprox:mu=0.5"]
    (folder / "tune.json").write_text(json.dumps(told | {"winners": []}))
    with pytest.raises(UserError, match="has a score: give another folder"):
        read([folder])


def broken(path, name, change):
    text = (path / name).read_text()
    (path / name).write_text(change(text))


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("experiment.toml", lambda text: text[:40] + "= =", "experiment.toml is damaged"),
        ("experiment.toml", lambda text: text.replace("seed = 1", 'seed = "x"', 1), "seed"),
        ("environment.json", lambda text: text[:-3], "environment.json is damaged"),
        ("partition.json", lambda text: "[]", "partition.json is damaged"),
        ("partition.json", lambda text: text.replace('"boot"', '"boot", "hat"'), "do not fit its classes"),
        ("rounds.jsonl", lambda text: text.replace("{", "", 1), "line 1"),
        ("rounds.jsonl", lambda text: text.replace('"round": 2,', '"round": null,', 1), "line 2, round"),
        ("rounds.jsonl", lambda text: text.replace('"lr": 0.01, ', "", 1), "line 1, lr is missing"),
        ("rounds.jsonl", lambda text: text.replace('"lr": 0.01', '"lr": 0.01, "new": 1', 1),
         "line 1, new is not a field that this version knows"),
        ("rounds.jsonl", lambda text: text.replace('"min_class"', '"least"', 1),
         "line 1, min_class is missing"),
        ("rounds.jsonl", lambda text: "3\n" + text, "line 1"),
        ("probes.jsonl", lambda text: text.replace('"in_local"', '"inner"', 1),
         "line 1, clients.0.in_local is missing"),
        ("rounds.jsonl", lambda text: text.replace('"class_accuracy": [', '"class_accuracy": [1.0, ', 1),
         "line 1, class_accuracy does not fit 10 classes"),
        ("probes.jsonl", lambda text: text.replace('"after": [', '"after": [1.0, ', 1), "line 1, after"),
        ("summary.json", lambda text: "{}", "summary.json is damaged"),
        ("summary.json", lambda text: text.replace('"confusion": [[', '"confusion": [[1, ', 1), "confusion"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named_in_one_sentence(write_run, name, change, says):
    path = write_run(rounds=3, probe=1)
    broken(path, name, change)
    with pytest.raises(UserError) as caught:
        read_run(path)
    assert says in str(caught.value)
    assert str(path / name) in str(caught.value)
    assert "run it again" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["environment.json", "partition.json", "rounds.jsonl"])
def test_a_missing_file_is_named(write_run, name):
    path = write_run()
    (path / name).unlink()
    with pytest.raises(UserError, match=f"lacks {name}"):
        read_run(path)


def test_what_is_no_run_is_said_to_be_none(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"no run folder .*gone"):
        read_runs([tmp_path / "gone"])
    with pytest.raises(UserError, match="holds no run"):
        read_runs([tmp_path / "empty"])
    with pytest.raises(UserError, match="not a run folder"):
        read_runs([tmp_path / "file"])
    with pytest.raises(UserError, match="no run is given"):
        read_runs([])


def test_a_binary_file_is_damaged(write_run):
    path = write_run()
    (path / "summary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"summary\.json is damaged \(it is not text\)"):
        read_run(path)


def test_runs_of_a_compare_know_what_it_was_to_compare_them_with(write_run):
    paths = [write_run(f"all/{name}", method=name) for name in ("fedavg", "fedlc")]
    plan = record.Plan([], 12, "fedlc")
    (paths[0].parent / "plan.json").write_text(record.to_json(plan))
    for given in ([paths[0].parent], paths):
        assert [run.reference for run in read_runs(given)] == ["fedlc", "fedlc"]
    assert read_runs([write_run("alone")])[0].reference is None
