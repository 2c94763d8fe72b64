"""The user's own models, partitions and weights from files: on the command line, in experiments, resumed."""

from __future__ import annotations

import json
import tomllib
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import unskew as package
from unskew import UserError
from unskew.data import Federation, federate

MODEL = """
import random

import torch
from torch import nn


class Net(nn.Sequential):
    def __init__(self, inputs, classes, hidden=8):
        features = inputs[0] * inputs[1] * inputs[2]
        super().__init__(nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def pair(a, b):
    return Net(a, b)


def deep(classes, depth):
    return Net((1, 8, 8), classes, depth)


def boom(classes):
    raise RuntimeError("no such thing")


def narrow(inputs):
    return Net(inputs, 3)


def text():
    return "a model"


def frozen(inputs, classes):
    return Net(inputs, classes).requires_grad_(False)


def dice(inputs, classes):
    net = Net(inputs, classes)
    nn.init.constant_(net[1].bias, random.random())
    return net


class Other:
    pass


seven = 7
"""

SKEW = """
import numpy as np


def halves(labels, clients, rng, keep=1.0):
    return np.array_split(rng.permutation(len(labels))[: int(keep * len(labels))], clients)


def told(labels):
    return [range(100), np.flatnonzero(labels[200:300] == 3) + 200]


def strange(a, b, c):
    return [[] for _ in range(b - 1)] + [np.flatnonzero(a == c.integers(1))]


def twice(labels, clients, rng):
    return [[0]] * clients


def repeated(labels, clients, rng):
    return [[k, k] for k in range(clients)]


def beyond(labels, clients, rng):
    return [[len(labels)]] * clients


def halved(labels, clients, rng):
    return [[0.5]] * clients


def fewer(labels, clients, rng):
    return [[1]]


def nothing(labels, clients, rng):
    return None


def boom(labels, clients, rng):
    return 1 / 0


def more(labels, clients, rng, share):
    return [[1]] * clients
"""

BRIEF = ("--rounds", "2", "--epochs", "1", "--clients", "4", "--skew", "dirichlet:0.3", "--quiet")


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL)
    Path("mine.py").write_text(SKEW)
    return tmp_path


def settings(run: str | Path) -> dict:
    return tomllib.loads(Path(run, "experiment.toml").read_text())


def weights(run: str | Path) -> str:
    return json.loads(Path(run, "summary.json").read_text())["weights_sha256"]


