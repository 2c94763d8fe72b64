"""What was measured of methods, what that backs, and what is advised from it."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import unskew as package
from unskew.advice import evidence, verdict
from unskew.advice.advising import ONE_RATE, advise_on
from unskew.advice.counts import read_counts
from unskew.advice.evidence import MethodResult, NetworkResult, SeedResult, Setting
from unskew.advice.facts import contrasts, measure
from unskew.cli import main
from unskew.errors import UserError

RESULTS = Path(__file__).parents[1] / "docs/results"


def script(name):
    spec = importlib.util.spec_from_file_location(name, RESULTS / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # they import one another
    spec.loader.exec_module(module)
    return module


# In the order of their imports.
SCRIPTS = ("collect", "grouping", "tables", "build", "steady", "published", "tuned", "study")
collect, grouping, _, build, steady, published, tuned, grids = map(script, SCRIPTS)

COUNTS = np.array([[50, 50, 0, 0], [0, 50, 50, 0], [0, 0, 50, 50], [50, 0, 0, 50]])


def seeds(*accuracies, worst=0.1, work=10.0):
    return {
        number: SeedResult(
            accuracy=value, worst=worst, vacant=value, last=value, traffic=100, work=work, seconds=1.0
        )
        for number, value in enumerate(accuracies, 1)
    }


def method(name, found, *, client=None, server="", own_server=False):
    client = client or name.partition("+")[0]
    return MethodResult(
        name=name,
        family=re.sub(r":[^+]*", "", name),
        client=client,
        server=server,
        own_server=own_server,
        tuned={},
        seeds=found,
    )


def network(*methods, changed=None):
    changed = changed or {}
    title = ", ".join(filter(None, ("mlp-small", evidence.in_words(changed))))
    return NetworkResult(title=title, name="mlp-small", changed=changed, methods=list(methods))


def setting(*networks, data="digits", counts=COUNTS, cohort=None, tuned=False):
    return Setting(
        title=f"{data}, shards:5, 4 clients, all in every round{', each method tuned' * tuned}",
        tuned=tuned,
        budget="rounds 3",
        settings={
            "data.name": data,
            "skew.recipe": "shards:5",
            "skew.clients": 4,
            "budget.cohort": "all",
            "budget.rounds": 3,
        },
        data=data,
        skew="shards:5",
        facts=measure(counts, cohort=cohort, samples="images"),
        devices=["CPU"],
        commits=["abc"],
        networks=list(networks),
    )


PLAIN = method("fedavg", seeds(0.30, 0.31, 0.32))
GOOD = method("fedlc", seeds(0.50, 0.511, 0.519, work=10.0))
DEAR = method("fedlmd", seeds(0.50, 0.52, 0.51, work=13.3))
SHAKY = method("fedrs", seeds(0.20, 0.60, 0.55))
LONE = method("fedprox", seeds(0.9))
MEASURED = setting(network(PLAIN, GOOD, DEAR, SHAKY, LONE))


def advised(known=MEASURED, counts=COUNTS, tuned=None, **more):
    given = {"data.name": "digits", "skew.recipe": "shards:5", "skew.clients": len(counts)}
    settings = [known, *([tuned] if tuned else [])]
    return advise_on(counts, **{"given": given, "samples": "images", "known": settings, **more})


# What is in the package


def test_the_evidence_and_the_page_are_those_of_the_raw_lines():
    settings = grouping.settings_of(grouping.raw_lines())
    hint = "run make results"
    assert build.EVIDENCE.read_text() == evidence.write(settings), hint
    assert build.PAGE.read_text() == build.page(settings), hint
    assert list(evidence.evidence()) == settings
    assert steady.PAGE.read_text() == steady.renewed(steady.PAGE.read_text()), hint
    for page in grids.PAGES:
        assert page.read_text() == grids.renewed(page.read_text()), hint


def test_published_numbers_stand_beside_all_runs_of_their_cells():
    lines = grouping.raw_lines()
    page = published.PAGE.read_text()
    assert page == published.page(lines), "run make results"
    # FedAvg under Dirichlet 0.1, by hand.
    found = {
        line["experiment"]["seed"]: 100 * line["accuracy"]["best_by_test"]
        for line in sorted(lines, key=lambda each: each["started"], reverse=True)
        if line["experiment"]["method"] == {"name": "fedavg"}
        and line["experiment"]["data"]["name"] == "cifar10"
        and line["experiment"]["skew"]["recipe"].startswith("dirichlet:0.1,")
        and line["experiment"]["skew"]["seed"] == 19940817
        and line["experiment"]["model"]["norm"] == "none"
    }
    ours = f"{np.mean(list(found.values())):.2f}"
    (row,) = [each for each in page.splitlines() if each.startswith("| cifar10/dirichlet:0.1/fedavg | 56.19")]
    assert ours in row
    assert f"{float(ours) - 56.19:+.2f}" in row
    assert row.endswith(f"| {len(found)} |")


def test_every_run_has_one_line():
    lines = [
        json.loads(text) for path in grouping.RAW.glob("*.jsonl") for text in path.read_text().splitlines()
    ]
    assert len({line["identity"] for line in lines}) == len(lines)


# From run folders to lines


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Write two methods on two networks as `unskew compare --vary` does, without the models."""
    folder = tmp_path_factory.mktemp("study") / "runs"
    words = (
        "compare fedavg fedlc+ema:decay=0.9 --dataset digits --skew shards:2 --cohort 3 --rounds 2 "
        "--epochs 1 --seeds 1,2 --model mlp-small --vary model.norm=none --vary model.norm=ws --engine loop "
        "--quiet"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["unskew", *words.split(), "--out", str(folder)])
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code
    for model in folder.glob("*/*.safetensors"):
        model.unlink()
    return folder


def lines_of(capsys, *folders):
    capsys.readouterr()
    collect.main([str(folder) for folder in folders])
    out, err = capsys.readouterr()
    return [json.loads(line) for line in out.splitlines()], err


