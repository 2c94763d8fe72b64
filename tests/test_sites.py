"""Data of several sites, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import unskew as package
from unskew import Budget, Trial, UserError, engines, metrics
from unskew.data import from_csv
from unskew.data.columns import FEWEST_ROWS, Columns
from unskew.data.loading import absolute
from unskew.data.tables import read_rows
from unskew.methods import METHODS
from unskew.record import MOST_SITES
from unskew.report.read import read_run
from unskew.sites import Sites
from unskew.testing import normed_model
from unskew.trial import Evaluation
from unskew.types import Weights

pytestmark = pytest.mark.usefixtures("no_workers")

RUN = ["--rounds", "1", "--epochs", "1", "--model", "mlp-small", "--skew", "natural", "--quiet", "--json"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a new folder, and return it."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def write_site(name: str, labels: list[int]) -> None:
    rng = np.random.default_rng(len(name))
    np.savez(name, x=rng.normal(size=(len(labels), 4)), y=labels)


def test_an_experiment_on_several_sites_can_be_repeated_from_any_folder(
    unskew, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_site("north.npz", [0, 1] * 10)
    write_site("south.npz", [0, 1, 2] * 10)
    answer = unskew("run", "--dataset", "npz:north.npz+npz:south.npz", *RUN, "--out", "first")
    assert answer.code == 0, answer.err
    first = json.loads(answer.out)
    monkeypatch.chdir(here.parent)
    answer = unskew("run", "work/first/experiment.toml", "--quiet", "--json", "--out", "second")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["weights_sha256"] == first["weights_sha256"]


def test_every_path_of_own_data_becomes_absolute(here: Path) -> None:
    assert absolute("folder:a,size=8+folder:b") == f"folder:{here}/a,size=8+folder:{here}/b"
    assert absolute("csv:u.csv,kind,test=t.csv") == f"csv:{here}/u.csv,kind,test={here}/t.csv"
    assert absolute("csv:u.csv,kind,t.csv") == f"csv:{here}/u.csv,kind,{here}/t.csv"
    assert absolute("mnist+emnist:letters") == "mnist+emnist:letters"


def test_skew_shows_sites_by_name_and_which_classes_they_lack(unskew, here: Path) -> None:
    write_site("north.npz", [0, 1] * 10)
    write_site("south.npz", [0, 1, 2] * 10)
    ask = ["skew", "--dataset", "npz:north.npz+npz:south.npz", "--skew", "natural"]
    answer = unskew(*ask)
    assert answer.code == 0, answer.err
    lines = {line.split()[0]: line.split() for line in answer.out.splitlines() if line.strip()}
    assert lines["site"][-2:] == ["test", "lacks"]
    assert lines["north"][1:6] == ["8", "8", "·", "16", "1"]
    assert lines["north"][-1] == "2"
    assert lines["south"][1:6] == ["8", "8", "8", "24", "0"]
    result = json.loads(unskew(*ask, "--json").out)
    assert result["names"] == ["north", "south"]
    assert result["vacant"] == [1, 0]


# The model at each site


@pytest.fixture(scope="module")
def hospitals() -> Trial:
    federation = package.federate(package.load("heart-disease:grades"), "natural", clients=0, seed=1)
    return Trial(federation, "logistic", Budget(rounds=3, epochs=1), engine="loop")


def test_a_site_has_its_own_numbers_and_they_add_up(hospitals: Trial) -> None:
    result = package.train(hospitals)
    assert [site.name for site in result.sites] == ["Cleveland", "Hungary", "Switzerland", "Long Beach"]
    assert (sum(site.confusion for site in result.sites) == result.final.confusion).all()
    assert (np.array([site.train for site in result.sites]) == result.counts).all()
    for client, site in enumerate(result.sites):
        own = hospitals.federation.dataset.test.owners.numpy() == client
        labels = hospitals.federation.dataset.test.labels.numpy()[own]
        assert site.client == client
        assert site.test.tolist() == np.bincount(labels, minlength=5).tolist()
        assert site.accuracy == np.mean(result.final.answers[own] == labels)
    hungary = result.sites[1]
    assert (hungary.train == 0).tolist() == [False, False, True, True, True]
    assert hungary.vacant is None  # it has no test patient of these grades either
    assert hungary.held == pytest.approx(np.nanmean(hungary.class_accuracy))
    accuracies = [site.accuracy for site in result.sites]
    spread = result.site_spread
    assert (spread.sites, spread.worst, spread.best) == (4, min(accuracies), max(accuracies))
    assert spread.worst_site == result.sites[int(np.argmin(accuracies))].name
    assert spread.mean == pytest.approx(np.mean(accuracies))
    assert spread.std == pytest.approx(np.std(accuracies))


def test_where_clients_keep_models_of_their_own_a_site_is_tested_with_its_own(hospitals: Trial) -> None:
    result = package.train(hospitals, METHODS["local-only"]())
    engine = engines.start(hospitals)
    for client, site in enumerate(result.sites):
        own = Weights({name: value[client] for name, value in result.weights.params.items()}, {})
        answers = engine.evaluate(own).result().answers
        mine = result.owners.owners == client
        assert (result.final.answers[mine] == answers[mine]).all()
        assert site.accuracy == np.mean(answers[mine] == result.owners.labels[mine])
    divided = package.federate(hospitals.federation.dataset, "iid", clients=4, seed=1)
    mixed = package.train(Trial(divided, "logistic", Budget(rounds=1, epochs=1)), METHODS["local-only"]())
    assert mixed.sites == []  # no client has a site to itself
    assert package.train(Trial(divided, "logistic", Budget(rounds=1, epochs=1))).sites[1].client is None


@pytest.mark.parametrize("statistics", ["average", "batch"])
def test_answers_belong_to_their_samples_on_every_engine(statistics) -> None:
    """Also where the samples are mixed before they become batches."""
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(90, 5)), np.arange(90) % 4
    data = package.data.from_arrays(rows, labels, owners=np.arange(90) // 30)
    trial = Trial(
        package.federate(data, "natural", clients=0, seed=1),
        normed_model,
        Budget(rounds=2, epochs=1, batch_size=8),
        evaluation=Evaluation(batch_size=4),
        statistics=statistics,
        engine="loop",
    )
    answers = []
    for engine in ("loop", "pool"):
        result = package.train(Trial(**{**vars(trial), "engine": engine, "workers": 2}))
        for round in result.rounds:
            cells = data.test.labels.numpy() * 4 + round.test.answers
            assert (np.bincount(cells, minlength=16).reshape(4, 4) == round.test.confusion).all()
        answers.append([round.test.answers.tolist() for round in result.rounds])
    assert answers[0] == answers[1]


def test_data_without_owners_have_no_sites(unskew) -> None:
    answer = unskew("run", "--dataset", "digits", "--rounds", "1", "--epochs", "1", "--json", "--quiet")
    summary = json.loads(answer.out)
    assert "sites" not in summary
    line = (Path(summary["run_dir"]) / "rounds.jsonl").read_text()
    assert "sites" not in json.loads(line)


def test_spread_and_groups_by_hand() -> None:
    sites = Sites(
        names=("a", "b", "c"),
        train=np.array([[3, 0], [2, 2], [0, 0]]),
        clients=np.array([0, 1, -1]),
        labels=np.array([0, 0, 1, 0, 1, 1]),
        owners=np.array([0, 0, 0, 1, 1, 2]),
    )
    answers = np.array([0, 1, 1, 1, 1, 2], np.uint8)  # 2: no model was asked
    found = metrics.site_results(sites, answers)
    assert [site.accuracy for site in found[:2]] == [pytest.approx(2 / 3), 0.5]
    assert np.isnan(found[2].accuracy)
    assert (found[0].held, found[0].vacant, found[0].worst_class) == (0.5, 1.0, 0)
    assert (found[1].held, found[1].vacant) == (0.5, None)
    assert found[2].worst_class is None
    spread = metrics.spread(sites, metrics.site_accuracy(sites, answers))
    assert (spread.sites, spread.worst, spread.worst_site, spread.unseen) == (2, 0.5, "b", None)
    seen = metrics.spread(sites, metrics.site_accuracy(sites, np.array([0, 1, 1, 1, 1, 1])))
    assert (seen.sites, seen.unseen) == (2, 1.0)


def test_run_and_compare_tell_of_every_site(unskew) -> None:
    ask = ["--dataset", "heart-disease:grades", "--skew", "natural", "--rounds", "2", "--epochs", "1"]
    ask += ["--engine", "loop"]
    answer = unskew("run", *ask, "--out", "one")
    assert answer.code == 0, answer.err
    lines = {line.split("  ")[0]: line.split() for line in answer.out.splitlines() if line.strip()}
    assert lines["Hungary"][1:3] == ["235", "59"]
    assert lines["Hungary"][-3:] == ["2,", "3,", "4"]
    assert "over sites: mean" in answer.out
    run = read_run(Path("one"))
    assert run.names == ("Cleveland", "Hungary", "Switzerland", "Long Beach")
    assert set(run.tested[-1].sites.accuracy) == set(run.names)
    each = {site.name: site for site in run.summary.sites.each}
    assert run.summary.sites.spread == run.tested[-1].sites
    assert sum(n for _, _, n in each["Hungary"].answered) == sum(each["Hungary"].test) == 59
    answer = unskew("compare", "fedavg", "local-only", *ask, "--seeds", "1,2", "--out", "two", "--json")
    methods = json.loads(answer.out)["methods"]
    mine = [
        read_run(Path("two") / f"local-only-seed{seed}").summary.sites.spread.accuracy["Hungary"]
        for seed in (1, 2)
    ]
    assert methods["local-only"]["sites"]["accuracy"]["Hungary"]["mean"] == pytest.approx(np.mean(mine))
    assert methods["fedavg"]["sites"]["worst"]["mean"] <= methods["fedavg"]["sites"]["mean"]["mean"]


def test_of_many_sites_a_round_has_the_spread_and_a_file_all(unskew) -> None:
    number = MOST_SITES + 20
    ask = ["--dataset", f"synthetic:1,1,clients={number},cap=60", "--skew", "natural", "--cohort", "5"]
    answer = unskew("run", *ask, "--rounds", "2", "--epochs", "1", "--out", "one")
    assert answer.code == 0, answer.err
    run = read_run(Path("one"))
    assert [line.sites.accuracy for line in run.tested] == [None, None]
    assert run.tested[-1].sites.sites == number
    sites = [json.loads(line) for line in Path("one/sites.jsonl").read_text().splitlines()]
    assert len(sites) == number
    accuracies = sorted(site["accuracy"] for site in sites)
    shown = run.summary.sites.each
    assert [site.accuracy for site in shown] == accuracies[:MOST_SITES]
    assert run.summary.sites.spread.median == pytest.approx(np.median(accuracies))
    assert f"{number} sites" in answer.out


# Whose rows a table is scaled by


def write_tables() -> None:
    rng = np.random.default_rng(0)
    for name, mean, std in (("north", 100.0, 10.0), ("south", -5.0, 0.5)):
        rows = rng.normal(mean, std, (40, 2))
        text = "".join(f"{a},{b},{'red' if n % 3 else 'blue'},{n % 2}\n" for n, (a, b) in enumerate(rows))
        Path(f"{name}.csv").write_text("a,b,colour,kind\n" + text)


def test_each_site_can_scale_its_table_by_itself(here: Path) -> None:
    write_tables()
    data = from_csv([Path("north.csv"), Path("south.csv")], label="kind", scale="site")
    for site in (0, 1):
        own = data.train.inputs[data.train.owners == site][:, :2]
        assert own.mean(dim=0).abs().max() < 1e-6
        assert own.std(dim=0, correction=0) == pytest.approx([1, 1], abs=1e-6)
    together = from_csv([Path("north.csv"), Path("south.csv")], label="kind")
    assert together.train.inputs[:, :2].mean(dim=0).abs().max() < 1e-6
    assert together.train.inputs[together.train.owners == 0][:, 0].mean() > 0.9
    assert "sum of squares" in " ".join(together.notes)
    assert "which categories it has, and no number" in " ".join(data.notes)
    plain = from_csv([Path("north.csv"), Path("south.csv")], label="kind", columns=("a",), scale="site")
    assert "none sends anything" in " ".join(plain.notes)


def test_a_scale_of_each_site_is_kept_and_a_new_site_brings_its_own(here: Path) -> None:
    write_tables()
    data = from_csv([Path("north.csv"), Path("south.csv")], label="kind", scale="site")
    columns = Columns.from_json(json.loads(json.dumps(data.columns.to_json())))
    assert columns == data.columns
    north = columns.apply(read_rows(Path("north.csv"), columns, site="north"))
    own = {tuple(row) for row in torch.tensor(north, dtype=torch.float32)[:, :2].tolist()}
    assert {tuple(row) for row in data.train.inputs[data.train.owners == 0][:, :2].tolist()} <= own
    Path("east.csv").write_text("a,b,colour\n" + "".join(f"{n},{2 * n},blue\n" for n in range(FEWEST_ROWS)))
    east = columns.apply(read_rows(Path("east.csv"), columns))
    assert np.abs(east[:, :2].mean(axis=0)).max() < 1e-9
    assert east[:, :2].std(axis=0) == pytest.approx([1, 1])
    Path("few.csv").write_text("a,b,colour\n1,2,red\n")
    with pytest.raises(UserError, match="a site without a name was not trained on and has 1 row"):
        columns.apply(read_rows(Path("few.csv"), columns))


def test_a_scale_of_each_site_needs_sites(here: Path) -> None:
    write_tables()
    with pytest.raises(UserError, match="scale=site needs sites"):
        from_csv(Path("north.csv"), label="kind", scale="site")
    with pytest.raises(UserError, match="needs the site of every test row"):
        from_csv([Path("north.csv"), Path("south.csv")], label="kind", scale="site", test=Path("south.csv"))


def test_a_column_that_a_site_lacks_is_0_there(here: Path) -> None:
    Path("all.csv").write_text(
        "a,hospital,kind\n"
        + "".join(f"{n},north,{n % 2}\n" for n in range(20))
        + "".join(f"?,south,{n % 2}\n" for n in range(20))
    )
    data = from_csv(Path("all.csv"), label="kind", site="hospital", missing="column", scale="site")
    assert data.columns.features == ("a", "a is missing")
    south = data.train.inputs[data.train.owners == 1]
    assert south.tolist() == [[0.0, 1.0]] * len(south)
    again = Columns.from_json(data.columns.to_json())
    assert again.site == "hospital"
    rows = read_rows(Path("all.csv"), again)
    assert rows.sites == ["north"] * 20 + ["south"] * 20
    assert again.apply(rows)[20:].tolist() == [[0.0, 1.0]] * 20