def test_a_model_in_a_file_trains_and_runs_again_from_elsewhere(files, unskew, monkeypatch, no_workers):
    made = unskew("run", "--model", "net.py:Net", "--set", "model.hidden=5", *BRIEF, "--out", "one")
    assert made.code == 0
    model = settings("one")["model"]
    assert (model["name"], model["hidden"]) == (str(files / "net.py:Net"), 5)
    assert len(model["sha256"]) == 64
    assert load_file("one/model.safetensors")["1.weight"].shape == (5, 64)
    (files / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    # a file of somebody else's chooses no code
    refused = unskew("run", "../one/experiment.toml", "--out", "two", "--quiet")
    assert refused.code == 2
    assert (
        f"whose code would run: if you trust it, give it yourself, as --model {model['name']}" in refused.err
    )
    again = unskew("run", "../one/experiment.toml", "--model", model["name"], "--out", "two", "--quiet")
    assert again.code == 0
    assert weights("two") == weights("../one")
    assert settings("two") == settings("../one")


def test_an_edited_model_is_another_experiment(files, unskew, no_workers):
    assert unskew("run", "--model", "net.py:Net", *BRIEF, "--out", "one").code == 0
    Path("one/summary.json").unlink()  # as if it had been stopped
    model = settings("one")["model"]
    Path("net.py").write_text(MODEL + "\n")
    answer = unskew("resume", "one", "--model", model["name"], "--quiet")
    assert answer.code == 2
    assert "net.py has changed since the experiment was written (model.sha256 is " in answer.err
    asked_anew = unskew("run", "--model", "net.py:Net", *BRIEF, "--out", "one")
    assert asked_anew.code == 2
    assert f"(model.sha256 is {model['sha256']} there and " in asked_anew.err
    Path("net.py").write_text(MODEL)
    refused = unskew("resume", "one", "--quiet")
    assert refused.code == 2
    assert "--model" in refused.err
    assert unskew("resume", "one", "--model", "net.py:Net", "--quiet").code == 0


METHOD = """
from unskew.method import Method, plain_loss


def {name}():
    return Method(terms=(lambda view: {sign}plain_loss(view),))
"""


def write_methods(**signs):
    for name, sign in signs.items():
        Path(f"{name}.py").write_text(METHOD.format(name=name, sign=sign))


def test_an_edited_method_is_another_experiment(files, unskew, no_workers):
    write_methods(mine="+")
    compared = ("compare", "fedavg", "mine.py", *BRIEF, "--out", "all")
    assert unskew(*compared).code == 0
    for name in ("all/compare.json", "all/fedavg-seed1/summary.json"):
        Path(name).unlink()  # as if it had been stopped
    write_methods(mine="-")
    answer = unskew(*compared)
    assert answer.code == 2
    assert "the output folder all holds another compare (method.sha256 is " in answer.err
    write_methods(mine="+")
    assert unskew(*compared).code == 0


def test_a_method_that_failed_at_once_may_be_fixed(files, unskew, no_workers):
    """No run has results of the earlier content of its file."""
    write_methods(mine="1 / 0 +", other="+")
    compared = ("compare", "other.py", "mine.py", *BRIEF, "--seeds", "1,2", "--out", "all")
    assert unskew(*compared).code == 2
    before = Path("all/other.py-seed1/rounds.jsonl").read_bytes()
    write_methods(mine="+")
    assert unskew(*compared).code == 0
    table = tomllib.loads(Path("all/mine.py-seed2/experiment.toml").read_text())["method"]
    assert table["sha256"] == sha256(Path("mine.py").read_bytes()).hexdigest()
    assert Path("all/other.py-seed1/rounds.jsonl").read_bytes() == before


def test_a_run_of_an_edited_method_is_not_resumed(files, unskew, no_workers):
    write_methods(mine="+", other="+")
    assert unskew("run", "--method", "fedprox+mine.py+other.py", *BRIEF, "--out", "one").code == 0
    Path("one/summary.json").unlink()
    write_methods(other="-")
    method = "+".join(settings("one")["method"]["name"].split("+")[1:])
    answer = unskew("resume", "one", "--method", method, "--quiet")
    assert answer.code == 2
    assert "other.py has changed since the experiment was written (method.sha256 is " in answer.err


def test_two_versions_of_a_method_are_told_apart(files, unskew, no_workers):
    write_methods(mine="+")
    assert unskew("run", "--method", "mine.py", *BRIEF, "--out", "one").code == 0
    write_methods(mine="-")
    assert unskew("run", "--method", "mine.py", *BRIEF, "--out", "two").code == 0
    table = unskew("table", "one", "two", "--out", "table.csv")
    assert table.code == 0, table.err
    content = [tomllib.loads(Path(f"{run}/experiment.toml").read_text())["method"] for run in ("one", "two")]
    assert all(f"mine.py ({each['sha256'][:8]})" in Path("table.csv").read_text() for each in content)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Nett", "unknown name in net.py 'Nett': did you mean 'Net'?"),
        ("", "'net.py:' does not say which model of the file: write net.py:Net."),
        ("seven", "'net.py:seven' is of type int: let it be an nn.Module class, or a function that returns"),
        ("Other", "the class 'net.py:Other' is no torch.nn.Module: derive it from one."),
        ("text", "'net.py:text' returns a str: let it return a torch.nn.Module."),
        ("boom", "the model 'net.py:boom' cannot be made (RuntimeError: no such thing): fix it"),
        ("narrow", "the model returns logits of shape [2, 3] for 10 classes: let its last layer have 10"),
        ("frozen", "the model has nothing to train: give it a parameter that requires a gradient."),
        ("dice", "the model 'net.py:dice' has other initial weights each time it is made"),
        ("deep", "model 'net.py:deep' needs a value for depth: give it as --set model.depth=VALUE."),
    ],
)
def test_a_model_that_is_none_is_refused_before_anything_is_written(files, unskew, name, sentence):
    answer = unskew("run", "--model", f"net.py:{name}", *BRIEF, "--out", "one")
    assert answer.code == 2
    assert sentence in answer.err
    assert answer.err.count("\n") == 1
    assert not Path("one").exists()