def test_a_run_becomes_one_line_once(study, capsys, tmp_path, monkeypatch):
    lines, said = lines_of(capsys, study.parent)
    assert len(lines) == 8
    assert said == "8 written, 0 there already, 0 not ended, 0 of one's own\n"
    one = next(
        line
        for line in lines
        if line["experiment"]["method"]["name"] == "fedlc+ema" and line["experiment"]["model"]["norm"] == "ws"
    )
    assert one["experiment"]["seed"] == 1
    assert "folder" not in one["experiment"]["data"]
    assert one["skew"]["cohort"] == 3
    assert one["skew"]["vacant"] == pytest.approx(0.8)
    assert one["last_rounds"]["rounds"] == 1
    assert one["last_rounds"]["accuracy"] == one["accuracy"]["last"] == one["curve"][-1]
    assert one["traffic"]["up"] > 0
    assert one["work"] == 2
    monkeypatch.setattr(collect, "RAW", tmp_path)
    (tmp_path / "some.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines[:3]))
    assert lines_of(capsys, study)[1] == "5 written, 3 there already, 0 not ended, 0 of one's own\n"


def test_a_run_that_has_not_ended_has_no_line(study, capsys, tmp_path):
    half = shutil.copytree(study / "model.norm=ws-fedavg-seed1", tmp_path / "half")
    (half / "summary.json").unlink()
    assert lines_of(capsys, half) == ([], "0 written, 0 there already, 1 not ended, 0 of one's own\n")
    with pytest.raises(UserError, match="there is no run in"):
        collect.main([str(tmp_path / "nothing")])


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    """Search the learning rates of two methods, and run the winners, as docs/fair-comparison.md shows."""
    folder = tmp_path_factory.mktemp("search")
    budget = "--skew shards:2 --cohort 3 --rounds 2 --epochs 1 --model logistic --engine loop"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in (
            f"tune --sampler grid --over budget.lr=1e-6|0.01|0.1 fedavg fedprox --over mu=0.1|1 {budget} "
            "--seeds 4,5 --out tuned --quiet",
            "compare tuned/best/fedavg.toml tuned/best/fedprox.toml --seeds 1-3 --out runs --quiet",
        ):
            patch.setattr(sys, "argv", ["unskew", *words.split()])
            with pytest.raises(SystemExit) as end:
                main()
            assert not end.value.code
    return folder


def test_tuned_methods_are_in_a_setting_of_their_own(search, study, capsys):
    plain, _ = lines_of(capsys, study)
    lines, _ = lines_of(capsys, search / "runs", "--tuned")
    assert all(line["tuned"] for line in lines)
    (found,) = (each for each in grouping.settings_of([*plain, *lines]) if each.tuned)
    assert found.title == "digits, shards:2, 10 clients, 3 per round, each method tuned"
    averaged, proximal = found.networks[0].methods
    assert (averaged.family, proximal.family) == ("fedavg", "fedprox")
    assert averaged.tuned.keys() | proximal.tuned.keys() <= {"budget.lr"}
    assert "budget.lr" in (*found.settings, *averaged.tuned)
    page = build.page([found])
    assert "## When every method is tuned" in page
    assert "| `fedprox` | " in page
    assert f"### {found.title}" not in page


def test_the_trials_of_a_search_become_a_line_for_each_method(search, capsys):
    lines, said = lines_of(capsys, search / "tuned", "--trials")
    assert not said
    assert [line["method"] for line in lines] == ["fedavg", "fedprox"]
    assert [len(line["trials"]) for line in lines] == [3, 6]
    assert "seed" not in lines[0]["experiment"]["skew"]  # each seed has its partition
    written = [json.loads(line) for line in (search / "tuned/trials.jsonl").read_text().splitlines()]
    for line in lines:
        mine = [each for each in written if each["method"] == line["method"]]
        assert [values for values, _ in line["trials"]] == [each["values"] for each in mine]
        for (_, scores), each in zip(line["trials"], mine, strict=True):
            assert scores == pytest.approx(each["by_seed"], abs=1e-6)


def test_the_page_of_tuned_methods_has_what_validation_chose(search, capsys, tmp_path, monkeypatch):
    lines, _ = lines_of(capsys, search / "runs", "--tuned")
    trials, _ = lines_of(capsys, search / "tuned", "--trials")
    (tmp_path / "some-tuned.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in trials))
    known = grouping.settings_of(lines)
    monkeypatch.setattr(tuned, "TRIALS", tmp_path)
    monkeypatch.setattr(tuned, "raw_lines", lambda: lines)
    monkeypatch.setattr(tuned.evidence, "evidence", lambda: known)
    for read in (tuned.searches, tuned.last_rounds):
        read.cache_clear()
    place = ("digits, shards:2, 10 clients, 3 per round", "logistic")
    result, rates = tuned.results(*place), tuned.rates(*place)
    for read in (tuned.searches, tuned.last_rounds):
        read.cache_clear()
    for winner in json.loads((search / "tuned/tune.json").read_text())["winners"]:
        (row,) = (row for row in result.splitlines() if row.startswith(f"| `{winner['method']}` "))
        assert f"lr {winner['values']['budget.lr']:g}" in row
        assert f"| {100 * winner['score']:.1f} |" in row
        (row,) = (row for row in rates.splitlines() if row.startswith(f"| `{winner['method']}` "))
        assert f"**{100 * winner['score']:.1f}**" in row
    assert rates.startswith("| method | 1e-06 | 0.01 | 0.1 |")


def test_a_family_is_a_method_without_the_values_of_its_hyperparameters():
    of = {
        "fedlmd:beta=0.3+ema:decay=auto": "fedlmd+ema",
        "logit-adjustment:floor=0.01": "logit-adjustment:floor",
        "logit-adjustment:tau=0.5": "logit-adjustment",
    }
    assert {name: tuned._family(name) for name in of} == of


def test_a_run_that_others_cannot_repeat_has_no_line(study, capsys, tmp_path):
    run = shutil.copytree(study / "model.norm=ws-fedavg-seed1", tmp_path / "run")
    text = (run / "experiment.toml").read_text()
    (run / "experiment.toml").write_text(text.replace('name = "fedavg"', 'name = "/home/me/mine.py"'))
    assert lines_of(capsys, run) == ([], "0 written, 0 there already, 0 not ended, 1 of one's own\n")


def test_lines_become_settings_with_networks_methods_and_seeds(study, capsys):
    lines, _ = lines_of(capsys, study)
    (found,) = grouping.settings_of(lines[:-1])  # not every method has every seed
    assert found.title == "digits, shards:2, 10 clients, 3 per round"
    published, standardised = found.networks
    assert published.changed == {}
    assert standardised.changed == {"model.norm": "ws"}
    plain, better = published.methods
    assert (plain.name, plain.client, plain.server) == ("fedavg", "fedavg", "")
    assert (better.name, better.client, better.server) == ("fedlc+ema:decay=0.9", "fedlc", "ema:decay=0.9")
    assert sorted(len(each.seeds) for each in (*published.methods, *standardised.methods)) == [1, 2, 2, 2]
    assert evidence.read(evidence.write([found])) == [found]
    page = build.page([found])
    assert "## Measured with too few seeds" in page
    assert build.NONE in page


def test_settings_of_one_title_are_told_apart_by_what_differs(study, capsys):
    lines, _ = lines_of(capsys, study)
    other = json.loads(json.dumps(lines[0])) | {"identity": "another"}
    other["experiment"]["budget"]["rounds"] = 7
    titles = [each.title for each in grouping.settings_of([*lines, other])]
    assert sorted(title.rpartition(", ")[2] for title in titles) == ["rounds 2", "rounds 7"]
    other["experiment"]["budget"]["rounds"] = 2
    other["experiment"]["validation"] = "0.1"
    titles = [each.title for each in grouping.settings_of([*lines, other])]
    assert sorted(title.rpartition(", ")[2] for title in titles) == ["3 per round", "validation 0.1"]


def test_a_seed_that_is_also_the_partitions_is_in_the_setting_of_that_partition(study, capsys):
    lines, _ = lines_of(capsys, study)
    for line in lines:
        line["experiment"]["skew"]["seed"] = 1  # what a run of seed 1 has without a fixed partition too
    (found,) = grouping.settings_of(lines)
    assert found.title.endswith("3 per round, one partition (seed 1)")
    assert {seed for each in found.networks[0].methods for seed in each.seeds} == {1, 2}


def test_what_is_tuned_for_a_method_alone_leaves_it_in_its_setting(study, capsys):
    lines, _ = lines_of(capsys, study)
    for line in lines:
        if line["experiment"]["method"]["name"] != "fedavg":
            line["experiment"]["budget"]["lr"] = 0.5
    (found,) = grouping.settings_of(lines)
    plain, tuned = found.networks[0].methods
    assert plain.tuned == {}
    assert tuned.tuned == {"budget.lr": 0.5}
    plain_run = next(line for line in lines if line["experiment"]["method"]["name"] == "fedavg")
    plain_run["experiment"]["budget"]["lr"] = 0.7  # FedAvg has two now, which are two settings
    both, alone = sorted(grouping.settings_of(lines), key=lambda each: each.settings["budget.lr"])
    assert [len(each.methods) for each in both.networks] == [2, 2]
    assert alone.settings["budget.lr"] == 0.7
    assert [[method.name for method in each.methods] for each in alone.networks] == [["fedavg"]]


def test_settings_of_batch_norms_make_no_other_network_of_one_without_any(study, capsys):
    lines, _ = lines_of(capsys, study)
    for line in lines:
        if line["experiment"]["method"]["name"] != "fedavg":
            line["experiment"]["model"] |= {"teacher": "batch", "statistics": "local"}
    (found,) = grouping.settings_of(lines)
    assert [each.title for each in found.networks] == ["mlp-small", "mlp-small, norm ws"]


def test_of_a_seed_that_ran_twice_the_first_counts(study, capsys):
    lines, _ = lines_of(capsys, study)
    later = json.loads(json.dumps(lines[0])) | {"identity": "another", "started": "2999"}
    later["last_rounds"]["accuracy"] = 0.123
    (found,), (first,) = grouping.settings_of([later, *lines]), grouping.settings_of(lines)
    assert found.networks == first.networks


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"fedavg": {}}, ("fedavg", "", False)),
        (
            {"fedlmd": {}, "fedavgm": {"beta": 0.7}, "ema": {"decay": 0.9}},
            ("fedlmd", "ema:decay=0.9+fedavgm", False),
        ),
        ({"ema": {"decay": 0.9}}, ("fedavg", "ema:decay=0.9", False)),
        ({"fedacg": {}, "ema": {}}, ("fedavg", "ema+fedacg", False)),
        ({"fedvls": {}, "fedacg": {}}, ("fedvls", "fedacg", False)),
        ({"moon": {}}, ("moon", "", False)),
        ({"steady": {}}, ("steady", "", True)),
        ({"ccvr": {}}, ("ccvr", "", True)),
    ],
)
def test_a_method_is_split_by_what_it_changes(parts, told):
    assert grouping.split(parts) == told


