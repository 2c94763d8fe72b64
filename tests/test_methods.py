"""Methods by name: alone, combined, and from a user's own file."""

from __future__ import annotations

import importlib
import json
import pickle
import random
import shlex
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from federations import flat
from unskew import Budget, Evaluation, Method, Trial, UserError, federate, methods, train
from unskew.data.augment import normalise
from unskew.experiment import MethodSpec
from unskew.method_costs import observe
from unskew.methods import METHODS, fedavg, fedprox
from unskew.methods.assemble import assemble
from unskew.metrics import Traffic
from unskew.metrics.costs import nbytes
from unskew.testing import check_method, hard_trial
from unskew.types import End, Memory, Scope, Tensors, Weights

pytestmark = pytest.mark.usefixtures("no_workers")
EXAMPLE = str(Path(__file__).parents[1] / "examples" / "flatten.py")


def run(unskew, method, *more):
    answer = unskew("run", "--method", method, "--rounds", "2", "--epochs", "1", "--quiet", "--json", *more)
    assert answer.code == 0, answer.err
    return json.loads(answer.out.splitlines()[-1])


def test_a_method_from_a_file_runs_through_the_same_commands(unskew):
    mine = run(unskew, EXAMPLE)
    assert mine["method"] == EXAMPLE
    assert mine["weights_sha256"] != run(unskew, f"{EXAMPLE}:beta=0.5")["weights_sha256"]
    assert run(unskew, f"{EXAMPLE}:beta=0")["weights_sha256"] == run(unskew, "fedavg")["weights_sha256"]


@pytest.mark.parametrize("module", [statistics, random])
def test_a_method_file_may_be_called_like_a_module_of_the_standard_library(unskew, tmp_path, module):
    name = module.__name__
    text = (
        Path(EXAMPLE)
        .read_text()
        .replace("from torch import", f"import {name} as standard\nfrom torch import")
    )
    (tmp_path / f"{name}.py").write_text(text)
    mine = run(unskew, f"{name}.py:beta=0.2")
    assert mine["weights_sha256"] == run(unskew, f"{EXAMPLE}:beta=0.2")["weights_sha256"]
    assert sys.modules[name] is module
    assert importlib.import_module(name) is module
    shown = unskew("methods", f"{name}.py").out
    assert "confident answers" in shown  # the file's docstring


def test_files_of_one_name_are_two_methods(unskew, tmp_path):
    for folder, beta in (("one", 0.0), ("other", 0.5)):
        (tmp_path / folder).mkdir()
        text = Path(EXAMPLE).read_text().replace("beta: float = 0.1", f"beta: float = {beta}")
        (tmp_path / folder / "mine.py").write_text(text)
    plain, strong = run(unskew, "one/mine.py+fedprox:mu=0"), run(unskew, "other/mine.py")
    assert plain["weights_sha256"] == run(unskew, "fedavg")["weights_sha256"]
    assert strong["weights_sha256"] == run(unskew, f"{EXAMPLE}:beta=0.5")["weights_sha256"]
    both, _ = assemble({"one/mine.py": {}, "other/mine.py": {}})
    assert len(both.terms) == 2


def test_classes_of_a_method_file_can_be_pickled(tmp_path):
    (tmp_path / "random.py").write_text(
        "from dataclasses import dataclass\nfrom unskew import Method\n\n"
        "@dataclass(frozen=True)\nclass Term:\n    beta: float\n\n"
        "    def __call__(self, view):\n        return self.beta * view.out.logits.mean()\n\n"
        "def random(*, beta: float = 0.1):\n    return Method(terms=(Term(beta),))\n"
    )
    method, _ = assemble({str(tmp_path / "random.py"): {"beta": 0.2}})
    (term,) = method.terms
    assert pickle.loads(pickle.dumps(term)) == term
    (tmp_path / "random.py").write_text((tmp_path / "random.py").read_text() + "\n")
    again, _ = assemble({str(tmp_path / "random.py"): {"beta": 0.2}})
    assert pickle.loads(pickle.dumps(again.terms[0])) == again.terms[0]


