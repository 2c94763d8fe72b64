"""The papers' tables: the printed numbers, the experiments behind them, and runs next to them."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from benchmarks import kills

from unskew import UserError, models
from unskew.data import load
from unskew.data.augment import Augment
from unskew.data.dataset import Dataset, Split
from unskew.data.join import join
from unskew.data.partitions import parse_skew
from unskew.data.sources import SOURCES
from unskew.experiment import Experiment, prepare, read
from unskew.methods import METHODS
from unskew.methods.assemble import assemble
from unskew.notation import joined
from unskew.report.read import read_run
from unskew.reproduce import PAPERS, cells, experiment, find_table, papers, tables
from unskew.reproduce.identity import difference
from unskew.reproduce.measures import measure
from unskew.reproduce.pace import Pace, duration
from unskew.reproduce.version import Version, run_stem

SMALL = ("--rounds", "1", "--fraction", "0.02")


@pytest.fixture(autouse=True)
def _no_data(monkeypatch, tmp_path) -> None:
    """Hide all data but what is installed with unskew."""
    monkeypatch.setenv("UNSKEW_DATA", str(tmp_path / "no-data"))


def printed(table: str, cell: str, measure: str = "accuracy") -> str:
    (found,) = cells(find_table(table), cell)
    return str(found.published[measure])


class TestPublished:
    @pytest.mark.parametrize("paper", PAPERS)
    def test_every_cell_is_an_experiment_or_says_why_not(self, paper) -> None:
        seen = set()
        for table in papers()[paper].tables:
            assert table.cells or table.not_runnable
            assert (
                len({cell.id for cell in table.cells})
                == len(table.cells)
                == len(table.columns) * len(table.rows)
            )
            for cell in table.cells:
                if cell.not_runnable:
                    with pytest.raises(UserError, match="cannot be run"):
                        experiment(cell)
                    continue
                assert set(cell.datasets) <= SOURCES.keys()
                for reading in cell.readings:
                    whole = experiment(cell, reading, seed=3)
                    if run_stem(whole) in seen:
                        continue
                    seen.add(run_stem(whole))
                    made = Experiment(**whole)
                    assert made.seed == 3
                    assert made.model.name in models.MODELS
                    assemble(made.method.parts())
                    Augment.parse(made.data.augment)
                    smaller = experiment(cell, reading, rounds=2, fraction=0.5)
                    parse_skew(smaller["skew"]["recipe"])

    @pytest.mark.parametrize(
        ("paper", "last_table", "last_figure"),
        [("fedlmd", 7, 10), ("fedvls", 17, 9), ("feded", 7, 6), ("fedlc", 7, 7), ("pkd", 10, 11)],
    )
    def test_every_table_and_figure_is_described(self, paper, last_table, last_figure) -> None:
        numbered = [("table", last_table), ("figure", last_figure)]
        expected = [f"{paper}:{kind}{number}" for kind, last in numbered for number in range(1, last + 1)]
        assert [table.id for table in papers()[paper].tables] == expected

    @pytest.mark.parametrize(
        ("table", "cell", "measure", "number"),
        [
            ("fedlmd:table3", "cifar10/dirichlet:0.05/fedlmd", "accuracy", "50.45"),
            ("fedlmd:table3", "cifar10/shards:2/fedlmd", "speed_up", "3.64"),
            ("fedlmd:table3", "cifar10/dirichlet:0.05/scaffold", "speed_up", "failed"),
            ("fedlmd:table7", "cinic10/dirichlet:0.1/fedcurv", "accuracy", "52.48 ± 2.28"),
            ("fedlmd:table4", "cifar10/dirichlet:0.05/mobilenet/fedcurv", "accuracy", "14.10"),
            ("fedvls:table1", "mnist/dirichlet:0.05/fedlc", "accuracy", "85.56 ± 0.18"),
            ("fedvls:table1", "tiny_imagenet/dirichlet:0.05/fedvls", "accuracy", "45.23 ± 0.15"),
            ("fedvls:table5", "cifar10/dirichlet:0.05/none", "accuracy", "57.31"),
            ("fedvls:table17", "cifar10/dirichlet:0.1/fedvls", "drift", "8.37"),
            ("fedvls:table15", "digits4/dirichlet:0.05/fpl+fedvls", "domain:svhn", "82.05"),
            ("feded:table4", "cifar10/dirichlet:0.05/40-rounds/feded", "accuracy", "72.90"),
            ("feded:table5", "cifar10/dirichlet:0.05/none", "accuracy", "55.38"),
            ("fedlc:table1", "cifar100/dirichlet:0.5/fedlc", "accuracy", "44.96 ± 1.71"),
            ("fedlc:table5", "svhn/sorted-shards:5/E=20/fednova", "accuracy", "89.24"),
            ("fedlc:table4", "synthetic:1,1/fedrs", "accuracy", "66.39 ± 1.41"),
            ("pkd:table1", "cifar10/balanced/100-clients/pkd", "min_class", "53.00"),
            ("pkd:table1", "cifar10/balanced/100-clients/pkd-found", "min_class", "53.00"),
            ("pkd:table9", "fashion_mnist/balanced/10-clients/fedavg", "cost:70", "never"),
        ],
    )
    def test_numbers_are_those_in_print(self, table, cell, measure, number) -> None:
        assert printed(table, cell, measure) == number

    def test_hyperparameters_differ_by_column(self) -> None:
        at = {
            column: experiment(cells(find_table("fedlmd:table3"), f"{column}/fedlmd")[0])["method"]
            for column in ("cifar10/shards:2", "cifar10/dirichlet:0.05")
        }
        assert (at["cifar10/shards:2"]["beta"], at["cifar10/shards:2"]["temperature"]) == (1.0, 1.0)
        assert (at["cifar10/dirichlet:0.05"]["beta"], at["cifar10/dirichlet:0.05"]["temperature"]) == (
            2.0,
            3.0,
        )

    def test_readings_differ_in_what_paper_and_code_disagree_on(self) -> None:
        (cell,) = cells(find_table("fedlmd:table1"), "*/fedlmd")
        code, paper = experiment(cell, "as-coded"), experiment(cell, "paper")
        assert code["data"]["augment"] == "crop:4,flip,cutout:16"
        assert paper["data"]["augment"] == "crop:4,flip"
        assert code["method"]["name"] == "fedlmd"
        assert paper["method"]["name"] == "fedlmd+uniform"
        (cell,) = cells(find_table("fedvls:table1"), "cifar100/dirichlet:0.1/fedvls")
        code, paper = experiment(cell, "as-coded"), experiment(cell, "paper")
        assert (code["budget"]["weight_decay"], paper["budget"]["weight_decay"]) == (0.0, 1e-4)
        assert (code["method"]["form"], paper["method"]["form"]) == ("official", "paper")
        assert code["method"]["lam"] == paper["method"]["lam"] == 0.5
        with pytest.raises(UserError, match="has the reading paper alone"):
            experiment(find_table("pkd:table1").cells[0], "as-coded")

    def test_one_experiment_of_two_tables_is_one_run(self) -> None:
        stems = {
            run_stem(experiment(cells(find_table(table), cell)[0]))
            for table, cell in (
                ("fedlmd:table1", "cifar10/dirichlet:0.05/fedavg"),
                ("fedlmd:table3", "cifar10/dirichlet:0.05/fedavg"),
                ("fedlmd:table7", "cifar10/dirichlet:0.05/fedavg"),
            )
        }
        assert len(stems) == 1
        vls, ed = (
            run_stem(experiment(cells(find_table(f"{name}:table1"), f"cifar10/dirichlet:0.1/{name}")[0]))
            for name in ("fedvls", "feded")
        )
        assert vls == ed

    def test_a_part_of_the_data_has_room_for_its_clients(self) -> None:
        for table, cell, recipe in (
            ("fedlmd:table1", "*/fedavg", "part:0.02+dirichlet:0.05,variant=fedntd,min_size=1"),
            (
                "fedvls:table1",
                "mnist/dirichlet:0.1/fedavg",
                "part:0.02+dirichlet:0.1,variant=fedvls,min_size=5",
            ),
            ("fedvls:table2", "cifar10/*/fedavg", "part:0.02+quantity:2"),
            ("pkd:table3", "mnist/*/fedavg", "part:0.02+classes:1"),
        ):
            (found,) = cells(find_table(table), cell)
            assert experiment(found, fraction=0.02)["skew"]["recipe"] == recipe

    def test_stages_fit_into_fewer_rounds(self) -> None:
        (cell,) = cells(find_table("pkd:table1"), "mnist/balanced/10-clients/pkd")
        small = experiment(cell, rounds=5)["method"]
        assert (small["warmup"], small["expert_rounds"]) == ("auto", 5)

    def test_reading_the_tables_needs_no_pytorch(self) -> None:
        code = "import sys, unskew.reproduce as r; r.tables(); assert 'torch' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True)

    @pytest.mark.parametrize(
        ("table", "says"),
        [("fedlmd:table33", "did you mean 'fedlmd:table3'"), ("table3", "is no table of these papers")],
    )
    def test_a_table_that_is_not_there(self, table, says) -> None:
        with pytest.raises(UserError, match=says):
            find_table(table)


def test_tables_are_listed(unskew) -> None:
    answer = unskew("reproduce", "--list")
    assert answer.code == 0
    for table in tables():
        assert f"{table} " in answer.out
    told = json.loads(unskew("reproduce", "--list", "--json").out)
    assert told["fedlc:table4"]["cells"] == 28
    assert told["fedlc:table4"]["here"] == 21  # FEMNIST is not here
    one = unskew("reproduce", "fedlc:table4", "--list").out
    assert "80.92 ± 0.31" in one
    assert "cannot be run (7 cells): it needs FEMNIST" in one
    assert "it begins with a trained global model" in unskew("reproduce", "fedvls:table12", "--list").out


def test_missing_data_are_fetched_to_where_they_are_looked_for(unskew, tmp_path) -> None:
    for folder, given in (
        (tmp_path / "a place", f" --data '{tmp_path}/a place'"),
        (tmp_path / "no-data", ""),
    ):
        ask = ["reproduce", "fedvls:table1", "--cell", "mnist/*", "--data", str(folder), "--rounds", "1"]
        said = unskew(*ask).err
        assert said.rstrip().endswith(f"it needs MNIST, downloaded by: unskew data fetch mnist{given}.")
    said = unskew("reproduce", "fedvls:table15", "--data", "x").err
    assert "unskew data fetch mnist --data x && unskew data fetch usps --data x && unskew data" in said
    assert "; unpack SynthDigits.zip" in said
    femnist = unskew("reproduce", "fedlc:table4", "--list").out
    assert "it needs FEMNIST (LEAF): run data/femnist/preprocess.sh" in femnist
    assert "data fetch femnist" not in femnist  # which has no open download


def test_the_default_reading_is_the_first_that_a_table_lists(unskew, tmp_path) -> None:
    said = " ".join(unskew("reproduce", "--help").out.replace("│", " ").split())
    assert "as-coded (its released code; for FedLC, what public implementations have in common)" in said
    assert "[default: the first reading that --list TABLE names]" in said
    for table, cell, reading in (
        ("fedlc:table4", "synthetic:0,0/fedlc", "as-coded"),
        ("pkd:table1", "mnist/balanced/10-clients/pkd", "paper"),
    ):
        listed = unskew("reproduce", "--list", table).out
        assert f"readings: {reading}" in listed
        assert unskew("reproduce", table, "--cell", cell, "--write", reading).code == 0
        (path,) = (tmp_path / reading).iterdir()
        assert f"{cell}, reading {reading}" in path.read_text()


def test_a_smaller_version_is_run_once_and_says_that_it_is_one(unskew, tmp_path, no_workers) -> None:
    cells = ("--cell", "synthetic:0,0/fed[al]*", "--cell", "femnist/fedavg")
    ask = ["reproduce", "fedlc:table4", *cells, *SMALL]
    first = unskew(*ask, "--seeds", "1-2", "--reading", "both")
    assert first.code == 0, first.err
    assert re.search(r"time: \d.* s = start .* \+ runs .* \+ end", first.err)
    assert "6 runs to do; how long they take is not known" in first.err
    assert "a smaller version, with 1 round and 2 % of the training samples" in first.out
    assert "left out: the cell femnist/fedavg: it needs FEMNIST" in first.out
    there = tmp_path / "runs/reproduce/rounds=1,fraction=0.02"
    folders = {path.name: path.stat().st_mtime_ns for path in there.glob("*/summary.json")}
    told = json.loads((there / "fedlc-table4.json").read_text())
    assert told["version"] == {
        "full": False, "words": "a smaller version, with 1 round and 2 % of the training samples",
        "rounds": 1, "fraction": 0.02, "precision": "fp32", "fast": False,
    }  # fmt: skip
    by_cell = {(each["cell"], each["reading"]): each for each in told["cells"]}
    assert set(by_cell) == {
        ("synthetic:0,0/fedavg", "as-coded, paper"),
        ("synthetic:0,0/fedlc", "as-coded"),
        ("synthetic:0,0/fedlc", "paper"),
    }
    fedlc = by_cell["synthetic:0,0/fedlc", "as-coded"]
    accuracy = fedlc["measures"]["accuracy"]
    assert accuracy["published"] == {"value": 80.92, "std": 0.31, "word": None}
    assert accuracy["mean"] == pytest.approx(sum(accuracy["values"]) / 2)
    assert accuracy["difference"] is None  # a smaller version compares with nothing in print
    assert fedlc["seeds"] == [1, 2]
    assert fedlc["beside"]["accuracy.last"] == accuracy["values"]
    page = (there / "fedlc-table4.md").read_text()
    assert "| cell | published | ours, smaller version | difference | reading |" in page
    assert "not to be compared with what is published" in page

    again = unskew(*ask, "--reading", "both", "--json")
    assert "all 3 runs are finished already" in again.err
    assert [each for each in json.loads(again.out)["cells"] if each["seeds"]] == told["cells"]
    assert {path.name: path.stat().st_mtime_ns for path in there.glob("*/summary.json")} == folders
    assert (
        unskew("reproduce", "fedlc:table4", "--show", "--cell", "synthetic:0,0/fedavg").out.count(" - ") > 0
    )
    assert not (tmp_path / "runs/reproduce/full").exists()


def test_it_is_interrupted_and_goes_on(unskew, tmp_path, no_workers) -> None:
    ask = ["reproduce", "fedlc:table4", "--cell", "synthetic:1,1/fedavg", "--rounds", "12"]
    ask += ["--fraction", "0.02", "--checkpoint", "every=1", "--engine", "loop"]
    child = kills.fork(ask, tmp_path / "log")
    folder = tmp_path / "runs/reproduce/rounds=12,fraction=0.02"
    deadline = time.monotonic() + 60
    while not any(path.read_text().count("\n") > 1 for path in folder.glob("*/rounds.jsonl")):
        assert time.monotonic() < deadline, (tmp_path / "log").read_text()
        time.sleep(0.02)
    os.kill(child, signal.SIGINT)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert (
        "what is finished is kept; resume with: unskew reproduce fedlc:table4"
        in (tmp_path / "log").read_text()
    )
    (run,) = folder.glob("fedavg-*")
    assert not (run / "summary.json").exists()
    answer = unskew(*ask)
    assert answer.code == 0, answer.err
    assert (run / "resumed.jsonl").exists()
    assert read_run(run).done == 12


def test_experiment_files_can_be_run_alone(unskew, tmp_path) -> None:
    answer = unskew(
        "reproduce",
        "fedlmd:table3",
        "--cell",
        "cifar10/dirichlet:0.05/fedlmd",
        "--seeds",
        "1-2",
        "--write",
        "files",
    )
    assert answer.code == 0, answer.err
    paths = sorted((tmp_path / "files").iterdir())
    assert len(paths) == 2
    assert "fedlmd:table3 cifar10/dirichlet:0.05/fedlmd, reading as-coded" in paths[0].read_text()
    made = Experiment(**read(paths[1]))
    assert made.seed == 2
    assert made.skew.seed == 19940817
    assert made.method.brief() == "fedlmd:beta=2,temperature=3"


def test_experiment_files_have_what_was_asked_of_how_they_run(unskew, tmp_path) -> None:
    ask = ["reproduce", "fedlc:table4", "--cell", "synthetic:0,0/fedavg", "--write", "files"]
    ask += ["--engine", "loop", "--device", "cuda:1", "--workers", "3", "--checkpoint", "every=5"]
    answer = unskew(*ask, "--data", "sets", "--quiet")
    assert (answer.code, answer.err) == (0, "")
    (path,) = (tmp_path / "files").iterdir()
    made = Experiment(**read(path))
    assert (made.engine, made.device, made.workers, made.checkpoint) == ("loop", "cuda:1", 3, "every=5")
    assert made.data.folder == str(tmp_path / "sets")
    assert made.data.name == "synthetic:0,0,clients=100"
    plain = unskew(*ask[:6])
    assert plain.code == 0
    assert [each.name for each in (tmp_path / "files").iterdir()] == [path.name]


def test_a_file_names_all_readings_that_it_is(unskew, tmp_path) -> None:
    ask = ["reproduce", "fedlc:table4", "--cell", "synthetic:0,0/fedavg", "--reading", "both"]
    answer = unskew(*ask, "--seeds", "1", "--write", "files")
    assert answer.code == 0, answer.err
    (path,) = (tmp_path / "files").iterdir()
    told = [line for line in path.read_text().splitlines() if ", reading " in line]
    assert told == [
        "# fedlc:table4 synthetic:0,0/fedavg, reading as-coded",
        "# fedlc:table4 synthetic:0,0/fedavg, reading paper",
    ]


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        ((), "no table is named"),
        (("fedlmd:table6",), "cannot be run: it lists hyperparameters"),
        (("fedlmd:table3", "--cell", "cifar11/*"), "no cell of fedlmd:table3 matches 'cifar11/*'"),
        (
            ("fedlmd:table3", "--cell", "cifar10/*", "--cell", "cifar11/*"),
            "no cell of fedlmd:table3 matches 'cifar11/*'",
        ),
        (
            ("fedlc:table4", "--cell", "synthetic:0,0/fedavg,femnist/fedavg"),
            "where * stands for anything, or several separated by spaces.",
        ),
        (
            ("fedlmd:table3", "--reading", "printed"),
            "unknown reading 'printed': choose one of as-coded, both, paper",
        ),
        (("fedlc:table4", "--fraction", "2"), "--fraction is 2 but should be a share between 0 and 1"),
        (("fedlc:table4", "--rounds", "0"), "--rounds is 0 but should be a whole number"),
        (("fedlc:table4", "--rounds", "nan"), "--rounds is nan but should be a whole number"),
        (("fedlc:table4", "--rounds", "inf"), "--rounds is inf but should be a whole number"),
        (
            ("fedlc:table4", "--rounds", "300"),
            "--rounds is 300 but synthetic:0,0/fedavg is published with 300: ask for fewer",
        ),
        (("fedlc:table4", "--precision", "fp8"), "unknown precision 'fp8'"),
        (
            ("fedlc:table4", "--show", "--checkpoint", "maybe"),
            "--checkpoint does nothing with --show: leave it out",
        ),
        (
            ("fedlc:table4", "--show", "--engine", "loop", "--seeds", "1-3", "--data", "x"),
            "--seeds, --engine, --data do nothing with --show: leave them out",
        ),
        (("fedlc:table4", "--show", "--write", "files"), "--show, --write cannot be combined: keep one"),
        (("--list", "--write", "files"), "--list, --write cannot be combined: keep one"),
        (
            ("fedlc:table4", "--list", "--reading", "paper", "--cell", "*"),
            "--cell, --reading do nothing with --list: leave them out",
        ),
        (("--list", "--rounds", "0"), "--rounds does nothing with --list: leave it out"),
        (
            ("fedlc:table4", "--write", "files", "--out", "runs"),
            "--out does nothing with --write: leave it out",
        ),
        (("fedlc:table4", "--write", "files", "--engine", "warp"), "unknown engine 'warp'"),
        (("fedlc:table4", "--write", "files", "--device", "cpu:1"), "unknown device 'cpu:1'"),
        (("fedlc:table4", "--write", "files", "--workers", "-1"), "workers"),
        (("no:table", "--checkpoint", "maybe"), "checkpoint is 'maybe' but should be every=ROUNDS"),
        (("no:table", "--log", "paper"), "paper"),
        (("no:table", "--seeds", "x"), "--seeds is 'x' but should be numbers"),
        (("fedlmd:table1",), "none of these cells can be run here: it needs CIFAR-10"),
    ],
)
def test_mistakes_are_explained(unskew, ask, says) -> None:
    answer = unskew("reproduce", *ask)
    assert answer.code == 2
    assert says in answer.err
    assert not list(Path().iterdir())


def test_values_are_checked_where_all_runs_are_finished(unskew, tmp_path, no_workers) -> None:
    ask = ["reproduce", "fedlc:table4", "--cell", "synthetic:0,0/fedavg", *SMALL]
    assert unskew(*ask, "--quiet").code == 0
    for flag, value in (("--checkpoint", "maybe"), ("--engine", "warp"), ("--device", "mps")):
        answer = unskew(*ask, flag, value)
        assert answer.code == 2
        assert value in answer.err
    assert "the run is finished already." in unskew(*ask).err


def test_a_folder_that_cannot_be_written_to_is_said_before_anything_runs(unskew, tmp_path) -> None:
    (tmp_path / "file").touch()
    answer = unskew(
        "reproduce", "fedlc:table4", "--cell", "synthetic:0,0/fedavg", *SMALL, "--out", "file", "--quiet"
    )
    assert (answer.code, answer.out) == (2, "")
    assert "cannot write to file/rounds=1,fraction=0.02" in answer.err


def test_what_is_refused_leaves_no_folder(unskew, tmp_path) -> None:
    ask = ["reproduce", "fedlc:table4", "--cell", "synthetic:0,0/fedavg", "--rounds", "2"]
    answer = unskew(*ask, "--precision", "tf32", "--device", "cpu")
    assert answer.code == 2
    assert "precision tf32 is for a GPU" in answer.err
    assert not list(tmp_path.iterdir())


def test_a_share_that_is_more_because_every_owner_keeps_a_sample_is_refused(
    unskew, tmp_path, no_workers
) -> None:
    ask = ["reproduce", "fedlc:table4", "--cell", "synthetic:0,0/fedavg", "--rounds", "1", "--fraction"]
    answer = unskew(*ask, "0.0001")
    assert answer.code == 2
    says = "--fraction 0.0001 would be 0.31 % of the training samples of synthetic:0,0,clients=100, of which"
    assert says in answer.err
    assert "each owner keeps at least one: ask for more, such as 0.01." in answer.err
    assert not list(tmp_path.iterdir())
    assert unskew(*ask, "0.01", "--quiet").code == 0


def test_runs_that_are_not_what_their_name_says_are_refused(unskew, tmp_path, no_workers) -> None:
    ask = ["reproduce", "fedlc:table4", "--cell", "synthetic:0,0/fedavg"]
    assert unskew(*ask, *SMALL, "--quiet").code == 0
    out = tmp_path / "runs/reproduce"
    (run,) = (out / "rounds=1,fraction=0.02").glob("fedavg-*")
    shutil.copytree(run, run.with_name(run.name.removesuffix("1") + "2"))
    copied = unskew(*ask, *SMALL, "--show")
    assert copied.code == 2
    assert "is another run than its name says (seed is 1, not 2): remove it" in copied.err

    (cell,) = cells(find_table("fedlc:table4"), "synthetic:0,0/fedavg")
    shutil.copytree(run, out / "full" / f"{run_stem(experiment(cell))}-seed1")
    mixed = unskew(*ask, "--show")
    assert mixed.code == 2
    assert "is another run than its name says (budget.rounds is 1, not 300): remove it" in mixed.err


def test_a_run_of_other_data_or_settings_is_refused_under_a_cells_name(unskew, tmp_path, no_workers) -> None:
    ask = ["reproduce", "fedlc:table4", *SMALL, "--cell"]
    assert unskew(*ask, "synthetic:[01],[01]/fedavg synthetic:0,0/fedlc", "--quiet").code == 0
    folder = tmp_path / "runs/reproduce/rounds=1,fraction=0.02"
    zero, one, fedlc = (
        next(folder.glob(f"{name}-clients=100-*"))
        for name in ("fedavg-synthetic-0-0", "fedavg-synthetic-1-1", "fedlc-synthetic-0-0")
    )
    shutil.move(zero, tmp_path / "zero")
    shutil.copytree(one, zero)
    for answer in (unskew(*ask, "synthetic:0,0/fedavg", "--show"), unskew(*ask, "synthetic:0,0/*")):
        assert (answer.code, answer.out) == (2, "")
        says = "data.name is synthetic:1,1,clients=100, not synthetic:0,0,clients=100): remove it, or choose"
        assert f"{zero.name} is another run than its name says ({says}" in answer.err
    assert not list(folder.glob("fedprox-*"))  # it is refused before other cells run
    shutil.rmtree(zero)
    shutil.copytree(tmp_path / "zero", zero)

    def changed(run: Path, before: str, after: str) -> str:
        settings = run / "experiment.toml"
        whole = settings.read_text()
        assert before in whole
        settings.write_text(whole.replace(before, after))
        answer = unskew(*ask, "synthetic:0,0/*", "--show")
        settings.write_text(whole)
        assert answer.code == 2
        return answer.err

    assert "(budget.lr is 0.1, not 0.01): remove it" in changed(zero, "lr = 0.01", "lr = 0.1")
    assert "(budget.schedule is exponential:factor=0.9, not constant)" in changed(
        zero, '"constant"', '"exponential:0.9"'
    )
    assert "(skew.clients is 50, not 100)" in changed(zero, "\nclients = 100", "\nclients = 50")
    assert "(skew.seed is 4, not 1)" in changed(zero, "\nseed = 1\nsha", "\nseed = 4\nsha")
    assert "(skew.recipe is part:0.02+iid, not part:0.02+natural)" in changed(
        zero, "natural:min_size=1,surplus=drop", "iid"
    )
    assert "(attack is " in changed(zero, 'attack = "none"', 'attack = "sign-flip"')
    assert "(method.tau is 0.7, not 0.5)" in changed(fedlc, "tau = 0.5", "tau = 0.7")
    assert "(unknown hyperparameter of fedlc 'sharpness'" in changed(fedlc, "tau =", "sharpness = 1\ntau =")

    # What says how a run was computed is no difference, and neither is what older versions did not write.
    settings = zero / "experiment.toml"
    whole = settings.read_text()
    for line in ('precision = "fp32"\n', "fast = false\n", "threads = 1\n", 'teacher = "running"\n'):
        assert line in whole
        whole = whole.replace(line, "")
    settings.write_text(whole.replace('device = "cpu"', 'device = "cuda"'))
    shown = unskew(*ask, "synthetic:0,0/*", "--show")
    assert shown.code == 0, shown.err


def like(name: str) -> Dataset:
    """Return a dataset with the shapes and classes of a named one, and noise for images."""
    if name not in ("mnist", "usps", "svhn", "syn_digits", "cifar10", "cifar100"):
        return load(name)
    shape = {"mnist": (1, 28, 28), "usps": (1, 16, 16)}.get(name, (3, 32, 32))
    classes = 100 if name == "cifar100" else 10
    pixels = torch.randint(0, 256, (4000, *shape), dtype=torch.uint8)
    split = Split(pixels, torch.arange(4000) % classes)
    return Dataset(name, split, split, tuple(map(str, range(classes))))


@pytest.mark.parametrize("small", [{}, {"rounds": 2, "fraction": 0.5}])
@pytest.mark.parametrize(
    ("table", "cell"),
    [
        ("fedlc:table4", "synthetic:0.5,0.5/fedopt"),
        ("fedlmd:table3", "cifar10/shards:2/fedlmd"),
        ("fedvls:table1", "cifar100/dirichlet:0.1/moon"),
        ("fedvls:table15", "digits4/dirichlet:0.05/fpl+fedvls"),
        ("pkd:table1", "mnist/balanced/10-clients/pkd"),
    ],
)
def test_a_runs_own_experiment_is_that_of_its_cell(tmp_path, table, cell, small) -> None:
    (found,) = cells(find_table(table), cell)
    for reading in found.readings:
        asked = experiment(found, reading, seed=3, **small)
        names = joined(asked["data"]["name"])
        dataset = join([like(name) for name in names]) if len(names) > 1 else like(*names)
        prepared = prepare(Experiment(**asked, device="cpu"), dataset)
        (tmp_path / "experiment.toml").write_text(prepared.experiment.toml())
        assert difference(asked, read(tmp_path / "experiment.toml")) == ""
        assert difference({**asked, "seed": 4}, read(tmp_path / "experiment.toml")) == "seed is 3, not 4"


def test_a_finished_run_that_is_damaged_is_to_be_removed(unskew, tmp_path, no_workers) -> None:
    ask = ["reproduce", "fedlc:table4", "--cell", "synthetic:0,0/fedavg", *SMALL, "--quiet"]
    assert unskew(*ask).code == 0
    (run,) = (tmp_path / "runs/reproduce/rounds=1,fraction=0.02").glob("fedavg-*")
    (run / "summary.json").write_text("{")
    answer = unskew(*ask)
    assert answer.code == 2
    assert f"remove runs/reproduce/rounds=1,fraction=0.02/{run.name}, and it is run again" in answer.err
    shutil.rmtree(run)
    assert unskew(*ask).code == 0


def test_costs_count_experts_as_pkd_does(unskew, tmp_path, no_workers) -> None:
    ask = ["run", "--dataset", "digits", "--skew", "balanced", "--clients", "2", "--rounds", "5"]
    ask += ["--epochs", "1"]
    ask += ["--method", "pkd:groups=3/8;0/1,warmup=2,expert_rounds=4", "--out", "pkd", "--quiet"]
    assert unskew(*ask).code == 0
    run = read_run(tmp_path / "pkd")
    worst = {line.round: line.min_class for line in run.tested}
    target = max(worst.values())
    reached = min(number for number, value in worst.items() if value == target)
    group = run.counts.sum(axis=0)[[0, 1, 3, 8]].sum() / run.counts.sum()
    shares = [share for share in run.summary.tallies["activated"].share if share is not None]
    asked = sum(shares[: max(0, reached - 2)]) / 3
    expected = reached + asked + (4 * group if reached > 2 else 0)
    assert measure(f"cost:{100 * target - 1e-6}", run, "last") == pytest.approx(expected)
    assert measure("cost:101", run, "last") == math.inf
    assert measure("min_class", run, "last") == pytest.approx(100 * worst[5])
    assert measure("speed_up", run, "last", run) == 1.0
    pace = Pace.of(tmp_path)
    assert pace.estimate([run.experiment]) == pytest.approx(run.summary.seconds)
    other = run.experiment | {"method": {"name": "fedavg"}}
    assert pace.estimate([other]) == pytest.approx(run.summary.seconds)  # by what is most alike
    assert pace.estimate([run.experiment | {"model": {"name": "cnn"}}]) is None


def test_the_cost_of_each_round_of_pkd_by_hand() -> None:
    options = {"groups": "0/1", "warmup": 2, "expert_rounds": 4}
    given = {"rounds": 5, "epochs": 2, "class_sizes": [30, 20, 50], "shares": {"activated": [0.3, None, 0.6]}}
    count = METHODS["pkd"].round_costs
    # The experts train 4 rounds on half of the samples after the warm-up.
    assert count(options, **given) == pytest.approx({1: 1, 2: 1, 3: 1 + 4 / 2 + 0.1, 4: 1, 5: 1.2})
    assert count(options | {"groups": ""}, **given) is None
    assert count(options | {"warmup": "auto"}, **given) is None
    assert count(options, **given | {"epochs": None}) is None
    assert count(options, **given | {"shares": {}}) is None


def test_words() -> None:
    assert Version().full
    assert Version(precision="bf16").words == "bf16"
    assert [duration(seconds) for seconds in (0.2, 61, 600, 12000)] == ["1 s", "61 s", "10 min", "3 h 20 min"]
    assert Path(Version(2, 0.1, "bf16", fast=True).folder).name == "rounds=2,fraction=0.1,bf16,fast"