# What is backed


def test_only_what_the_seeds_back_is_chosen():
    told = verdict.in_setting(MEASURED)
    choice = told.choose("accuracy")
    assert choice.backed
    assert choice.candidate.method in (GOOD, DEAR)
    assert not told.difference("fedrs", "accuracy").settled
    assert "fedprox" not in told.compared
    assert told.choose("worst").backed is False


def test_of_many_others_one_may_be_below_by_chance():
    best = method("fedlc", seeds(0.800, 0.801, 0.802))
    near = method("fedlmd", seeds(0.782, 0.788, 0.780))
    few = verdict.in_setting(setting(network(PLAIN, best, near))).choose("accuracy")
    assert few.best
    assert not few.alike
    same = [method(f"fedlc:tau={0.1 * n}", seeds(0.800, 0.799, 0.803)) for n in range(1, 9)]
    many = verdict.in_setting(setting(network(PLAIN, best, near, *same))).choose("accuracy")
    assert not many.best
    assert near in [other.method for other in many.alike]


def test_differences_are_over_the_seeds_that_both_have():
    more = replace(MEASURED, networks=[network(method("fedavg", seeds(0.3, 0.3, 0.3, 0.3, 0.9)), GOOD)])
    found = verdict.in_setting(more).difference("fedlc", "accuracy")
    assert found.seeds == (1, 2, 3)
    assert found.difference == pytest.approx(0.21)