def test_models_are_given_what_they_ask_for(files, unskew, no_workers):
    assert unskew("run", "--model", "net.py:pair", *BRIEF, "--out", "one").code == 0
    assert unskew("run", "--model", "net.py:deep", "--set", "model.depth=3", *BRIEF, "--out", "two").code == 0
    wrong = unskew("run", "--model", "net.py:Net", "--set", "model.hiden=3", *BRIEF, "--out", "three")
    assert "unknown setting of model 'net.py:Net' 'hiden': did you mean 'hidden'?" in wrong.err
    Path("net.py").write_text("import nowhere_to_be_found")
    broken = unskew("run", "--model", "net.py:Net", *BRIEF, "--out", "three")
    assert "net.py does not run: ModuleNotFoundError" in broken.err
    assert "there is no model file no.py" in unskew("run", "--model", "no.py:Net", *BRIEF, "--out", "x").err


def test_a_run_starts_from_another_and_says_what_it_takes(files, unskew, no_workers):
    assert unskew("run", *BRIEF, "--out", "first").code == 0
    more = unskew("run", "--init", "first", *BRIEF, "--out", "second")
    assert more.code == 0
    assert "note: started from first: all 4 tensors of the model are taken." in more.out
    assert settings("second")["model"]["init"] == str(files / "first")
    head = unskew(
        "run", "--init", "first/model.safetensors", "--set", "model.train_only=head", *BRIEF, "--out", "third"
    )
    assert "650 of the model's 4,810 parameters are trained and sent." in head.out
    before, after = (load_file(f"{run}/model.safetensors") for run in ("first", "third"))
    assert torch.equal(before["body.fc1.weight"], after["body.fc1.weight"])
    assert not torch.equal(before["head.weight"], after["head.weight"])
    sent = json.loads(Path("third/summary.json").read_text())["traffic"]
    assert sent == {"up": 2 * 4 * 650 * 4, "down": 2 * 4 * 650 * 4}
    assert unskew("figure", "features", "third", "--out", "f.png").code == 0  # the frozen part is in the file
    # a run by adapters can be continued by all parameters
    lora = ("--init", "first", "--set", "model.lora=2", *BRIEF)
    assert unskew("run", *lora, "--out", "fourth").code == 0
    merged = unskew("run", "--init", "fourth", *BRIEF, "--out", "fifth")
    assert "started from fourth: all 4 tensors of the model are taken." in merged.out


def test_weights_that_are_gone_or_changed_stop_a_resume(files, unskew, no_workers):
    assert unskew("run", *BRIEF, "--out", "first").code == 0
    assert unskew("run", "--init", "first", *BRIEF, "--out", "second").code == 0
    whole = weights("second")
    Path("second/summary.json").unlink()
    Path("first/model.safetensors").rename("kept")
    answer = unskew("resume", "second", "--quiet")
    assert answer.code == 2
    assert "first has no model yet" in answer.err or "without model.safetensors" in answer.err
    Path("first/model.safetensors").write_bytes(Path("second/model.safetensors").read_bytes())
    answer = unskew("resume", "second", "--quiet")
    assert "first/model.safetensors has changed since the experiment was written" in answer.err
    Path("kept").replace("first/model.safetensors")
    assert unskew("resume", "second", "--quiet").code == 0
    assert weights("second") == whole
    compared = unskew("compare", "fedavg", "fedprox", "--init", "first", *BRIEF, "--out", "both")
    assert compared.code == 0
    assert "both holds a compare: name" in unskew("run", "--init", "both", *BRIEF, "--out", "x").err