def test_a_method_file_may_have_a_card(unskew, tmp_path):
    card = '@card("flat", sends="its favourite colour")\ndef flatten'
    text = Path(EXAMPLE).read_text().replace("def flatten", card)
    text = text.replace(
        "from unskew import Method", "from unskew import Method\nfrom unskew.methods.card import card"
    )
    (tmp_path / "mine.py").write_text(text)
    assert "its favourite colour" in unskew("methods", "mine.py").out
    assert "flat" not in METHODS


def counter(name: str, *, silent: bool = False) -> Method:
    """Make a method whose clients count their rounds in a memory. If `silent`, they keep the memory with
    which they began."""

    def init(weights: Weights, counts: Tensor) -> Tensors:
        return {f"{name}/rounds": torch.zeros(1)}

    def update(scope: Scope, end: End) -> tuple[Tensors, Tensors]:
        rounds = scope.memory[f"{name}/rounds"] + 1
        return ({} if silent else {f"{name}/rounds": rounds}), {f"{name}/rounds": rounds}

    return Method(memory=Memory(init=init, update=update))


@pytest.mark.parametrize("order", [1, -1])
def test_what_an_update_leaves_out_stays_beside_a_method_that_keeps_something(order):
    """Check that memories behave together as they do in each method alone, also in local-only."""
    first, second = (counter("silent", silent=True), counter("busy"))[::order]
    trial = replace(hard_trial(), budget=Budget(rounds=3, epochs=1, batch_size=4))
    state = train(trial, first + second).state
    memories = [state.memories[client] for client in (0, 1, 2)]
    assert [float(memory["busy/rounds"]) for memory in memories] == [3, 3, 3]
    assert [float(memory["silent/rounds"]) for memory in memories] == [0, 0, 0]
    train(trial, METHODS["local-only"]() + first + second)


LEAKY = """
from unskew import Method
from unskew.types import Memory

def leaky(*, beta: float = 0.1) -> Method:
    def term(view):
        return beta * (view.out.logits - view.teacher.logits).square().mean()
    def update(scope, end):
        return {f"leaky/last/{name}": value for name, value in end.weights.params.items()}, {
            "leaky/counts": scope.counts
        }
    return Method(terms=(term,), memory=Memory(update=update))
"""


def test_of_a_method_without_a_card_is_told_what_a_trial_run_shows(unskew, tmp_path):
    (tmp_path / "leaky.py").write_text(LEAKY)
    shown = " ".join(unskew("methods", "leaky.py").out.split())
    assert "extra forward passes 1 for every sample and epoch" in shown
    assert "extra memory at a client 'leaky/last/...' for every tensor of the model" in shown
    assert "leaves the client weights, number of samples, and 'leaky/counts' of shape [4]" in shown
    assert "seen in a trial run" in shown
    (tmp_path / "leaky.py").write_text(LEAKY.replace("term(view):", "term(view):\n        1 / 0"))
    shown = " ".join(unskew("methods", "leaky.py").out.split())
    assert "leaves the client weights, number of samples, and what is not stated" in shown
    assert "a trial run of it ended with ZeroDivisionError" in shown
    assert "leaves the client" in unskew("methods", "fedavg").out
    assert "trial run" not in unskew("methods", "fedavg").out


@pytest.mark.parametrize(
    ("name", "passes", "sends"),
    [
        ("fedavg", "none", "nothing"),
        ("moon", "2 for every sample and epoch", "nothing"),
        ("fedsam", "1 with a gradient for every sample and epoch", "nothing"),
        ("balancefl", "1 for every sample and round", "nothing"),
        ("fednova", "none", "its number of local steps"),
        ("scaffold", "none", "'scaffold/change/...' for every tensor of the model"),
        ("centralised", "not stated", "not stated"),
    ],
)
def test_a_trial_run_sees_what_the_cards_say(name, passes, sends):
    seen = observe(METHODS[name]())
    assert (seen.passes, seen.sends) == (passes, sends)


def test_every_method_is_listed_once_under_the_name_on_its_card():
    assert [card.name for card in METHODS.values()] == list(METHODS)
    makes = [card.make for card in METHODS.values()]
    assert [name for name, card in METHODS.items() if makes.count(card.make) > 1] == ["fedvls", "feded"]