def test_a_fedavg_of_one_seed_hides_no_claim_of_the_others():
    """It is not what they are compared with, as long as another one has the seeds."""
    once, mean = method("fedavg", seeds(0.2)), method("fedavg+ema", seeds(0.30, 0.31, 0.33), client="fedavg")
    told = verdict.on_network(network(once, mean, GOOD))
    assert told.reference.method == mean
    assert told.difference("fedlc", "accuracy").settled
    assert "fedavg" not in told.compared
    elsewhere = setting(network(once), network(PLAIN, GOOD, changed={"model.norm": "ws"}))
    assert verdict.in_setting(elsewhere).reference.method == PLAIN


def test_combinations_that_were_tried_take_nothing_from_what_is_known_of_a_method():
    """They are corrected for each other: p is 0.003 for all of them."""
    found = seeds(0.50, 0.53, 0.50)
    tried = [method(f"fedlc+ema:decay=0.{number}", found, client="fedlc") for number in range(50)]
    told = verdict.on_network(network(PLAIN, method("fedlc", found), *tried))
    assert len(told.compared) == 52
    assert told.difference("fedlc", "accuracy").settled
    assert not any(told.difference(each.name, "accuracy").settled for each in tried)


def test_equal_conditions_compare_with_fedavg_on_the_same_server():
    steady = method("fedavg+ema", seeds(0.60, 0.61, 0.62), client="fedavg", server="ema")
    both = method("fedlc+ema", seeds(0.61, 0.60, 0.63), client="fedlc", server="ema")
    own = method("fedacg+ema", seeds(0.7, 0.7, 0.7), server="ema", own_server=True)
    found = verdict.under_equal_conditions(setting(network(PLAIN, GOOD, steady, both, own)))
    assert [each.server for each in found] == ["", "ema"]
    assert found[0].gains["fedlc"].settled
    assert not found[1].gains["fedlc"].settled
    assert set(found[1].gains) == {"fedlc"}
    page = build.page([setting(network(PLAIN, GOOD, steady, both, own))])
    assert "`fedlc` has both numbers in 1 setting. As published, its gain is significant in 1 of them" in page
    assert "beside the strongest FedAvg, it is significant in 0, +0.3 on average" in page


def test_a_server_that_fails_fedavg_is_no_stronger_fedavg():
    """Beside it any loss would gain. Where FedAvg is strongest is told even if no other method is there."""
    worse = method("fedavg+x", seeds(0.10, 0.11, 0.12), client="fedavg", server="x")
    both = method("fedlc+x", seeds(0.51, 0.50, 0.53), client="fedlc", server="x")
    alone = method("fedavg+ema", seeds(0.60, 0.61, 0.62), client="fedavg", server="ema")
    page = build.page([setting(network(PLAIN, GOOD, worse, both, alone))])
    assert "| `fedlc` | " not in page.split("## Which gains are left")[1].split("## Setting by setting")[0]
    assert "FedAvg itself is strongest with mlp-small, `ema`" in page


def test_networks_are_compared_by_the_same_methods():
    better = network(method("fedavg", seeds(0.50, 0.52, 0.53)), changed={"model.norm": "ws"})
    (gains,) = verdict.of_networks(setting(network(PLAIN, GOOD), better)).values()
    assert gains["fedavg"].difference == pytest.approx(0.2067, abs=1e-3)
    assert set(gains) == {"fedavg"}
    page = build.page([setting(network(PLAIN, GOOD), better)])
    assert "against mlp-small | " in page
    assert "+20.7 (+19.2 to +22.1) \\*" in page


# What is advised


def test_advice_names_method_evidence_cost_and_command(unskew):
    found = advised()
    assert found.method in ("fedlc", "fedlmd")
    assert "in this setting" in found.sentence
    assert "over 3 seeds, beyond chance" in found.sentence
    assert found.recommended.cheaper == (
        [] if found.method == "fedlc" else [verdict.in_setting(MEASURED).candidates["fedlc"]]
    )
    told = found.to_json()
    assert told["evidence"] is True
    assert told["choices"]["accuracy"]["interval"][0] > 0
    assert told["choices"]["worst"]["backed"] is False
    command = shlex.split(found.command)
    assert command[:4] == ["unskew", "compare", "fedavg", found.method]
    answer = unskew(*command[1:-1], "1", "--rounds", "1", "--engine", "loop", "--quiet")
    assert answer.code == 0, answer.err


def test_a_network_that_was_changed_is_in_the_command_beside_that_of_fedavg(unskew):
    there = network(
        method("fedavg", seeds(0.45, 0.46, 0.47)),
        method("fedlc", seeds(0.80, 0.812, 0.82)),
        changed={"model.norm": "ws"},
    )
    known = setting(network(PLAIN, GOOD), there)
    found = advised(known)
    assert "--vary model.norm=auto --vary model.norm=ws" in found.command
    words = [*shlex.split(found.command)[1:-1], "1", "--rounds", "1", "--engine", "loop"]
    answer = unskew(*words, "--quiet", "--json")
    assert list(json.loads(answer.out)["conditions"]) == ["model.norm=auto", "model.norm=ws"]
    assert found.recommended.difference.difference == pytest.approx(0.5, abs=0.01)
    assert found.recommended.strongest_fedavg.gain.difference == pytest.approx(0.35, abs=0.01)
    assert "against the strongest FedAvg, fedavg on mlp-small, norm ws, 46.0 ± 1.0 %: +35.1" in repr(found)
    given = {"data.name": "digits", "skew.recipe": "shards:5", "skew.clients": 4, "model.norm": "none"}
    asked = advised(known, given=given)
    assert asked.recommended.candidate.network.changed == {}
    assert asked.recommended.difference.difference == pytest.approx(0.2)