def test_a_stopped_fine_tuning_goes_on_with_the_same_bits(skewed, tmp_path):
    from unskew.models import Tuning

    first = package.train(package.Trial(skewed, "mlp-small", budget=package.Budget(rounds=1, epochs=1)))
    trial = package.Trial(
        skewed,
        "mlp-small",
        budget=package.Budget(rounds=4, epochs=1),
        engine="loop",
        init=first.weights.params,
        tuning=Tuning(lora=2),
    )
    whole = package.train(trial, package.methods.scaffold())

    def stop(round):
        if round.number == 2:
            checkpoints.wait()
            raise KeyboardInterrupt

    checkpoints = package.Checkpoints(tmp_path, trial, "scaffold", every="every=1")
    with pytest.raises(KeyboardInterrupt):
        package.train(trial, package.methods.scaffold(), on_round=stop, keeper=checkpoints)
    checkpoints.close()
    assert list(tmp_path.glob("*.checkpoint"))
    again = package.train(
        trial, package.methods.scaffold(), keeper=package.Checkpoints(tmp_path, trial, "scaffold")
    )
    for name, value in (whole.weights.params | whole.weights.buffers).items():
        assert torch.equal(value, (again.weights.params | again.weights.buffers)[name])


def test_a_partition_by_a_function_in_a_file(files, unskew, no_workers):
    shown = unskew("skew", "--skew", "mine.py:halves,keep=0.5", "--clients", "4", "--json")
    told = json.loads(shown.out)
    assert sum(told["sizes"]) == 721
    assert told["dropped"] == 721
    run = unskew("run", *BRIEF, "--skew", "mine.py:halves,keep=0.5", "--out", "one")
    assert run.code == 0
    skew = settings("one")["skew"]
    assert skew["recipe"] == f"{files / 'mine.py'}:halves,keep=0.5"
    assert len(skew["sha256"]) == 64
    assert json.loads(Path("one/partition.json").read_text())["index_sha256"] == told["index_sha256"]
    assert "whose code would run" in unskew("skew", "one/experiment.toml").err
    assert unskew("run", "one/experiment.toml", "--skew", skew["recipe"], "--quiet", "--out", "two").code == 0
    assert weights("one") == weights("two")
    auto = unskew("skew", "--skew", "mine.py:told", "--json")
    assert json.loads(auto.out)["clients"] == 2
    nested = unskew("skew", "--skew", "longtail:10+mine.py:halves", "--clients", "3", "--json")
    assert json.loads(nested.out)["dropped"] == 851
    Path("hostile.toml").write_text('[skew]\nrecipe = "longtail:10+mine.py:halves"\n')
    assert "whose code would run" in unskew("run", "hostile.toml", "--out", "x").err


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("twice", "'mine.py:twice' gives sample 0 to client 0 and to client 1: only one may have it."),
        ("repeated", "'mine.py:repeated' gives client 0 a sample twice: name each once."),
        ("beyond", "'mine.py:beyond' gives client 0 the index 1442, but there are 0..1441"),
        ("halved", "'mine.py:halved' has no flat list of integers for client 0"),
        ("fewer", "'mine.py:fewer' divides among 1 clients, but 4 are asked for"),
        ("nothing", "'mine.py:nothing' returns a NoneType: let it return a list with the indices of each"),
        ("boom", "the partition 'mine.py:boom' failed (ZeroDivisionError: division by zero): fix it."),
        ("more", "'mine.py:more' needs a value for share: write mine.py:more,share=VALUE"),
        ("halves,kep=1", "unknown option of 'mine.py:halves' 'kep': did you mean 'keep'?"),
        ("halves,1", "'1' is out of place in 'mine.py:halves,1': write option=value."),
        ("halve", "unknown name in mine.py 'halve': did you mean 'halves'?"),
        ("", "'mine.py:' does not say which function of the file: write mine.py:FUNCTION."),
        ("halves+iid", "cannot be followed by '+iid': let it come last."),
    ],
)
def test_a_partition_that_is_none_is_refused(files, unskew, name, sentence):
    answer = unskew("skew", "--skew", f"mine.py:{name}", "--clients", "4")
    assert answer.code == 2
    assert sentence in answer.err
    assert answer.err.count("\n") == 1