def test_a_method_by_import_name(unskew, tmp_path, monkeypatch):
    (tmp_path / "lab.py").write_text(Path(EXAMPLE).read_text())
    monkeypatch.syspath_prepend(tmp_path)
    assert run(unskew, "lab.flatten")["weights_sha256"] == run(unskew, EXAMPLE)["weights_sha256"]


def test_the_example_in_two_stages(unskew, digits):
    """Compare with FedAvg, and then FedProx with a weight that depends on how good the model is; with
    traffic, cost and note."""
    path = str(Path(EXAMPLE).parent / "two_stages.py")
    federation = federate(digits, "dirichlet:0.3", 4, 1)
    trial = Trial(federation, "mlp-small", Budget(rounds=4, epochs=1, lr=0.05))
    method, _ = assemble({path: {"mu": 2.0}})
    result, plain = train(trial, method), train(trial)
    half = train(replace(trial, budget=Budget(rounds=2, epochs=1, lr=0.05)))
    model = trial.build()
    model.load_state_dict(half.weights.params)
    rows = torch.from_numpy(np.concatenate(federation.partition.indices))
    x = normalise(digits.train.inputs[rows], digits.mean, digits.std)
    right = float((model(x).logits.argmax(1) == digits.train.labels[rows]).float().mean())
    expected = train(trial, fedprox(mu=2.0 * right), start=half.state)
    torch.testing.assert_close(flat(result.weights), flat(expected.weights), rtol=0, atol=1e-5)
    assert not torch.allclose(flat(result.weights), flat(plain.weights))
    assert f"right on {right:.3f}" in result.notes[-1]
    assert result.extra_traffic == Traffic(up=4 * 4, down=4 * nbytes(plain.weights.params))
    assert result.cost == pytest.approx(4 + 1 / 3)
    check_method(method)
    assert run(unskew, path)["cost"] == pytest.approx(2 + 1 / 3)


def test_the_example_keeps_the_laws():
    method, _ = assemble({EXAMPLE: {"beta": 0.2}})
    check_method(method)
    check_method(METHODS["fedprox"])


def test_the_laws_refuse_a_term_that_nobody_can_learn_from():
    def constant(view):
        return view.out.logits.detach().square().mean()

    with pytest.raises(UserError, match=r"terms\[0\] is a float"):
        check_method(Method(terms=(lambda view: 0.1,)))
    with pytest.raises(AssertionError, match=r"terms\[1\] \('constant'\) depends on the model"):
        check_method(METHODS["fedprox"]() + Method(terms=(constant,)))