def test_the_second_command_gives_each_method_a_rate_of_its_own(unskew, tmp_path):
    mean = method("fedavg+ema", seeds(0.60, 0.61, 0.62), client="fedavg")
    there = network(mean, method("fedlc", seeds(0.80, 0.812, 0.82)), changed={"model.norm": "ws"})
    given = {"data.name": "digits", "skew.recipe": "shards:5", "budget.lr": 0.2}
    found = advised(setting(network(PLAIN), there), given=given)
    search, compare = (shlex.split(each) for each in found.search_command.split(" && "))
    assert found.to_json()["search_command"] in repr(found)
    assert "--lr 0.2" in found.command
    assert "budget.lr=0.01|0.04|0.1|0.2|0.4|1" in search
    assert "--lr" not in search
    out = tmp_path / "tuned"
    answer = unskew(
        *search[1:], "--rounds", "1", "--epochs", "0.1", "--seeds", "101", "--out", str(out), "--quiet"
    )
    assert answer.code == 0, answer.err
    winners = sorted(map(str, (out / "best").glob("*.toml")))
    answer = unskew(*compare[1:2], *winners, "--seeds", "1", "--out", str(tmp_path / "runs"), "--quiet")
    assert answer.code == 0, answer.err
    found = json.loads((tmp_path / "runs/compare.json").read_text())["methods"]
    assert set(found) == {"fedavg", "fedavg+ema", "fedlc"}


def test_where_nothing_like_it_was_measured_advice_says_so():
    many = np.full((60, 4), 20)
    found = advised(counts=many)
    assert found.method is found.command is None
    assert "fedavg fedavg+ema:decay=auto steady" in found.search_command
    assert found.search_command in repr(found)
    assert found.to_json()["evidence"] is False
    assert found.sentence.startswith(
        "None of the measured settings is like this one: in the nearest (digits,"
    )
    assert "there are 4 clients, here 60" in found.sentence
    rows = advised(samples="rows")
    assert "samples are images, here rows" in rows.sentence


def test_one_seed_backs_nothing():
    found = advised(setting(network(method("fedavg", seeds(0.3)), LONE)))
    assert found.method is None
    assert "one seed, which back" in found.sentence


def test_other_data_with_the_same_skew_are_said_to_be_other():
    found = advised(replace(MEASURED, data="cifar10"))
    assert found.method is not None
    assert any("measured on cifar10, not on these data" in note for note in found.notes)
    assert "--model" not in found.command


def test_facts_tell_federations_apart():
    alike = contrasts(measure(COUNTS), measure(COUNTS * 2))
    assert alike[0].distance < 1
    few = contrasts(measure(COUNTS, cohort=1), measure(COUNTS))
    assert any("25 % of the clients take part in a round, here all" in each.words for each in few)
    assert few[0].distance > 1


def test_a_federation_and_its_counts_get_the_same_advice(skewed):
    one, other = package.advise(skewed), package.advise(skewed.partition.counts)
    assert (one.facts.vacant, one.method) == (other.facts.vacant, other.method)
    assert one.sentence in repr(one)
    assert one.title in one._repr_html_()


def test_a_dataset_is_known_by_all_its_options():
    data = package.load("synthetic:0,0,clients=100")
    found = package.advise(package.federate(data, "natural", clients=100, seed=1))
    assert "in this setting" in found.sentence
    assert found.notes == (ONE_RATE,)
    assert "--dataset synthetic:0,0,clients=100 --skew natural" in found.command
    assert replace(data, name="mine").spec == ""
    seeded = package.load("synthetic:0,0,clients=100", seed=1)
    found = package.advise(package.federate(seeded, "natural", clients=100, seed=1))
    (same,) = [match.setting.data for match in (*found.near, *found.others) if match.same]
    assert same == "synthetic:0,0,clients=100,seed=1"
    assert package.load("synthetic:clients=9,seed=1", seed=2).spec == "synthetic:clients=9,seed=1"


def test_a_dataset_is_known_by_its_listed_name():
    data = package.load("heart_disease")
    found = package.advise(package.federate(data, "natural", clients=4, seed=1))
    assert found.near[0].same
    assert package.load("digits", seed=3).spec == "digits"
    counts = np.eye(10, dtype=int) * 100
    assert package.advise(counts, dataset="fashion-mnist").title.startswith("fashion_mnist,")


def test_what_is_of_ones_own_has_a_place_in_the_command():
    digits = package.load("digits")
    federation = package.federate(digits, "dirichlet:0.05", clients=10, seed=1)

    def halves(labels, clients, rng):
        return list(federation.partition.indices)

    own = package.advise(package.federate(digits, halves, clients=10, seed=1))
    assert own.title.startswith("digits, ")
    assert "halves" in own.title
    assert "--dataset digits --skew SKEW --clients 10" in own.command
    assert "write what is yours in the place of SKEW;" in own.notes[-1]
    mine = package.federate(replace(digits, name="mine"), "dirichlet:0.05", clients=10, seed=1)
    named = package.advise(mine)
    assert named.title.startswith("mine, dirichlet:0.05, ")
    assert "--dataset DATA --skew dirichlet:0.05" in named.command
    assert named.notes[-1] == "write what is yours in the place of DATA."
    counted = package.advise(mine.partition.counts, dataset="mine")
    assert counted.title.startswith("mine, ")
    assert "--dataset DATA --skew SKEW" in counted.command