def test_a_partition_by_a_function_in_python(digits):
    def odd_and_even(labels, clients, rng):
        return [np.flatnonzero(labels % clients == k) for k in range(clients)]

    federation = federate(digits, odd_and_even, clients=2, seed=1)
    assert isinstance(federation, Federation)
    assert (federation.counts[0][1::2] == 0).all()
    assert federation.partition.dropped == 0
    with pytest.raises(UserError, match="divides among 3 clients"):
        federate(digits, lambda labels, clients, rng: [[0], [1], [2]], clients=2, seed=1)


def test_what_is_written_of_ones_own_files_can_be_run_again(unskew, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n\n\n"
        "def halves(labels, clients, rng):\n"
        "    return np.array_split(rng.permutation(len(labels)), clients)\n"
    )
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, inputs, classes, norm='layer'):\n"  # called as a setting of every model
        "        super().__init__(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    own = ["--skew", "longtail:10+mine.py:halves", "--model", "net.py:Net", "--quiet"]
    brief = ["--clients", "3", "--rounds", "1", "--epochs", "1", "--engine", "loop"]
    first = unskew("run", *own, *brief, "--out", "first")
    assert first.code == 0, first.err
    again = unskew("run", "first/experiment.toml", *own, "--out", "again")
    assert again.code == 0, again.err
    first, again = ((tmp_path / each / "model.safetensors").read_bytes() for each in ("first", "again"))
    assert first == again


def test_a_module_that_is_made_already_is_refused(unskew, tmp_path):
    (tmp_path / "net.py").write_text("from torch import nn\n\nready = nn.Linear(64, 10)\n")
    answer = unskew("run", "--model", "net.py:ready")
    assert answer.code == 2
    assert "is a module that is made already, with weights that no seed sets" in answer.err


def test_a_partition_in_a_file_counts_by_its_content(unskew, tmp_path, no_workers):
    for name, skew in (("a.json", "dirichlet:0.3"), ("b.json", "iid")):
        assert unskew("skew", "--clients", "3", "--skew", skew, "--out", name).code == 0
    brief = ("--skew", "file:same.json", "--rounds", "1", "--epochs", "1", "--quiet", "--json")
    told = []
    for name in ("a.json", "b.json"):
        (tmp_path / "same.json").write_bytes((tmp_path / name).read_bytes())
        told.append(json.loads(unskew("run", *brief, "--out", f"of-{name}").out)["identity"])
    assert told[0] != told[1]
    answer = unskew("run", "of-a.json/experiment.toml", "--out", "again")
    assert answer.code == 2
    assert "same.json has changed since the experiment was written (skew.sha256 is " in answer.err


@pytest.mark.parametrize(
    ("folder", "own", "sign"),
    [
        ("a,b", ("--dataset", "csv:t.csv,label=y"), ","),
        ("p+q", ("--dataset", "csv:t.csv,label=y"), "+"),
        ("c++", ("--method", "mine.py"), "+"),
        ("x:y", ("--skew", "mine.py:part"), ":"),
    ],
)
def test_a_path_that_no_settings_can_name_is_refused_before_anything_runs(
    unskew, tmp_path, monkeypatch, folder, own, sign
):
    (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / folder)
    Path("t.csv").write_text("x,y\n" + "".join(f"{n},{n % 2}\n" for n in range(40)))
    Path("mine.py").write_text(
        "from unskew.method import Method\n\n\ndef mine():\n    return Method()\n\n\n"
        "def part(labels, clients, rng):\n"
        "    return [range(n, len(labels), clients) for n in range(clients)]\n"
    )
    answer = unskew("run", *own, "--clients", "2", "--rounds", "1", "--quiet", "--out", "r")
    assert answer.code == 2
    assert (
        f"contains a '{sign}', which separates settings where those of a run are written down" in answer.err
    )
    assert not Path("r").exists()


@pytest.mark.parametrize("name", ["name", "sha256"])
def test_a_hyperparameter_called_as_a_methods_own_setting_is_refused(unskew, tmp_path, name):
    (tmp_path / "mine.py").write_text(
        f"from unskew.method import Method\n\n\ndef mine(*, {name}: str = 'a'):\n    return Method()\n"
    )
    answer = unskew("run", "--method", "mine.py", *BRIEF)
    assert answer.code == 2
    assert f"'mine.py' has a hyperparameter called {name}" in answer.err