def test_a_run_of_ones_own_files_repeats_from_another_folder(unskew, tmp_path, monkeypatch):
    rows = "\n".join(f"{i % 7},{i % 5},{'ab'[i % 2]}" for i in range(60))
    (tmp_path / "table.csv").write_text(f"x,y,kind\n{rows}\n")
    (tmp_path / "mine.py").write_text(Path(EXAMPLE).read_text())
    own = ["--dataset", "csv:table.csv,label=kind", "--skew", "iid", "--clients", "3"]
    assert unskew("skew", *own, "--out", "part.json").code == 0
    own[3:] = ["file:part.json"]
    first = run(unskew, "mine.py+fedprox:mu=0.5", *own, "--out", "first")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    answer = unskew("run", str(tmp_path / "first" / "experiment.toml"), "--quiet", "--json")
    assert answer.code == 2
    named = shlex.split(answer.err.removesuffix(".\n"))[-2:]  # what the answer says to add
    answer = unskew("run", str(tmp_path / "first" / "experiment.toml"), *named, "--quiet", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["weights_sha256"] == first["weights_sha256"]


def test_results_name_the_hyperparameters(unskew):
    summary = run(unskew, "fedprox:mu=0.5")
    assert summary["hyperparameters"] == {"mu": 0.5}
    assert Path(summary["run_dir"]).name.startswith("fedprox-mu=0.5-digits")
    answer = unskew(
        "compare", "fedprox:mu=0.1", "fedprox", "--rounds", "1", "--epochs", "1", "--quiet", "--json"
    )
    assert [each["hyperparameters"]["mu"] for each in json.loads(answer.out)["runs"]] == [0.1, 0.01]


def test_a_loss_that_is_not_one_number_is_said(unskew, tmp_path):
    (tmp_path / "rows.py").write_text(
        "from unskew import Method\n\n\n"
        "def rows():\n    return Method(terms=(lambda view: view.out.logits,))\n"
    )
    answer = unskew("run", "--method", "rows.py", "--rounds", "1")
    assert answer.code == 2
    assert "let it return one number" in answer.err


def test_a_method_put_together_with_a_neutral_one_is_the_same(unskew):
    plain = run(unskew, "fedprox:mu=0.5")
    both = run(unskew, f"fedprox:mu=0.5+{EXAMPLE}:beta=0")
    assert both["weights_sha256"] == plain["weights_sha256"]


def test_hyperparameters_of_methods_put_together_are_written_to_the_file(unskew):
    both = run(unskew, f"fedprox:mu=0.5+{EXAMPLE}")
    text = (Path(both["run_dir"]) / "experiment.toml").read_text()
    assert "mu = 0.5" in text
    assert "beta = 0.1" in text
    again = ["run", str(Path(both["run_dir"]) / "experiment.toml"), "--method", f"fedprox:mu=0.5+{EXAMPLE}"]
    answer = unskew(*again, "--quiet", "--json")
    assert json.loads(answer.out)["weights_sha256"] == both["weights_sha256"]


def test_what_cannot_be_put_together_is_refused_with_the_reason():
    loss = Method(loss=lambda view: view.out.logits.sum())
    other = Method(loss=lambda view: view.out.logits.mean())
    with pytest.raises(UserError, match="each has its own classification loss"):
        loss + other
    assert (fedavg() + fedprox()).terms
    with pytest.raises(UserError, match="twice"):
        MethodSpec(name="fedprox+fedprox").parts()


def test_two_corrections_of_drift_are_refused_in_python_too():
    one, other = methods.scaffold(), methods.feddyn()
    with pytest.raises(UserError, match="drift"):
        one + other


@pytest.mark.parametrize("name", ["scaffold", "fednova", "mofedsam", "fedcm", "fedmoswa"])
def test_methods_that_divide_by_steps_refuse_a_kept_momentum(unskew, name):
    answer = unskew(
        "run", "--method", f"{name}+fedprox", "--set", "budget.optimizer_state=kept", "--rounds", "1"
    )
    assert answer.code == 2
    assert "use budget.optimizer_state=fresh" in answer.err


@pytest.mark.parametrize("width", [16, 5])
def test_balancefl_refuses_features_that_are_not_the_last_layers_input(digits, width):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(64, 16), nn.Linear(16, 10)

        def forward(self, x):
            h = self.body(x.flatten(1))
            return h[:, :width], self.head(h.relu())

    trial = Trial(federate(digits, "iid", 3, 1), Odd, budget=Budget(rounds=1))
    with pytest.raises(UserError, match="linear layer of its features"):
        train(trial, methods.balancefl())


def test_fedcurv_does_not_depend_on_how_the_model_is_tested(digits):
    federation = federate(digits, "dirichlet:0.3", 3, 1)
    budget = Budget(rounds=2, epochs=1)
    one, other = (
        train(
            Trial(federation, "logistic", budget, evaluation=Evaluation(batch_size=size)),
            methods.fedcurv(lam=2, samples=40, batch_size=5),
        ).weights
        for size in (500, 7)
    )
    assert torch.equal(flat(one), flat(other))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def one():\n    return 1\n", "it should return a Method"),
        ("def one(): pass\ndef two(): pass\n", "defines 2 functions"),
        ("import nothing_of_this_name\n", "does not run"),
        ("def (", "does not run"),
        ("def broken(*, mu: float): pass\n", "hyperparameter mu of 'broken.py' has no default: give it one"),
        ("def broken(mu=None): pass\n", "hyperparameter mu of 'broken.py' has the default None: give"),
        ("def broken(**more): pass\n", "takes **more, which cannot be a hyperparameter: name each"),
        ("def broken(mu=1, /): pass\n", "takes mu=1, which cannot be a hyperparameter: name each"),
    ],
)
def test_a_broken_method_file_is_answered_in_one_sentence(unskew, tmp_path, text, reason):
    (tmp_path / "broken.py").write_text(text)
    answer = unskew("run", "--method", "broken.py", "--rounds", "1")
    assert answer.code == 2
    assert reason in answer.err
    assert answer.err.count("\n") == 1