def test_a_partition_from_a_file_is_in_the_command_with_its_folder(unskew, tmp_path):
    federation = package.federate(package.load("digits"), "dirichlet:0.05", clients=10, seed=1)
    skew = f"file:{tmp_path / 'who.json'}"
    federation.save(tmp_path / "who.json")
    told = json.loads(unskew("advise", "--dataset", "digits", "--skew", skew, "--json").out)
    assert told["title"].startswith("digits, file:who.json, ")
    command = shlex.split(told["command"])
    assert command[command.index("--skew") + 1] == skew


def test_of_many_clients_the_first_are_measured():
    found = advise_on(COUNTS, given={}, clients=1_000_000, cohort=100)
    assert found.facts.participation == pytest.approx(1e-4)
    assert "1,000,000 clients" in found.facts.words


def test_advise_on_the_command_line(unskew):
    answer = unskew("advise", "--dataset", "digits", "--skew", "shards:2")
    assert answer.code == 0, answer.err
    assert "each client holds 2 of 10 classes" in answer.out
    told = json.loads(unskew("advise", "--dataset", "digits", "--skew", "shards:2", "--json").out)
    assert told["facts"]["vacant"] == pytest.approx(0.8)


def test_what_is_left_when_each_method_is_tuned_stands_beside_the_advice():
    weaker = [
        method("fedavg", seeds(0.50, 0.51, 0.52)),
        method("fedlc:tau=0.1", seeds(0.51, 0.50, 0.53)),
        method("fedlmd", seeds(0.60, 0.609, 0.621)),
    ]
    found = advised(MEASURED, tuned=setting(network(*weaker), tuned=True))
    assert found.method == "fedlc"
    assert found.sentence.startswith(advised().sentence)
    assert "each method tuned on validation data, fedlc:tau=0.1 on mlp-small has +0.3 (" in found.sentence
    assert "the round that validation chose: not significant" in found.sentence
    assert found.sentence.endswith("With fedlmd on mlp-small it is +10.0 (+9.8 to +10.2): significant.")
    assert "fedavg fedavg+ema:decay=auto fedlmd fedlc" in found.search_command
    there = found.to_json()["when_tuned"]
    assert there["setting"].endswith("each method tuned")
    assert there["fedavg"]["difference"] is None
    assert there["method"]["method"] == "fedlc:tau=0.1"
    assert not there["method"]["backed"]
    assert there["choice"]["method"] == "fedlmd"
    assert there["choice"]["backed"]
    text = repr(found)
    assert "chosen by validation: digits, shards:5" in text
    assert "  fedavg 51.0 ± 1.0 %\n" in text
    assert "  fedlc:tau=0.1 51.3 ± 1.5 %, +0.3" in text
    assert ONE_RATE not in found.notes
    assert all("tuned" not in each["title"] for each in found.to_json()["settings"])


def test_the_command_has_places_for_what_is_not_known(unskew):
    known = setting(network(PLAIN, GOOD, DEAR))
    found = advised(known, given={})
    command = shlex.split(found.command)
    for flag, value in (("--dataset", "DATA"), ("--skew", "SKEW"), ("--clients", "4")):
        assert command[command.index(flag) + 1] == value
    assert "write what is yours in the place of DATA and SKEW" in found.notes[-1]
    named = advised(known, given={"data.name": "digits"})
    assert "--dataset digits --skew SKEW --clients 4" in named.command
    assert "in the place of SKEW;" in named.notes[-1]
    whole = advised(known)
    assert "SKEW" not in whole.command
    assert whole.notes == (ONE_RATE,)


@pytest.mark.parametrize(
    ("asked", "note"),
    [
        ("budget.lr=0.3", "measured with lr 0.05, not with lr 0.3: try it before you rely on it."),
        (
            "budget.lr=0.3 budget.rounds=5",
            "measured with lr 0.05, rounds 30, not with lr 0.3, rounds 5: try it before you rely on it.",
        ),
        ("budget.steps=7", "measured with epochs 3, not with steps 7: try it before you rely on it."),
        (
            "budget.lr_decay=0.9",
            "measured with schedule constant, not with schedule exponential:factor=0.9: try it before you "
            "rely on it.",
        ),
        ("budget.lr=5e-2 budget.rounds=30 budget.epochs=3 budget.batch_size=32", None),
    ],
)
def test_a_budget_that_was_not_measured_is_told_of(unskew, asked, note):
    words = ["advise", "--dataset", "digits", "--skew", "dirichlet:0.05", "--cohort", "3", "--json"]
    for each in asked.split():
        words += ["--set", each]
    told = json.loads(unskew(*words).out)
    assert "in this setting" in told["sentence"]
    assert told["notes"] == ([note] if note else [])


@pytest.mark.parametrize(
    ("given", "left_out"),
    [
        ({"budget.steps": 7}, "--epochs"),
        ({"budget.lr_decay": 0.9}, "--schedule"),
        ({"budget.optimizer": "adam"}, "budget.momentum"),
    ],
)
def test_the_command_has_no_settings_that_exclude_each_other(unskew, given, left_out):
    more = {"budget.epochs": 1, "budget.schedule": "exponential:0.99", "budget.momentum": 0.5}
    known = replace(MEASURED, settings=MEASURED.settings | more)
    asked = {"data.name": "digits", "skew.recipe": "shards:5", "skew.clients": 4, **given}
    assert left_out in advised(known).command
    command = advised(known, given=asked).command
    assert left_out not in command
    answer = unskew(*shlex.split(command)[1:-1], "1", "--rounds", "1", "--engine", "loop", "--quiet")
    assert answer.code == 0, answer.err


def test_counts_of_a_dataset_are_those_of_its_listed_name(unskew):
    np.savetxt("counts.csv", np.eye(10, dtype=int) * 100, fmt="%d", delimiter=",")
    told = json.loads(unskew("advise", "counts.csv", "--dataset", "fashion-mnist", "--json").out)
    assert told["title"].startswith("fashion_mnist, 10 clients")
    assert any(each["same_data"] for each in told["settings"])