def test_a_hyperparameter_without_a_type_takes_what_its_default_is(unskew, tmp_path):
    text = "from unskew import Method\n\ndef mine(mu=1, how='a'):\n    return Method()\n"
    (tmp_path / "mine.py").write_text(text)
    assert run(unskew, "mine.py:mu=0.5,how=b")["hyperparameters"] == {"mu": 0.5, "how": "b"}
    answer = unskew("run", "--method", "mine.py:mu=b")
    assert answer.code == 2
    assert "mu of mine.py is b but should be" in answer.err.replace("'", "")


@pytest.mark.parametrize(
    "name",
    [
        "fedvls+fedexp",  # FedVLS, Table 6
        "fedvls+fedsam",
        "fpl+fedvls",  # FedVLS, Tables 14 and 15
        "fedlmd+fedprox+fedavgm",  # FedLMD, Table 5
        "fedlc+scaffold",  # FedLC, Table 7
        "fedlc+fedprox",
        "fedlmd+ema",
        "fednova+fedadam+ema",
        "fedlmd+uniform",
        "pkd:warmup=1,expert_rounds=1+fedprox",
        "ccvr+fedlc",
    ],
)
def test_methods_are_combined_as_the_papers_do(unskew, name):
    summary = run(unskew, name, "--skew", "dirichlet:0.05", "--clients", "5")
    assert "+" in summary["method"]
    assert not any("diverged" in note for note in summary["notes"])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fedlc+fedrs", "each has its own classification loss, but only one is possible."),
        ("fedsam+fedgf", "each has its own gradient transform, but only one is possible."),
        ("fedavgm+fedadam", "each has its own server optimiser, but only one is possible."),
        ("fednova+fedexp", "each has its own aggregation rule, but only one is possible."),
        ("feddyn+scaffold", "each has its own correction of client drift, but only one is possible."),
        ("pkd+ccvr", "each trains in stages of its own."),
        ("fedavg+fedavg", "names a part twice: name each once."),
    ],
)
def test_a_combination_that_makes_no_sense_is_refused_with_the_reason(unskew, name, reason):
    answer = unskew("run", "--method", name)
    assert answer.code == 2
    assert answer.err.strip().endswith(reason)


NEUTRAL = ["fedprox:mu=0", "fedsam:rho=0", "moon:mu=0", "fedntd:beta=0", "feddecorr:beta=0", "fedmr:mu1=0"]


@pytest.mark.parametrize("base", ["fedvls", "fedlc+scaffold", "fedlmd+fedexp"])
def test_what_is_added_with_no_weight_changes_no_bit(unskew, base):
    plain = run(unskew, base, "--clients", "4")["weights_sha256"]
    for neutral in NEUTRAL:
        assert run(unskew, f"{base}+{neutral}", "--clients", "4")["weights_sha256"] == plain, neutral


def test_the_printed_form_of_fedvls_warns_before_and_after(unskew):
    answer = unskew("run", "--method", "fedvls:form=paper", "--rounds", "1", "--epochs", "1")
    assert answer.code == 0
    assert "no minimum" in answer.err
    assert "no minimum" in answer.out


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_shown(unskew, name):
    answer = unskew("methods", name)
    assert answer.code == 0
    assert "Deviations" in answer.out
    assert "leaves the client" in answer.out


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_digits_under_heavy_skew(unskew, name):
    summary = run(unskew, name, "--dataset", "digits", "--skew", "dirichlet:0.05", "--clients", "5")
    assert summary["method"] == name
    assert not any("diverged" in note for note in summary["notes"])