def test_one_client_is_one(unskew):
    Path("counts.csv").write_text("3,4\n")
    assert unskew("advise", "counts.csv").out.startswith("1 client, all in every round\n")


def test_a_measured_dataset_need_not_be_here(unskew, tmp_path, monkeypatch):
    monkeypatch.setenv("UNSKEW_DATA", str(tmp_path / "nothing"))
    words = "advise --dataset cifar10 --skew shards:2,variant=fedntd --clients 100 --cohort 10 --json"
    told = json.loads(unskew(*words.split()).out)
    assert told["evidence"]
    assert told["method"]
    assert "cifar10 is not here" in told["notes"][0]
    answer = unskew("advise", "--dataset", "svhn", "--skew", "shards:2")
    assert answer.code == 2
    assert "is not in" in answer.err
    answer = unskew("advise", "--dataset", "cifar10", "--skew", "natural")
    assert answer.code == 2
    assert answer.err == (
        "unskew: natural goes by the owners of samples, and cifar10 is not here: run `unskew data fetch "
        "cifar10`, or choose another skew.\n"
    )


def test_the_options_of_a_dataset_do_not_hide_that_it_is_here(unskew):
    words = "advise --dataset synthetic:0,0,clients=100 --skew natural --json"
    answer = unskew(*words.split())
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    assert "in this setting" in told["sentence"]
    assert told["notes"] == [ONE_RATE]


# Files of counts


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain.csv", "3,0\n1,5\n"),
        ("named.csv", "client,cat,dog\nlab,3,0\nward,1,5\n"),
        ("numbered.csv", "0;1;2\n3;0;0\n1;5;0\n"),
        ("pandas.csv", ",0,1\n0,3,0\n1,1,5\n"),
        ("numbers.csv", "client,cat,dog\n0,3,0\n1,1,5\n"),
        ("rows.json", "[[3, 0], [1, 5]]"),
        ("kept.json", '{"clients": 2, "counts": [[3, 0], [1, 5]]}'),
        ("clients.json", '{"lab": {"cat": 3}, "ward": {"cat": 1, "dog": 5}}'),
    ],
)
def test_counts_are_read(name, text, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    expected = [[3, 0], [1, 5]]
    found = read_counts(path).tolist()
    assert [row[:2] for row in found] == expected


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("client,3,5\n7,30,0\n8,1,5\n", [[30, 0], [1, 5]]),
        ("site A,0,1\nsite B,5,6\n", [[0, 1], [5, 6]]),
        ("site1,1,2\nsite2,5,6\n", [[1, 2], [5, 6]]),
        ("2020-01,3,0\n2020-02,1,5\n", [[3, 0], [1, 5]]),
        ("site,cat,dog\n10.0.0.1,3,0\n10.0.0.2,1,5\n", [[3, 0], [1, 5]]),
        ("client,cat,dog\n1,3,0\nlab,1,5\n", [[3, 0], [1, 5]]),
        ("#,cat,dog\n7,3,0\n8,1,5\n", [[7, 3, 0], [8, 1, 5]]),
    ],
)
def test_names_are_told_from_counts(text, counts, tmp_path):
    path = tmp_path / "counts.csv"
    path.write_text(text)
    assert read_counts(path).tolist() == counts


@pytest.mark.parametrize(
    ("text", "client", "cell"),
    [
        ("100,,\n,100,5\n,10,100\n", 1, ""),
        ("10,\n3,4\n", 1, ""),
        (",100,5\n10,3,4\n", 1, ""),
        ('"1,200","30"\n500,20\n600,10\n', 1, "1,200"),
        ('"1,200",30\n"1,500",20\n', 1, "1,200"),
        ("1 200;30\n1 500;20\n", 1, "1 200"),
        ("<5,100\n<5,80\n", 1, "<5"),
        ("-,100\n-,80\n", 1, "-"),
        ("-,0,1\n5,6,7\n", 1, "-"),
        ("some,10\n3,4\n", 1, "some"),
        ("client,cat,dog\n1,3,0\n,1,5\n", 2, ""),
        ("cat,dog\n3,4\n,5\n", 2, ""),
        ("client,cat,dog,\nlab,3,0,\n", 1, ""),
    ],
)
def test_blank_and_malformed_counts_are_no_names(unskew, text, client, cell):
    Path("counts.csv").write_text(text)
    answer = unskew("advise", "counts.csv")
    says = f"client {client} of counts.csv has the count '{cell}' but should have a whole number."
    assert (answer.code, answer.err) == (2, f"unskew: {says}\n")


@pytest.mark.parametrize(
    "heads", ["covid,flu,healthy", "width,height,depth", "Florida,Texas,Ohio", "parasite,clean,other"]
)
def test_a_class_whose_name_holds_a_word_for_clients_is_a_class(unskew, heads):
    Path("counts.csv").write_text(f"{heads}\n3,0,2\n1,5,4\n")
    facts = json.loads(unskew("advise", "counts.csv", "--json").out)["facts"]
    assert (facts["clients"], facts["classes"]) == (2, 3)


@pytest.mark.parametrize(
    "head", ["client_id", "clientId", "clientid", "Site", "site name", "IDs", "hospital-ID", "client 1", " "]
)
def test_a_head_that_says_so_stands_over_the_clients(unskew, head):
    Path("counts.csv").write_text(f"{head},cat,dog\n7,3,0\n8,1,5\n")
    facts = json.loads(unskew("advise", "counts.csv", "--json").out)["facts"]
    assert (facts["clients"], facts["classes"]) == (2, 2)


@pytest.mark.parametrize(
    "head", ["hospital", "Clinics", "centre", "user_id", "WriterName", "node", "parties", "institution"]
)
def test_a_head_of_places_or_people_stands_over_the_clients(unskew, head):
    Path("counts.csv").write_text(f"{head},flu,covid\n1,100,0\n2,0,100\n")
    rows = [{head: 1, "flu": 100}, {head: 2, "covid": 100}]
    Path("counts.json").write_text(json.dumps(rows))
    for name in ("counts.csv", "counts.json"):
        told = json.loads(unskew("advise", name, "--json").out)
        assert (told["facts"]["clients"], told["facts"]["classes"]) == (2, 2)
        assert not any("first column" in note for note in told["notes"])


@pytest.mark.parametrize("head", ["lymph node", "party hat", "device failure"])
def test_a_class_with_a_word_for_places_in_its_name_is_a_class(unskew, head):
    Path("counts.csv").write_text(f"{head},flu,covid\n7,100,0\n2,0,100\n")
    Path("counts.json").write_text(json.dumps([{head: 7, "flu": 100}, {head: 2, "covid": 100}]))
    for name in ("counts.csv", "counts.json"):
        assert json.loads(unskew("advise", name, "--json").out)["facts"]["classes"] == 3


def test_clients_are_no_class_in_json(unskew):
    Path("counts.json").write_text(
        '[{"client": 1, "cat": 5, "dog": 100}, {"client": 2, "dog": 3, "bird": 80}]'
    )
    told = json.loads(unskew("advise", "counts.json", "--json").out)
    assert told["facts"]["classes"] == 3
    Path("counts.json").write_text('[{"site": "lab", "cat": 5, "dog": 9}, {"site": "ward", "dog": 3}]')
    assert json.loads(unskew("advise", "counts.json", "--json").out)["facts"]["classes"] == 2


@pytest.mark.parametrize("text", ["k,cat,dog\n1,5,9\n2,3,0\n", "1,5,9\n2,3,0\n", "0,5,9\n1,3,0\n"])
def test_a_first_column_that_counts_is_told_of(unskew, text):
    Path("counts.csv").write_text(text)
    (note,) = [
        note for note in json.loads(unskew("advise", "counts.csv", "--json").out)["notes"] if "column" in note
    ]
    span = "0 to 1" if text.startswith("0") else "1 to 2"
    assert note == (
        f"the first column counts {span} and was taken for a class: if it numbers the clients, leave it out."
    )
    assert note in package.advise(read_counts(Path("counts.csv"))).notes


@pytest.mark.parametrize("head", ["site,0,1", ",0,1", "client,1,2"])
def test_classes_that_are_numbers_stand_over_their_counts(unskew, head):
    """Read counts as in a cross table of pandas."""
    Path("counts.csv").write_text(f"{head}\ncleveland,131,111\nhungary,150,85\n")
    facts = json.loads(unskew("advise", "counts.csv", "--json").out)["facts"]
    assert (facts["clients"], facts["classes"]) == (2, 2)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "1,2\n3\n", "client 2 of a.csv has 1 count and client 1 has 2: give one for every class"),
        ("a.csv", "1,-2\n3,4\n", "client 1 of a.csv has the count -2 but should have 0 or more"),
        ("a.csv", "1,2\n3,some\n", "client 2 of a.csv has the count 'some' but should have a whole number"),
        ("a.csv", "1,2.5\n3,4\n", "client 1 of a.csv has the count 2.5 but should have a whole number"),
        ("a.csv", "", "a.csv has no counts: give a row for each client and a number for each class"),
        ("a.csv", "1\n2\n", "a.csv has one class"),
        ("a.csv", "0,0\n0,0\n", "a.csv has no samples"),
        ("a.json", "{", "a.json is not valid JSON"),
        ("a.json", "3", "a.json holds no counts"),
        ("a.json", "[[1, 2], [3, null]]", "client 2 of a.json has the count None but should"),
        ("a.json", "[[1, 2], [3, 1e99]]", "client 2 of a.json has the count 1e+99 but should"),
    ],
)
def test_a_broken_file_of_counts_is_answered_in_one_sentence(unskew, name, text, says):
    Path(name).write_text(text)
    answer = unskew("advise", name)
    assert answer.code == 2
    assert says in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "nothing is asked about: give --dataset and --skew, or a file of label counts."),
        ("nowhere.csv", "there is no file nowhere.csv: check the path."),
        ("counts.csv --skew shards:2", "counts.csv tells who holds what: leave --skew out."),
        ("counts.csv --cohort 5", "--cohort is 5 but should be 1 to 2, the number of clients."),
        ("counts.csv --by best", "unknown goal 'best': choose one of accuracy, vacant, worst."),
        ("--dataset digit", "unknown dataset 'digit': did you mean 'digits'?"),
        ("counts.csv --dataset digit", "unknown dataset 'digit': did you mean 'digits'?"),
        (
            "counts.csv --dataset digits",
            "counts.csv has 2 classes and digits has 10: give a count for each of them, 0 where a client has "
            "none, or leave the dataset out.",
        ),
        ("counts.csv --model cnnn", "unknown model 'cnnn': did you mean 'cnn'?"),
    ],
)
def test_a_mistake_is_answered_in_one_sentence(unskew, words, says):
    Path("counts.csv").write_text("3,0\n1,5\n")
    answer = unskew("advise", *words.split())
    assert (answer.code, answer.err) == (2, f"unskew: {says}\n")


def test_python_is_told_the_same():
    with pytest.raises(UserError, match="client 2 of the table of counts has"):
        package.advise([[1, 2], [3, -4]])
    with pytest.raises(UserError, match="client 2 of the table of counts has 1 count and"):
        package.advise([[1, 2], [3]])
    with pytest.raises(UserError, match="the table of counts is no table"):
        package.advise([1, 2])
    with pytest.raises(UserError, match=r"cohort is 0\.5 but should be a whole number"):
        package.advise([[1, 2], [3, 4]], cohort=0.5)
    with pytest.raises(UserError, match="counts has 2 classes and fashion_mnist has 10: give a count for"):
        package.advise([[1, 2], [3, 4]], dataset="fashion-mnist")
    with pytest.raises(UserError, match="the cohort is 9 but should be 1 to 2"):
        package.advise([[1, 2], [3, 4]], cohort=9)
